"""A loop over tasks, a method of one's own, and an observer: handwritten digits, two classes at a time.

    python examples/loop_over_tasks.py [--epochs 8] [--dream-steps 150]

The method rehearses dreams: plain cross-entropy over new images and dreams of the old classes. Everything that it takes
comes from `import reverie`.
"""

from __future__ import annotations

import argparse

import reverie
from reverie import losses


class DreamRehearsal(reverie.DreamReplay):
    """Cross-entropy over new images and dreams alike; a dream's label is the class that the teacher sees in it."""

    title = "Dream rehearsal"

    @reverie.settings("method")
    class Options:
        dreams: float = 1.0  # their weight; set it with settings={"method.dreams": 0.5}

    def losses(self, replay):
        logits, real = self.classifier(replay.images), replay.real
        return {
            "real": losses.cross_entropy(logits[:real], replay.labels[:real]),
            "dreamed": self.options.dreams * losses.cross_entropy(logits[real:], replay.labels[real:]),
        }


class LastLosses(reverie.Observer):
    """Remembers the losses of the last epoch."""

    def epoch_ends(self, epoch, lr, losses):
        self.losses = {name: round(value, 3) for name, value in losses.items()}


def learn(method: str, settings: dict[str, object]) -> None:
    """Print the accuracy over all classes seen, after each task."""
    config = reverie.configure("digits-5", method, settings=settings)
    stream = reverie.make_stream(config, reverie.load_dataset(config))
    learner, watched = reverie.TaskLearner.for_stream(config, stream), LastLosses()
    for task in stream:
        learner.learn(task, observer=watched)
        accuracy = learner.score(stream[: task.index + 1].test())
        print(f"{method}, task {task.index + 1} ({', '.join(task.names)}): {accuracy:.1%}  {watched.losses}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--dream-steps", type=int, default=150)
    asked = parser.parse_args()
    reverie.register_method("dream-rehearsal", DreamRehearsal)  # in a package of one's own, an entry point does this
    quick = {"train.epochs": asked.epochs, "train.milestones": [asked.epochs], "dream.steps": asked.dream_steps}
    for name in ("base", "dream-rehearsal"):
        learn(name, quick)

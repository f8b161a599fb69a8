"""The learner: a classifier and a method. Tasks in, a bigger classifier out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reverie import seeding
from reverie.config.schema import Config
from reverie.config.typed import build
from reverie.data.augment import Normaliser
from reverie.data.images import Images, MemoryImages, images_at_once
from reverie.data.stream import Task
from reverie.engine.loop import Engine, Observer, Snapshot
from reverie.engine.phase import Phase
from reverie.errors import Diverged, UserError
from reverie.methods import find_method
from reverie.methods.base import Keeps, count_bytes
from reverie.model import folder as model_io
from reverie.model.folder import SavedModel
from reverie.nets import make_backbone
from reverie.nets.classifier import Classifier, Preprocessing
from reverie.nets.statistics import noting, noting_layers


@dataclass(frozen=True)
class Checkpoint:
    """How far a task had come when it was interrupted."""

    phase: int  # the phase it was in
    state: Mapping[str, Any]  # the learner as it was when that phase began
    snapshot: Snapshot | None  # and what had moved since


class LearnerObserver(Observer):
    def phase_ready(self, number: int, learner: TaskLearner) -> None:
        """Before a phase begins: everything that will rest during it can be written down now."""

    def snapshot_for(self, number: int, phase: Phase, learner: TaskLearner) -> Snapshot | None:
        """To go on from instead of training the phase from its beginning, if somebody knows this very phase."""
        return None


class Several(LearnerObserver):
    """Passes every call on to several observers, in order."""

    def __init__(self, *observers: LearnerObserver) -> None:
        self.observers = observers

    def phase_ready(self, number: int, learner: TaskLearner) -> None:
        for observer in self.observers:
            observer.phase_ready(number, learner)

    def snapshot_for(self, number: int, phase: Phase, learner: TaskLearner) -> Snapshot | None:
        known = (observer.snapshot_for(number, phase, learner) for observer in self.observers)
        return next((snapshot for snapshot in known if snapshot is not None), None)

    def phase_begins(self, phase: Phase, done: int) -> None:
        for observer in self.observers:
            observer.phase_begins(phase, done)

    def step_ends(self, done: int, snapshot: Callable[[], Snapshot]) -> None:
        for observer in self.observers:
            observer.step_ends(done, snapshot)

    def epoch_ends(self, epoch: int, lr: float, losses: Mapping[str, float]) -> None:
        for observer in self.observers:
            observer.epoch_ends(epoch, lr, losses)

    def phase_ends(self, phase: Phase, summary: Mapping[str, Any]) -> None:
        for observer in self.observers:
            observer.phase_ends(phase, summary)


@dataclass(frozen=True)
class Prediction:
    """The classes an image most likely shows, best first, as labels in learned order, and the probability of each."""

    labels: Tensor
    probabilities: Tensor


class TaskLearner:
    """`learn(task)` one after the other, `predict(images)` at any time, `save(folder)`."""

    def __init__(self, config: Config, classifier: Classifier, device: torch.device | str = "cpu") -> None:
        self.config = config
        self.device = torch.device(device)
        self.classifier = classifier.to(self.device)
        self.method = find_method(config.method)(self.classifier, config, self.device)
        self.engine = Engine(self.device, config.engine.precision, config.engine.capture, config.engine.compile)
        self.ledger: list[dict[str, Any]] = []  # what was learned from, and what was kept of it

    @classmethod
    def fresh(
        cls, config: Config, preprocessing: Preprocessing, classes: int = 0, device: torch.device | str = "cpu"
    ) -> TaskLearner:
        """A learner that knows nothing yet. `classes` (in all) only matters to a head with all rows from the start."""
        if not find_method(config.method).normalised:
            preprocessing = preprocessing.without_normalisation()
        with seeding.initialising(config.seed, "backbone"):
            backbone = make_backbone(config.net.name, preprocessing.channels, preprocessing.size)
        rows = classes if config.net.head == "all" else 0
        return cls(config, Classifier(backbone, preprocessing, config.seed, rows), device)

    @classmethod
    def of(cls, saved: SavedModel, device: torch.device | str = "cpu") -> TaskLearner:
        """On any device: how a step was run where the model was trained is of no account here."""
        config = replace(saved.config, engine=replace(saved.config.engine, capture=None, compile=None))
        try:
            build(find_method(config.method).Options, config.options, "method.")
        except UserError:  # of a package that is not here, or is another by now: the model answers all the same
            config = replace(config, method="base", options={})
        learner = cls(config, saved.classifier, device)
        learner.ledger = saved.ledger
        return learner

    def learn(self, task: Task, observer: LearnerObserver | None = None, checkpoint: Checkpoint | None = None) -> None:
        """Learn the task's classes beside those already known. Afterwards the task is closed.

        With `checkpoint`, go on where an earlier call was interrupted; `prepare` must have been called before.
        """
        observer = observer or LearnerObserver()
        if task.first_label != self.classifier.seen:
            raise ValueError(f"the task begins at class {task.first_label}, but {self.classifier.seen} are known")
        self._check_shape(task.images)
        with self._memory_explained():
            self._learn(task, observer, checkpoint)
            self._note_statistics(task)
        self.method.end(task)
        self._write_ledger(task)
        self.classifier.eval()
        task.close()

    def _learn(self, task: Task, observer: LearnerObserver, checkpoint: Checkpoint | None) -> None:
        self.method.begin(task)
        self.classifier.grow(task.names)
        for number, phase in enumerate(self.method.phases(task)):
            snapshot = None
            if checkpoint is not None and number < checkpoint.phase:
                continue  # trained before the interruption; what it made is in `checkpoint.state`
            if checkpoint is not None and number == checkpoint.phase:
                self._load(checkpoint.state)
                snapshot = checkpoint.snapshot
            else:
                observer.phase_ready(number, self)
            snapshot = snapshot or observer.snapshot_for(number, phase, self)
            seed = seeding.derive(self.config.seed, "task", task.index, phase.name)
            self.engine.run(phase, seed, observer, snapshot)

    def _note_statistics(self, task: Task) -> None:
        """For dreams of these classes, where the network has no BatchNorm, which notes them of its own accord."""
        if noting_layers(self.classifier):
            with noting(self.classifier):
                for _ in self.logits(task.images, self.config.train.batch_size):
                    pass

    @contextmanager
    def _memory_explained(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            train, dream = self.config.train.batch_size, self.config.dream.batch_size or self.config.train.batch_size
            raise UserError(
                f"The GPU's memory is full. Lower train.batch_size (now {train}) or dream.batch_size (now {dream}), "
                "keep the images on disk (data.storage=stream), or see what else is using the GPU."
            ) from None

    def logits(self, images: Images | Tensor, batch_size: int | None = None) -> Iterator[Tensor]:
        """Logits of all classes seen, batch by batch, for images or uint8 pixels [n, channels, side, side]."""
        shown: Images = _unlabelled(images) if isinstance(images, Tensor) else images
        self._check_shape(shown)
        shape = self.classifier.preprocessing
        normalise = Normaliser(shape.mean, shape.deviation, self.device)
        self.classifier.eval()
        for index in torch.arange(len(shown)).split(batch_size or images_at_once(shape.size)):
            with torch.inference_mode(), self.engine.arithmetic():
                logits = self.classifier(normalise(shown.read(index).to(self.device))).float().cpu()
            if not bool(logits.isfinite().all()):  # weights may be large beyond use, and numbers still
                raise Diverged(
                    "The network's answers are no longer numbers. If it has just been trained, a lower learning rate "
                    "may help: train.lr."
                )
            yield logits

    def predict(self, images: Images | Tensor, top: int = 1) -> Prediction:
        parts = [logits.softmax(dim=1).topk(min(top, self.classifier.seen)) for logits in self.logits(images)]
        return Prediction(
            torch.cat([part.indices for part in parts]),
            torch.cat([part.values for part in parts]),
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "classes": list(self.classifier.class_names),
            "classifier": self.classifier.state_dict(),
            "method": self.method.state_dict(),
            "ledger": self.ledger,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """A state from between two tasks."""
        self.prepare(state, len(state["classes"]))
        self._load(state)

    def prepare(self, state: Mapping[str, Any], known: int) -> None:
        """Take the shape of a state in which `known` classes were known; `learn` then brings the values."""
        self.classifier.grow(state["classes"][self.classifier.seen : known])
        self.method.load_state_dict(state["method"])

    def _load(self, state: Mapping[str, Any]) -> None:
        self.classifier.load_state_dict(state["classifier"])
        self.method.load_state_dict(state["method"])
        self.ledger = list(state["ledger"])

    def save(self, folder: Path | str, overwrite: bool = False) -> None:
        """Write a model folder: weights, classes, preprocessing, a card, and the ledger. `reverie.load` reads it."""
        model_io.save(Path(folder), SavedModel(self.classifier, self.config, self.ledger), overwrite)

    def _write_ledger(self, task: Task) -> None:
        state = self.method.state_dict()
        if state and self.method.keeps == Keeps.NOTHING:
            raise RuntimeError(f"{self.config.method!r} declares that it keeps nothing, but keeps {sorted(state)}")
        carries, images_kept = self.method.keeps == Keeps.NETWORKS, self.method.kept_images()
        gone = {"images": not images_kept, "file names": True, "dreams": True, "dreamer": not carries, "teacher": True}
        self.ledger.append(
            {
                "task": task.index + 1,
                "classes": list(task.names),
                "images_seen": task.size,
                "method": self.config.method,
                "keeps": str(self.method.keeps),
                "kept_bytes": self.method.kept_bytes(),
                "classifier_bytes": count_bytes(self.classifier.state_dict()),
                "kept": self._kept(),
                "images_kept": images_kept,
                "not_kept": [what for what, is_gone in gone.items() if is_gone],
            }
        )

    def _kept(self) -> dict[str, int]:
        """Bytes by kind."""
        state, learned = self.classifier.state_dict(), {name for name, _ in self.classifier.named_parameters()}
        kept = {
            "weights": count_bytes([value for name, value in state.items() if name in learned]),
            "statistics": count_bytes([value for name, value in state.items() if name not in learned]),
        }
        keeps = self.method.keeps
        return kept if keeps == Keeps.NOTHING else kept | {str(keeps): self.method.kept_bytes()}

    def _check_shape(self, images: Images) -> None:
        shape = self.classifier.preprocessing
        wanted = (shape.channels, shape.size, shape.size)
        if tuple(images.shape) != wanted:
            raise UserError(f"The classifier takes images of shape {wanted}, not {tuple(images.shape)}.")


def _unlabelled(pixels: Tensor) -> MemoryImages:
    return MemoryImages(pixels, torch.zeros(len(pixels), dtype=torch.long))

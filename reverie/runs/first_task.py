"""The first task and the dreams of it, trained once and gone on from by every run beside that would train the same.

What is shared is the engine's snapshot from the end of a phase, the first of the first or of the second task, which a
run takes for its own checkpoint. Two phases are the same when everything that goes into them is: that is looked up in
the phase itself, not guessed from the configuration, and what is not known to make no difference ends in a phase of
one's own (docs/tables.md).
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import IO, Any

from torch import nn

from reverie.data.augment import Augmenter
from reverie.data.feed import DeviceFeed, NoData, StreamingFeed
from reverie.data.stream import Task
from reverie.engine.loop import Snapshot, synchronise
from reverie.engine.phase import Phase
from reverie.errors import Interrupted
from reverie.learner.checkpoint import Journal, lock_file, read_events
from reverie.learner.task_learner import LearnerObserver, TaskLearner
from reverie.methods.abd import ABD
from reverie.methods.base import Method
from reverie.methods.dreamer import Dreamer
from reverie.system import files as disk
from reverie.system.provenance import digest

log = logging.getLogger("reverie")
FOLDERS = ("first-tasks", "first-dreams")  # by task; beside the run folders that share them
_POLL_SECONDS = 0.2
FOUND = ("first_task", "first_dreams")  # how a run's result calls them
# Losses that look at the classifier and the batch, at nothing else, and change neither; a test holds them to it.
PLAIN_LOSSES = (Method.first_losses, ABD.first_losses_of_every_row)
_KEYED = {"name", "feed", "losses", "optimizer", "moves", "epochs", "steps", "full_precision"}  # the rest must be unset


class FirstTask(LearnerObserver):
    """Follows one of the first two tasks of a run: finds its first phase trained already, or keeps it for others."""

    def __init__(
        self, beside: Path, task: Task, origin: Sequence[Any], journal: Journal, session: dict[str, Any]
    ) -> None:
        """`origin` says which images the task consists of; `session`, what runs where."""
        self.folder = beside.resolve().parent / FOLDERS[task.index]
        self.task, self.journal, self.session = task, journal, session
        where = {name: value for name, value in session["environment"].items() if name != "commit"}
        self.circumstances = [_code(), where, *origin]
        self._key: str | None = None  # of a phase that is to be kept
        self._claim: IO[str] | None = None  # to train it: other runs wait for it meanwhile
        self._steps = 0
        self._snapshot: bytes | None = None  # of its last step
        self._seconds = 0.0  # until then

    def __enter__(self) -> FirstTask:
        return self

    def __exit__(self, *error: object) -> None:
        self._release()

    def snapshot_for(self, number: int, phase: Phase, learner: TaskLearner) -> Snapshot | None:
        """Not asked in a phase that goes on from its own checkpoint."""
        look = _dream_ingredients if self.task.index else _ingredients
        ingredients = None if number else look(phase, learner, self.task)
        if ingredients is None:
            return None
        key = _short([*self.circumstances, ingredients])
        snapshot = self._find(key, phase)
        if snapshot is None:
            self._claim = self._wait_for(key)
            snapshot = self._find(key, phase)
        if snapshot is None:
            self._key = key
            trained_by = {name: getattr(learner.config, name) for name in ("preset", "method", "recipe", "seed")}
            # In every checkpoint, so that the phase can be kept even if it is interrupted.
            self.session["keeping"] = [self.task.index, phase.name, _short(self.circumstances), key, trained_by]
        else:
            self._release()
        return snapshot

    def _wait_for(self, key: str) -> IO[str]:
        """While another run trains it; then it is there, or, if that run did not come to its end, ours to train."""
        claim = self._lock(key)
        if claim is None:
            what = ("the first task", "the dreams of the first task")[self.task.index]
            log.info("Another run is training %s; this one waits for it.", what)
        while claim is None:
            if self.journal.stop:
                raise Interrupted
            time.sleep(_POLL_SECONDS)
            claim = self._lock(key)
        return claim

    def _lock(self, key: str) -> IO[str] | None:
        self.folder.mkdir(parents=True, exist_ok=True)
        return lock_file(self.folder / f"{key}.lock")

    def _release(self) -> None:
        """If two runs should get the lock because its file goes away, both train, which is no harm."""
        if self._claim is not None:
            self._claim.close()
            with suppress(OSError):
                Path(self._claim.name).unlink(missing_ok=True)
            self._claim = None

    def _find(self, key: str, phase: Phase) -> Snapshot | None:
        try:
            entry = disk.read_json(self.folder / key / "entry.json")
            snapshot = disk.read_state(self.folder / key / "snapshot.pt")
            epochs, seconds = [dict(epoch) for epoch in entry["epochs"]], float(entry["seconds"])
            found = {"key": key, "trained_by": entry["trained_by"], "seconds": seconds}
        except FileNotFoundError:
            return None
        except Exception as error:  # a damaged file can fail in any way
            log.warning("The first task in %s cannot be read (%s); it is trained again.", self.folder / key, error)
            return None
        for epoch in epochs:
            where = {"task": self.task.index + 1, "tasks": self.journal.tasks, "phase": phase.name}
            self.journal.event("epoch", **where, **epoch)
        self.journal.add_seconds(phase.name, seconds)  # they count, whoever spent them
        self.session[FOUND[self.task.index]] = found
        return snapshot

    def phase_begins(self, phase: Phase, done: int) -> None:
        self._steps = phase.total_steps
        if not 0 < done < self._steps:
            return
        # It was interrupted. What went on elsewhere, or with other code, is right for this run, but nothing to hand on.
        before = self.journal.sessions[-2].get("keeping") if len(self.journal.sessions) > 1 else None
        if before and before[:3] == [self.task.index, phase.name, _short(self.circumstances)]:
            self.session["keeping"] = before
            self._key = before[3]
            self._claim = self._lock(before[3])

    def step_ends(self, done: int, snapshot: Callable[[], Snapshot]) -> None:
        if self._key is not None and done == self._steps:
            synchronise(self.journal.device)
            self._seconds = self.journal.seconds_so_far()  # what comes after the last step, every run does itself
            self._snapshot = disk.state_bytes(snapshot())  # at once: what a captured step has in memory goes with it

    def phase_ends(self, phase: Phase, summary: Mapping[str, Any]) -> None:
        if self._key is None or self._snapshot is None:
            return
        here = ("epoch", self.task.index + 1, phase.name)
        events = read_events(self.journal.folder.events)
        epochs = [event for event in events if (event["event"], event.get("task"), event.get("phase")) == here]
        entry = {
            "trained_by": self.session.pop("keeping")[4],
            "seconds": self._seconds,
            "epochs": [{name: event[name] for name in ("epoch", "lr", "losses")} for event in epochs],
            "session": self.session,
        }
        self._add(self._key, entry, self._snapshot)
        self._key = self._snapshot = None
        self._release()

    def _add(self, key: str, entry: dict[str, Any], snapshot: bytes) -> None:
        def fill(scratch: Path) -> None:
            disk.write_bytes(scratch / "snapshot.pt", snapshot)
            disk.write_json(scratch / "entry.json", entry)

        try:
            disk.write_folder(self.folder / key, fill)
        except OSError:
            if not (self.folder / key / "entry.json").is_file():  # else another run has just put the same there
                raise


def _ingredients(phase: Phase, learner: TaskLearner, task: Task) -> list[Any] | None:
    """All that decides how the classifier comes out of the phase, besides images, code and machine; none if unsure."""
    method, classifier, feed = learner.method, learner.classifier, phase.feed
    if not isinstance(feed, DeviceFeed | StreamingFeed) or len(feed.sources) != 1:
        return None
    losses, source, augment = phase.losses, feed.sources[0], feed.augment
    known = (
        type(feed) in (DeviceFeed, StreamingFeed)
        and getattr(losses, "__self__", None) is method
        and getattr(losses, "__func__", None) in PLAIN_LOSSES
        and method.classifier is classifier
        and [*phase.moves.values()] == [classifier]
        and all(getattr(phase, field.name) == field.default for field in fields(phase) if field.name not in _KEYED)
        and source.images is task.images
        and type(augment) is Augmenter
        and all(map(_is_ordinary, classifier.modules()))
    )
    if not known:
        return None
    return [
        [learner.config.seed, task.index, phase.name, phase.losses.__qualname__],
        [phase.epochs, phase.steps, phase.full_precision, repr(phase.optimizer), [*phase.moves]],
        [repr(getattr(source, field.name)) for field in fields(source) if field.name != "images"],
        [repr(augment.config), augment.normalise.mean.tolist(), augment.normalise.deviation.tolist()],
        [list(task.images.shape), task.size, task.first_label, list(task.names)],
        [repr(classifier.preprocessing), _described(classifier)],
        learner.engine.switches(),
    ]


def _dream_ingredients(phase: Phase, learner: TaskLearner, task: Task) -> list[Any] | None:
    """The same for a dreamer's training, which learns from no images. What the method is does not matter to it."""
    dreamer = learner.method.dreamer
    if type(dreamer) is not Dreamer or type(phase.feed) is not NoData:
        return None
    known = (
        phase == replace(dreamer.phase(), feed=phase.feed)
        and not (dreamer.memory and dreamer.memory.state)
        and all(map(_is_ordinary, [*dreamer.teacher.modules(), *dreamer.generator.modules()]))
    )
    if not known:
        return None
    return [
        [learner.config.seed, task.index, phase.name, phase.steps, phase.feed.steps_per_epoch],
        [repr(dreamer.config), dreamer.batch_size],
        [repr(dreamer.teacher.preprocessing), _described(dreamer.teacher), _described(dreamer.generator)],
        learner.engine.switches(),
    ]


def _described(module: nn.Module) -> list[Any]:
    """Its structure, every parameter and buffer, and what of it learns."""
    learns = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    return [repr(module), digest(module.state_dict()), learns]


def _is_ordinary(module: nn.Module) -> bool:
    """Does it compute what its class says, and is that class ours or torch's?"""
    watched = any(hooks for name, hooks in vars(module).items() if name.endswith("_hooks"))
    return (
        type(module).__module__.startswith(("reverie.", "torch.nn.")) and not watched and "forward" not in vars(module)
    )


def _short(facts: Sequence[Any]) -> str:
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=12).hexdigest()


@cache
def _code() -> str:
    """Of reverie's own source: what other code trained is not the same."""
    content = hashlib.blake2b(digest_size=16)
    package = Path(__file__).parents[1]
    for file in sorted(package.rglob("*.py")):
        content.update(str(file.relative_to(package)).encode() + b"\0" + file.read_bytes())
    return content.hexdigest()

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
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from reverie.data.augment import Augmenter
from reverie.data.feed import DeviceFeed, NoData, StreamingFeed
from reverie.data.stream import Task
from reverie.engine.device import synchronise
from reverie.engine.observer import Observer, Snapshot
from reverie.engine.phase import Phase
from reverie.errors import Interrupted
from reverie.learner.checkpoint import Recorder
from reverie.learner.events import EpochEnds
from reverie.learner.session import KeptPhase, Session, SharedPhase, TrainedBy
from reverie.learner.task_learner import TaskLearner
from reverie.methods.abd import ABD
from reverie.methods.base import Method
from reverie.methods.dreamer import Dreamer
from reverie.runs.shared import ENTRY, Cache
from reverie.system.files import read_state, state_bytes
from reverie.system.locks import Lock
from reverie.system.provenance import digest
from reverie.system.records import Record

log = logging.getLogger("reverie")
FOLDERS = ("first-tasks", "first-dreams")  # by task; beside the run folders that share them
SNAPSHOT = "snapshot.pt"
_POLL_SECONDS = 0.2
# Losses that look at the classifier and the batch, at nothing else, and change neither; a test holds them to it.
PLAIN_LOSSES = (Method.first_losses, ABD.first_losses_of_every_row)
_OF_LABELS = ("smoothing", "cross_entropy", "by_label")  # by which such losses take labels
_KEYED = {"name", "feed", "losses", "optimizer", "moves", "epochs", "steps", "full_precision"}  # the rest must be unset


class EpochLosses(Record):
    epoch: int
    lr: float | None
    losses: dict[str, float]


class FirstTaskEntry(Record):
    """A phase that was trained: by whom, how long it took, and its losses."""

    trained_by: TrainedBy
    seconds: float
    epochs: list[EpochLosses]
    session: Session


class FirstTask(Observer):
    """Follows one of the first two tasks of a run: finds its first phase trained already, or keeps it for others."""

    def __init__(
        self,
        beside: Path,
        task: Task,
        learner: TaskLearner,
        origin: Sequence[Any],
        recorder: Recorder,
        session: Session,
    ) -> None:
        """`origin` says which images the task consists of; `session`, what runs where."""
        self.cache = Cache(beside, FOLDERS[task.index])
        self.task, self.learner, self.recorder, self.session = task, learner, recorder, session
        where = session.environment.replace(commit=None).as_dict()
        self.circumstances = [_code(), where, *origin]
        self._key: str | None = None  # of a phase that is to be kept
        self._claim: Lock | None = None  # to train it: other runs wait for it meanwhile
        self._steps = 0
        self._snapshot: bytes | None = None  # of its last step
        self._seconds = 0.0  # until then

    def __enter__(self) -> FirstTask:
        return self

    def __exit__(self, *error: object) -> None:
        self._release()

    def snapshot_for(self, number: int, phase: Phase) -> Snapshot | None:
        """Not asked in a phase that goes on from its own checkpoint."""
        look = _dream_ingredients if self.task.index else _ingredients
        ingredients = None if number else look(phase, self.learner, self.task)
        if ingredients is None:
            return None
        key = _short([*self.circumstances, ingredients])
        snapshot = self._find(key, phase)
        if snapshot is None:
            self._claim = self._wait_for(key)
            snapshot = self._find(key, phase)
        if snapshot is None:
            self._key = key
            config = self.learner.config
            trained_by = TrainedBy(preset=config.preset, method=config.method, recipe=config.recipe, seed=config.seed)
            # In every checkpoint, so that the phase can be kept even if it is interrupted.
            self.session.keeping = KeptPhase(
                task=self.task.index,
                phase=phase.name,
                circumstances=_short(self.circumstances),
                key=key,
                trained_by=trained_by,
            )
        else:
            self._release()
        return snapshot

    def _wait_for(self, key: str) -> Lock:
        """While another run trains it; then it is there, or, if that run did not come to its end, ours to train."""
        claim = self.cache.lock(key)
        if claim is None:
            what = ("the first task", "the dreams of the first task")[self.task.index]
            log.info("Another run is training %s; this one waits for it.", what)
        while claim is None:
            if self.recorder.stop:
                raise Interrupted
            time.sleep(_POLL_SECONDS)
            claim = self.cache.lock(key)
        return claim

    def _release(self) -> None:
        """If two runs should get the lock because its file goes away, both train, which is no harm."""
        if self._claim is not None:
            self._claim.release(remove=True)
            self._claim = None

    def _find(self, key: str, phase: Phase) -> Snapshot | None:
        if not self.cache.file(key, ENTRY).is_file():
            return None
        try:
            entry = self.cache.entry(key, FirstTaskEntry)
            snapshot = read_state(self.cache.file(key, SNAPSHOT))
        except Exception as error:  # a damaged file can fail in any way
            folder = self.cache.folder / key
            log.warning("The first task in %s cannot be read (%s); it is trained again.", folder, error)
            return None
        for epoch in entry.epochs:
            self.recorder.write_epoch(phase.name, epoch.epoch, epoch.lr, epoch.losses)
        self.recorder.add_seconds(phase.name, entry.seconds)  # they count, whoever spent them
        found = SharedPhase(key=key, trained_by=entry.trained_by, seconds=entry.seconds)
        if self.task.index == 0:
            self.session.first_task = found
        else:
            self.session.first_dreams = found
        return snapshot

    def phase_begins(self, phase: Phase, done: int) -> None:
        self._steps = phase.total_steps
        if not 0 < done < self._steps:
            return
        # It was interrupted. What went on elsewhere, or with other code, is right for this run, but nothing to hand on.
        before = self.recorder.sessions[-2].keeping if len(self.recorder.sessions) > 1 else None
        here = (self.task.index, phase.name, _short(self.circumstances))
        if before and (before.task, before.phase, before.circumstances) == here:
            self.session.keeping = before
            self._key = before.key
            self._claim = self.cache.lock(before.key)

    def step_ends(self, done: int, snapshot: Callable[[], Snapshot]) -> None:
        if self._key is not None and done == self._steps:
            synchronise(self.recorder.device)
            self._seconds = self.recorder.seconds_so_far()  # what comes after the last step, every run does itself
            self._snapshot = state_bytes(snapshot())  # at once: what a captured step has in memory goes with it

    def phase_ends(self, phase: Phase, summary: Mapping[str, Any]) -> None:
        if self._key is None or self._snapshot is None or self.session.keeping is None:
            return
        here = (self.task.index + 1, phase.name)
        events = [event for event in self.recorder.folder.events.read() if isinstance(event, EpochEnds)]
        trained_by, self.session.keeping = self.session.keeping.trained_by, None
        entry = FirstTaskEntry(
            trained_by=trained_by,
            seconds=self._seconds,
            epochs=[
                EpochLosses(epoch=event.epoch, lr=event.lr, losses=event.losses)
                for event in events
                if (event.task, event.phase) == here
            ],
            session=self.session,
        )
        self.cache.add(self._key, entry, SNAPSHOT, self._snapshot)
        self._key = self._snapshot = None
        self._release()


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
        and all(getattr(type(method), name) is getattr(Method, name) for name in _OF_LABELS)
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
    package = Path(__file__).parents[1]  # all of it, not the room that this file stands in
    for file in sorted(package.rglob("*.py")):
        content.update(str(file.relative_to(package)).encode() + b"\0" + file.read_bytes())
    return content.hexdigest()

"""The first task, trained once and gone on from by every run beside it that would train the very same.

What is shared is the engine's snapshot from the end of the first phase, which a run takes for its own checkpoint. Two
first phases are the same when everything that goes into them is: that is looked up in the phase itself, not guessed
from the configuration, and what is not known to make no difference ends in a phase of one's own (docs/tables.md).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from reverie import disk
from reverie.data.augment import Augmenter
from reverie.data.feed import DeviceFeed, StreamingFeed
from reverie.data.stream import Task
from reverie.engine import Snapshot
from reverie.journal import Journal, read_events
from reverie.learner import LearnerObserver, TaskLearner
from reverie.methods.abd import ABD
from reverie.methods.base import Method
from reverie.phase import Phase

log = logging.getLogger("reverie")
FOLDER = "first-tasks"  # beside the run folders that share it
# Losses that look at the classifier and the batch, at nothing else, and change neither; a test holds them to it.
PLAIN_LOSSES = (Method.first_losses, ABD.first_losses)
_KEYED = {"name", "feed", "losses", "optimizer", "moves", "epochs", "steps", "full_precision"}  # the rest must be unset


class FirstTask(LearnerObserver):
    """Follows the first task of a run: finds its first phase trained already, or keeps it for those who come later."""

    def __init__(
        self, beside: Path, task: Task, origin: Sequence[Any], journal: Journal, session: dict[str, Any]
    ) -> None:
        """`origin` says which images the task consists of; `session`, what runs where."""
        self.folder = beside.resolve().parent / FOLDER
        self.task, self.origin, self.journal, self.session = task, origin, journal, session
        self._key: str | None = None  # of a phase that is to be kept
        self._trained_by: dict[str, Any] = {}
        self._steps = 0
        self._snapshot: bytes | None = None  # of its last step

    def snapshot_for(self, number: int, phase: Phase, learner: TaskLearner) -> Snapshot | None:
        ingredients = None if number else _ingredients(phase, learner, self.task)
        if ingredients is None:
            self._key = None
            return None
        where = {name: value for name, value in self.session["environment"].items() if name != "commit"}
        facts = [_code(), where, self.origin, ingredients]
        key = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=12).hexdigest()
        snapshot = self._find(key, phase)
        self._key = key if snapshot is None else None
        self._trained_by = {name: getattr(learner.config, name) for name in ("preset", "method", "recipe", "seed")}
        return snapshot

    def _find(self, key: str, phase: Phase) -> Snapshot | None:
        try:
            entry = disk.read_json(self.folder / key / "entry.json")
            snapshot = disk.read_state(self.folder / key / "snapshot.pt")
        except FileNotFoundError:
            return None
        except Exception as error:  # a damaged file can fail in any way
            log.warning("The first task in %s cannot be read (%s); it is trained again.", self.folder / key, error)
            return None
        for epoch in entry["epochs"]:
            self.journal.event("epoch", task=1, tasks=self.journal.tasks, phase=phase.name, **epoch)
        self.journal.add_seconds(phase.name, entry["seconds"])  # they count, whoever spent them
        self.session["first_task"] = {"key": key, "trained_by": entry["trained_by"], "seconds": entry["seconds"]}
        return snapshot

    def phase_begins(self, phase: Phase, done: int) -> None:
        self._steps = phase.total_steps
        if done:  # it was interrupted, perhaps on another machine: right for this run, but nothing to hand on
            self._key = None

    def step_ends(self, done: int, snapshot: Callable[[], Snapshot]) -> None:
        if self._key is not None and done == self._steps:
            self.journal.synchronise()
            self._snapshot = disk.state_bytes(snapshot())  # at once: what a captured step has in memory goes with it

    def phase_ends(self, phase: Phase, summary: Mapping[str, Any]) -> None:
        if self._key is None or self._snapshot is None:
            return
        events = [event for event in read_events(self.journal.folder.events) if event["event"] == "epoch"]
        entry = {
            "trained_by": self._trained_by,
            "seconds": self.journal.seconds[0][phase.name],
            "epochs": [{name: event[name] for name in ("epoch", "lr", "losses")} for event in events],
            "session": self.session,
        }
        self._add(self._key, entry, self._snapshot)
        self._key = self._snapshot = None

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
        [repr(classifier), repr(classifier.preprocessing), _digest(classifier)],
        learner.engine.switches(),
    ]


def _is_ordinary(module: nn.Module) -> bool:
    """Does it compute what its class says, and is that class ours or torch's?"""
    watched = any(hooks for name, hooks in vars(module).items() if name.endswith("_hooks"))
    return (
        type(module).__module__.startswith(("reverie.", "torch.nn.")) and not watched and "forward" not in vars(module)
    )


def _digest(classifier: nn.Module) -> str:
    """Of every parameter and buffer, and whether it learns."""
    content = hashlib.blake2b(digest_size=16)
    learns = {name: parameter.requires_grad for name, parameter in classifier.named_parameters()}
    for name, value in classifier.state_dict().items():
        assert isinstance(value, Tensor)
        content.update(f"{name} {value.dtype} {tuple(value.shape)} {learns.get(name)}".encode())
        content.update(value.detach().cpu().contiguous().numpy().tobytes())
    return content.hexdigest()


@cache
def _code() -> str:
    """Of reverie's own source: what other code trained is not the same."""
    content = hashlib.blake2b(digest_size=16)
    package = Path(__file__).parent
    for file in sorted(package.rglob("*.py")):
        content.update(str(file.relative_to(package)).encode() + b"\0" + file.read_bytes())
    return content.hexdigest()

"""A run's folder on disk, and the journal that is kept in it: events, checkpoints, the time each part took."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import torch
import yaml

from reverie.config.schema import Config
from reverie.engine.loop import Snapshot, synchronise
from reverie.engine.phase import Phase
from reverie.errors import Interrupted, UserError, explaining, first_line
from reverie.learner.task_learner import LearnerObserver, TaskLearner
from reverie.methods import find_method
from reverie.system import files as disk

LOCK = ".lock"
MOVING = ("task", "phase", "snapshot", "seconds", "sessions", "events")  # what `moving.pt` holds
log = logging.getLogger("reverie")


class RunFolder:
    """
    config.yaml       what is run, and the fingerprint of the data
    events.jsonl      what happened: losses by phase and epoch, accuracies, times
    tasks/01/         predictions.npz (for every test image), dreams.png; on wish the model and the dreamer
    checkpoint/       resting.pt (written when a phase begins), moving.pt (every half minute inside it), and their parts
    model/            the final classifier
    result.json       written last: a run that has one is finished
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.events = path / "events.jsonl"
        self.result = path / "result.json"
        self.model = path / "model"
        self.resting = path / "checkpoint" / "resting.pt"
        self.moving = path / "checkpoint" / "moving.pt"

    def task(self, index: int) -> Path:
        return self.path / "tasks" / f"{index + 1:02d}"

    def predictions(self, index: int) -> Path:
        return self.task(index) / "predictions.npz"

    @property
    def finished(self) -> bool:
        return self.result.is_file()

    @explaining("read", "Choose another --out.")
    def refuse_others(self, config: Config, fingerprint: str | None = None) -> None:
        """A folder belongs to one configuration and one data set, for good."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file. Choose another --out.")
        if not self.config.is_file():
            if self.path.is_dir() and not all(map(_is_ours, self.path.iterdir())):
                raise UserError(f"{self.path} is not empty and not a run folder. Choose another --out.")
            return
        stored, theirs = self.stored()
        if stored.method == config.method:
            stored = stored.completed(find_method(config.method).Options)
        differences = [
            f"{key}: {_shown(old)} in the folder, {_shown(new)} asked for"
            for key, (old, new) in stored.differences(config).items()
        ]
        if fingerprint and theirs and fingerprint != theirs:
            differences.append("the data are not the same: files were added, removed or changed")
        if differences:
            listed = "\n".join(f"  {line}" for line in differences)
            raise UserError(
                f"{self.path} holds a run of another configuration; it stays as it is:\n{listed}\nChoose another --out."
            )

    def tell_what_is_not_kept(self, config: Config) -> None:
        """Of a finished run, which will not be made again for it."""
        if missing := [what for what in config.keep if what not in self.stored()[0].keep]:
            log.warning("%s is finished and did not keep %s. Choose another --out.", self.path, " and ".join(missing))

    def claim(self, config: Config, fingerprint: str) -> None:
        self.refuse_others(config, fingerprint)
        self._clear_scratch()
        if not self.config.is_file():
            content = {**config.as_dict(), "fingerprint": fingerprint}
            disk.write_text(self.config, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))

    def stored(self) -> tuple[Config, str | None]:
        """What `claim` wrote: the configuration, and the fingerprint of the data."""
        try:
            stored = yaml.safe_load(self.config.read_bytes())
            fingerprint = stored.pop("fingerprint", None)
            return Config.from_dict(stored), fingerprint
        except (UserError, yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError):
            raise UserError(f"{self.config} is not the configuration of a run. Choose another --out.") from None

    def _clear_scratch(self) -> None:
        """What a killed process was writing at that moment."""
        for left in sorted(self.path.rglob(f"{disk.SCRATCH}*")):
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink(missing_ok=True)

    def in_use(self) -> bool:
        """Is another process at work here now?"""
        if not (self.path / LOCK).is_file():
            return False
        handle = lock_file(self.path / LOCK)
        if handle is not None:
            handle.close()
        return handle is None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One process at a time. The lock goes with the process, however it ends."""
        with locked(self.path, "Choose another --out."):
            yield


class Journal(LearnerObserver):
    """Writes down what must survive a crash. Losing power costs at most `every` seconds of work."""

    def __init__(self, folder: RunFolder, every: float, device: torch.device) -> None:
        self.folder, self.every, self.device = folder, every, device
        self.task, self.tasks = 0, 0
        self.seconds: list[dict[str, float]] = []  # by task and part
        self.sessions: list[dict[str, Any]] = []
        self.stop = False  # asked to, by a signal
        self._phase: tuple[int, str] = (0, "")
        self._phase_began = self._last_save = time.monotonic()

    # --- events

    def event(self, kind: str, **facts: Any) -> None:
        line = json.dumps({"event": kind, "at": round(time.time(), 3), **facts}, ensure_ascii=False)
        with self.folder.events.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(line + "\n")

    def phases(self, tasks: int) -> list[dict[str, dict[str, float]]]:
        """By task and phase: how many steps it has, and the seconds that went by before the first of them."""
        found: list[dict[str, dict[str, float]]] = [{} for _ in range(tasks)]
        for event in read_events(self.folder.events):
            if event["event"] == "phase begins":
                found[event["task"] - 1][event["phase"]] = {"steps": event["steps"], "setup_seconds": 0.0}
            elif event["event"] == "phase ends":
                setup = event["summary"].get("setup_seconds", 0.0)
                begun = found[event["task"] - 1].get(event["phase"])
                if begun is not None:  # a power cut may take events away
                    begun["setup_seconds"] = setup
        return found

    def _settle_events(self) -> int:
        """Bytes of them, all safe from a power cut."""
        if not self.folder.events.exists():
            return 0
        with self.folder.events.open("ab") as file:
            os.fsync(file.fileno())
            return file.tell()

    # --- the learner's calls

    def phase_ready(self, number: int, learner: TaskLearner) -> None:
        self._phase = (number, "")
        self.save_resting(number, learner)

    def phase_begins(self, phase: Phase, done: int) -> None:
        self._phase = (self._phase[0], phase.name)
        where = {"task": self.task + 1, "tasks": self.tasks, "phase": phase.name}
        self.event("phase begins", **where, done=done, steps=phase.total_steps)
        self._phase_began = self._last_save = time.monotonic()

    def step_ends(self, done: int, snapshot: Callable[[], Snapshot]) -> None:
        if self.stop or time.monotonic() - self._last_save >= self.every:
            self._save_moving(snapshot())
        if self.stop:
            raise Interrupted

    def epoch_ends(self, epoch: int, lr: float, losses: Mapping[str, float]) -> None:
        where = {"task": self.task + 1, "tasks": self.tasks, "phase": self._phase[1]}
        self.event("epoch", **where, epoch=epoch + 1, lr=lr, losses=dict(losses))

    def phase_ends(self, phase: Phase, summary: Mapping[str, Any]) -> None:
        synchronise(self.device)
        self.add_seconds(phase.name, time.monotonic() - self._phase_began)
        self.event("phase ends", task=self.task + 1, phase=phase.name, summary=dict(summary))

    # --- time

    def begin_task(self, task: int) -> None:
        self.task = task
        if len(self.seconds) == task:
            self.seconds.append({})

    def seconds_so_far(self) -> float:
        """Of the phase at work, those of earlier sessions included."""
        return self.seconds[self.task].get(self._phase[1], 0.0) + time.monotonic() - self._phase_began

    def add_seconds(self, part: str, seconds: float) -> None:
        parts = self.seconds[self.task]
        parts[part] = parts.get(part, 0.0) + seconds

    # --- checkpoints

    def save_resting(self, phase: int | None, learner: TaskLearner) -> None:
        """Everything, when a phase begins; `phase` is none between two tasks."""
        disk.write_state(
            self.folder.resting,
            {
                "task": self.task,
                "phase": phase,
                "learner": learner.state_dict(),
                "seconds": self.seconds,
                "sessions": self.sessions,
                "events": self._settle_events(),
            },
        )
        disk.remove_state(self.folder.moving)

    def _save_moving(self, snapshot: Snapshot) -> None:
        """What has moved since the phase began."""
        synchronise(self.device)
        now = time.monotonic()
        parts = dict(self.seconds[self.task])
        parts[self._phase[1]] = parts.get(self._phase[1], 0.0) + now - self._phase_began
        disk.write_state(
            self.folder.moving,
            {
                "task": self.task,
                "phase": self._phase[0],
                "snapshot": snapshot,
                "seconds": [*self.seconds[: self.task], parts],
                "sessions": self.sessions,
                "events": self._settle_events(),
            },
        )
        self._last_save = time.monotonic()

    def recover(self) -> tuple[dict[str, Any] | None, Snapshot | None]:
        """The last checkpoint, if there is one. Events after it are taken back, since they will happen again."""
        resting = self._read(self.folder.resting)
        moving = self._read_moving() if resting is not None else None
        size, snapshot = 0, None
        if resting is not None:
            self.seconds, self.sessions, size = resting["seconds"], resting["sessions"], resting["events"]
            self._phase = (resting["phase"] or 0, "")
        if resting and moving and (moving["task"], moving["phase"]) == (resting["task"], resting["phase"]):
            snapshot, size = moving["snapshot"], moving["events"]
            self.seconds, self.sessions = moving["seconds"], moving["sessions"]
        if self.folder.events.exists():
            kept = self.folder.events.read_bytes()[:size]
            os.truncate(self.folder.events, kept.rfind(b"\n") + 1)  # after a power cut the last line may be half there
        return resting, snapshot

    @staticmethod
    def _read(file: Path) -> dict[str, Any] | None:
        if not file.is_file():
            return None
        try:
            return disk.read_state(file)
        except Exception as error:
            why = first_line(error)
            raise UserError(
                f"The checkpoint {file} is damaged ({why}). Delete its folder to start the run anew."
            ) from None

    def _read_moving(self) -> dict[str, Any] | None:
        """Damaged, it costs the steps since the phase began, and not those before."""
        file = self.folder.moving
        try:
            state = disk.read_state(file) if file.is_file() else None
            return state and {key: state[key] for key in MOVING}
        except Exception as error:
            log.warning("The checkpoint %s is damaged (%s): its phase begins anew.", file, first_line(error))
            return None


@contextmanager
def locked(folder: Path, advice: str, what: Path | None = None) -> Iterator[None]:
    """One process at a time works in the folder, to make `what`. The lock goes with the process, however it ends."""
    with explaining("written", advice, what):
        folder.mkdir(parents=True, exist_ok=True)
        handle = lock_file(folder / LOCK)
    if handle is None:
        raise UserError(f"Another process is at work in {folder}.")
    with handle:
        yield


def lock_file(file: Path) -> IO[str] | None:
    """None while somebody else has the lock; else it is ours until this is closed. Without locks, all may have it."""
    handle = file.open("a")
    if _is_locked(handle.fileno()):
        handle.close()
        return None
    return handle


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """One process at a time puts another folder in the place of this one, which bears the lock: no file is left."""
    with ExitStack() as held:
        with suppress(OSError):  # on Windows; where there is no such folder, whoever reads it will say so
            handle = os.open(folder, os.O_RDONLY)
            held.callback(os.close, handle)
            if _is_locked(handle) or not os.path.samestat(os.fstat(handle), folder.stat()):  # or replaced just now
                raise UserError(f"Another process is changing {folder}. Repeat the command when it has ended.")
        yield


def _is_locked(handle: int) -> bool:
    """By somebody else; if not, it is by us now."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):  # on Windows; on a file system without locks
        pass
    return False


def stopping_signals() -> list[signal.Signals]:
    """Ctrl-C, a request to end, and a terminal that is closed, unless somebody has said that this must not matter."""
    asked = [signal.SIGINT, signal.SIGTERM]
    hang_up = getattr(signal, "SIGHUP", None)  # not on Windows
    return asked if hang_up is None or signal.getsignal(hang_up) == signal.SIG_IGN else [*asked, hang_up]


@contextmanager
def stopping_gently(journal: Journal) -> Iterator[None]:
    """The first Ctrl-C asks for a checkpoint after the current step; the second ends it all at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: Any) -> None:
        if journal.stop:
            raise KeyboardInterrupt
        journal.stop = True

    before = {number: signal.signal(number, ask) for number in stopping_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def read_events(file: Path, last: int | None = None, broken: list[str] | None = None) -> list[dict[str, Any]]:
    """Everything that happened so far, or what the last so many bytes tell. Lines still being written are left out.

    Damaged lines are put into `broken`, if it is given.
    """
    if not file.is_file():
        return []
    with file.open("rb") as content:
        size = content.seek(0, os.SEEK_END)
        begins = content.seek(max(0, size - last) if last is not None else 0)
        lines = content.read().splitlines(keepends=True)
    whole = [line for line in lines[1 if begins else 0 :] if line.endswith(b"\n")]
    events = []
    for line in (line.decode("utf-8", "replace") for line in whole):
        try:
            events.append(json.loads(line))
        except ValueError:
            if broken is None:
                raise
            broken.append(line)
    return events


def _is_ours(entry: Path) -> bool:
    """What a process that was killed before it wrote `config.yaml` may have left."""
    return entry.name == LOCK or entry.name.startswith(disk.SCRATCH)


def _shown(value: Any) -> Any:
    return "unset" if value is None else value

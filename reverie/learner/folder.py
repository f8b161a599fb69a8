"""A run's folder on disk: what lies where, whose it is, and that one process at a time is at work in it."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from reverie.config.schema import Config
from reverie.config.yaml_files import parse_yaml
from reverie.errors import UserError, explaining
from reverie.learner.events import EventLog
from reverie.methods import find_method
from reverie.system.files import SCRATCH, resolved_path, write_text
from reverie.system.locks import LOCK, is_locked, locked_folder

ANOTHER = "Choose another `folder`."
log = logging.getLogger("reverie")


@dataclass(frozen=True)
class StoredConfig:
    """What `config.yaml` holds."""

    config: Config
    upper_bound: str  # the digest of the upper bound's own configuration
    fingerprint: str | None  # of the data


class RunFolder:
    """
    config.yaml       what is run, the digest of its upper bound, and the fingerprint of the data
    events.jsonl      what happened: losses by phase and epoch, accuracies, times
    tasks/01/         predictions.npz (for every test image), dreams.png; on wish the model and the dreamer
    checkpoint/       resting.pt (written when a phase begins) and moving.pt (every half minute inside it)
    model/            the final classifier
    result.json       written last: a run that has one is finished
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.events = EventLog(path / "events.jsonl")
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

    @explaining("read", ANOTHER)
    def refuse_others(self, config: Config, fingerprint: str | None = None) -> None:
        """A folder belongs to one configuration and one data set, for good."""
        resolved_path(self.path)  # refuses links that lead in a circle
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file. {ANOTHER}")
        if not self.config.is_file():
            if self.path.is_dir() and not all(map(_is_ours, self.path.iterdir())):
                raise UserError(f"{self.path} is not empty and not a run folder. {ANOTHER}")
            return
        stored = self.stored()
        theirs = stored.config
        if theirs.method == config.method:
            theirs = theirs.completed(find_method(config.method).Options)
        differences = [
            f"{key}: {_or_unset(old)} in the folder, {_or_unset(new)} asked for"
            for key, (old, new) in theirs.differences(config).items()
        ]
        if fingerprint and stored.fingerprint and fingerprint != stored.fingerprint:
            differences.append("the data are not the same: files were added, removed or changed")
        if differences:
            listed = "\n".join(f"  {line}" for line in differences)
            raise UserError(
                f"{self.path} holds a run of another configuration; it stays as it is:\n{listed}\n{ANOTHER}"
            )

    def warn_of_what_is_not_kept(self, config: Config) -> None:
        """By a finished run, which will not be made again for it."""
        if missing := [what for what in config.keep if what not in self.stored().config.keep]:
            log.warning("%s is finished and did not keep %s.", self.path, " and ".join(missing))

    def claim(self, config: Config, fingerprint: str) -> None:
        self.refuse_others(config, fingerprint)
        self._clear_scratch()
        if not self.config.is_file():
            more = {"reference": config.upper_bound_digest(), "fingerprint": fingerprint}
            content = yaml.safe_dump({**config.as_dict(), **more}, sort_keys=False, allow_unicode=True)
            write_text(self.config, content)

    def stored(self) -> StoredConfig:
        """What `claim` wrote, in this version or an earlier one."""
        try:
            values = parse_yaml(self.config.read_bytes(), exponents=False)
            if not isinstance(values, dict):
                raise ValueError
            fingerprint, reference = values.pop("fingerprint", None), values.pop("reference", "")
            config = Config.from_dict(values)
            upper_bound = str(reference) or config.upper_bound_digest()
        except (UserError, yaml.YAMLError, ValueError):
            raise UserError(f"{self.config} is not the configuration of a run. {ANOTHER}") from None
        return StoredConfig(config, upper_bound, fingerprint and str(fingerprint))

    def _clear_scratch(self) -> None:
        """What a killed process was writing at that moment."""
        for left in sorted(self.path.rglob(f"{SCRATCH}*")):
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink(missing_ok=True)

    def in_use(self) -> bool:
        """Is another process at work here now?"""
        return is_locked(self.path / LOCK)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One process at a time."""
        with locked_folder(self.path, ANOTHER):
            yield


def _is_ours(entry: Path) -> bool:
    """What a process that was killed before it wrote `config.yaml` may have left."""
    return entry.name == LOCK or entry.name.startswith(SCRATCH)


def _or_unset(value: Any) -> Any:
    return "unset" if value is None else value

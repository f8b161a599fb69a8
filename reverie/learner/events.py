"""What happened in a run, one line of JSON an event: written as it happens, typed when it is read back."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from reverie.errors import UserError
from reverie.system.provenance import Environment
from reverie.system.records import Record, as_record

MOST_LINE = 4 << 20  # bytes of an event; ours are far shorter
Count = Annotated[int, Field(ge=0)]
TaskNumber = Annotated[int, Field(ge=1, le=1_000_000)]  # counted from 1
Seconds = Annotated[float, Field(ge=0)]


class Event(Record):
    """Of a kind that is not known here, where it is none of those below."""

    sparse: ClassVar[bool] = True

    event: str
    at: float | None = None  # seconds since 1970


class RunBegins(Event):
    event: Literal["run begins", "goes on"]
    command: str = ""
    started: str | None = None
    environment: Environment = Environment()


class PhaseBegins(Event):
    event: Literal["phase begins"] = "phase begins"
    task: TaskNumber
    tasks: TaskNumber | None = None
    phase: str
    done: Annotated[int, Field(ge=0)] = 0
    steps: Annotated[int, Field(ge=0)]


class EpochEnds(Event):
    event: Literal["epoch"] = "epoch"
    task: TaskNumber
    tasks: TaskNumber | None = None
    phase: str
    epoch: Annotated[int, Field(ge=1)]
    lr: float | None = None
    losses: dict[str, float]


class PhaseEnds(Event):
    event: Literal["phase ends"] = "phase ends"
    task: TaskNumber
    phase: str
    summary: dict[str, Any]  # whatever the phase found worth writing down


class StageBegins(Event):
    event: Literal["stage begins"] = "stage begins"
    task: TaskNumber
    tasks: TaskNumber | None = None
    stage: str


class StageEnds(Event):
    event: Literal["stage ends"] = "stage ends"
    task: TaskNumber
    stage: str
    figures: dict[str, Any] = Field(default_factory=dict)  # whatever the stage found worth writing down


class DreamSummary(Record):
    """What the summary of a phase that dreams tells: how many old classes were dreamed of, and how surely."""

    classes: Annotated[int, Field(ge=1)]
    covered: Count
    confidence: Annotated[float, Field(ge=0, le=1)]

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> DreamSummary | None:
        """None of a phase that does not dream, or whose event was damaged."""
        try:
            return as_record(cls, dict(summary))
        except UserError:
            return None


class TaskEnds(Event):
    event: Literal["task ends"] = "task ends"
    task: TaskNumber
    accuracy: Annotated[float, Field(ge=0, le=1)]
    seconds: dict[str, Seconds] = Field(default_factory=dict)  # by part
    peak_memory_bytes: Annotated[int, Field(ge=0)] | None = None


class UpperBoundFound(Event):
    event: Literal["found"] = "found"
    task: TaskNumber
    upper_bound: str


class RunEnds(Event):
    event: Literal["run ends"] = "run ends"
    metrics: dict[str, Any] = Field(default_factory=dict)


KINDS: dict[str, type[Event]] = {
    "run begins": RunBegins,
    "goes on": RunBegins,
    "phase begins": PhaseBegins,
    "epoch": EpochEnds,
    "phase ends": PhaseEnds,
    "stage begins": StageBegins,
    "stage ends": StageEnds,
    "task ends": TaskEnds,
    "found": UpperBoundFound,
    "run ends": RunEnds,
}


class EventLog:
    """The file of events of one run."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, event: Event) -> None:
        line = json.dumps({"event": event.event, "at": round(time.time(), 3), **event.as_dict()}, ensure_ascii=False)
        with self.file.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(line + "\n")

    def sync(self) -> int:
        """Bytes of it, all safe from a power cut."""
        if not self.file.exists():
            return 0
        with self.file.open("ab") as file:
            os.fsync(file.fileno())
            return file.tell()

    def cut(self, size: int) -> None:
        """Take back what was written after the first `size` bytes; after a power cut, half a line may be the last."""
        if self.file.exists():
            kept = self.file.read_bytes()[:size]
            os.truncate(self.file, kept.rfind(b"\n") + 1)

    def read(self, last: int | None = None, broken: list[str] | None = None) -> list[Event]:
        """Everything so far, or what the last so many bytes tell. A line that is still being written is left out.

        Damaged lines are put into `broken` if it is given, and are an error if not.
        """
        if not self.file.is_file():
            return []
        with self.file.open("rb") as content:
            size = content.seek(0, os.SEEK_END)
            begins = content.seek(max(0, size - last) if last is not None else 0)
            lines = content.read().splitlines(keepends=True)
        whole = [line for line in lines[1 if begins else 0 :] if line.endswith(b"\n")]
        return _parse(whole, broken, self.file)


def _parse(lines: Sequence[bytes], broken: list[str] | None, file: Path) -> list[Event]:
    events = []
    for line in lines:
        try:
            events.append(parse_event(line))
        except UserError as error:
            if broken is None:
                raise UserError(f"{file} is damaged: {error}") from None
            broken.append(line.decode("utf-8", "replace"))
    return events


def parse_event(line: bytes) -> Event:
    """One line of the file. Raises UserError, which says what is wrong with it."""
    if len(line) > MOST_LINE:
        raise UserError("an event is longer than any of ours.")
    text = line.decode("utf-8", "replace")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise UserError("a line is not JSON.") from None
    kind = values.get("event") if isinstance(values, dict) else None
    return as_record(KINDS.get(kind, Event) if isinstance(kind, str) else Event, values)

"""Who has worked on a run, and when: one session for each start of the command. Loads no torch."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, ConfigDict, Field

from reverie.system.provenance import Environment
from reverie.system.records import Record

Seconds = dict[str, Annotated[float, Field(ge=0)]]  # by part of a task: its phases, and "evaluate"


class TrainedBy(Record):
    """The run that trained something which others share."""

    preset: str
    method: str
    recipe: str
    seed: int


class SharedPhase(Record):
    """A phase that another run has trained, and this one went on from."""

    key: str
    trained_by: TrainedBy
    seconds: float


class KeptPhase(Record):
    """A phase that a run trains for others, too."""

    task: int  # counted from 0
    phase: str
    circumstances: str  # a digest of code, machine and data
    key: str
    trained_by: TrainedBy


def _from_list(value: Any) -> Any:
    """Version 0.1 wrote a list."""
    return dict(zip(KeptPhase.model_fields, value, strict=False)) if isinstance(value, list) else value


class Session(Record):
    """One start of the command: what was typed, where it ran, and how long. A run that was stopped has several."""

    model_config = ConfigDict(frozen=False, validate_assignment=True)
    sparse: ClassVar[bool] = True

    command: str = ""
    started: str | None = None
    environment: Environment = Environment()
    wall_seconds: float | None = None
    keeping: Annotated[KeptPhase | None, BeforeValidator(_from_list)] = None  # while it is being trained
    first_task: SharedPhase | None = None
    first_dreams: SharedPhase | None = None

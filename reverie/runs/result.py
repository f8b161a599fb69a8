"""The result of a run, typed: what `result.json` holds. Loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from reverie.config.schema import Config
from reverie.errors import UserError
from reverie.learner.ledger import LedgerEntry
from reverie.learner.session import Seconds, Session, SharedPhase
from reverie.system.records import Record, read_record
from reverie.text import DASH, or_dash, percent

SCHEMA = 1
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class MetricsRecord(Record):
    """All figures that are made of the accuracy matrix (docs/metrics.md); shares between 0 and 1."""

    final_accuracy: Share  # A_N, over all classes after the last task
    average_incremental_accuracy: Share
    forgetting: float | None
    backward_transfer: float | None
    omega: float | None  # none where the upper bound is not known
    accuracy_after: list[Share]  # A_1 .. A_N
    omega_up_to: list[float] | None
    task_local_accuracy: list[Share]  # after the last task, by task


class UpperBoundRecord(Record):
    """What Omega refers to."""

    accuracy_after: list[Share]
    networks: Annotated[list[str], Field(alias="keys")]  # the names under which its networks are kept beside the run


class TimeSpent(Record):
    """Seconds of training and testing."""

    total: float
    by_part: Seconds
    by_task: list[Seconds]


class PhaseCost(Record):
    steps: Count
    setup_seconds: float  # to compile and capture, before the first step


class EngineSwitches(Record):
    precision: str
    capture: bool
    compile: bool


class Result(Record):
    """One stream learned by one method with one seed. `print(result)` shows the figures."""

    schema_version: Annotated[int, Field(alias="schema", ge=1, le=1_000)] = SCHEMA
    preset: str
    method: str
    recipe: str
    seed: int
    metrics: MetricsRecord
    accuracy_matrix: list[list[Share | None]]  # a row for each task learned, a column for each task tested
    task_sizes: list[Annotated[int, Field(ge=1)]]  # classes by task
    class_order: list[int]  # as the data set numbers them
    class_names: list[str]
    test_images: list[Count]  # by task
    upper_bound: UpperBoundRecord | None = None
    uncorrected_accuracy_after: list[Share] | None = None  # of a method that corrects its logits: before that
    seconds: TimeSpent
    first_task: SharedPhase | None = None  # where another run has trained it
    first_dreams: SharedPhase | None = None
    phases: list[dict[str, PhaseCost]] | None = None  # by task and phase
    engine: EngineSwitches | None = None
    peak_memory_bytes: Count | None = None
    peak_memory_by_task: list[Count | None] | None = None
    ledger: list[LedgerEntry]
    data_fingerprint: str
    normalisation: list[list[float]] | None = None  # mean and deviation, where they are taken from the first task
    config: dict[str, Any]  # as `Config.from_dict` reads it
    sessions: list[Session] = Field(default_factory=list)
    finished: str | None = None

    def configuration(self) -> Config:
        """What was run."""
        return Config.from_dict(self.config)

    @property
    def upper_bound_digest(self) -> str:
        """Of the upper bound's own configuration."""
        return str(self.config.get("reference") or self.configuration().upper_bound_digest())

    def __str__(self) -> str:
        figures = self.metrics
        lines = [
            f"{self.method} on {self.preset}, {self.recipe} recipe, seed {self.seed}",
            f"accuracy over all classes after the last task (A_N): {percent(figures.final_accuracy)}",
            f"average incremental accuracy: {percent(figures.average_incremental_accuracy)}",
            f"Omega: {percent(figures.omega)}   forgetting: {percent(figures.forgetting)}",
            f"accuracy after each task (%): {_percents(figures.accuracy_after)}",
        ]
        if self.uncorrected_accuracy_after:
            lines.append(f"before correction (%): {_percents(self.uncorrected_accuracy_after)}")
        return "\n".join(lines)


def _percents(shares: list[float]) -> str:
    return "  ".join(f"{100 * share:.1f}" for share in shares) or DASH


def read_result(file: Path, advice: str = "Name the result file of a run.") -> Result:
    """From a `result.json`, of this version or an earlier one. Raises UserError for any other file."""
    result = read_record(Result, file, advice)
    if result.schema_version > SCHEMA:
        raise UserError(f"{file} was written by a newer reverie; please upgrade.")
    tasks = len(result.task_sizes)
    shapes = [len(result.accuracy_matrix), *map(len, result.accuracy_matrix), len(result.seconds.by_task)]
    if any(length != tasks for length in shapes) or len(result.metrics.accuracy_after) != tasks:
        raise UserError(f"{file} is damaged: it does not speak of the {or_dash(tasks)} tasks that it names. {advice}")
    return result

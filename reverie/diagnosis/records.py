"""What a diagnosis found, typed, and what it says in words. docs/diagnosis.md defines every figure. Loads no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Annotated, Literal

from pydantic import Field

from reverie.system.provenance import Environment
from reverie.system.records import Record
from reverie.text import percent

SCHEMA = 1
Measure = Literal["mid", "mmd"]
Nearness = Literal["nearer", "farther"]  # dreams of old classes, compared with the new task
MEASURES: tuple[Measure, ...] = ("mid", "mmd")
KINDS = ("old", "dreamed", "new")
PAPER_FINDING: dict[str, Nearness] = {"deepinversion": "farther", "abd": "nearer"}

Share = Annotated[float, Field(ge=0, le=1)]
Grid = tuple[list[str], list[list[str]]]  # header and rows


class Shared(Record):
    """What two runs must have in common to be compared, from the most general on."""

    data: str | None
    classes: list[str]
    seed: int
    teacher: str  # digests
    generator: str


class ImageCounts(Record):
    old: int
    dreamed: int
    new: int


class Batches(Record):
    count: int
    size: int


class Distances(Record):
    """From real old images: of all images, and over random sub-batches by kind of image."""

    dreamed: float
    new: float
    batches: dict[str, list[float]]

    @property
    def verdict(self) -> Nearness:
        """Are dreams of old classes nearer to real images of them than those of the new classes are, or farther?"""
        return "nearer" if self.dreamed < self.new else "farther"

    def agreeing_batches(self) -> float:
        """The share of sub-batches that say the same as all images together."""
        nearer = self.verdict == "nearer"
        pairs = zip(self.batches["dreamed"], self.batches["new"], strict=True)
        return mean((dreamed < new) == nearer for dreamed, new in pairs)


class MeanImageDistances(Distances):
    features: int
    dead_features: int


class MaximumMeanDiscrepancies(Distances):
    kernel: str
    bandwidth: float


class DreamFacts(Record):
    """What is dreamed of, and how the classifier after the task takes it."""

    classes: int
    covered: int
    shares: list[float]
    confidence: float
    class_names: list[str]
    teacher_confidence: list[float]
    named_alike: Share  # by the classifier after the task
    named_new: Share


class NamedShares(Record):
    """Of the test images of old, or of new classes."""

    right: Share
    wrong_among_themselves: Share
    taken_for_the_others: Share


class Confusion(Record):
    old: NamedShares
    new: NamedShares
    old_classes: int
    class_names: list[str]
    counts: list[list[int]]  # a row a true class, a column a named one


class Bias(Record):
    are_new: Share
    named_new: Share
    towards_new: float


class Embedding(Record):
    """A t-SNE of features."""

    perplexity: float
    kind: list[str]
    label: list[int]
    x: list[float]
    y: list[float]


class RunDiagnosis(Record):
    """Everything about one run, after one task."""

    run: str
    title: str
    preset: str
    method: str
    recipe: str
    seed: int
    task: int  # counted from 1
    shared: Shared
    images: ImageCounts
    batches: Batches
    mid: MeanImageDistances
    mmd: MaximumMeanDiscrepancies
    dreams: DreamFacts
    confusion: Confusion
    bias: Bias
    tsne: Embedding

    def distances(self, measure: Measure) -> Distances:
        return self.mid if measure == "mid" else self.mmd

    def verdict(self) -> dict[str, Nearness]:
        return {measure: self.distances(measure).verdict for measure in MEASURES}


class PaperFinding(Record):
    """Whether the paper's finding holds. It is about DeepInversion and ABD, after task 2."""

    expected: dict[str, Nearness]
    found: dict[str, dict[str, Nearness]]
    holds: bool
    holds_by: dict[str, bool]


class Diagnosis(Record):
    """One run, or several that share what came before the task. `print(diagnosis)` says what was found."""

    schema_version: Annotated[int, Field(alias="schema")] = SCHEMA
    command: str = ""
    environment: Environment
    runs: list[RunDiagnosis]
    verdicts: list[dict[str, Nearness]]
    paper: PaperFinding | None
    files: Annotated[list[Path], Field(exclude=True)] = Field(default_factory=list)  # that were written

    def lines(self) -> list[str]:
        """What was found, in words."""
        shared, before = self.runs[0].shared, self.runs[0].task - 1
        begin = "Both begin with" if len(self.runs) > 1 else "It begins with"
        words = [f"{begin} classifier {shared.teacher} after task {before}, and its dreams {shared.generator}."]
        for run in self.runs:
            for measure in MEASURES:
                far = run.distances(measure)
                words.append(
                    f"{run.title}: seen from real old images, dreams lie {far.verdict} than the new task by "
                    f"{measure.upper()} ({far.dreamed:.3g} and {far.new:.3g}; {100 * far.agreeing_batches():.0f} % of "
                    "sub-batches say the same)."
                )
        if self.paper is not None:
            by = [measure.upper() for measure in MEASURES if self.paper.holds_by[measure]]
            how = "holds" if self.paper.holds else f"holds by {by[0]} alone" if by else "does not hold"
            words.append(f"The paper's finding (DeepInversion: dreams farther than the new task; ABD: nearer) {how}.")
        return words

    def tables(self) -> tuple[Grid, Grid]:
        """How far from real old images everything is; and what is mistaken for what, what is dreamed of."""
        far: Grid = (["Method", "MID dreamed", "MID new", "MMD dreamed", "MMD new"], [])
        named: Grid = (["Method", "old as new", "new as old", "bias to new", "dreamed", "confidence"], [])
        for run in self.runs:
            distances = [run.distances(measure) for measure in MEASURES]
            far[1].append([run.title, *(f"{value:.3g}" for both in distances for value in (both.dreamed, both.new))])
            crossed = [part.taken_for_the_others for part in (run.confusion.old, run.confusion.new)]
            shares = [percent(share) for share in (*crossed, run.bias.towards_new)]
            covered = [f"{run.dreams.covered} of {run.dreams.classes}", f"{run.dreams.confidence:.2f}"]
            named[1].append([run.title, *shares, *covered])
        return far, named

    def __str__(self) -> str:
        return "\n".join(self.lines())


def paper_finding(runs: Sequence[RunDiagnosis]) -> PaperFinding | None:
    """None where the runs are not those of the paper's figures."""
    found = {run.method: run.verdict() for run in runs if run.task == 2}
    if found.keys() != PAPER_FINDING.keys():
        return None
    by: dict[str, bool] = {
        m: all(found[method][m] == expected for method, expected in PAPER_FINDING.items()) for m in MEASURES
    }
    return PaperFinding(expected=PAPER_FINDING, found=found, holds=all(by.values()), holds_by=by)

"""Other maps and other heads on the features that a run kept, without training again: seconds each.

What the network learned stays as it is. docs/lucid.md says what is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Annotated, Literal, cast, get_args

import torch
from pydantic import Field
from rich.console import Console
from torch import Tensor

from reverie import seeding
from reverie.config.schema import Config
from reverie.engine.device import find_device
from reverie.errors import UserError
from reverie.learner.folder import RunFolder
from reverie.learner.progress import counting
from reverie.methods import find_method
from reverie.methods.statistics_replay import Head, Moving
from reverie.nets.class_statistics import ClassStatistics
from reverie.nets.heads import AT_ONCE, AnsweringHead, FixedLinearAnswer
from reverie.runs.kept_features import FEATURES, KeptFeatures
from reverie.system.arguments import as_names, check_number
from reverie.system.records import Record, build
from reverie.text import did_you_mean, percent

Source = Literal["trained", "none", "images", "dreams", "both", "true"]
SOURCES: tuple[Source, ...] = get_args(Source)
HEADS: tuple[Head, ...] = get_args(Head)
KEEP = "keep=[features]"
Share = Annotated[float, Field(ge=0, le=1)]


class HeadResult(Record):
    """What one head answers, by statistics that were moved in one way.

    `source` is what the map was fitted on. `true`: nothing was moved, statistics are measured on all training images;
    `trained`: no statistics at all, but the head that was trained by steps.
    """

    source: Source
    head: Head
    accuracies: list[Share]  # after each task, on the test images of all classes so far

    @property
    def final_accuracy(self) -> float:
        return self.accuracies[-1]

    @property
    def average_accuracy(self) -> float:
        return mean(self.accuracies)


class HeadComparison(Record):
    """`print(comparison)` shows it as a table."""

    run: str
    preset: str
    method: str
    seed: int
    ridge: float
    dream_weight: float
    residual: bool
    pooled: float
    fixed: bool = False
    results: list[HeadResult]

    def grid(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows."""
        header = ["statistics moved by", "head", "A_N", "average A"]
        rows = [
            [WORDS[found.source], found.head, percent(found.final_accuracy), percent(found.average_accuracy)]
            for found in self.results
        ]
        return header, rows

    def __str__(self) -> str:
        header, rows = self.grid()
        widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
        lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in (header, *rows)]
        return "\n".join("  ".join(line).rstrip() for line in lines)


WORDS: dict[Source, str] = {
    "trained": "(the training head)",
    "none": "nothing",
    "images": "new images",
    "dreams": "dreams",
    "both": "new images and dreams",
    "true": "(measured on all images)",
}


@dataclass(frozen=True)
class _KeptRun:
    config: Config
    tasks: list[KeptFeatures]

    def statistics(self, source: Source, moving: Moving, device: torch.device) -> Iterator[ClassStatistics]:
        """After each task: what a method would have, or, with `true`, what none could."""
        found: ClassStatistics | None = None
        for task, kept in enumerate(self.tasks):
            true = replace(kept.true, fixed=self._fixed_means(task))
            if source == "true" or found is None:
                found = true
            else:
                moved, _ = moving.move(found, kept.images, kept.dreams, device)
                found = moved.joined(true.select(torch.arange(len(found), len(true))))
            yield found

    def _fixed_means(self, task: int) -> Tensor | None:
        means = [kept.fixed.means for kept in self.tasks[: task + 1] if kept.fixed is not None]
        return torch.cat(means) if len(means) == task + 1 else None

    def inputs(self, task: int, head: AnsweringHead) -> Tensor:
        """What the head makes its scores of, for each test image."""
        kept = self.tasks[task]
        if not isinstance(head, FixedLinearAnswer):
            return kept.test
        fixed, first = torch.empty(len(kept.test), head.middle.numel() - kept.test.shape[1]), 0
        for other in self.tasks[: task + 1]:
            assert other.fixed is not None
            rows = (kept.test_labels >= first) & (kept.test_labels < len(other.true))
            fixed[rows], first = other.fixed.test, len(other.true)
        return torch.cat([kept.test, fixed], dim=1)


def compare_heads(
    run: Path | str,
    *,
    sources: Sequence[str] | str | None = None,
    heads: Sequence[str] | str = HEADS,
    ridge: float = Moving.ridge,
    dream_weight: float = Moving.dream_weight,
    residual: bool = Moving.residual,
    pooled: float = Moving.pooled,
    fixed: bool | None = None,
    device: str | torch.device = "auto",
    progress: bool | Console = False,
) -> HeadComparison:
    """How other heads would have answered, by statistics moved in other ways, with the networks that a run trained.

    - `run`: the folder of one that kept its features, `keep=[features]`.
    - `sources`: what the map from old to new features is fitted on: `images`, `dreams`, `both`, or `none`, which leaves
      statistics where they were; `true` has them measured on the training images of all classes. Left out: all of which
      the run has the features. `trained` is the head that was trained by steps, whatever `heads` says.
    - `heads`: `linear`, `gaussian`, `prototype`.
    - `ridge`, `dream_weight`, `residual`, `pooled`, `fixed`: as the options of `lucid`. `fixed` is usually as in the
      run.
    - `device`: where maps and heads are fitted.

    The figures are those of test images: to choose by them is to choose by the test. Raises UserError for a run without
    features.
    """
    asked = cast(list[Head], _names("heads", heads, HEADS))
    folder, where = RunFolder(Path(run)), find_device(device)
    kept = _read(folder)
    base = Moving(
        "both",
        check_number("dream_weight", dream_weight, 0, 1e6),
        check_number("ridge", ridge, 0, 1e3),
        residual,
        "linear",
        check_number("pooled", pooled, 0, 1),
        _choose_fixed(fixed, kept, folder),
    )
    chosen = _choose_sources(sources, kept, folder)
    results, done = [], 0
    total = len([source for source in chosen if source != "trained"]) * len(asked) * len(kept.tasks)
    with counting(progress, "fits heads") as tell:
        for source in chosen:
            if source == "trained":
                accuracies = [_trained_accuracy(features) for features in kept.tasks]
                results.append(HeadResult(source=source, head="linear", accuracies=accuracies))
                continue
            moving = replace(base, map="none" if source == "true" else source)
            states = list(kept.statistics(source, moving, where))
            for head in asked:
                accuracies = []
                for task, (features, statistics) in enumerate(zip(kept.tasks, states, strict=True)):
                    seed = seeding.derive(kept.config.seed, "task", task, "fit head")
                    rng = torch.Generator().manual_seed(seed)  # as in the run itself
                    view = features.fixed.view if features.fixed is not None else None
                    made = replace(moving, head=head).make_head(statistics, rng, where, view)
                    accuracies.append(_accuracy(made, kept.inputs(task, made), features.test_labels))
                    done += 1
                    tell(done, total)
                results.append(HeadResult(source=source, head=head, accuracies=accuracies))
    config = kept.config
    return HeadComparison(
        run=str(folder.path),
        preset=config.preset,
        method=config.method,
        seed=config.seed,
        ridge=ridge,
        dream_weight=dream_weight,
        residual=residual,
        pooled=pooled,
        fixed=base.fixed,
        results=results,
    )


def _accuracy(head: AnsweringHead, inputs: Tensor, labels: Tensor) -> float:
    guesses = torch.cat([head(part).argmax(dim=1) for part in inputs.split(AT_ONCE)])
    return float((guesses == labels).double().mean())


def _trained_accuracy(kept: KeptFeatures) -> float:
    assert kept.trained is not None
    return float((kept.trained == kept.test_labels).double().mean())


def _read(folder: RunFolder) -> _KeptRun:
    if not folder.config.is_file():
        raise UserError(f"{folder.path} is not a run folder: it has no config.yaml.")
    config = folder.stored().config
    tasks: list[KeptFeatures] = []
    while (file := folder.task(len(tasks)) / FEATURES).is_file():
        tasks.append(KeptFeatures.read(file))
    if not tasks:
        raise UserError(f"{folder.path} has kept no features. Make another run with the setting {KEEP}.")
    sizes = [len(kept.true) for kept in tasks]
    if sizes != sorted(set(sizes)):
        raise UserError(f"The features in {folder.path} are not those of one run. Make it anew in another folder.")
    return _KeptRun(config, tasks)


def _choose_fixed(asked: bool | None, kept: _KeptRun, folder: RunFolder) -> bool:
    there = all(task.fixed is not None for task in kept.tasks)
    if asked and not there:
        raise UserError(f"{folder.path} has kept no fixed features: it was made by an earlier version.")
    if asked is not None or not there:
        return bool(asked)
    options = build(find_method(kept.config.method).Options, kept.config.options, "method.")
    return bool(getattr(options, "fixed", False))


def _choose_sources(asked: Sequence[str] | None, kept: _KeptRun, folder: RunFolder) -> list[Source]:
    """All that were asked for; none: all that are possible."""
    later = kept.tasks[1:]
    lacks = {
        "images": any(task.images is None for task in later),
        "dreams": any(task.dreams is None for task in later),
    }
    lacks["both"] = lacks["images"] or lacks["dreams"]
    lacks["trained"] = any(task.trained is None for task in kept.tasks)
    if asked is None:
        return [source for source in SOURCES if not lacks.get(source)]
    names = cast(list[Source], _names("sources", asked, SOURCES))
    if "trained" in names and lacks["trained"]:
        raise UserError(
            f"{folder.path} does not tell what its training head answered: it was made by an earlier version."
        )
    if missing := [name for name in names if lacks.get(name)]:
        raise UserError(
            f"Statistics of {folder.path} cannot be moved by {missing[0]}: the method {kept.config.method!r} has "
            f"{'no teacher' if lacks['images'] else 'no dreams'}."
        )
    return names


def _names(argument: str, asked: Sequence[str] | str, known: Sequence[str]) -> list[str]:
    names = list(dict.fromkeys(as_names(asked, argument)))
    if strange := [name for name in names if name not in known]:
        hint = did_you_mean(strange[0], known)
        raise UserError(f"`{argument}` are among {', '.join(known)}; {strange[0]!r} is not.{hint}")
    return names

"""Tuning by the paper's rule: a grid, cross-validated on the training images of the first half of the tasks.

A run is handed a data set made for it: its test images are the held-out fold, and the real ones are not in it.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

from reverie import seeding
from reverie.config.layers import parse_setting, setting_keys
from reverie.config.schema import Config, Recipe
from reverie.data import sources
from reverie.data.images import Dataset, Images
from reverie.engine.loop import find_device
from reverie.errors import Diverged, UserError
from reverie.runs import configure as experiment
from reverie.runs import run as runs
from reverie.runs.run import RunObserver
from reverie.system import files as disk
from reverie.system import provenance

Following = Callable[[str], AbstractContextManager[RunObserver]]
DECIDING = ("data", "stream", "evaluate")  # sections that decide what is judged


@dataclass(frozen=True)
class Point:
    """One choice of values, and the accuracy it reached on each fold; none where training diverged."""

    settings: tuple[str, ...]
    accuracies: tuple[float | None, ...]

    @property
    def mean(self) -> float:
        """Percent; a point that diverged on any fold is the worst of all."""
        return 100 * mean(a or 0.0 for a in self.accuracies) if None not in self.accuracies else -1.0

    def __str__(self) -> str:
        if None in self.accuracies:
            return "diverged"
        shown = [100 * a for a in self.accuracies if a is not None]
        return f"{mean(shown):.1f}" + (f" ± {stdev(shown):.1f}" if len(shown) > 1 else "")


@dataclass(frozen=True)
class Tuning:
    """What is searched, and by which rule."""

    preset: str
    method: str
    grid: Sequence[str]  # KEY=VALUE,VALUE,…
    folds: int = 3
    seed: int = 0
    recipe: Recipe = "paper"
    settings: Sequence[str] = ()

    def configurations(self) -> dict[tuple[str, ...], Config]:
        """By the settings of each point."""
        axes = [parse_axis(text) for text in self.grid]
        if not axes:
            raise UserError("Say what to try, for example --grid train.lr=0.1,0.05.")
        for axis in axes:
            if not {*parse_setting(axis[0])}.isdisjoint(DECIDING):
                raise UserError(f"{axis[0].partition('=')[0]} decides what is judged, so it cannot be tuned.")
        keys = [axis[0].partition("=")[0] for axis in axes]
        for key in {key for key in keys if keys.count(key) > 1}:
            raise UserError(f"--grid {key} is given twice; give all its values in one.")
        for key in setting_keys(self.settings) & setting_keys(value for axis in axes for value in axis):
            raise UserError(f"{key} is both set and tried: leave it out of --set or of --grid.")
        if self.folds < 2:
            raise UserError(f"--folds must be 2 or more, not {self.folds}.")
        made = {
            point: experiment.configure(
                self.preset, self.method, seed=self.seed, recipe=self.recipe, settings=[*self.settings, *point]
            )
            for point in itertools.product(*axes)
        }
        self._refuse_twins(made)
        return made

    def _refuse_twins(self, made: Mapping[tuple[str, ...], Config]) -> None:
        """Nothing could be chosen between points that come to the same run."""
        known: dict[str, tuple[str, ...]] = {}
        for point, config in made.items():
            twin = known.setdefault(json.dumps(config.identity(), sort_keys=True), point)
            if twin != point:
                differing = " and ".join(f"{a} or {b}" for a, b in zip(twin, point, strict=True) if a != b)
                raise UserError(
                    f"{differing} is the same run: the method {self.method!r} does not use that setting, or the values "
                    "are equal. Leave it out of --grid."
                )


def search(tuning: Tuning, out: Path, data: Path, device: str, following: Following, command: str) -> list[Point]:
    """Train every point on every fold, unless it is finished; best first. Writes tune.json."""
    configs = tuning.configurations()
    _refuse_to_lose(out / "tune.json", tuning, configs)
    first = next(iter(configs.values()))
    where = find_device(device)
    dataset = sources.read(first.data, data, choose=partial(experiment.choose_classes, first))
    classes, tasks = first_half(first, dataset)
    points = []
    parts = [fold_of(dataset, classes, fold, tuning.folds, tuning.seed) for fold in range(tuning.folds)]
    for settings, config in configs.items():
        shortened = replace(config, stream=replace(config.stream, take=tasks))
        accuracies: list[float | None] = []
        for fold, part in enumerate(parts):
            name = experiment.folder_name(config, [*tuning.settings, *settings])
            folder = out / f"{name}-fold{fold + 1}of{tuning.folds}"
            with following(f"{', '.join(settings)} fold {fold + 1}/{tuning.folds}") as observer:
                try:
                    result = runs.execute(
                        shortened,
                        folder,
                        device=device,
                        observer=observer,
                        command=command,
                        share_first_task=True,
                        dataset=part,
                    )
                    accuracies.append(result["metrics"]["final_accuracy"])
                except Diverged:
                    accuracies.append(None)
        points.append(Point(settings, tuple(accuracies)))
    points.sort(key=lambda point: -point.mean)
    facts = {"tasks": tasks, "classes": list(classes), "environment": provenance.environment(where)}
    disk.write_json(out / "tune.json", _as_json(tuning, points, command) | facts)
    return points


def _refuse_to_lose(file: Path, tuning: Tuning, points: Collection[tuple[str, ...]]) -> None:
    """Another search may be written down there already. One with further points tells all that it told."""
    if not file.is_file():
        return
    try:
        before = disk.read_json(file)
        known = {tuple(point["settings"]) for point in before["points"]}
        differing = [name for name, value in _rule(tuning).items() if before[name] != value]
    except (ValueError, LookupError, TypeError):
        raise UserError(f"{file} is not what a search wrote. Choose another --out.") from None
    if differing or not known <= {*points}:
        raise UserError(f"{file} holds another search ({', '.join(differing) or 'grid'}). Choose another --out.")


def first_half(config: Config, dataset: Dataset) -> tuple[tuple[int, ...], int]:
    """The classes of the first half of the tasks, and how many tasks that is."""
    stream = experiment.make_stream(config, dataset)
    tasks = len(stream) // 2
    if tasks < 2:
        raise UserError(
            f"The stream has {len(stream)} tasks. Tuning needs four at least: it uses the first half, and one task "
            "alone cannot show what is forgotten."
        )
    return stream[:tasks].classes, tasks


def fold_of(dataset: Dataset, classes: Sequence[int], fold: int, folds: int, seed: int) -> Dataset:
    """Training images of `classes` alone: one fold of them to be judged on, the others to be learned from."""
    number = fold_numbers(dataset.train.labels, folds, seed)
    wanted = torch.isin(dataset.train.labels, torch.tensor(classes))
    scarce = [c for c in classes if int((dataset.train.labels == c).sum()) < folds]
    if scarce:
        raise UserError(f"The class {dataset.class_names[scarce[0]]!r} has fewer than {folds} training images.")

    def part(which: Tensor) -> Images:
        return dataset.train.select((wanted & which).nonzero().flatten())

    content = f"{dataset.content} fold {fold} of {folds} {seed} {list(classes)}" if dataset.content else None
    return replace(dataset, train=part(number != fold), test=part(number == fold), content=content)


def fold_numbers(labels: Tensor, folds: int, seed: int) -> Tensor:
    """The fold of each image, as even as can be in every class; a function of the labels and the seed."""
    number = torch.empty_like(labels)
    for label in labels.unique().tolist():
        of_class = (labels == label).nonzero().flatten()
        shuffled = torch.randperm(len(of_class), generator=seeding.generator(seed, "folds", label))
        number[of_class[shuffled]] = torch.arange(len(of_class)) % folds
    return number


def parse_axis(text: str) -> list[str]:
    """`train.lr=0.1,0.05` as ["train.lr=0.1", "train.lr=0.05"]; commas inside brackets belong to a value."""
    key, equals, values = text.partition("=")
    choices = [value.strip() for value in re.split(r",(?![^\[]*\])", values)]
    if not equals or not key.strip() or not all(choices):
        raise UserError(f"--grid wants section.key=value,value, for example train.lr=0.1,0.05, not {text!r}.")
    return [f"{key.strip()}={value}" for value in dict.fromkeys(choices)]


def choice(points: Sequence[Point]) -> str:
    """What was chosen, and by how much."""
    best, *others = points
    if None in best.accuracies:
        return "Every point diverged; nothing is chosen."
    said = f"chosen: {', '.join(best.settings)} with {best} %"
    if not others or None in others[0].accuracies:
        return said
    lead, next_best = best.mean - others[0].mean, ", ".join(others[0].settings)
    return f"{said}, {lead:.1f} points ahead of {next_best}" if lead >= 0.05 else f"{said}; {next_best} is as good"


def _rule(tuning: Tuning) -> dict[str, Any]:
    """All but the grid."""
    plain = vars(tuning) | {"settings": list(tuning.settings)}
    del plain["grid"]
    return plain


def _as_json(tuning: Tuning, points: Sequence[Point], command: str) -> dict[str, Any]:
    return {
        "command": command,
        **_rule(tuning),
        "grid": list(tuning.grid),
        "chosen": list(points[0].settings) if None not in points[0].accuracies else None,
        "by": choice(points),
        "points": [{"settings": list(p.settings), "accuracies": list(p.accuracies)} for p in points],
    }

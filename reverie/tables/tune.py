"""Tuning by the paper's rule: a grid, cross-validated on the training images of the first half of the tasks.

A run is handed a data set made for it: its test images are the held-out fold, and the real ones are not in it.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from reverie import seeding
from reverie.config.choices import Recipe
from reverie.config.layers import Settings, parse_setting, setting_keys, setting_texts
from reverie.config.schema import Config, flat
from reverie.data.images import Dataset, Images
from reverie.engine.device import find_device
from reverie.engine.observer import Observer, Observers
from reverie.errors import Diverged, UserError
from reverie.learner.progress import showing_progress
from reverie.runs.configure import configure, folder_name, load_dataset, make_stream
from reverie.runs.run import run
from reverie.system import provenance
from reverie.system.arguments import check_whole_number, renaming_argument
from reverie.system.files import write_json
from reverie.system.records import Record, read_record
from reverie.text import markdown_table, shortened

MOST_FOLDS = 1000
DECIDING = ("data", "stream", "evaluate")  # sections that decide what is judged


class PointRecord(Record):
    settings: list[str]
    accuracies: list[float | None]


class TuningRecord(Record):
    """`tune.json`."""

    command: str
    preset: str
    method: str
    folds: int
    seed: int
    recipe: str
    settings: list[str]
    grid: list[str]
    chosen: list[str] | None
    by: str
    points: list[PointRecord]
    tasks: int
    classes: list[int]
    environment: provenance.Environment


@dataclass(frozen=True)
class Point:
    """One choice of values, and the accuracy it reached on each fold; none where training diverged."""

    settings: tuple[str, ...]
    accuracies: tuple[float | None, ...]

    @property
    def mean(self) -> float:
        """Percent; a point that diverged on any fold is the worst of all."""
        return 100 * mean(a or 0.0 for a in self.accuracies) if None not in self.accuracies else -1.0

    @property
    def spread(self) -> float:
        """The sample standard deviation over folds, in points."""
        shown = [100 * a for a in self.accuracies if a is not None]
        return stdev(shown) if len(shown) > 1 else 0.0

    def __str__(self) -> str:
        if None in self.accuracies:
            return "diverged"
        return f"{self.mean:.1f}" + (f" ± {self.spread:.1f}" if len(self.accuracies) > 1 else "")


@dataclass(frozen=True)
class Search:
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
            raise UserError("Say what to try, for example `grid`: train.lr=0.1,0.05.")
        for axis in axes:
            if not {*parse_setting(axis[0])}.isdisjoint(DECIDING):
                raise UserError(f"{axis[0].partition('=')[0]} decides what is judged, so it cannot be tuned.")
        keys = [axis[0].partition("=")[0] for axis in axes]
        for key in {key for key in keys if keys.count(key) > 1}:
            raise UserError(f"{key} is given twice in `grid`; give all its values in one.")
        for key in setting_keys(self.settings) & setting_keys([value for axis in axes for value in axis]):
            raise UserError(f"{key} is both set and tried: leave it out of `settings` or of `grid`.")
        check_whole_number("folds", self.folds, 2, MOST_FOLDS)
        made = {
            point: configure(
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
                    "are equal. Leave it out of `grid`."
                )


@dataclass(frozen=True)
class Tuning:
    """What was found: the points by mean accuracy, the best first. `print(tuning)` shows them."""

    points: Sequence[Point]
    file: Path
    record: TuningRecord

    @property
    def chosen(self) -> dict[str, Any] | None:
        """The best settings, as `configure` takes them; none where every point diverged."""
        best = self.points[0]
        if None in best.accuracies:
            return None
        return {key: value for text in best.settings for key, value in flat(parse_setting(text)).items()}

    def choice(self) -> str:
        """What was chosen, and by how much."""
        return _choice(self.points)

    def as_dict(self) -> dict[str, Any]:
        return self.record.as_dict()

    def __str__(self) -> str:
        rows = [[", ".join(point.settings), str(point)] for point in self.points]
        return f"{markdown_table(['point', 'A_N'], rows)}\n{self.choice()}\n"


@renaming_argument("folder", "out")
def tune_settings(
    preset: str,
    grid: Mapping[str, Sequence[Any]] | Sequence[str],
    method: str = "abd",
    *,
    folds: int = 3,
    seed: int = 0,
    recipe: Recipe = "paper",
    settings: Settings = (),
    out: Path | str | None = None,
    data: Path | str = "data",
    device: str = "auto",
    progress: bool | Console = False,
    observer: Observer | None = None,
    command: str = "",
) -> Tuning:
    """Find hyperparameters by the paper's rule, without a look at the test images.

        tuning = reverie.tune_settings("cifar100-10", {"method.distillation": [0.01, 0.1, 1]})
        config = reverie.configure("cifar100-10", settings=tuning.chosen)

    Every point of the grid learns the first half of the tasks, once for each fold: that part of the training images is
    held out and judged on. The grid may also be written as on the command line: `["train.lr=0.1,0.05"]`. `out` is a
    folder for the runs and tune.json. Stopped at any moment, the same call goes on. `command` is what tune.json calls
    its origin. The others are as in `run`.
    """
    texts = _grid_texts(grid)
    search = Search(preset, method, tuple(texts), folds, seed, recipe, setting_texts(settings))
    folder = Path(out) if out is not None else Path("runs") / f"tune-{Path(preset).stem}-{method}"
    configs = search.configurations()
    _refuse_to_lose(folder / "tune.json", search, configs)
    first = next(iter(configs.values()))
    where = find_device(device)
    dataset = load_dataset(first, data)
    classes, tasks = first_half(first, dataset)
    parts = [fold_of(dataset, classes, fold, folds, seed) for fold in range(folds)]
    points = []
    for point, config in configs.items():
        halved = replace(config, stream=replace(config.stream, take=tasks))
        name = folder_name(config, [*search.settings, *point])
        accuracies: list[float | None] = []
        for fold, part in enumerate(parts):
            place = folder / f"{name}-fold{fold + 1}of{folds}"
            with showing_progress(progress, f"{', '.join(point)} fold {fold + 1}/{folds}") as display:
                accuracies.append(_accuracy(halved, place, part, device, Observers(observer, display), command))
        points.append(Point(point, tuple(accuracies)))
    points.sort(key=lambda point: -point.mean)
    record = TuningRecord(
        command=command,
        **_rule(search),
        grid=list(search.grid),
        chosen=list(points[0].settings) if None not in points[0].accuracies else None,
        by=_choice(points),
        points=[PointRecord(settings=list(p.settings), accuracies=list(p.accuracies)) for p in points],
        tasks=tasks,
        classes=list(classes),
        environment=provenance.environment(where),
    )
    write_json(folder / "tune.json", record.as_dict())
    return Tuning(points, folder / "tune.json", record)


def _grid_texts(grid: Mapping[str, Sequence[Any]] | Sequence[str] | str) -> list[str]:
    """As the command line has it: `train.lr=0.1,0.05`."""
    if not isinstance(grid, Mapping):
        return [grid] if isinstance(grid, str) else list(grid)
    for key, values in grid.items():
        if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
            raise UserError(
                f"`grid` has a list of values for each key, such as {{'train.lr': [0.1, 0.05]}}; {key} has "
                f"{shortened(values)}."
            )
    return [f"{key}={_values_text(key, values)}" for key, values in grid.items()]


def _values_text(key: str, values: Iterable[Any]) -> str:
    texts = [text for value in values for text in setting_texts({key: value})]
    return ",".join(text.removeprefix(f"{key}=") for text in texts)


def _accuracy(
    config: Config, folder: Path, dataset: Dataset, device: str, observer: Observer, command: str
) -> float | None:
    """After the last task; none where training diverged."""
    try:
        result = run(
            config,
            folder,
            device=device,
            observer=observer,
            command=command,
            share_first_task=True,
            dataset=dataset,
        )
    except Diverged:
        return None
    return result.metrics.final_accuracy


def _refuse_to_lose(file: Path, search: Search, points: Collection[tuple[str, ...]]) -> None:
    """Another search may be written down there already. One with further points tells all that it told."""
    if not file.is_file():
        return
    before = read_record(TuningRecord, file, "Choose another `out`.")
    known = {tuple(point.settings) for point in before.points}
    differing = [name for name, value in _rule(search).items() if getattr(before, name) != value]
    if differing or not known <= {*points}:
        raise UserError(f"{file} holds another search ({', '.join(differing) or 'grid'}). Choose another `out`.")


def first_half(config: Config, dataset: Dataset) -> tuple[tuple[int, ...], int]:
    """The classes of the first half of the tasks, and how many tasks that is."""
    stream = make_stream(config, dataset)
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
        raise UserError(f"`grid` wants section.key=value,value, for example train.lr=0.1,0.05, not {text!r}.")
    return [f"{key.strip()}={value}" for value in dict.fromkeys(choices)]


def _choice(points: Sequence[Point]) -> str:
    best, *others = points
    if None in best.accuracies:
        return "Every point diverged; nothing is chosen."
    words = f"chosen: {', '.join(best.settings)} with {best} %"
    if not others or None in others[0].accuracies:
        return words
    lead, next_best = best.mean - others[0].mean, ", ".join(others[0].settings)
    spread = max(best.spread, others[0].spread)
    if lead < 0.05:
        return f"{words}; {next_best} is as good"
    if lead < spread:
        return (
            f"{words}; that is no lead: {next_best} is {lead:.1f} points behind, and the folds of one of them spread "
            f"by {spread:.1f}"
        )
    return f"{words}, {lead:.1f} points ahead of {next_best}"


def _rule(search: Search) -> dict[str, Any]:
    """All but the grid."""
    plain = vars(search) | {"settings": list(search.settings)}
    del plain["grid"]
    return plain

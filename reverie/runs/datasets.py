"""Data sets by name, as one call each: which there are, download one, check one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from rich.console import Console

from reverie.config.schema import DataConfig
from reverie.data.download import damaged_files, fetch
from reverie.data.folder import read_folder
from reverie.data.sources import ARCHIVES, SOURCES, locate, read_dataset
from reverie.errors import UserError
from reverie.learner.progress import counting
from reverie.text import plural

CHECKED_SIZE = 32  # pixels to which the images of a folder are decoded when they are checked


@dataclass(frozen=True)
class DatasetInfo:
    name: str
    about: str
    state: str  # "found", "always there", or how to get it


def list_datasets(data: Path | str = "data") -> list[DatasetInfo]:
    """The data sets that `data.source` can name, and whether each is under the folder `data`."""
    return [DatasetInfo(name, source.about, _state(name, Path(data))) for name, source in SOURCES.items()]


def _state(name: str, data: Path) -> str:
    if name not in ARCHIVES:
        return "always there" if name == "digits" else ""
    try:
        locate(name, data)
    except UserError:
        return f"missing; `download_dataset({name!r})`" if ARCHIVES[name].md5 else f"missing; {ARCHIVES[name].url}"
    return "found"


def download_dataset(
    name: str, data: Path | str = "data", *, mirrors: Sequence[str] = (), progress: bool | Console = False
) -> Path:
    """Download `cifar10`, `cifar100` or `tinyimagenet`, compare it with its published checksum, and unpack it.

    `mirrors` are addresses to try first. Gives the folder. Raises UserError where none of them has the official file.
    """
    with counting(progress, f"downloading {name}") as report:
        return fetch(name, Path(data), mirrors, report)


@dataclass(frozen=True)
class DatasetCheck:
    """What was found: images by class where they were counted, and what is not as published. `print` shows it."""

    name: str
    folder: Path | None
    complete: bool  # every file is there, and as published
    problem: str  # what a run would take as it is, but is not as published
    counts: dict[str, tuple[int, int]]  # training and test images by class

    def __str__(self) -> str:
        if self.complete and not self.counts:
            return f"{self.name} in {self.folder} is complete and as published"
        lines = [self.problem] if self.problem else []
        lines.append(f"{self.name}: {plural(len(self.counts), 'class')}, training + test images of each")
        return "\n".join([*lines, *(f"{name}: {train} + {test}" for name, (train, test) in self.counts.items())])


def _refuse_unknown(what: str) -> None:
    names = [name for name in SOURCES if name != "folder"]
    if what in names or Path(what).exists():
        return
    nearest = sorted(names, key=lambda name: -SequenceMatcher(None, name, what.lower()).ratio())
    raise UserError(
        f"There is no folder {what}, and no data set of that name. The data sets are {', '.join(nearest)}; a folder "
        "has one sub-folder of images a class."
    )


def check_dataset(what: Path | str, data: Path | str = "data", *, progress: bool | Console = False) -> DatasetCheck:
    """Check a data set's files against the published checksums, or read and count its images (ImageNet's: count).

    `what` is a data set's name, or a folder of images. Raises UserError where files are damaged or missing.
    """
    folder, problem = None, ""
    what = str(what)
    _refuse_unknown(what)
    if what in ARCHIVES:
        folder = locate(what, Path(data))
        damaged = damaged_files(what, folder)
        if damaged and ARCHIVES[what].files:
            listed = ", ".join(damaged)
            raise UserError(f"Damaged in {folder}: {listed}. `download_dataset({what!r})` fetches them anew.")
        if ARCHIVES[what].files:
            return DatasetCheck(what, folder, complete=True, problem="", counts={})
        if damaged:  # images are missing, or added: a run takes what there is
            problem = (
                f"{folder} is not as published: it has {', '.join(damaged)}. A run takes it as it is; "
                f"`download_dataset({what!r})` puts all of it in its place."
            )
    with counting(progress, f"reading {what}") as report:
        if what in ARCHIVES or (what == "digits" and not Path(what).is_dir()):
            dataset = read_dataset(DataConfig(source=what), Path(data), report)
        else:
            dataset = read_folder(Path(what), size=CHECKED_SIZE, progress=report)
    classes = len(dataset.class_names)
    train, test = (part.labels.bincount(minlength=classes).tolist() for part in (dataset.train, dataset.test))
    counts = {name: both for name, *both in zip(dataset.class_names, train, test, strict=True)}
    return DatasetCheck(what, folder, not problem, problem, {name: (both[0], both[1]) for name, both in counts.items()})

"""Ask a model: what is on these images (`predict`), and how often is it right (`evaluate`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reverie.data.decode import NotAnImage, by_threads, decode
from reverie.data.folder import Progress, class_folders, files_below
from reverie.data.images import Images, images_at_once
from reverie.errors import UserError, did_you_mean, explaining
from reverie.learner.task_learner import TaskLearner
from reverie.metrics import calibration_error
from reverie.model import classes
from reverie.nets.classifier import Preprocessing

Paths = Path | str | Sequence[Path | str]


@dataclass(frozen=True)
class Answer:
    """The classes an image most likely shows, best first. Of a file that cannot be read there are none."""

    source: str  # the file, or the number of the image
    names: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    rejected: bool = False  # too unsure: none of these
    problem: str = ""  # why the file cannot be read, to be put behind its name

    def as_dict(self) -> dict[str, Any]:
        guesses = [
            {"class": name, "confidence": round(value, 6)}
            for name, value in zip(self.names, self.probabilities, strict=True)
        ]
        return {"image": self.source, "classes": guesses, "rejected": self.rejected, "problem": self.problem or None}


def predict(
    learner: TaskLearner,
    images: Images | Tensor | Paths,
    *,
    top: int = 1,
    reject: float | None = None,
    progress: Progress | None = None,
) -> list[Answer]:
    """An answer for each image, in their order.

    `images` are files and folders (all files below are read), or pixels as `TaskLearner.predict` takes them. An answer
    is rejected where even the likeliest class is less probable than `reject`.
    """
    if top < 1:
        raise UserError(f"At least one name is asked for, not {top}.")
    reader: _Files | _Pixels
    if isinstance(images, Path | Sequence):
        files = find_images([images] if isinstance(images, Path | str) else images)
        sources, reader = [str(file) for file in files], _Files(files, learner.classifier.preprocessing)
    else:
        sources, reader = [str(number) for number in range(len(images))], _Pixels(images)
    names, answers = learner.classifier.class_names, dict[int, Answer]()
    for row, labels, probabilities in _predictions(learner, reader, top, progress):
        rejected = reject is not None and probabilities[0] < reject
        answers[row] = Answer(sources[row], tuple(names[label] for label in labels), tuple(probabilities), rejected)
    for row, problem in reader.problems.items():
        answers[row] = Answer(sources[row], problem=problem)
    return [answers[row] for row in range(len(sources))]


@explaining("read", "Change its permissions, or leave it out.")
def find_images(paths: Sequence[Path | str]) -> list[Path]:
    """The files, and all files below the folders."""
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise UserError(f"There is no file or folder {path}.")
        files = files_below(path) if path.is_dir() else [path]
        if not files:
            raise UserError(f"The folder {path} holds no files.")
        found += files
    return found


@dataclass(frozen=True)
class Evaluation:
    """How often a model is right about labelled images."""

    class_names: tuple[str, ...]
    confusion: Tensor  # images by class (row) and by the class they were taken for (column)
    calibration_error: float  # expected
    new: frozenset[str] = frozenset()  # the classes that count as new
    unknown: dict[str, int] = field(default_factory=dict)  # folders the model has no class for, and their files
    unreadable: dict[str, str] = field(default_factory=dict)  # files, and why

    @property
    def images(self) -> int:
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        return int(self.confusion.diagonal().sum()) / self.images

    def by_class(self) -> dict[str, tuple[int, float]]:
        """Images, and the share that is named rightly, of each class that has any."""
        counts, right = self.confusion.sum(dim=1).tolist(), self.confusion.diagonal().tolist()
        rows = zip(self.class_names, counts, right, strict=True)
        return {name: (count, hits / count) for name, count, hits in rows if count}

    def accuracy_of(self, names: Collection[str]) -> float | None:
        """Over the images of these classes, named among all classes."""
        rows = torch.tensor([name in names for name in self.class_names])
        images = int(self.confusion[rows].sum())
        return int(self.confusion.diagonal()[rows].sum()) / images if images else None

    @property
    def old_accuracy(self) -> float | None:
        return self.accuracy_of([name for name in self.class_names if name not in self.new]) if self.new else None

    @property
    def new_accuracy(self) -> float | None:
        return self.accuracy_of(self.new)

    def mistakes(self) -> list[tuple[str, str, int]]:
        """What was taken for what, how often: the most frequent first."""
        pairs = [
            (self.class_names[row], self.class_names[column], int(self.confusion[row, column]))
            for row, column in self.confusion.nonzero().tolist()
            if row != column
        ]
        return sorted(pairs, key=lambda pair: -pair[2])

    def as_dict(self) -> dict[str, Any]:
        return {
            "images": self.images,
            "accuracy": self.accuracy,
            "old_accuracy": self.old_accuracy,
            "new_accuracy": self.new_accuracy,
            "calibration_error": self.calibration_error,
            "classes": [
                {"class": name, "new": name in self.new, "images": images, "accuracy": share}
                for name, (images, share) in self.by_class().items()
            ],
            "mistakes": [
                {"class": actual, "taken_for": taken, "images": count} for actual, taken, count in self.mistakes()
            ],
            "unknown_classes": self.unknown,
            "unreadable": self.unreadable,
        }


def evaluate(
    learner: TaskLearner,
    labelled: Images | Path | str,
    *,
    new: Collection[str] | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """`labelled` is a folder with one folder of images a class, or images with labels in learned order.

    `new` are the classes that count as new; left out, those of the ledger's last step. Folders that bear no name of a
    class are left aside, and named.
    """
    names, files, unknown = learner.classifier.class_names, list[Path](), dict[str, int]()
    new = [new] if isinstance(new, str) else new
    if strange := sorted({*(new or ())} - {*names}):
        raise UserError(f"The model does not know {strange[0]!r}.{did_you_mean(strange[0], names)}")
    reader: _Files | _Pixels
    if isinstance(labelled, Path | str):
        files, labels, unknown = _labelled_files(Path(labelled), names)
        reader = _Files(files, learner.classifier.preprocessing)
    else:
        labels, reader = labelled.labels.tolist(), _Pixels(labelled)
    confusion = torch.zeros(len(names), len(names), dtype=torch.long)
    sure, right = list[float](), list[bool]()
    for row, (taken, *_), (probability, *_) in _predictions(learner, reader, 1, progress):
        confusion[labels[row], taken] += 1
        sure.append(probability)
        right.append(taken == labels[row])
    if not right:
        raise UserError(f"There is no image that can be read in {labelled}." if labels else "There are no images.")
    return Evaluation(
        names,
        confusion,
        calibration_error(sure, right),
        frozenset(classes.newest(names, learner.ledger) if new is None else new),
        unknown,
        {str(files[row]): problem for row, problem in reader.problems.items()},
    )


@explaining("read", "Change its permissions, or choose another folder.")
def _labelled_files(root: Path, names: Sequence[str]) -> tuple[list[Path], list[int], dict[str, int]]:
    """Files and their labels, and the folders of no class with the number of their files."""
    if not root.is_dir():
        raise UserError(f"There is no folder {root}. Give one with a folder of images for each class.")
    found = {folder.name: files_below(folder) for folder in class_folders(root)}
    unknown = {name: len(files) for name, files in found.items() if name not in names}
    if not found.keys() - unknown:
        inner = next((f" Did you mean {root / name}?" for name in ("test", "val") if name in found), "")
        first = next(iter(unknown), "")
        raise UserError(
            f"No folder in {root} bears the name of a class the model knows.{inner or did_you_mean(first, names)}"
        )
    files = [(file, label) for label, name in enumerate(names) for file in found.get(name, ())]
    return [file for file, _ in files], [label for _, label in files], unknown


def _predictions(
    learner: TaskLearner, reader: _Files | _Pixels, top: int, progress: Progress | None
) -> Iterator[tuple[int, list[int], list[float]]]:
    """For each image that can be read: its number, its labels, best first, and their probabilities."""
    at_once = images_at_once(learner.classifier.preprocessing.size)
    for first in range(0, len(reader), at_once):
        last = min(first + at_once, len(reader))
        pixels = reader.read(range(first, last))
        if pixels:
            prediction = learner.predict(torch.stack([*pixels.values()]), top)
            yield from zip(pixels, prediction.labels.tolist(), prediction.probabilities.tolist(), strict=True)
        if progress:
            progress(last, len(reader))


class _Pixels:
    """Images that are decoded already, or read themselves."""

    def __init__(self, images: Images | Tensor) -> None:
        self.images = images
        self.problems: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.images)

    def read(self, rows: range) -> dict[int, Tensor]:
        index = torch.tensor(rows)
        pixels = self.images[index] if isinstance(self.images, Tensor) else self.images.read(index)
        return dict(zip(rows, pixels, strict=True))


class _Files:
    """Files, decoded by threads, as the model was trained to see them. What cannot be read is left out and noted."""

    def __init__(self, files: Sequence[Path], shape: Preprocessing) -> None:
        self.files, self.shape = files, shape
        self.problems: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.files)

    def read(self, rows: range) -> dict[int, Tensor]:
        decoded = dict(zip(rows, by_threads(self._decode, rows), strict=True))
        self.problems |= {row: str(found) for row, found in decoded.items() if isinstance(found, NotAnImage)}
        return {row: found for row, found in decoded.items() if isinstance(found, Tensor)}

    def _decode(self, row: int) -> Tensor | NotAnImage:
        try:
            return torch.from_numpy(decode(self.files[row], self.shape.size, channels=self.shape.channels)[0])
        except NotAnImage as problem:
            return problem

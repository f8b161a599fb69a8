"""How often a model is right about labelled images: by class, old and new, and what it mistakes for what."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reverie.data.decode import problem_lines
from reverie.data.folder import Progress, class_folders, files_below
from reverie.data.images import Images
from reverie.data.listed import files_by_label, is_list
from reverie.errors import UserError, explaining
from reverie.learner.task_learner import TaskLearner
from reverie.metrics import CALIBRATION_BINS, calibration_error
from reverie.model.classes import newest_classes
from reverie.model.inference import FileReader, PixelReader, top_classes
from reverie.text import did_you_mean, listing, percent, plural

SHOWN = 10  # mistakes, and things left aside, that are printed


@dataclass(frozen=True)
class Evaluation:
    """How often a model is right about labelled images. `print(evaluation)` shows it."""

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

    def lines(self) -> list[str]:
        """In short."""
        found = [f"{percent(self.accuracy)} of {self.images} images are named rightly"]
        if self.new:
            old, new = percent(self.old_accuracy), percent(self.new_accuracy)
            found.append(f"old classes {old}, new classes (of the last step) {new}")
        found.append(f"expected calibration error {percent(self.calibration_error)} ({CALIBRATION_BINS} bins)")
        return found

    def left_aside(self) -> list[str]:
        """What was not looked at, and why: a line for all folders of no class, one for each kind of unreadable file."""
        lines = problem_lines(self.unreadable, "passed over")
        if not self.unknown:
            return lines
        files = plural(sum(self.unknown.values()), "file")
        return [f"No class of the model, so left aside with the {files} inside: {listing([*self.unknown])}.", *lines]

    def __str__(self) -> str:
        classes = [f"  {name}: {percent(share)} of {images}" for name, (images, share) in self.by_class().items()]
        mistakes = [f"  {actual} taken for {taken}: {count}" for actual, taken, count in self.mistakes()]
        return "\n".join([*self.lines(), *classes, *first_few(mistakes), *first_few(self.left_aside())])


def first_few(lines: Sequence[str]) -> list[str]:
    """As many as a person reads; `as_dict` has all."""
    more = [f"… and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return [*lines[:SHOWN], *more]


def evaluate_images(
    learner: TaskLearner,
    labelled: Images | Path | str,
    *,
    new: Collection[str] | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """`labelled` is a folder with one folder of images a class, a CSV file, or images with labels in learned order.

    `new` are the classes that count as new; left out, those of the ledger's last step. Folders that bear no name of a
    class are left aside, and named.
    """
    names, files, unknown = learner.classifier.class_names, list[Path](), dict[str, int]()
    new = [new] if isinstance(new, str) else new
    if strange := sorted({*(new or ())} - {*names}):
        raise UserError(f"The model does not know {strange[0]!r}.{did_you_mean(strange[0], names)}")
    reader: FileReader | PixelReader
    if isinstance(labelled, Path | str):
        files, labels, unknown = _labelled_files(Path(labelled), names)
        reader = FileReader(files, learner.classifier.preprocessing)
    else:
        labels, reader = labelled.labels.tolist(), PixelReader(labelled)
    confusion = torch.zeros(len(names), len(names), dtype=torch.long)
    confidence, right = list[float](), list[bool]()
    for row, (taken, *_), (probability, *_) in top_classes(learner, reader, 1, progress):
        confusion[labels[row], taken] += 1
        confidence.append(probability)
        right.append(taken == labels[row])
    if not right:
        raise UserError(f"There is no image that can be read in {labelled}." if labels else "There are no images.")
    return Evaluation(
        names,
        confusion,
        calibration_error(confidence, right),
        frozenset(newest_classes(names, learner.ledger) if new is None else new),
        unknown,
        {str(files[row]): problem for row, problem in reader.problems.items()},
    )


@explaining("read", "Change its permissions, or choose another folder.")
def _labelled_files(root: Path, names: Sequence[str]) -> tuple[list[Path], list[int], dict[str, int]]:
    """Files and their labels, and the folders of no class with the number of their files."""
    if not root.is_dir() and not is_list(root):
        raise UserError(f"There is no folder {root}. Give one with a folder of images for each class.")
    if is_list(root):
        found = files_by_label(root)
    else:
        found = {folder.name: files_below(folder) for folder in class_folders(root)}
    unknown = {name: len(files) for name, files in found.items() if name not in names}
    if not found.keys() - unknown:
        inner = next((f" Did you mean {root / name}?" for name in ("test", "val") if name in found), "")
        first = next(iter(unknown), "")
        what = "label" if is_list(root) else "folder"
        raise UserError(
            f"No {what} in {root} bears the name of a class the model knows.{inner or did_you_mean(first, names)}"
        )
    files = [(file, label) for label, name in enumerate(names) for file in found.get(name, ())]
    return [file for file, _ in files], [label for _, label in files], unknown

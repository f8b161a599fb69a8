"""What is on these images: names and confidences, for files, folders, arrays and tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reverie.data.decode import NotAnImage, by_threads, decode, problem_lines
from reverie.data.folder import Progress, files_below
from reverie.data.images import Images, images_at_once
from reverie.data.listed import is_list, listed_files, refuse_missing
from reverie.data.preprocessing import Preprocessing
from reverie.errors import UserError, explaining
from reverie.learner.task_learner import TaskLearner
from reverie.system.arguments import check_whole_number
from reverie.text import percent

Paths = Path | str | Sequence[Path | str]

MOST_TOP = 1_000_000  # classes


@dataclass(frozen=True)
class Prediction:
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

    def __str__(self) -> str:
        if self.problem:
            return f"{self.source} {self.problem}"
        shown = [f"{name} {percent(value)}" for name, value in zip(self.names, self.probabilities, strict=True)]
        return f"{self.source}: {'none of these; ' if self.rejected else ''}{', '.join(shown)}"


def predict_images(
    learner: TaskLearner,
    images: Images | Tensor | Paths,
    *,
    top: int = 1,
    reject: float | None = None,
    progress: Progress | None = None,
) -> list[Prediction]:
    """A prediction for each image, in their order.

    `images` are files, folders (all files below are read) and CSV files with a column path, or pixels as
    `TaskLearner.predict` takes them. A prediction is rejected where even the likeliest class is less probable than
    `reject`.
    """
    check_whole_number("top", top, 1, MOST_TOP)
    sources, reader = open_images(learner, images)
    names, found = learner.classifier.class_names, dict[int, Prediction]()
    for row, labels, probabilities in top_classes(learner, reader, top, progress):
        rejected = reject is not None and probabilities[0] < reject
        found[row] = Prediction(sources[row], tuple(names[label] for label in labels), tuple(probabilities), rejected)
    for row, problem in reader.problems.items():
        found[row] = Prediction(sources[row], problem=problem)
    return [found[row] for row in range(len(sources))]


def unreadable_lines(found: Iterable[Prediction]) -> list[str]:
    """Which files have no answer, and why: a line for each kind of problem."""
    return problem_lines({one.source: one.problem for one in found if one.problem}, "passed over")


def class_probabilities(learner: TaskLearner, images: Images | Tensor | Paths) -> Tensor:
    """Of every class for every image, [images, classes]. Each image must have its row, so none may be unreadable."""
    sources, reader = open_images(learner, images)
    parts = [torch.empty(0, learner.classifier.seen)]  # of no images there are no rows
    at_once = images_at_once(learner.classifier.preprocessing.size)
    for first in range(0, len(reader), at_once):
        pixels = reader.read(range(first, min(first + at_once, len(reader))))
        for row, problem in reader.problems.items():
            raise UserError(f"{sources[row]} {problem}. Leave it out.")
        parts += [logits.softmax(dim=1) for logits in learner.logits(torch.stack([*pixels.values()]))]
    return torch.cat(parts)


def open_images(learner: TaskLearner, images: Images | Tensor | Paths) -> tuple[list[str], FileReader | PixelReader]:
    """What each image is called, and what reads them."""
    if isinstance(images, Path | Sequence):
        files = find_images([images] if isinstance(images, Path | str) else images)
        return [str(file) for file in files], FileReader(files, learner.classifier.preprocessing)
    return [str(number) for number in range(len(images))], PixelReader(images)


@explaining("read", "Change its permissions, or leave it out.")
def find_images(paths: Sequence[Path | str]) -> list[Path]:
    """The files, all files below the folders, and those that CSV files name."""
    found: list[Path] = []
    refuse_missing([*map(Path, paths)])
    for path in map(Path, paths):
        files = files_below(path) if path.is_dir() else listed_files(path) if is_list(path) else [path]
        if not files:
            raise UserError(f"The folder {path} holds no files.")
        found += files
    return found


def top_classes(
    learner: TaskLearner, reader: FileReader | PixelReader, top: int, progress: Progress | None
) -> Iterator[tuple[int, list[int], list[float]]]:
    """For each image that can be read: its number, its labels, best first, and their probabilities."""
    at_once = images_at_once(learner.classifier.preprocessing.size)
    for first in range(0, len(reader), at_once):
        last = min(first + at_once, len(reader))
        pixels = reader.read(range(first, last))
        if pixels:
            found = learner.predict(torch.stack([*pixels.values()]), top)
            yield from zip(pixels, found.labels.tolist(), found.probabilities.tolist(), strict=True)
        if progress:
            progress(last, len(reader))


class PixelReader:
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


class FileReader:
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

"""A run for TensorBoard: losses by phase, accuracies, and sheets of dreams, as its events have them."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from reverie.engine.observer import Observer
from reverie.engine.phase import Phase
from reverie.errors import UserError
from reverie.learner.events import DreamSummary, EpochEnds, PhaseEnds, StageEnds, TaskEnds
from reverie.learner.folder import RunFolder

FOLDER = "tensorboard"  # inside the run's folder


class TensorBoardLog(Observer):
    """Follows a run. What happened before is written anew from its events, so that nothing stands there twice."""

    def __init__(self, path: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(
                "A log for TensorBoard needs the package tensorboard: pip install 'reverie[tensorboard]'."
            ) from None
        self._open = SummaryWriter
        self.folder = RunFolder(path)
        self.writer: Any = None
        self._epochs: Counter[str] = Counter()  # by phase, over all tasks
        self._task, self._phase = 0, ""

    def begin(self) -> None:
        shutil.rmtree(self.folder.path / FOLDER, ignore_errors=True)
        self.writer = self._open(str(self.folder.path / FOLDER))
        self._epochs.clear()
        for event in self.folder.events.read(broken=[]):
            if isinstance(event, EpochEnds):
                self._write_losses(event.phase, event.lr, event.losses)
            elif isinstance(event, PhaseEnds):
                self._write_summary(event.task, event.phase, event.summary)
            elif isinstance(event, StageEnds):
                self._write_summary(event.task, event.stage, event.figures)
            elif isinstance(event, TaskEnds):
                self._write_task(event.task, event.accuracy)
        self.writer.flush()

    # --- the run's calls

    def task_begins(self, index: int, count: int) -> None:
        if self.writer is None:
            self.begin()
        self._task = index + 1

    def phase_begins(self, phase: Phase, done: int) -> None:
        self._phase = phase.name
        if done:  # trained before, perhaps by another run: the events tell
            self.writer.close()
            self.begin()

    def epoch_ends(self, epoch: int, lr: float, losses: Mapping[str, float]) -> None:
        self._write_losses(self._phase, lr, losses)

    def phase_ends(self, phase: Phase, summary: Mapping[str, Any]) -> None:
        self._write_summary(self._task, phase.name, summary)

    def task_ends(self, index: int, accuracy: float) -> None:
        self._write_task(index + 1, accuracy)
        self.writer.flush()

    # --- what is written

    def _write_losses(self, phase: str, lr: float | None, losses: Mapping[str, float]) -> None:
        self._epochs[phase] += 1
        values = dict(losses) if lr is None else {**losses, "learning_rate": lr}
        for name, value in values.items():
            self.writer.add_scalar(f"{phase}/{name}", value, self._epochs[phase])

    def _write_summary(self, task: int, phase: str, summary: Mapping[str, Any]) -> None:
        if dreams := DreamSummary.of(summary):
            self.writer.add_scalar(f"{phase}/confidence", dreams.confidence, task)
            self.writer.add_scalar(f"{phase}/share_of_classes", dreams.covered / dreams.classes, task)

    def _write_task(self, task: int, accuracy: float) -> None:
        self.writer.add_scalar("accuracy/all_classes_seen", accuracy, task)
        sheet = self.folder.task(task - 1) / "dreams.png"
        if sheet.is_file():
            with Image.open(sheet) as image:
                self.writer.add_image("dreams", np.asarray(image.convert("RGB")), task, dataformats="HWC")


@contextmanager
def tensorboard_log(folder: Path | str) -> Iterator[TensorBoardLog]:
    """An observer that writes losses, accuracies and dreams of the run in `folder` for TensorBoard.

    with reverie.tensorboard_log("runs/mine") as log:
        reverie.run(config, "runs/mine", observer=log)
    """
    log = TensorBoardLog(Path(folder))
    try:
        yield log
        if log.writer is None:  # the run was finished long ago
            log.begin()
    finally:
        if log.writer is not None:
            log.writer.close()

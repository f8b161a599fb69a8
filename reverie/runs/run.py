"""A run: one stream learned by one method with one seed, in a folder that can be resumed and reported."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from reverie import compile as fast
from reverie.config.schema import Config
from reverie.data import sources
from reverie.data.folder import Progress
from reverie.data.images import Dataset
from reverie.data.stream import Stream, Task
from reverie.engine.loop import Snapshot, find_device
from reverie.engine.phase import Phase
from reverie.errors import UserError
from reverie.learner.checkpoint import Journal, RunFolder, read_events, stopping_gently
from reverie.learner.dream_sheet import SHEET_COLUMNS, dream_sheet
from reverie.learner.gallery import surest
from reverie.learner.task_learner import Checkpoint, LearnerObserver, Several, TaskLearner
from reverie.methods import UPPER_BOUND, find_method
from reverie.methods.base import Keeps
from reverie.runs import result as results
from reverie.runs.configure import choose_classes, default_folder, make_stream, preprocessing
from reverie.runs.first_task import FOUND, FirstTask
from reverie.runs.precompile import Ahead, compiling_ahead
from reverie.runs.predictions import Predictions, judge
from reverie.runs.result import SCHEMA, Result
from reverie.runs.shared import UpperBounds
from reverie.system import files as disk
from reverie.system import provenance

CHECKPOINT_SECONDS = 30.0
log = logging.getLogger("reverie")


class RunObserver(LearnerObserver):
    """Follows a whole run."""

    def reading(self, done: int, total: int) -> None:
        """Image files being decoded."""

    def task_begins(self, index: int, count: int) -> None: ...

    def task_ends(self, index: int, accuracy: float) -> None:
        """`accuracy` over all classes seen."""


class SeveralOfRuns(Several, RunObserver):
    """Passes every call on to several observers of runs, in order."""

    def __init__(self, *observers: RunObserver) -> None:
        super().__init__(*observers)
        self.of_runs = observers

    def reading(self, done: int, total: int) -> None:
        for observer in self.of_runs:
            observer.reading(done, total)

    def task_begins(self, index: int, count: int) -> None:
        for observer in self.of_runs:
            observer.task_begins(index, count)

    def task_ends(self, index: int, accuracy: float) -> None:
        for observer in self.of_runs:
            observer.task_ends(index, accuracy)


def execute(
    config: Config,
    folder: Path | str | None = None,
    *,
    data: Path | str = "data",
    device: str = "auto",
    observer: RunObserver | None = None,
    command: str = "",
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    share_first_task: bool = False,
    dataset: Dataset | None = None,
) -> Result:
    """Run, or go on with, `config` in `folder`; the result of a finished run is found there and not made again.

    `share_first_task`: runs in the same parent folder train it, and what dreams of it, once, where it is provably the
    same (docs/tables.md).
    `dataset` takes the place of what `config.data` names.
    """
    run_folder = RunFolder(Path(folder) if folder is not None else default_folder(config))
    run_folder.refuse_others(config)
    observer = observer or RunObserver()
    if run_folder.finished:
        fingerprint = dataset.fingerprint() if dataset is not None else own_data(config, Path(data), observer.reading)
        run_folder.refuse_others(config, fingerprint)
        run_folder.tell_what_is_not_kept(config)
        return results.refreshed(run_folder, config)
    began = time.monotonic()
    where = find_device(device)
    from_the_start = dataset is None and not run_folder.resting.exists()
    with compiling_ahead(config, where) if from_the_start else nullcontext() as ahead:
        if dataset is None:
            dataset = sources.read(config.data, Path(data), observer.reading, partial(choose_classes, config))
        stream = make_stream(config, dataset)
        run = _Run(
            config, run_folder, stream, where, observer, command, checkpoint_seconds, began, share_first_task, ahead
        )
        with run_folder.lock():  # not before everything that can be wrong has been looked at
            run_folder.claim(config, run.fingerprint)
            if run_folder.finished:  # by another process, while this one was reading the data
                return results.refreshed(run_folder, config)
            return run.go()


def own_data(config: Config, data: Path, progress: Progress | None = None) -> str | None:
    """The fingerprint of a person's own folder, as it is now. None where it is gone, or the data set is published."""
    if config.data.source != "folder" or not data.is_dir():
        return None
    try:
        return sources.read(config.data, data, progress, partial(choose_classes, config)).fingerprint()
    except UserError as error:  # an empty place where a disk will be mounted, for one
        log.warning("Whether the data are still the same cannot be told. %s", error)
        return None


class _Run:
    """A run in progress."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        stream: Stream,
        device: torch.device,
        observer: RunObserver,
        command: str,
        checkpoint_seconds: float,
        began: float,
        share_first_task: bool,
        ahead: Ahead | None,
    ) -> None:
        self.config, self.folder, self.stream = config, folder, stream
        self.fingerprint, self.device, self.observer = stream.dataset.fingerprint(), device, observer
        self.journal = Journal(folder, checkpoint_seconds, device)
        self.journal.tasks = len(stream)
        self.bounds = UpperBounds(folder.path)
        self.preprocessing = shape = preprocessing(stream)
        taken_from_first_task = stream.dataset.normalisation is None
        self.normalisation = [list(shape.mean), list(shape.deviation)] if taken_from_first_task else None
        self.everything = find_method(config.method).keeps == Keeps.EVERYTHING
        self.learner = self._new_learner()
        self.began, self.share_first_task, self.ahead = began, share_first_task, ahead
        self.session: dict[str, Any] = {
            "command": command,
            "started": provenance.now(),
            "environment": provenance.environment(device),
        }

    def go(self) -> Result:
        resting, snapshot = self.journal.recover()
        self.journal.sessions.append(self.session)
        first = resting["task"] if resting else 0
        self.journal.event("goes on" if resting else "run begins", **self.session)
        learner = self.learner
        if resting and first == len(self.stream):  # stopped between the last task and the result
            learner.load_state_dict(resting["learner"])
        with stopping_gently(self.journal):
            for index in range(first, len(self.stream)):
                self._compile_from_the_second_on(index)
                self.journal.begin_task(index)
                self.observer.task_begins(index, len(self.stream))
                if self.everything:
                    learner = self._learn_everything(index, resting, snapshot)
                else:
                    self._learn(learner, self.stream[index], resting, snapshot)
                    self._judge(learner, index)
                resting, snapshot = None, None
                self._end_task(learner, index)
        return self._finish(learner)

    # --- one task

    def _compile_from_the_second_on(self, index: int) -> None:
        """While everything is compiled ahead, the first task is learned without."""
        if self.ahead is not None and index <= 1:
            self.learner.engine.compile = index == 1

    def _learn(
        self, learner: TaskLearner, task: Task, resting: Mapping[str, Any] | None, snapshot: Snapshot | None
    ) -> None:
        """Learn a task, from its beginning or from a checkpoint."""
        checkpoint = None
        if resting is not None and resting["phase"] is None:
            learner.load_state_dict(resting["learner"])
        elif resting is not None:
            learner.prepare(resting["learner"], known=task.first_label)
            checkpoint = Checkpoint(resting["phase"], resting["learner"], snapshot)
        observers = [self.journal, self.observer, self._keep_dreams(learner)]
        if self.ahead is not None and task.index == 1:
            observers.append(_Patience(self.ahead, self.journal, self.device))
        with ExitStack() as sharing:
            if self.share_first_task and self.journal.task == task.index <= 1:
                origin = [self.fingerprint, list(self.stream[:1].classes)]
                first = FirstTask(self.folder.path, task, origin, self.journal, self.session)
                observers.append(sharing.enter_context(first))
            learner.learn(task, Several(*observers), checkpoint)

    def _learn_everything(
        self, index: int, resting: Mapping[str, Any] | None, snapshot: Snapshot | None
    ) -> TaskLearner:
        """All tasks so far, by a fresh network. The upper bound's is found, or trained and found ever after."""
        learner = self._new_learner()
        prefix = self.stream[: index + 1]
        key = UpperBounds.key(
            self.config.reference, self.fingerprint, self.config.seed, prefix.classes, self.normalisation
        )
        last = index == len(self.stream) - 1  # its model is part of the run, so it must be trained here
        is_bound = self.config.method == UPPER_BOUND  # another method that keeps everything is none
        found = self.bounds.find(key) if is_bound else None
        if found and not last:
            entry, predictions = found
            disk.write_bytes(self.folder.predictions(index), predictions.to_bytes())
            self.journal.seconds[index] = entry["seconds"]
            self.journal.event("found", task=index + 1, upper_bound=key)
            return learner
        between = resting is not None and resting["phase"] is None
        self._learn(learner, prefix.union(), None if between else resting, snapshot)
        predictions = self._judge(learner, index)
        entry = {
            "schema": SCHEMA,
            "preset": self.config.preset,
            "seed": self.config.seed,
            "classes": list(prefix.classes),
            "accuracy": predictions.accuracy(self.config.evaluate.top),
            "seconds": self.journal.seconds[index],
            "sessions": self.journal.sessions,
        }
        if is_bound and not found:
            self.bounds.add(key, entry, predictions.without_local())
        return learner

    def _judge(self, learner: TaskLearner, index: int) -> Predictions:
        """One pass over the test images of all classes seen."""
        began = time.monotonic()
        seen = self.stream[: index + 1]
        predictions = judge(learner, seen.test(), seen.sizes, self.config.evaluate.batch_size)
        disk.write_bytes(self.folder.predictions(index), predictions.to_bytes())
        self.journal.add_seconds("evaluate", time.monotonic() - began)
        return predictions

    def _end_task(self, learner: TaskLearner, index: int) -> None:
        accuracy = Predictions.from_bytes(self.folder.predictions(index).read_bytes()).accuracy(
            self.config.evaluate.top
        )
        if learner.ledger:
            learner.ledger[-1] |= {"date": provenance.now(), "source": self.config.data.source}
        seconds, memory = self.journal.seconds[index], provenance.peak_memory(self.device)
        self.journal.event("task ends", task=index + 1, accuracy=accuracy, seconds=seconds, peak_memory_bytes=memory)
        if "models" in self.config.keep and learner.classifier.seen:
            learner.save(self.folder.task(index) / "model", overwrite=True)
        self.observer.task_ends(index, accuracy)
        self.journal.task = index + 1
        self.journal.save_resting(None, learner)

    def _keep_dreams(self, learner: TaskLearner) -> LearnerObserver:
        return _DreamKeeper(learner, self.folder, self.journal, "dreamers" in self.config.keep)

    # --- the whole

    def _finish(self, learner: TaskLearner) -> Result:
        learner.save(self.folder.model, overwrite=True)
        self.session["wall_seconds"] = time.monotonic() - self.began
        events = read_events(self.folder.events)
        peaks = [event.get("peak_memory_bytes") for event in events if event["event"] == "task ends"]
        result = {
            "schema": SCHEMA,
            "preset": self.config.preset,
            "method": self.config.method,
            "recipe": self.config.recipe,
            "seed": self.config.seed,
            "metrics": {},
            "accuracy_matrix": [],
            "task_sizes": list(self.stream.sizes),
            "class_order": list(self.stream.classes),
            "class_names": list(self.stream.class_names),
            "upper_bound": None,
            "seconds": {
                "total": sum(sum(parts.values()) for parts in self.journal.seconds),
                "by_part": _sum_parts(self.journal.seconds),
                "by_task": self.journal.seconds,
            },
            **{
                name: next((session[name] for session in self.journal.sessions if name in session), None)
                for name in FOUND
            },
            "phases": self.journal.phases(len(self.stream)),
            "engine": self.learner.engine.switches(),
            "peak_memory_bytes": max((peak for peak in peaks if peak is not None), default=None),
            "peak_memory_by_task": peaks,
            "ledger": learner.ledger,
            "data_fingerprint": self.fingerprint,
            "normalisation": self.normalisation,
            "config": self.config.as_dict(),
            "sessions": self.journal.sessions,
            "finished": provenance.now(),
        }
        result.update(results.figures(self.folder, self.config, result))
        self.journal.event("run ends", metrics=result["metrics"])
        disk.write_json(self.folder.result, result)
        shutil.rmtree(self.folder.resting.parent, ignore_errors=True)
        return result

    def _new_learner(self) -> TaskLearner:
        learner = TaskLearner.fresh(self.config, self.preprocessing, self.stream.classes_in_all, self.device)
        learner.engine.repeats = len(self.stream)
        return learner


def _sum_parts(seconds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for parts in seconds for name in parts)
    return {name: sum(parts.get(name, 0.0) for parts in seconds) for name in names}


class _Patience(LearnerObserver):
    """Before each phase of the second task: what is compiled ahead for it is waited for."""

    def __init__(self, ahead: Ahead, journal: Journal, device: torch.device) -> None:
        self.ahead, self.journal, self.device = ahead, journal, device

    def phase_ready(self, number: int, learner: TaskLearner) -> None:
        if number == 0:
            fast.wake(self.device)
        self.ahead.wait(number, enough=lambda: self.journal.stop)


class _DreamKeeper(LearnerObserver):
    """When a dreamer has been trained: a sheet of its dreams by class, and the dreamer itself on wish."""

    def __init__(self, learner: TaskLearner, folder: RunFolder, journal: Journal, keep: bool) -> None:
        self.learner, self.folder, self.journal, self.keep = learner, folder, journal, keep

    def phase_ends(self, phase: Phase, summary: Mapping[str, Any]) -> None:
        dreamer = self.learner.method.dreamer
        if phase.name != "dream" or dreamer is None:
            return
        task = self.folder.task(self.journal.task)
        disk.write_bytes(task / "dreams.png", dream_sheet(surest(dreamer, SHEET_COLUMNS)))
        if self.keep:
            disk.write_state(task / "dreamer.pt", dreamer.state_dict())

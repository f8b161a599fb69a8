"""A run: one stream learned by one method with one seed, in a folder that can be resumed and reported."""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from reverie.compile import warm_up_compiler
from reverie.config.choices import UPPER_BOUND
from reverie.config.schema import Config, check_config
from reverie.data.images import Dataset
from reverie.data.stream import Stream, Task
from reverie.engine.device import find_device
from reverie.engine.observer import Observer, Observers
from reverie.engine.phase import Phase
from reverie.errors import UserError
from reverie.learner.checkpoint import Checkpoint, Recorder
from reverie.learner.dream_sheet import COLUMNS
from reverie.learner.events import Event, PhaseBegins, PhaseEnds, RunBegins, RunEnds, TaskEnds, UpperBoundFound
from reverie.learner.folder import RunFolder
from reverie.learner.gallery import surest
from reverie.learner.progress import showing_progress, where_it_goes_on
from reverie.learner.session import Seconds, Session
from reverie.learner.task_learner import TaskLearner
from reverie.methods import find_method
from reverie.methods.keeps import Keeps
from reverie.model.folder import load_model, save_model
from reverie.model.judging import disagreement
from reverie.runs.configure import default_folder, load_dataset, make_stream
from reverie.runs.figures import Tested, finished_result, make_figures
from reverie.runs.first_task import FirstTask
from reverie.runs.kept_features import FeatureKeeper
from reverie.runs.precompile import Precompiler, precompiling
from reverie.runs.predictions import Predictions, predict_test_images
from reverie.runs.result import SCHEMA, EngineSwitches, PhaseCost, Result, TimeSpent
from reverie.runs.shared import UpperBoundEntry, UpperBounds
from reverie.system import provenance
from reverie.system.arguments import check_number
from reverie.system.files import write_bytes, write_json, write_state
from reverie.system.signals import on_stop_signal

CHECKPOINT_SECONDS = 30.0
log = logging.getLogger("reverie")


def run(
    config: Config,
    folder: Path | str | None = None,
    *,
    data: Path | str = "data",
    device: str = "auto",
    progress: bool | Console = False,
    observer: Observer | None = None,
    share_first_task: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    command: str = "",
    dataset: Dataset | None = None,
) -> Result:
    """Run, or go on with, `config` in `folder`; the result of a finished run is found there and not made again.

    - `folder`: the run's own; left out, one below `runs/` that is named after the configuration.
    - `data`: where data sets lie, or a folder of images; `dataset` takes the place of what `config.data` names.
    - `device`: `auto`, `cpu`, `cuda` or `cuda:1`.
    - `progress`: show bars on stderr. `observer` is told of every step, epoch, phase and task.
    - `share_first_task`: runs in the same parent folder train it, and what dreams of it, once, where it is provably the
      same (docs/tables.md).
    - `checkpoint_seconds`: how much work a power cut may cost. `command` is what the result calls its origin.

    Raises UserError for what a person can mend (a folder of another run, data that are not there), `Interrupted` after
    Ctrl-C, when everything so far is saved, and `Diverged` where a loss is no longer a number.
    """
    check_config(config)
    checkpoint_seconds = check_number("checkpoint_seconds", checkpoint_seconds, least=0)
    run_folder = RunFolder(Path(folder) if folder is not None else default_folder(config))
    run_folder.refuse_others(config)
    with showing_progress(progress, f"{config.preset} {config.method}") as display:
        followers = Observers(observer, display)
        if run_folder.finished:
            fingerprint = dataset.fingerprint() if dataset is not None else own_data(config, Path(data), followers)
            run_folder.refuse_others(config, fingerprint)
            run_folder.warn_of_what_is_not_kept(config)
            return finished_result(run_folder, config)
        began = time.monotonic()
        where = find_device(device)
        from_the_start = dataset is None and not run_folder.resting.exists()
        with precompiling(config, where) if from_the_start else nullcontext() as precompiler:
            if dataset is None:
                dataset = load_dataset(config, data, followers.reading)
            stream = make_stream(config, dataset)
            going = _Run(
                config,
                run_folder,
                stream,
                where,
                followers,
                command,
                checkpoint_seconds,
                began,
                share_first_task,
                precompiler,
            )
            with run_folder.lock():  # not before everything that can be wrong has been looked at
                run_folder.claim(config, going.fingerprint)
                if run_folder.finished:  # by another process, while this one was reading the data
                    return finished_result(run_folder, config)
                return going.go()


def own_data(config: Config, data: Path, observer: Observer | None = None) -> str | None:
    """The fingerprint of a person's own folder, as it is now. None where it is gone, or the data set is published."""
    if config.data.source != "folder" or not data.is_dir():
        return None
    try:
        return load_dataset(config, data, (observer or Observer()).reading).fingerprint()
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
        observer: Observer,
        command: str,
        checkpoint_seconds: float,
        began: float,
        share_first_task: bool,
        precompiler: Precompiler | None,
    ) -> None:
        self.config, self.folder, self.stream = config, folder, stream
        self.fingerprint, self.device, self.observer = stream.dataset.fingerprint(), device, observer
        self.recorder = Recorder(folder, checkpoint_seconds, device)
        self.recorder.tasks = len(stream)
        self.bounds, self.bound_digest = UpperBounds(folder.path), config.upper_bound_digest()
        shape = stream.preprocessing()
        taken_from_first_task = stream.dataset.normalisation is None
        self.normalisation = [list(shape.mean), list(shape.deviation)] if taken_from_first_task else None
        self.everything = Keeps.EVERYTHING in find_method(config.method).keeps
        self.learner = self._new_learner()
        self.began, self.share_first_task, self.precompiler = began, share_first_task, precompiler
        self.session = Session(command=command, started=provenance.now(), environment=provenance.environment(device))

    def go(self) -> Result:
        checkpoint = self.recorder.recover()
        if self.recorder.sessions:
            _warn_of_other_packages(self.recorder.sessions[-1].environment, self.session.environment)
        self.recorder.sessions.append(self.session)
        first = checkpoint.task if checkpoint else 0
        if checkpoint is not None:
            self.observer.decided(where_it_goes_on(checkpoint, len(self.stream)))
        self.folder.events.write(
            RunBegins(
                event="goes on" if checkpoint else "run begins",
                command=self.session.command,
                started=self.session.started,
                environment=self.session.environment,
            )
        )
        learner = self.learner
        if checkpoint and first == len(self.stream):  # stopped between the last task and the result
            self._refuse_other_classes(checkpoint, len(self.stream.classes))
            learner.load_state_dict(checkpoint.state)
        with on_stop_signal(self.recorder.request_stop):
            for index in range(first, len(self.stream)):
                self._compile_from_the_second_on(index)
                self.recorder.begin_task(index)
                self.observer.task_begins(index, len(self.stream))
                if self.everything:
                    learner = self._learn_everything(index, checkpoint)
                else:
                    self._learn(learner, self.stream[index], checkpoint)
                    self._test(learner, index)
                checkpoint = None
                self._end_task(learner, index)
        return self._finish(learner)

    # --- one task

    def _compile_from_the_second_on(self, index: int) -> None:
        """While everything is compiled ahead, the first task is learned without."""
        if self.precompiler is not None and index <= 1:
            self.learner.engine.compile = index == 1

    def _learn(self, learner: TaskLearner, task: Task, checkpoint: Checkpoint | None) -> None:
        """Learn a task, from its beginning or from a checkpoint."""
        if checkpoint is not None and checkpoint.phase is None:
            self._refuse_other_classes(checkpoint, task.first_label)
            learner.load_state_dict(checkpoint.state)
            checkpoint = None
        elif checkpoint is not None:
            self._refuse_other_classes(checkpoint, task.first_label + len(task.names))
            learner.prepare(checkpoint.state, known=task.first_label)
        keeper = _DreamKeeper(learner, self.folder, self.recorder, "dreamers" in self.config.keep)
        features = FeatureKeeper(learner)
        observers = [self.recorder, self.observer, keeper]
        if "features" in self.config.keep and not self.everything:
            observers.append(features)
        if self.precompiler is not None and task.index == 1:
            observers.append(_PrecompilerWait(self.precompiler, self.recorder, self.device))
        with ExitStack() as sharing:
            if self.share_first_task and self.recorder.task == task.index <= 1:
                origin = [self.fingerprint, list(self.stream[:1].classes)]
                first = FirstTask(self.folder.path, task, learner, origin, self.recorder, self.session)
                observers.append(sharing.enter_context(first))
            learner.learn(task, Observers(*observers), checkpoint)
        if features in observers:
            began = time.monotonic()
            features.keep(task, self.stream[: task.index + 1], self.folder.task(task.index))
            self.recorder.add_seconds("features", time.monotonic() - began)

    def _refuse_other_classes(self, checkpoint: Checkpoint, count: int) -> None:
        """It must know the first so many classes of the stream, in their order."""
        if checkpoint.state.classes != list(self.stream.class_names[:count]):
            raise UserError(
                f"The checkpoint {self.folder.resting} is damaged (its classes are not those that were learned). "
                "Delete its folder to start the run anew."
            )

    def _learn_everything(self, index: int, checkpoint: Checkpoint | None) -> TaskLearner:
        """All tasks so far, by a fresh network. The upper bound's is found, or trained and found ever after."""
        learner = self._new_learner()
        prefix = self.stream[: index + 1]
        key = UpperBounds.key(self.bound_digest, self.fingerprint, self.config.seed, prefix.classes, self.normalisation)
        last = index == len(self.stream) - 1  # its model is part of the run, so it must be trained here
        is_bound = self.config.method == UPPER_BOUND  # another method that keeps everything is none
        found = self.bounds.find(key) if is_bound else None
        if found and not last:
            entry, predictions = found
            write_bytes(self.folder.predictions(index), predictions.to_bytes())
            self.recorder.seconds[index] = entry.seconds
            self.folder.events.write(UpperBoundFound(task=index + 1, upper_bound=key))
            return learner
        between = checkpoint is not None and checkpoint.phase is None
        self._learn(learner, prefix.union(), None if between else checkpoint)
        predictions = self._test(learner, index)
        if is_bound and not found:
            entry = UpperBoundEntry(
                schema_version=SCHEMA,
                preset=self.config.preset,
                seed=self.config.seed,
                classes=list(prefix.classes),
                accuracy=predictions.accuracy(self.config.evaluate.top),
                seconds=self.recorder.seconds[index],
                sessions=self.recorder.sessions,
            )
            self.bounds.add(key, entry, predictions.without_local())
        return learner

    def _test(self, learner: TaskLearner, index: int) -> Predictions:
        """One pass over the test images of all classes seen."""
        began = time.monotonic()
        seen = self.stream[: index + 1]
        predictions = predict_test_images(learner, seen.test(), seen.sizes, self.config.evaluate.batch_size)
        write_bytes(self.folder.predictions(index), predictions.to_bytes())
        self.recorder.add_seconds("evaluate", time.monotonic() - began)
        return predictions

    def _end_task(self, learner: TaskLearner, index: int) -> None:
        predictions = Predictions.from_bytes(self.folder.predictions(index).read_bytes())
        accuracy = predictions.accuracy(self.config.evaluate.top)
        if learner.ledger:
            source = self.config.data.source
            learner.ledger[-1] = learner.ledger[-1].replace(date=provenance.now(), source=source)
        self.folder.events.write(
            TaskEnds(
                task=index + 1,
                accuracy=accuracy,
                seconds=self.recorder.seconds[index],
                peak_memory_bytes=provenance.peak_memory(self.device),
            )
        )
        if "models" in self.config.keep and learner.classifier.seen:
            save_model(learner, self.folder.task(index) / "model", overwrite=True)
        self.observer.task_ends(index, accuracy)
        self.recorder.task = index + 1
        self.recorder.save_resting(None, learner.state_dict())

    # --- the whole

    def _finish(self, learner: TaskLearner) -> Result:
        save_model(learner, self.folder.model, overwrite=True)
        self._refuse_another_model()
        self.session.wall_seconds = time.monotonic() - self.began
        events, sessions = self.folder.events.read(), self.recorder.sessions
        peaks = [event.peak_memory_bytes for event in events if isinstance(event, TaskEnds)]
        seconds = self.recorder.seconds
        tested = Tested(self.stream.sizes, self.stream.classes, self.fingerprint, self.normalisation, self.bound_digest)
        result = Result(
            preset=self.config.preset,
            method=self.config.method,
            recipe=self.config.recipe,
            seed=self.config.seed,
            task_sizes=list(self.stream.sizes),
            class_order=list(self.stream.classes),
            class_names=list(self.stream.class_names),
            seconds=TimeSpent(
                total=sum(sum(parts.values()) for parts in seconds), by_part=_sum_parts(seconds), by_task=seconds
            ),
            first_task=next((session.first_task for session in sessions if session.first_task), None),
            first_dreams=next((session.first_dreams for session in sessions if session.first_dreams), None),
            phases=_phase_costs(events, len(self.stream)),
            engine=EngineSwitches(**self.learner.engine.switches()),
            peak_memory_bytes=max((peak for peak in peaks if peak is not None), default=None),
            peak_memory_by_task=peaks,
            ledger=learner.ledger,
            data_fingerprint=self.fingerprint,
            normalisation=self.normalisation,
            config={**self.config.published(), "reference": self.bound_digest},
            sessions=sessions,
            finished=provenance.now(),
            **vars(make_figures(self.folder, self.config, tested)),
        )
        self.folder.events.write(RunEnds(metrics=result.metrics.as_dict()))
        write_json(self.folder.result, result.as_dict())
        shutil.rmtree(self.folder.resting.parent, ignore_errors=True)
        return result

    def _refuse_another_model(self) -> None:
        """What is saved must be what was judged."""
        last, folder = len(self.stream) - 1, self.folder.model
        judged = Predictions.from_bytes(self.folder.predictions(last).read_bytes())
        saved = load_model(folder).plain_learner(self.device)
        wrong, asked = disagreement(saved, self.stream.test(), torch.from_numpy(judged.top[:, 0]).long())
        if wrong:
            raise UserError(
                f"The model in {folder} is not the one that was judged: it answers otherwise for {wrong} of {asked} "
                f"test images. The method {self.config.method!r} must leave all that answers in the classifier."
            )

    def _new_learner(self) -> TaskLearner:
        return TaskLearner.for_stream(self.config, self.stream, self.device)


def _sum_parts(seconds: Sequence[Mapping[str, float]]) -> Seconds:
    names = dict.fromkeys(name for parts in seconds for name in parts)
    return {name: sum(parts.get(name, 0.0) for parts in seconds) for name in names}


def _phase_costs(events: Sequence[Event], tasks: int) -> list[dict[str, PhaseCost]]:
    """By task and phase: how many steps it has, and the seconds that went by before the first of them."""
    found: list[dict[str, PhaseCost]] = [{} for _ in range(tasks)]
    for event in events:
        if not isinstance(event, PhaseBegins | PhaseEnds) or event.task > tasks:  # a damaged event may name any task
            continue
        costs = found[event.task - 1]
        if isinstance(event, PhaseBegins):
            costs[event.phase] = PhaseCost(steps=event.steps, setup_seconds=0.0)
        elif event.phase in costs:  # a power cut may take events away
            setup: Any = event.summary.get("setup_seconds")
            if type(setup) in (int, float) and 0 <= setup < math.inf:
                costs[event.phase] = costs[event.phase].replace(setup_seconds=setup)
    return found


class _PrecompilerWait(Observer):
    """Before each phase of the second task: what is compiled ahead for it is waited for."""

    def __init__(self, precompiler: Precompiler, recorder: Recorder, device: torch.device) -> None:
        self.precompiler, self.recorder, self.device = precompiler, recorder, device

    def phase_ready(self, number: int, state: Any) -> None:
        if number == 0:
            warm_up_compiler(self.device)
        self.precompiler.wait(number, enough=lambda: self.recorder.stop)


class _DreamKeeper(Observer):
    """When a dreamer has been trained: a sheet of its dreams by class, and the dreamer itself on wish."""

    def __init__(self, learner: TaskLearner, folder: RunFolder, recorder: Recorder, keep: bool) -> None:
        self.learner, self.folder, self.recorder, self.keep = learner, folder, recorder, keep

    def phase_ends(self, phase: Phase, summary: Mapping[str, Any]) -> None:
        dreamer = self.learner.method.dreamer
        if phase.name != "dream" or dreamer is None:
            return
        task = self.folder.task(self.recorder.task)
        write_bytes(task / "dreams.png", surest(dreamer, COLUMNS).sheet(confidences=False))
        if self.keep:
            write_state(task / "dreamer.pt", dreamer.state_dict())


def _warn_of_other_packages(before: provenance.Environment, now: provenance.Environment) -> None:
    """Packages that add methods, heads or backbones: another version may compute something else."""
    for package, version in (before.plugins or {}).items():
        if (other := (now.plugins or {}).get(package, version)) != version:
            log.warning("The run was begun with %s %s, and goes on with %s.", package, version, other)

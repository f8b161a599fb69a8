"""Speed, measured: milliseconds a step, by method, task, phase and mode of the engine. Needs no data set.

Images are noise of the data set's shape and networks are untrained: neither changes what a step costs.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import torch

from reverie.config.schema import Config
from reverie.data.class_names import DASH
from reverie.data.images import Dataset, MemoryImages
from reverie.data.stream import Stream
from reverie.engine.loop import Engine, Observer, Precision, Snapshot, synchronise
from reverie.engine.phase import Phase
from reverie.errors import UserError
from reverie.learner.task_learner import TaskLearner
from reverie.methods import methods_that_load
from reverie.runs import configure as experiment

SCHEMA = 1
WARM_UP = 10  # steps that are not counted
WINDOWS = 5  # the steps counted are cut into so many stretches, of which the median is taken

SHAPES = {
    "digits": (10, 1, 8, 144),
    "cifar10": (10, 3, 32, 5000),
    "cifar100": (100, 3, 32, 500),
    "tinyimagenet": (200, 3, 64, 500),
}
"""Of the data sets that can be measured: classes, channels, pixels a side, training images a class."""


@dataclass(frozen=True)
class Mode:
    """One setting of the engine's switches; what is not given is as is best for the device."""

    name: str
    precision: Precision | None = None
    capture: bool | None = None
    compile: bool | None = None


MODES = {
    "fp32": Mode("eager fp32", "fp32", False, False),
    "tf32": Mode("eager TF32", "tf32", False, False),
    "captured": Mode("captured bf16", None, None, False),
    "fast": Mode("fast path", compile=True),
}


@dataclass(frozen=True)
class Measurement:
    method: str
    task: int  # counted from 1
    phase: str
    mode: str
    milliseconds: float  # a step
    images_per_second: float  # real images learned, or dreams the generator was trained with
    peak_memory_bytes: int | None
    setup_seconds: float  # to compile and capture, once a phase


Report = Callable[[str, str], None]  # told what is measured now, and how far it is: nothing when it begins


def measure(
    preset: str,
    methods: Sequence[str],
    tasks: Sequence[int] | None,
    modes: Sequence[str],
    steps: int,
    device: torch.device,
    settings: Sequence[str] = (),
    report: Report = lambda what, step: None,
) -> list[Measurement]:
    """Time `steps` steps of every phase of the given tasks (counted from 1; none: the second and the last).

    Methods are those named, or `["all"]` of them.
    """
    made: list[Measurement] = []
    for method in methods_that_load() if list(methods) == ["all"] else methods:
        config = experiment.configure(preset, method, settings=settings)
        stream = experiment.make_stream(config, noise(config))
        chosen = sorted({min(2, len(stream)), len(stream)}) if tasks is None else tasks
        wrong = [task for task in chosen if not 1 <= task <= len(stream)]
        if wrong:
            raise UserError(f"{preset} has tasks 1 to {len(stream)}, not {wrong[0]}.")
        for mode in modes:
            for task in chosen:
                what = f"{method}, task {task}, {MODES[mode].name}"
                report(what, "")
                said = functools.partial(report, what)
                made += _measure_task(config, stream, task - 1, MODES[mode], steps, device, said)
    return made


def noise(config: Config) -> Dataset:
    """Images of nothing, in the shape of the preset's data set."""
    if config.data.source not in SHAPES:
        raise UserError(f"reverie bench knows the shapes of {', '.join(SHAPES)}, not of {config.data.source!r}.")
    classes, channels, size, images = SHAPES[config.data.source]
    size = config.data.size or size
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(images)
    pixels = torch.randint(256, (len(labels), channels, size, size), generator=rng, dtype=torch.uint8)
    train, names = MemoryImages(pixels, labels), tuple(str(label) for label in range(classes))
    return Dataset("noise", train, train, names, ((0.5,) * channels, (0.25,) * channels))


def at_task(config: Config, stream: Stream, index: int, device: torch.device) -> tuple[TaskLearner, Iterator[Phase]]:
    """A learner before a task, with the task's phases; the tasks before were not learned."""
    learner = TaskLearner.fresh(config, experiment.preprocessing(stream), stream.classes_in_all, device)
    for earlier in stream[:index]:  # not learned, but what would be kept of it is
        learner.method.begin(earlier)
        learner.classifier.grow(earlier.names)
        learner.method.end(earlier)
    task = stream[index]
    learner.method.begin(task)
    learner.classifier.grow(task.names)
    return learner, learner.method.phases(task)


def _measure_task(
    config: Config,
    stream: Stream,
    index: int,
    mode: Mode,
    steps: int,
    device: torch.device,
    report: Callable[[str], None],
) -> list[Measurement]:
    engine = Engine(device, mode.precision, mode.capture, mode.compile)
    made = []
    for phase in at_task(config, stream, index, device)[1]:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        clock = _Clock(steps, device, report)
        short = replace(phase, epochs=None, steps=WARM_UP + clock.window * WINDOWS, summary=None)
        engine.run(short, seed=0, observer=clock)
        images = phase.feed.batch_size or config.dream.batch_size or config.train.batch_size
        made.append(
            Measurement(
                config.method,
                index + 1,
                phase.name,
                mode.name,
                round(1000 * clock.seconds_a_step, 4),
                round(images / clock.seconds_a_step, 1),
                torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
                clock.setup_seconds,
            )
        )
    return made


class _Clock(Observer):
    """Looks at the time every so many steps, when the device is done with them."""

    def __init__(self, steps: int, device: torch.device, report: Callable[[str], None] = lambda step: None) -> None:
        self.device, self.window, self.report = device, max(1, steps // WINDOWS), report
        self.times: list[float] = []
        self.setup_seconds = 0.0
        self._where = ""

    def phase_begins(self, phase: Phase, done: int) -> None:
        self._where = f"{phase.name}, step {{}} of {phase.total_steps}"

    def step_ends(self, done: int, snapshot: Callable[[], Snapshot]) -> None:
        if done >= WARM_UP and (done - WARM_UP) % self.window == 0:
            self.report(self._where.format(done))  # while the device is still at work
            synchronise(self.device)
            self.times.append(time.perf_counter())

    def phase_ends(self, phase: Phase, summary: Mapping[str, Any]) -> None:
        self.setup_seconds = summary["setup_seconds"]

    @property
    def seconds_a_step(self) -> float:
        return median(after - before for before, after in zip(self.times, self.times[1:], strict=False)) / self.window


def rows(measurements: Sequence[Measurement], modes: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """A table: milliseconds a step by mode, and how many times faster the last mode is than the first."""
    names = [MODES[mode].name for mode in modes]
    header = ["method", "phase", "task", *(f"{name}, ms" for name in names), "times faster", "images/s", "peak MiB"]
    cells = []
    for method, phase, task in dict.fromkeys((m.method, m.phase, m.task) for m in measurements):
        by_mode = {m.mode: m for m in measurements if (m.method, m.phase, m.task) == (method, phase, task)}
        first, last = by_mode[names[0]], by_mode[names[-1]]
        memory = DASH if last.peak_memory_bytes is None else f"{last.peak_memory_bytes / 2**20:.0f}"
        ratio = f"{first.milliseconds / last.milliseconds:.1f}" if len(names) > 1 else DASH
        times = [f"{by_mode[name].milliseconds:.2f}" for name in names]
        cells.append([method, phase, str(task), *times, ratio, f"{last.images_per_second:,.0f}", memory])
    return header, cells


def as_json(
    measurements: Sequence[Measurement], preset: str, steps: int, command: str, environment: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "preset": preset,
        "steps": steps,
        "command": command,
        "environment": dict(environment),
        "measurements": [asdict(measurement) for measurement in measurements],
    }

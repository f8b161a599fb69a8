"""Speed, measured: milliseconds a step, by method, task, phase and mode of the engine. Needs no data set.

Images are noise of the data set's shape and networks are untrained: neither changes what a step costs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Annotated, Any

import torch
from pydantic import Field

from reverie.config.choices import Precision
from reverie.config.layers import Settings
from reverie.config.schema import Config
from reverie.data.images import Dataset, MemoryImages
from reverie.data.stream import Stream
from reverie.engine.device import find_device, synchronise
from reverie.engine.loop import Engine
from reverie.engine.observer import Observer, Snapshot
from reverie.engine.phase import Phase, Stage
from reverie.errors import UserError
from reverie.learner.task_learner import TaskLearner
from reverie.methods import methods_that_load
from reverie.runs.configure import configure, make_stream
from reverie.system.arguments import as_names, check_whole_number
from reverie.system.provenance import Environment, environment
from reverie.system.records import Record
from reverie.text import DASH, did_you_mean, markdown_table

log = logging.getLogger("reverie")
SCHEMA = 1
MOST_STEPS = 1_000_000
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


class Measurement(Record):
    method: str
    task: int  # counted from 1
    phase: str
    mode: str
    milliseconds: float  # a step
    images_per_second: float  # real images learned, or dreams the generator was trained with
    peak_memory_bytes: int | None
    setup_seconds: float  # to compile and capture, once a phase


class SpeedReport(Record):
    """What was measured, and where. `print(report)` shows a table."""

    schema_version: Annotated[int, Field(alias="schema")] = SCHEMA
    preset: str
    steps: int
    command: str = ""
    environment: Environment
    measurements: list[Measurement]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows: milliseconds a step by mode, and how many times faster the last mode is than the first."""
        modes = [*dict.fromkeys(one.mode for one in self.measurements)]
        header = ["method", "phase", "task", *(f"{mode}, ms" for mode in modes), "times faster", "images/s", "peak MiB"]
        rows = []
        for place in dict.fromkeys((one.method, one.phase, one.task) for one in self.measurements):
            found = {m.mode: m for m in self.measurements if (m.method, m.phase, m.task) == place}
            first, last = found[modes[0]], found[modes[-1]]
            memory = DASH if last.peak_memory_bytes is None else f"{last.peak_memory_bytes / 2**20:.0f}"
            ratio = f"{first.milliseconds / last.milliseconds:.1f}" if len(modes) > 1 else DASH
            times = [f"{found[mode].milliseconds:.2f}" for mode in modes]
            method, phase, task = place
            rows.append([method, phase, str(task), *times, ratio, f"{last.images_per_second:,.0f}", memory])
        return header, rows

    def __str__(self) -> str:
        return markdown_table(*self.table())


Report = Callable[[str, str], None]  # told what is measured now, and how far it is: nothing when it begins


def measure_speed(
    preset: str = "cifar100-10",
    methods: Sequence[str] | str = ("base", "lwf", "deepinversion", "abd"),
    *,
    tasks: Sequence[int] | None = None,
    modes: Sequence[str] | str = ("fp32", "tf32", "fast"),
    steps: int = 100,
    settings: Settings = (),
    device: str = "auto",
    command: str = "",
    report: Report = lambda what, step: None,
) -> SpeedReport:
    """Time `steps` training steps of every phase, for each method (or "all"), task and mode of the engine.

    `tasks` are counted from 1; left out, they are the second and the last. On a CPU there is one mode, `fp32`.
    `command` is what the report calls its origin. `report(what, step)` is called as the work goes on: what is measured,
    and how far that is, or nothing when it begins. Raises UserError for a preset, method or mode that there is not.
    """
    steps = check_whole_number("steps", steps, 1, MOST_STEPS)
    where, modes = find_device(device), as_names(modes, "modes")
    names = as_names(methods, "methods")
    for mode in modes:
        if mode not in MODES:
            raise UserError(f"`modes` takes {', '.join(MODES)}, not {mode!r}.{did_you_mean(mode, MODES)}")
    chosen = [MODES[mode] for mode in modes] if where.type == "cuda" else [MODES["fp32"]]
    made: list[Measurement] = []
    for method in methods_that_load() if names == ["all"] else names:
        config = configure(preset, method, settings=settings)
        stream = make_stream(config, noise_dataset(config))
        numbers = sorted({min(2, len(stream)), len(stream)}) if tasks is None else tasks
        if wrong := [task for task in numbers if not 1 <= task <= len(stream)]:
            raise UserError(f"`tasks`: {preset} has tasks 1 to {len(stream)}, not {wrong[0]}.")
        for engine_mode in chosen:
            for task in numbers:
                what = f"{method}, task {task}, {engine_mode.name}"
                report(what, "")
                found = _measure_task(config, stream, task - 1, engine_mode, steps, where, partial(report, what))
                if not found and engine_mode is chosen[0]:
                    log.warning("%s trains nothing in task %d, so there is no step to time.", method, task)
                made += found
    return SpeedReport(preset=preset, steps=steps, command=command, environment=environment(where), measurements=made)


def noise_dataset(config: Config) -> Dataset:
    """Images of nothing, in the shape of the preset's data set."""
    if config.data.source not in SHAPES:
        raise UserError(f"The shapes of {', '.join(SHAPES)} are known, not that of {config.data.source!r}.")
    classes, channels, size, images = SHAPES[config.data.source]
    size = config.data.size or size
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(images)
    pixels = torch.randint(256, (len(labels), channels, size, size), generator=rng, dtype=torch.uint8)
    train, names = MemoryImages(pixels, labels), tuple(str(label) for label in range(classes))
    return Dataset("noise", train, train, names, ((0.5,) * channels, (0.25,) * channels))


def at_task(
    config: Config, stream: Stream, index: int, device: torch.device
) -> tuple[TaskLearner, Iterator[Phase | Stage]]:
    """A learner before a task, with the task's phases and stages; the tasks before were not learned."""
    learner = TaskLearner.for_stream(config, stream, device)
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
        if isinstance(phase, Stage):  # has no steps
            continue
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        clock = _Clock(steps, device, report)
        short = replace(phase, epochs=None, steps=WARM_UP + clock.window * WINDOWS, summary=None)
        engine.run(short, seed=0, observer=clock)
        images = phase.feed.batch_size or config.dream.batch_size or config.train.batch_size
        made.append(
            Measurement(
                method=config.method,
                task=index + 1,
                phase=phase.name,
                mode=mode.name,
                milliseconds=round(1000 * clock.seconds_a_step, 4),
                images_per_second=round(images / clock.seconds_a_step, 1),
                peak_memory_bytes=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
                setup_seconds=clock.setup_seconds,
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
        return median(after - before for before, after in pairwise(self.times)) / self.window

"""A step's schedule for a given time: a few steps of each phase are timed, and the schedule is scaled."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from statistics import median

import torch

from reverie.engine.device import synchronise
from reverie.engine.observer import Observer, Snapshot
from reverie.engine.phase import Stage
from reverie.model import defaults
from reverie.model.step import Step

log = logging.getLogger("reverie")
MEASURED = 20  # steps of each phase, to know how long it will take
MOST = 2.0  # times the usual schedule, however large the budget
LITTLE = 0.1  # of the usual schedule: worth a warning


def within_budget(budget: float, step: Step, device: torch.device) -> Step:
    """The same step with a schedule for so many seconds."""
    if not step.trains:  # all is computed in closed form
        return step
    began, setup, training = time.monotonic(), 0.0, 0.0
    learner, task = step.learner(device), step.task()
    learner.method.begin(task)
    learner.classifier.grow(task.names)
    for phase in learner.method.phases(task):
        if isinstance(phase, Stage):
            stage_began = time.monotonic()
            learner.engine.compute(phase, seed=0)
            setup += time.monotonic() - stage_began
            continue
        watch = _Stopwatch(device, most=budget / 20)
        with suppress(_Enough):
            learner.engine.run(replace(phase, epochs=None, steps=MEASURED + 1), seed=0, observer=watch)
        setup += watch.setup
        training += watch.step * phase.total_steps
    left = 0.9 * (budget - (time.monotonic() - began)) - setup
    share = max(0.0, left) / training
    config = defaults.scaled(step.config, min(MOST, share))
    if share < LITTLE:
        longer = ", and even the least that can be done takes longer" if share * step.config.train.epochs < 2 else ""
        log.warning("The budget is enough for %.1f %% of the usual schedule%s: expect little.", 100 * share, longer)
    return replace(step, config=config)


class _Enough(Exception):
    """No more steps need to be seen."""


class _Stopwatch(Observer):
    """Takes the time of a few steps, or of fewer if they last longer than `most` seconds."""

    def __init__(self, device: torch.device, most: float) -> None:
        self.device, self.most = device, most
        self.times = [time.monotonic()]

    def step_ends(self, done: int, snapshot: Callable[[], Snapshot]) -> None:
        synchronise(self.device)
        self.times.append(time.monotonic())
        if done >= MEASURED or (done >= 3 and self.times[-1] - self.times[0] > self.most):
            raise _Enough

    @property
    def step(self) -> float:
        """Seconds; the first is left out, which may have to set up things."""
        return median(after - before for before, after in pairwise(self.times[1:]))

    @property
    def setup(self) -> float:
        return max(0.0, self.times[1] - self.times[0] - self.step)

"""Compiling takes a minute, the first task of a run half of one: what the second needs is compiled beside it.

Two processes of their own run one step of its phases on images of nothing, which leaves everything compiled in torch's
cache on disk; the run then finds it there. If they fail, nothing is lost but the time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch

from reverie import bench, runs
from reverie.config import Config
from reverie.engine import Engine

PROCESSES = 2  # a method that dreams has two long phases


class Ahead:
    """The processes at work for one run."""

    def __init__(self, config: Config, device: torch.device) -> None:
        command = [sys.executable, "-m", "reverie.ahead", str(device)]
        self.workers = [
            subprocess.Popen(
                [*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            for number in range(PROCESSES)
        ]
        for worker in self.workers:
            assert worker.stdin is not None
            with suppress(BrokenPipeError), worker.stdin:
                worker.stdin.write(json.dumps(config.as_dict()).encode())

    def wait(self, enough: Callable[[], bool]) -> None:
        """Until everything is compiled: to do the same beside them would only take longer."""
        while not enough() and any(worker.poll() is None for worker in self.workers):
            time.sleep(0.1)

    def stop(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()


@contextmanager
def compiling_ahead(config: Config, engine: Engine, tasks: int) -> Iterator[Ahead | None]:
    """Beside the block, where that can help a run of so many tasks: `config` is all that the processes know of it."""
    if not (engine.on_gpu and engine.compile and tasks > 1 and config.data.source in bench.SHAPES):
        yield None
        return
    ahead = Ahead(config, engine.device)
    try:
        yield ahead
    finally:
        ahead.stop()


def compile_phases(config: Config, device: torch.device, number: int) -> list[str]:
    """Of the second task, every `PROCESSES`-th phase from `number` on; the names of those that had to be compiled."""
    learner, phases = bench.at_task(config, runs.make_stream(config, bench.noise(config)), 1, device)
    compiled = []
    for place, phase in enumerate(phases):
        if place % PROCESSES == number and learner.engine.compiles(phase):
            engine = Engine(device, config.engine.precision, config.engine.capture, compile=True)
            engine.run(replace(phase, epochs=None, steps=1, summary=None, memory=None), seed=0)
            compiled.append(phase.name)
    return compiled


if __name__ == "__main__":
    compile_phases(Config.from_dict(json.load(sys.stdin)), torch.device(sys.argv[1]), int(sys.argv[2]))

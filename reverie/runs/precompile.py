"""Compiling takes a minute, the first task of a run half of one: what the second needs is compiled meanwhile.

Processes of their own run one step of its phases on images of nothing, each compiling a share of what is marked. That
leaves everything in torch's cache on disk, where the run finds it. If they fail, nothing is lost but the time.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch

from reverie.compile import sharing
from reverie.config.schema import Config
from reverie.engine.loop import Engine
from reverie.engine.phase import Stage
from reverie.runs.bench import SHAPES, at_task, noise_dataset
from reverie.runs.configure import make_stream

PHASES, SHARES = 2, 2  # a method that dreams has two long phases, each with two networks that take long to compile


class Precompiler:
    """The processes at work for one run."""

    def __init__(self, config: Config, device: torch.device) -> None:
        command = [sys.executable, "-m", __name__, str(device)]
        self.workers = [
            subprocess.Popen(
                [*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            for number in range(PHASES * SHARES)
        ]
        for worker in self.workers:
            assert worker.stdin is not None
            with suppress(BrokenPipeError), worker.stdin:
                worker.stdin.write(json.dumps(config.as_dict()).encode())

    def wait(self, phase: int, enough: Callable[[], bool]) -> None:
        """Until the second task's phase of that number is compiled: to do it meanwhile would only take longer."""
        at_work = self.workers[phase * SHARES : (phase + 1) * SHARES]
        while not enough() and any(worker.poll() is None for worker in at_work):
            time.sleep(0.1)

    def stop(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()


@contextmanager
def precompiling(config: Config, device: torch.device) -> Iterator[Precompiler | None]:
    """While the block, which is a run from its beginning, learns its first task."""
    engine = Engine(device, config.engine.precision, config.engine.capture, config.engine.compile)
    if not (engine.on_gpu and engine.compile and config.data.source in SHAPES):
        yield None
        return
    precompiler = Precompiler(config, device)
    try:
        yield precompiler
    finally:
        precompiler.stop()


def compile_share(config: Config, device: torch.device, number: int) -> str | None:
    """The name of the second task's phase of which a share was compiled, if there was one to be."""
    place, share = divmod(number, SHARES)
    stream = make_stream(config, noise_dataset(config))
    learner, phases = at_task(config, stream, 1, device)
    phase = next(itertools.islice(phases, place, None), None)
    if phase is None or isinstance(phase, Stage) or not learner.engine.compiles(phase):
        return None
    engine = Engine(device, config.engine.precision, config.engine.capture, compile=True)
    with sharing(share, SHARES):
        engine.run(replace(phase, epochs=None, steps=1, summary=None, memory=None), seed=0)
    return phase.name


if __name__ == "__main__":
    compile_share(Config.from_dict(json.load(sys.stdin)), torch.device(sys.argv[1]), int(sys.argv[2]))

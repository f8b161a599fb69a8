"""Where the time of a captured step goes: kernels of both phases of a task, by name, with their share.

python benchmarks/profile_step.py --method abd --task 2
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch
from torch.profiler import ProfilerActivity, profile

from reverie.engine.loop import Engine
from reverie.engine.observer import Observer, Snapshot
from reverie.engine.phase import Stage
from reverie.runs.bench import at_task, noise_dataset
from reverie.runs.configure import configure, make_stream

WARM, STEPS = 20, 20


class Profiler(Observer):
    """Profiles steps `WARM` to `WARM + STEPS` of a phase."""

    def __init__(self) -> None:
        self.profile = profile(activities=[ProfilerActivity.CUDA])

    def step_ends(self, done: int, snapshot: Callable[[], Snapshot]) -> None:
        if done == WARM:
            torch.cuda.synchronize()
            self.profile.start()
        elif done == WARM + STEPS:
            torch.cuda.synchronize()
            self.profile.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="abd")
    parser.add_argument("--task", type=int, default=2)
    parser.add_argument("--top", type=int, default=25)
    asked = parser.parse_args()
    device = torch.device("cuda")
    config = configure("cifar100-10", asked.method)
    stream = make_stream(config, noise_dataset(config))
    for phase in at_task(config, stream, asked.task - 1, device)[1]:
        if isinstance(phase, Stage):
            continue
        profiler = Profiler()
        Engine(device).run(replace(phase, epochs=None, steps=WARM + STEPS, summary=None), 0, profiler)
        show(phase.name, profiler.profile, asked.top)


def show(name: str, made: profile, top: int) -> None:
    times: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for event in made.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            kernel = event.name[:90]
            times[kernel] += event.device_time_total
            counts[kernel] += 1
    total = sum(times.values())
    print(f"\n{name}: {total / STEPS / 1000:.3f} ms of kernels a step, {sum(counts.values()) / STEPS:.0f} kernels")
    for kernel, time in times.most_common(top):
        print(f"{100 * time / total:5.1f} %  {time / STEPS / 1000:7.3f} ms  {counts[kernel] / STEPS:5.1f} x  {kernel}")


if __name__ == "__main__":
    main()

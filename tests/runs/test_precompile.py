"""Compiling beside the first task: the second finds what it needs, and nothing depends on it."""

import time
from dataclasses import replace

import pytest
import torch

from reverie import compile as fast
from reverie.data.augment import Augmenter
from reverie.engine.loop import Engine
from reverie.methods import dreamer as dream
from reverie.nets.classifier import Classifier
from reverie.nets.generator import Generator
from reverie.runs import bench
from reverie.runs import configure as experiment
from reverie.runs import precompile as ahead
from tests.runs.test_bench import CPU, TINY


def config(*settings: str):
    return experiment.configure("digits-5", "abd", settings=[*TINY, *settings])


@pytest.fixture
def compiled(monkeypatch):
    """What is compiled, by name; nothing is, really."""
    names = []
    for place, name in (
        (Augmenter, "__call__"),
        (Classifier, "features"),
        (Generator, "forward"),
        (dream, "excite"),
    ):
        monkeypatch.setattr(place, name, fast.fusable(getattr(place, name).__wrapped__))
    monkeypatch.setattr(fast, "_compile", lambda f: names.append(f.__qualname__) or f)
    return names


@pytest.mark.parametrize(
    ("number", "phase", "functions"),
    [
        (0, "dream", {"Generator.forward"}),
        (1, "dream", {"excite"}),
        (2, "learn", {"Augmenter.__call__", "Classifier.features"}),
        (3, "learn", {"Generator.forward", "Classifier.features"}),
    ],
)
def test_each_process_compiles_a_share_of_what_the_second_task_needs(compiled, number, phase, functions):
    assert ahead.compile_share(config("engine.compile=true"), CPU, number) == phase
    assert set(compiled) == functions


def test_what_would_not_be_compiled_is_left_alone():
    assert ahead.compile_share(config(), CPU, 0) is None


def test_without_a_gpu_no_process_is_started():
    with ahead.compiling_ahead(config(), CPU) as started:
        assert started is None


def test_the_processes_end_by_themselves():
    started = ahead.Ahead(config(), CPU)
    for phase in (0, 1):
        started.wait(phase, enough=lambda: False)
        assert [worker.returncode for worker in started.workers[2 * phase : 2 * phase + 2]] == [0, 0]


def test_nobody_waits_for_them_who_is_asked_to_stop():
    started = ahead.Ahead(config(), CPU)
    began = time.monotonic()
    started.wait(0, enough=lambda: True)
    started.stop()
    assert time.monotonic() - began < 1
    assert all(worker.returncode for worker in started.workers)


@pytest.mark.gpu
def test_what_was_compiled_ahead_is_found(monkeypatch, tmp_path):
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    chosen = experiment.configure("cifar100-10", "abd", settings=["net.name=resnet8"])
    device = torch.device("cuda")
    started = ahead.Ahead(chosen, device)
    for phase in (0, 1):
        started.wait(phase, enough=lambda: False)
    assert [worker.returncode for worker in started.workers] == [0, 0, 0, 0]
    torch._dynamo.reset()
    counters.clear()
    stream = experiment.make_stream(chosen, bench.noise(chosen))
    for phase in bench.at_task(chosen, stream, 1, device)[1]:
        Engine(device, compile=True).run(replace(phase, epochs=None, steps=1, summary=None), seed=0)
    assert counters["inductor"]["fxgraph_cache_miss"] == 0
    assert counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"] > 0

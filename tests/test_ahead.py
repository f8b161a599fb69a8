"""Compiling beside the first task: the second finds what it needs, and nothing depends on it."""

import time
from dataclasses import replace

import pytest
import torch

from reverie import ahead, bench, fast, runs
from reverie.engine import Engine
from tests.test_bench import CPU, TINY


def config(*settings: str):
    return runs.configure("digits-5", "abd", settings=[*TINY, *settings])


@pytest.mark.parametrize(("number", "phase"), [(0, "dream"), (1, "learn")])
def test_each_process_compiles_its_share_of_the_second_tasks_phases(monkeypatch, number, phase):
    marked = []
    monkeypatch.setattr(fast, "_compile", lambda function: marked.append(function) or function)
    assert ahead.compile_phases(config("engine.compile=true"), CPU, number) == [phase]


def test_what_would_not_be_compiled_is_left_alone():
    assert ahead.compile_phases(config(), CPU, 0) == []


def test_without_a_gpu_no_process_is_started():
    with ahead.compiling_ahead(config(), Engine(CPU), tasks=5) as started:
        assert started is None


def test_the_processes_end_by_themselves():
    started = ahead.Ahead(config(), CPU)
    started.wait(enough=lambda: False)
    assert [worker.returncode for worker in started.workers] == [0, 0]


def test_nobody_waits_for_them_who_is_asked_to_stop():
    started = ahead.Ahead(config(), CPU)
    began = time.monotonic()
    started.wait(enough=lambda: True)
    started.stop()
    assert time.monotonic() - began < 1
    assert all(worker.returncode for worker in started.workers)


@pytest.mark.gpu
def test_what_was_compiled_ahead_is_found(monkeypatch, tmp_path):
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    chosen = runs.configure("cifar100-10", "abd", settings=["net.name=resnet8"])
    device = torch.device("cuda")
    started = ahead.Ahead(chosen, device)
    started.wait(enough=lambda: False)
    assert [worker.returncode for worker in started.workers] == [0, 0]
    torch._dynamo.reset()
    counters.clear()
    stream = runs.make_stream(chosen, bench.noise(chosen))
    for phase in bench.at_task(chosen, stream, 1, device)[1]:
        Engine(device, compile=True).run(replace(phase, epochs=None, steps=1, summary=None), seed=0)
    assert counters["inductor"]["fxgraph_cache_miss"] == 0
    assert counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"] > 0

"""Compiling beside the first task: the second finds what it needs, and nothing depends on it."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from reverie import compile as compiling
from reverie.data.augment import Augmenter
from reverie.engine.loop import Engine
from reverie.methods import dreamer
from reverie.nets.classifier import Classifier
from reverie.nets.generator import Generator
from reverie.runs import precompile
from reverie.runs.bench import at_task, noise_dataset
from reverie.runs.configure import configure, make_stream
from reverie.runs.precompile import Precompiler, compile_share, precompiling
from tests.support.experiments import CPU, tiny_config


@pytest.fixture
def compiled(monkeypatch):
    """What is compiled, by name; nothing is, really."""
    names = []
    for place, name in (
        (Augmenter, "__call__"),
        (Classifier, "features"),
        (Generator, "forward"),
        (dreamer, "excite"),
    ):
        monkeypatch.setattr(place, name, compiling.compilable(getattr(place, name).__wrapped__))
    monkeypatch.setattr(compiling, "_compile", lambda f: names.append(f.__qualname__) or f)
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
    assert compile_share(tiny_config("abd", "engine.compile=true"), CPU, number) == phase
    assert set(compiled) == functions


def test_what_would_not_be_compiled_is_left_alone():
    assert compile_share(tiny_config("abd"), CPU, 0) is None


def test_without_a_gpu_no_process_is_started():
    with precompiling(tiny_config("abd"), CPU) as started:
        assert started is None


def test_a_process_reads_its_configuration_and_ends_without_a_word():
    command = [sys.executable, "-m", "reverie.runs.precompile", "cpu", "0"]
    config = json.dumps(tiny_config("abd").as_dict())
    done = subprocess.run(command, input=config, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture
def one_share(monkeypatch):
    """One process a phase, not two, since each takes seconds to start."""
    monkeypatch.setattr(precompile, "SHARES", 1)


def test_the_processes_end_by_themselves(one_share):
    started = Precompiler(tiny_config("abd"), CPU)
    for phase in (0, 1):
        started.wait(phase, enough=lambda: False)
        assert started.workers[phase].returncode == 0


def test_nobody_waits_for_them_who_is_asked_to_stop(one_share):
    started = Precompiler(tiny_config("abd"), CPU)
    started.wait(0, enough=lambda: True)
    assert any(worker.poll() is None for worker in started.workers)
    started.stop()
    assert all(worker.returncode for worker in started.workers)


@pytest.mark.gpu
def test_what_was_compiled_ahead_is_found(monkeypatch, tmp_path):
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    chosen = configure("cifar100-10", "abd", settings=["net.name=resnet8"])
    device = torch.device("cuda")
    started = Precompiler(chosen, device)
    for phase in (0, 1):
        started.wait(phase, enough=lambda: False)
    assert [worker.returncode for worker in started.workers] == [0, 0, 0, 0]
    torch._dynamo.reset()
    counters.clear()
    stream = make_stream(chosen, noise_dataset(chosen))
    for phase in at_task(chosen, stream, 1, device)[1]:
        Engine(device, compile=True).run(replace(phase, epochs=None, steps=1, summary=None), seed=0)
    assert counters["inductor"]["fxgraph_cache_miss"] == 0
    assert counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"] > 0

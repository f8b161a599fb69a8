"""Parts marked as worth compiling: one graph each, found again by later tasks, and harmless where no compiler works."""

import logging

import pytest
import torch

import reverie.compile
from reverie.compile import compilable, compiling
from reverie.config.schema import AugmentConfig
from reverie.data.augment import Augmenter
from reverie.data.draws import DRAWS
from reverie.data.preprocessing import Normaliser, Preprocessing
from reverie.methods.dreamer import excite, watching
from reverie.nets import make_backbone
from reverie.nets.classifier import Classifier
from reverie.nets.generator import Generator


@pytest.fixture
def compilations(monkeypatch):
    """torch's own tracer, with a compiler behind it that only counts; a part in two pieces is an error."""
    counted = []

    def count(graph, inputs):
        counted.append(graph)
        return graph.forward

    def compile_(function):
        return torch.compile(function, dynamic=False, fullgraph=True, backend=count)

    torch._dynamo.reset()
    monkeypatch.setattr("reverie.compile._compile", compile_)
    monkeypatch.setattr("reverie.compile._broken", False)
    return counted


def classifier(classes: int = 2) -> Classifier:
    made = Classifier(make_backbone("resnet8", 3), Preprocessing(8, (0.0,) * 3, (1.0,) * 3))
    made.grow([str(i) for i in range(classes)])
    return made


def test_networks_are_compiled_once_for_all_tasks(compilations, fresh_marks):
    features, dream, look = fresh_marks(Classifier.features), fresh_marks(Generator.forward), fresh_marks(excite)
    student, images = classifier(), torch.randn(4, 3, 8, 8)
    with compiling(True):
        for task in range(3):
            teacher = student.frozen_copy()
            features(student.train(), images).sum().backward()
            with torch.no_grad():
                assert torch.equal(features(teacher, images), Classifier.features.__wrapped__(teacher, images))
            dreams = dream(Generator(8, 3, 5, 4).train(), torch.randn(4, 5))
            look(watching(teacher), dreams)[1].backward()
            student.grow([f"task {task}"])
    assert len(compilations) == 4


def test_augmentation_is_one_graph(compilations, fresh_marks):
    augment = fresh_marks(Augmenter.__call__)
    pixels = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
    made = Augmenter(AugmentConfig(2, True, 0.2, 0.8), Normaliser((0.5,) * 3, (0.2,) * 3))
    with compiling(True):
        for _ in range(3):
            draws = torch.rand(4, DRAWS)
            assert torch.equal(augment(made, pixels, draws), made(pixels, draws))
    assert len(compilations) == 1


def test_nothing_is_compiled_unless_asked_for(compilations, fresh_marks):
    fresh_marks(Classifier.features)(classifier(), torch.randn(2, 3, 8, 8))
    with compiling(True), compiling(False):
        fresh_marks(Classifier.features)(classifier(), torch.randn(2, 3, 8, 8))
    assert not compilations


def test_a_compiler_that_fails_is_reported_once_and_done_without(monkeypatch, caplog):
    def broken(graph, inputs):
        raise OSError("no compiler found")

    monkeypatch.setattr("reverie.compile._compile", lambda f: torch.compile(f, backend=broken))
    monkeypatch.setattr("reverie.compile._broken", False)
    torch._dynamo.reset()
    double = compilable(lambda x: 2 * x + 1)
    with caplog.at_level(logging.WARNING, "reverie"), compiling(True):
        assert double(torch.ones(2)).tolist() == [3, 3]
        assert double(torch.ones(3)).tolist() == [3, 3, 3]
    with compiling(True):
        assert not reverie.compile._compiling
    assert len(caplog.records) == 1
    assert "no compiler found" in caplog.text


@pytest.fixture
def fresh_marks():
    """A marked function marked anew, so that no other test has compiled it yet."""
    return lambda function: compilable(function.__wrapped__)

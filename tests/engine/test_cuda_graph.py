"""The fast path computes what the reference computes. Only a GPU can show it: run with `pytest -m gpu`."""

import copy
import functools
import logging
from dataclasses import replace

import pytest
import torch
from torch import nn

from reverie.compile import compiling
from reverie.data.images import Dataset
from reverie.data.preprocessing import Preprocessing
from reverie.engine.loop import Engine, _Loop
from reverie.engine.observer import Observer
from reverie.engine.phase import SGD, Phase, StepSchedule
from reverie.errors import UserError
from reverie.learner.task_learner import TaskLearner
from reverie.methods import method_names
from reverie.runs.bench import noise_dataset
from reverie.runs.configure import configure, make_stream
from reverie.runs.run import run

pytestmark = pytest.mark.gpu

METHODS = [name for name in method_names() if name != "joint"]
TEACHER_CLASSES = 20


@pytest.fixture(scope="module")
def cuda() -> torch.device:
    assert torch.cuda.is_available(), "these tests need a GPU"
    return torch.device("cuda")


@functools.cache
def images_of_nothing(source: str) -> Dataset:
    return noise_dataset(configure("cifar100-10", "base", settings=[f"data.source={source}"]))


def third_task(method: str, device: torch.device, *settings: str, seed: int = 0) -> tuple[TaskLearner, list[Phase]]:
    """The phases of the third of ten tasks of CIFAR-100, the images noise, the classifier a little trained."""
    config = configure("cifar100-10", method, seed=seed, settings=["dream.steps=50", *settings])
    stream = make_stream(config, images_of_nothing(config.data.source))
    learner = TaskLearner.fresh(config, Preprocessing(32, (0.5,) * 3, (0.25,) * 3), 100, device)
    for earlier in stream[:2]:
        learner.method.begin(earlier)
        learner.classifier.grow(earlier.names)
        learner.method.end(earlier)
    rng = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        learner.classifier.train()
        for _ in range(20):  # running statistics of something
            learner.classifier(torch.randn(64, 3, 32, 32, device=device, generator=rng))
    task = stream[2]
    learner.method.begin(task)
    learner.classifier.grow(task.names)
    with torch.no_grad():  # the student is not its teacher any more
        for parameter in learner.classifier.parameters():
            parameter *= 1 + 0.05 * torch.randn(parameter.shape, device=device, generator=rng)
    return learner, list(learner.method.phases(task))


def first_step(engine: Engine, phase: Phase) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses and the whole gradient of a phase's first step; everything is left as it was."""
    with engine.arithmetic(), compiling(engine.compiles(phase)):
        loop = _Loop(engine, phase, seed=5, observer=Observer())
        put_back = loop.rewind()
        loop._set_up()
        assert (loop.captured is not None) == engine.capture
        loop._begin_epoch(0, 0)
        loop._before_first()
        loop._step(more=True)
        losses = loop.sums.double().clone()
        gradient = torch.cat([p.grad.double().flatten() for p in phase.trainable()])
        put_back()
        loop._tear_down()
    return losses, gradient


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("method", METHODS)
def test_a_captured_step_is_the_eager_step(cuda, method, precision, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)  # or sums differ from call to call without capture
    _, phases = third_task(method, cuda)
    for phase in phases:
        losses, gradient = first_step(Engine(cuda, precision, capture=False, compile=False), phase)
        captured = first_step(Engine(cuda, precision, capture=True, compile=False), phase)
        figures = f"{distance(captured[0], losses):.1e} {distance(captured[1], gradient):.1e}"
        print(f"{method} {phase.name} {precision}: {figures}")
        assert ((captured[0] - losses).abs() <= 1e-4 * losses.abs()).all()
        assert distance(captured[1], gradient) <= 1e-4


def agree(quick: tuple[torch.Tensor, torch.Tensor], exact: tuple[torch.Tensor, torch.Tensor], name: str) -> None:
    """Losses within one percent, and gradients that point the same way."""
    off = ((quick[0] - exact[0]) / exact[0]).abs()
    cosine = float(nn.functional.cosine_similarity(quick[1], exact[1], dim=0))
    print(f"{name}: losses off by {[f'{value:.1e}' for value in off.tolist()]}, cosine {cosine:.5f}")
    assert (off <= 0.01).all()
    assert cosine >= 0.98


@pytest.mark.parametrize("method", METHODS)
def test_mixed_precision_agrees_with_single(cuda, method):
    _, phases = third_task(method, cuda, "dream.mixed=true")
    for phase in phases:
        exact = first_step(Engine(cuda, "fp32", capture=False, compile=False), phase)
        agree(first_step(Engine(cuda, "bf16", capture=True, compile=False), phase), exact, f"{method} {phase.name}")


def test_what_is_compiled_computes_the_same(cuda):
    _, phases = third_task("abd", cuda)
    for phase in phases:
        exact = first_step(Engine(cuda, "fp32", capture=False, compile=False), phase)
        compiled = first_step(Engine(cuda, "fp32", capture=True, compile=True), phase)
        print(f"{phase.name}: {distance(compiled[0], exact[0]):.1e} {distance(compiled[1], exact[1]):.1e}")
        assert ((compiled[0] - exact[0]).abs() <= 1e-4 * exact[0].abs()).all()
        assert distance(compiled[1], exact[1]) <= 1e-3  # sums of many numbers, in another order
        agree(first_step(Engine(cuda, compile=True), phase), exact, f"fast path, {phase.name}")


class Stop(Observer):
    def __init__(self, after: int | None = None) -> None:
        self.after, self.saved, self.epochs = after, None, []

    def step_ends(self, done, snapshot):
        if done == self.after:
            self.saved = copy.deepcopy(snapshot())
            raise KeyboardInterrupt

    def epoch_ends(self, epoch, lr, losses):
        self.epochs.append((lr, *losses.values()))


def weights(phase: Phase) -> torch.Tensor:
    return torch.cat([parameter.detach().double().flatten() for parameter in phase.trainable()])


@pytest.mark.parametrize("number", [0, 1])
def test_many_captured_steps_follow_the_eager_ones(cuda, number):
    """Warming up leaves no trace; the schedule, the feed and the generator go on from step to step."""
    ends, curves = [], []
    for capture in (False, True):
        phase = third_task("abd", cuda)[1][number]
        rate = 1e-5 if phase.name == "dream" else 1e-3  # with higher ones rounding grows to percents in 100 steps
        gentle = SGD(rate, schedule=StepSchedule((1,)))  # Adam takes whole steps for tiny gradients
        steps = phase.feed.steps_per_epoch + 5
        phase = replace(phase, epochs=None, steps=steps, summary=None, optimizer=gentle)
        seen = Stop()
        Engine(cuda, "fp32", capture, compile=False).run(phase, 3, seen)
        ends.append(weights(phase))
        curves.append(torch.tensor(seen.epochs))
    print(curves, distance(ends[1], ends[0]))
    torch.testing.assert_close(curves[1], curves[0], rtol=5e-3, atol=1e-5)
    assert distance(ends[1], ends[0]) < 1e-3


def dreamed(device: torch.device, engine: Engine, seed: int, steps: int) -> dict[str, float]:
    """Mean losses over the last epoch of a dreamer's training, as it is trained in a run: by Adam."""
    last: dict[str, float] = {}

    class Last(Observer):
        def epoch_ends(self, epoch, lr, losses):
            last.update(losses)

    _, (phase, _) = third_task("abd", device, seed=seed)
    engine.run(replace(phase, steps=steps, summary=None), 3, Last())
    return last


def test_a_dreamer_trained_by_the_fast_path_is_as_good_as_the_reference(cuda):
    """For a second teacher, too: what was compiled for the first must not be taken for it."""
    for seed in (0, 1):
        exact = dreamed(cuda, Engine(cuda, "fp32", capture=False, compile=False), seed, 300)
        quick = dreamed(cuda, Engine(cuda, compile=True), seed, 300)
        print(seed, exact, quick)
        assert quick["statistics"] == pytest.approx(exact["statistics"], rel=0.1)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("after", [3, 39, 100])
def test_a_captured_phase_goes_on_where_it_was_stopped(cuda, number, after):
    def make():
        phase = third_task("abd", cuda, "train.lr=0.001", "dream.lr=0.00001")[1][number]
        return replace(phase, epochs=None, steps=after + 4, summary=None)

    engine = Engine(cuda, "fp32", capture=True, compile=False)
    whole = Stop()
    engine.run(make(), 3, whole)
    stopped, rest = Stop(after), Stop()
    with pytest.raises(KeyboardInterrupt):
        engine.run(make(), 3, stopped)
    engine.run(make(), 3, rest, start=stopped.saved)
    print(whole.epochs[-1], rest.epochs[-1])
    torch.testing.assert_close(
        torch.tensor(stopped.epochs + rest.epochs), torch.tensor(whole.epochs), rtol=5e-3, atol=1e-5
    )


def test_a_step_that_waits_for_the_device_runs_uncaptured_and_says_so(cuda, caplog):
    def make(capture):
        _, (phase,) = third_task("base", cuda, "train.lr=0.001")
        losses = phase.losses

        def waiting(batch):
            found = losses(batch)
            assert found["cross_entropy"].item() >= 0
            return found

        phase = replace(phase, losses=waiting, epochs=None, steps=5)
        with caplog.at_level(logging.WARNING, "reverie"):
            Engine(cuda, "fp32", capture, compile=False).run(phase, 3)
        return weights(phase)

    eager = make(False)
    assert not caplog.records
    assert distance(make(True), eager) < 1e-5
    assert len(caplog.records) == 1
    assert "runs uncaptured" in caplog.text
    _, (phase,) = third_task("base", cuda)  # and the next phase is captured again
    first_step(Engine(cuda, capture=True, compile=False), phase)


@pytest.mark.parametrize("method", METHODS)
def test_no_method_waits_for_the_device(cuda, method):
    _, phases = third_task(method, cuda)
    for phase in phases:
        loop = _Loop(Engine(cuda, capture=False, compile=False), phase, seed=0, observer=Observer())
        loop._begin_epoch(0, 0)
        loop.learn(loop.next_batch())
        torch.cuda.set_sync_debug_mode("error")
        try:
            loop.learn(loop.next_batch())
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    ("net", "compile"),
    [
        ("torchvision/resnet18", False),
        ("torchvision/mobilenet_v2", False),
        ("timm/efficientnet_b0", False),
        ("torchvision/resnet18", True),
        ("torchvision/mobilenet_v2", True),
    ],
)
def test_networks_of_others_are_captured_and_their_dropout_repeats(cuda, net, compile, monkeypatch):
    """The second and third drop features, and draw new ones in each step; a seed gives the same ones again."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)  # what differs is dropped features, not rounding
    curves = []
    for _ in range(2):
        seen = Stop()
        for phase in third_task("abd", cuda, f"net.name={net}", "train.lr=0.0001", "dream.lr=0.00001")[1]:
            engine = Engine(cuda, "fp32" if not compile else "bf16", capture=True, compile=compile)
            first_step(engine, phase)  # says whether it is captured
            engine.run(replace(phase, epochs=None, steps=5, summary=None), 3, seen)
        curves.append(torch.tensor([value for epoch in seen.epochs for value in epoch]))
    assert torch.isfinite(curves[0]).all()
    torch.testing.assert_close(curves[1], curves[0], rtol=1e-2, atol=1e-4)  # rounding grows fast here


def test_dropout_in_a_captured_step_is_new_in_each(cuda):
    _, (phase,) = third_task("base", cuda)
    dropped = []
    net = nn.Dropout(0.5)

    def losses(batch):
        found = phase.losses(batch)
        counted.copy_(net(torch.ones(1000, device=cuda)))
        return found

    class Look(Observer):
        def step_ends(self, done, snapshot):
            dropped.append(counted.clone())

    counted = torch.zeros(1000, device=cuda)
    for _ in range(2):
        Engine(cuda, "fp32", capture=True, compile=False).run(
            replace(phase, losses=losses, epochs=None, steps=4), 3, Look()
        )
    assert all(abs(float(mask.mean()) - 1) < 0.2 for mask in dropped)
    assert not any(torch.equal(dropped[i], dropped[j]) for i in range(4) for j in range(i))
    assert all(torch.equal(dropped[i], dropped[i + 4]) for i in range(4))


def test_memory_is_given_back_after_each_phase(cuda):
    used = []
    for _ in range(4):
        learner, phases = third_task("abd", cuda)
        for phase in phases:
            Engine(cuda, compile=False).run(replace(phase, epochs=None, steps=3, summary=None), 0)
        del learner, phases, phase
        torch.cuda.empty_cache()
        used.append(torch.cuda.memory_reserved())
    assert used[3] <= used[1] + 2**20


def test_too_little_memory_is_said_with_what_to_lower(cuda, tiny, tiny_stream):
    learner = TaskLearner.fresh(tiny("base", "train.batch_size=200"), Preprocessing(8, (0.3,), (0.4,)), 10, cuda)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-6)
    try:
        with pytest.raises(UserError, match=r"train\.batch_size"):
            learner.learn(tiny_stream[0])
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_digits_are_learned_on_the_gpu_as_on_the_cpu(cuda, tmp_path):
    settings = ["stream.take=2", "dream.steps=200", "train.epochs=10", "train.milestones=[6,8]"]
    config = configure("digits-5", "abd", settings=settings)
    result = run(config, tmp_path / "gpu", device="cuda")
    reference = run(config, tmp_path / "cpu", device="cpu")
    a, b = result.metrics.accuracy_after, reference.metrics.accuracy_after
    print(a, b)
    assert abs(a[0] - b[0]) < 0.06
    assert abs(a[1] - b[1]) < 0.15
    assert result.engine.precision == "bf16"
    assert result.engine.capture is True

"""The engine: what a phase says is what happens, and a phase can be left and entered again after any step."""

import copy
import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._python_dispatch import TorchDispatchMode

from reverie.config.schema import AugmentConfig
from reverie.data.augment import Augmenter
from reverie.data.feed import Batch, DeviceFeed, NoData, Source
from reverie.data.images import MemoryImages
from reverie.data.preprocessing import Normaliser
from reverie.engine.cuda_graph import _copy_of, _fill
from reverie.engine.loop import Engine, _Loop
from reverie.engine.observer import Observer
from reverie.engine.phase import (
    SGD,
    Adam,
    AdamW,
    CosineSchedule,
    OptimizerMemory,
    OptimizerSettings,
    Phase,
    Stage,
    StepSchedule,
    Warmup,
)
from reverie.errors import Diverged, UserError
from reverie.learner.task_learner import TaskLearner

CPU = torch.device("cpu")
COSINE = Warmup(1, CosineSchedule(2))
OPTIMIZERS = [
    SGD(0.1, schedule=StepSchedule((1,))),
    SGD(0.1, weight_decay=0.01, schedule=COSINE, nesterov=True),
    Adam(0.01),
    AdamW(0.01, weight_decay=0.1, schedule=COSINE),
]


def feed(count: int = 20, batch: int = 4) -> DeviceFeed:
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=rng).to(torch.uint8)
    augment = Augmenter(AugmentConfig(crop=1), Normaliser((0.5,), (0.3,)))
    return DeviceFeed([Source(MemoryImages(pixels, torch.arange(count) % 3), batch)], augment, CPU)


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3), nn.Dropout(0.1))


def phase(model: nn.Module, **changes) -> Phase:
    def prepare(batch, rng):
        return Batch(batch.images + 0.1 * torch.randn(batch.images.shape, generator=rng), batch.labels)

    def losses(batch):
        return {
            "ce": nn.functional.cross_entropy(model(batch.images), batch.labels),
            "decay": 1e-3 * sum(p.square().sum() for p in model.parameters()),
        }

    settings = {
        "name": "learn",
        "feed": feed(),
        "losses": losses,
        "prepare": prepare,
        "optimizer": SGD(0.1, schedule=StepSchedule((1, 2), 0.1)),
        "moves": {"net": model},
        "epochs": 3,
    }
    return Phase(**{**settings, **changes})


class Recorder(Observer):
    def __init__(self, stop_after: int | None = None) -> None:
        self.epochs, self.steps, self.stop_after, self.saved, self.summary = [], 0, stop_after, None, None

    def step_ends(self, done, snapshot):
        self.steps += 1
        if done == self.stop_after:
            self.saved = copy.deepcopy(snapshot())
            raise KeyboardInterrupt

    def epoch_ends(self, epoch, lr, losses):
        self.epochs.append((epoch, lr, dict(losses)))

    def phase_ends(self, phase, summary):
        self.summary = summary


def state(model: nn.Module) -> list[torch.Tensor]:
    return [value.clone() for value in model.state_dict().values()]


def test_it_trains_and_reports_each_epoch_with_its_learning_rate():
    model, seen = net(), Recorder()
    Engine(CPU).run(phase(model, epochs=6), 0, seen)
    assert [epoch for epoch, _, _ in seen.epochs] == list(range(6))
    assert [lr for _, lr, _ in seen.epochs] == pytest.approx([0.1, 0.01, 0.001, 0.001, 0.001, 0.001])
    assert seen.epochs[-1][2]["ce"] < seen.epochs[0][2]["ce"]
    assert set(seen.epochs[0][2]) == {"ce", "decay"}


def test_an_epochs_figure_is_the_mean_over_its_steps():
    model = nn.Linear(1, 1)
    values = iter(range(100))
    counting = phase(
        model, losses=lambda batch: {"n": next(values) + 0 * model.weight.sum()}, feed=feed(20, 4), epochs=2
    )
    seen = Recorder()
    Engine(CPU).run(counting, 0, seen)
    assert [losses["n"] for _, _, losses in seen.epochs] == [2.0, 7.0]


def by_torch(settings: OptimizerSettings, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """What a person would write instead."""
    lr, decay = settings.lr, settings.weight_decay
    if isinstance(settings, SGD):
        return torch.optim.SGD(parameters, lr, settings.momentum, weight_decay=decay, nesterov=settings.nesterov)
    return {Adam: torch.optim.Adam, AdamW: torch.optim.AdamW}[type(settings)](parameters, lr, weight_decay=decay)


@pytest.mark.parametrize("settings", [*OPTIMIZERS, Adam(0.01, weight_decay=0.1)])
def test_a_phase_is_trained_as_a_plain_loop_over_torchs_optimizer_would(settings):
    def loss(model, step):
        return (model.weight - step).square().sum() + model.bias.square().sum()

    ours, theirs = nn.Linear(2, 3), nn.Linear(2, 3)
    theirs.load_state_dict(ours.state_dict())
    steps = iter(range(20))
    whole = phase(
        ours, optimizer=settings, losses=lambda batch: {"x": loss(ours, next(steps))}, feed=feed(20, 4), epochs=3
    )
    Engine(CPU).run(whole, 0)
    optimizer = by_torch(settings, [*theirs.parameters()])
    for step in range(15):
        optimizer.param_groups[0]["lr"] = settings.lr * settings.schedule.factor(step // 5)
        optimizer.zero_grad()
        loss(theirs, step).backward()
        optimizer.step()
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)


def test_gradients_are_clipped_as_torch_clips_them():
    """Steps of SGD without momentum are gradients; these are far longer than allowed, but for the last."""
    ours, theirs = nn.Linear(2, 3), nn.Linear(2, 3)
    theirs.load_state_dict(ours.state_dict())
    factors = [100.0, 3.0, 1e-4]

    def loss(model, factor):
        return factor * (model.weight.square().sum() + model.bias.sum())

    steps = iter(factors)
    whole = phase(
        ours,
        optimizer=SGD(0.1, momentum=0),
        losses=lambda batch: {"x": loss(ours, next(steps))},
        epochs=None,
        steps=3,
        clip=0.5,
    )
    Engine(CPU).run(whole, 0)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for factor in factors:
        optimizer.zero_grad()
        loss(theirs, factor).backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        optimizer.step()
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)


def test_what_is_averaged_ends_as_torchs_average_and_the_rest_as_it_was_learned():
    model, plain, bystander = net(), net(), nn.Linear(1, 1)
    averaged = AveragedModel(plain, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True)

    class Averaging(Observer):
        def step_ends(self, done, snapshot):
            averaged.update_parameters(plain)

    Engine(CPU).run(phase(plain), 0, Averaging())
    Engine(CPU).run(phase(model, moves={"net": model, "other": bystander}, averages={"net": 0.8}), 0)
    expected = averaged.module.state_dict()
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(model[3].weight, plain[3].weight)
    with pytest.raises(ValueError, match="phase 'learn' averages 'head', which is not among what moves"):
        Engine(CPU).run(phase(net(), averages={"head": 0.8}), 0)


def test_an_optimizer_that_the_engine_does_not_know_is_refused_by_name():
    @dataclass(frozen=True)
    class Mine:
        lr: float = 0.1

    @dataclass(frozen=True)
    class MyAdam(Adam):
        amsgrad: bool = True

    for unknown in (Mine(), MyAdam(0.1)):
        with pytest.raises(TypeError, match=r"phase 'learn' must have SGD, Adam or AdamW .* not .*M"):
            Engine(CPU).run(phase(net(), optimizer=unknown), 0)


CHANGES = [
    *({"optimizer": optimizer} for optimizer in OPTIMIZERS),
    {"optimizer": OPTIMIZERS[0], "clip": 0.1, "averages": {"net": 0.8}},
]


@pytest.mark.parametrize("stop_after", [1, 4, 5, 6, 12, 15])
@pytest.mark.parametrize("changes", CHANGES)
def test_a_phase_stopped_after_any_step_goes_on_to_the_very_same_end(stop_after, changes):
    whole, seen_whole = net(), Recorder()
    Engine(CPU).run(phase(whole, **changes), 7, seen_whole)
    first, seen = net(), Recorder(stop_after)
    with pytest.raises(KeyboardInterrupt):
        Engine(CPU).run(phase(first, **changes), 7, seen)
    second, rest = net(seed=99), Recorder()
    Engine(CPU).run(phase(second, **changes), 7, rest, start=seen.saved)
    assert seen.epochs + rest.epochs == seen_whole.epochs
    for a, b in zip(state(whole), state(second), strict=True):
        assert torch.equal(a, b)


def test_a_phase_that_moves_to_another_kind_of_device_goes_on_and_repeats_there():
    seen = Recorder(stop_after=4)
    with pytest.raises(KeyboardInterrupt):
        Engine(CPU).run(phase(net()), 7, seen)
    there = {**seen.saved, "device": "cuda", "rng": torch.zeros(16, dtype=torch.uint8)}  # whose numbers are no use here

    def moved(**changes):
        model, rest = net(seed=99), Recorder()
        Engine(CPU).run(phase(model), 7, rest, start=copy.deepcopy({**there, **changes}))
        return rest.steps, rest.epochs, state(model)

    (steps, epochs, end), again = moved(), moved()
    assert (steps, epochs) == (11, again[1])
    assert all(torch.equal(a, b) for a, b in zip(end, again[2], strict=True))
    assert moved(device="cpu", rng=seen.saved["rng"])[1] != epochs  # other numbers, in truth


def test_another_seed_is_another_training():
    a, b, again = net(), net(), net()
    Engine(CPU).run(phase(a), 1)
    Engine(CPU).run(phase(b), 2)
    Engine(CPU).run(phase(again), 1)
    assert torch.equal(a[3].weight, again[3].weight)
    assert not torch.equal(a[3].weight, b[3].weight)


def test_only_the_named_parameters_move_and_modes_are_as_said():
    model, rest = net(), nn.BatchNorm1d(2)
    before = state(model)
    Engine(CPU).run(phase(model, parameters=list(model[3].parameters()), rests=[rest, model[1]]), 0)
    after = state(model)
    changed = [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    names = [name for name, moved in zip(model.state_dict(), changed, strict=True) if moved]
    assert names == ["3.weight", "3.bias"]
    assert model.training
    assert not rest.training
    assert not model[1].training


def test_a_phase_counted_in_steps_ends_in_the_middle_of_an_epoch():
    model, seen = nn.Linear(2, 1), Recorder()

    def prepare(batch, rng):
        return Batch(torch.randn(4, 2, generator=rng), batch.labels)

    def losses(batch):
        return {"x": model(batch.images).square().mean()}

    nothing = NoData(CPU, 10)
    Engine(CPU).run(phase(model, losses=losses, prepare=prepare, feed=nothing, epochs=None, steps=25), 0, seen)
    assert seen.steps == 25
    assert len(seen.epochs) == 3


def test_an_optimizers_memory_outlives_its_phase():
    model, memory = net(), OptimizerMemory()
    Engine(CPU).run(phase(model, optimizer=Adam(0.01), memory=memory, epochs=1), 0)
    assert all(entry["step"] == 5 for entry in memory.state["state"].values())
    Engine(CPU).run(phase(model, optimizer=Adam(0.01), memory=memory, epochs=1), 0)
    assert all(entry["step"] == 10 for entry in memory.state["state"].values())


def test_after_each_epoch_and_at_the_end_the_phase_is_asked():
    model, calls, seen = net(), [], Recorder()
    Engine(CPU).run(phase(model, after_epoch=lambda: calls.append(1), summary=lambda: {"x": 3}), 0, seen)
    assert len(calls) == 3
    assert seen.summary == {"x": 3, "setup_seconds": 0}


def test_a_loss_that_is_no_number_stops_the_run_and_names_it():
    model = net()
    broken = phase(model, losses=lambda batch: {"good": model[0].weight.sum(), "bad": model[3].weight.sum() * math.nan})
    with pytest.raises(Diverged, match="'bad' of phase 'learn'"):
        Engine(CPU).run(broken, 0)


def test_weights_that_the_last_step_broke_are_noticed_though_no_loss_has_seen_them():
    """One step, whose loss is a number and whose step is not."""
    model = net()
    last = phase(model, losses=lambda batch: {"fine": (model[0].weight * 1e30).sum()}, epochs=None, steps=1)
    with pytest.raises(Diverged, match=r"'learn', '0\.weight' is no longer a number\. .* may help: train\.lr\.$"):
        Engine(CPU).run(replace(last, optimizer=SGD(1e30)), 0)


def test_running_statistics_that_broke_are_noticed_though_weights_are_whole():
    model = net()

    def losses(batch):
        found = model[3].weight.square().sum()
        model[1].running_var.fill_(math.inf)
        return {"fine": found}

    with pytest.raises(Diverged, match=r"'1\.running_var' is no longer a number"):
        Engine(CPU).run(phase(model, losses=losses, epochs=None, steps=1), 0)


def test_what_is_prepared_needs_no_gradient_and_the_global_generator_is_left_as_it_was():
    model, seen = net(), []

    def prepare(batch, rng):
        seen.append(model(batch.images).requires_grad)
        return batch

    torch.manual_seed(3)
    before = torch.get_rng_state()
    Engine(CPU).run(phase(model, prepare=prepare), 0)
    assert not any(seen)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_network_may_have_constants_that_are_no_numbers():
    model = net()
    model.register_buffer("mask", torch.full((3, 3), -math.inf))
    Engine(CPU).run(phase(model), 0)


def test_bf16_runs_the_networks_in_bf16_and_agrees_with_fp32():
    dtypes = set()

    def run(precision, full=False):
        model, seen = net(), Recorder()
        inner = phase(model, full_precision=full)
        losses = inner.losses

        def looking(batch):
            dtypes.add(model(batch.images).dtype)
            return losses(batch)

        inner.losses = looking
        Engine(CPU, precision).run(inner, 0, seen)
        return [losses["ce"] for _, _, losses in seen.epochs]

    exact = run("fp32")
    assert dtypes == {torch.float32}
    assert run("bf16", full=True) == exact
    assert dtypes == {torch.float32}
    assert run("bf16") == pytest.approx(exact, rel=0.05)
    assert torch.bfloat16 in dtypes


class NoReading(TorchDispatchMode):
    """A stand-in for CUDA's own check: inside, nobody asks for a tensor's value or a shape made of values."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket not in (
            torch.ops.aten._local_scalar_dense,
            torch.ops.aten.nonzero,
            torch.ops.aten.masked_select,
            torch.ops.aten.is_nonzero,
            torch.ops.aten.equal,
        ), f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


ADDED = [
    "train.label_smoothing=0.1",
    "train.mixup=0.4",
    "train.rotations=all",
    "augment.cutout=2",
    "augment.trivial=true",
]


def test_a_step_that_clips_and_averages_reads_nothing_back():
    loop = _Loop(Engine(CPU), phase(net(), clip=0.1, averages={"net": 0.9}), 0, Observer())
    loop._begin_epoch(0, 0)
    with NoReading():
        loop._step(more=True)
        loop._step(more=True)


@pytest.mark.parametrize("added", [[], ADDED], ids=["plain", "added"])
def test_nothing_is_read_back_inside_a_step(tiny, tiny_stream, added):
    methods = ("base", "lwf", "lwf-mc", "dgr", "lwf-synthetic", "deepinversion", "abd", "r-dfcil")
    for method in methods:
        settings = ["method.refinement=0.5"] if method in ("r-dfcil", "lucid") else []  # two epochs, one for each stage
        learner = TaskLearner.fresh(tiny(method, *settings, *added), tiny_stream.preprocessing())
        learner.classifier.grow(tiny_stream[0].names)
        task = tiny_stream[1]
        learner.method.begin(task)
        learner.classifier.grow(task.names)
        for inner in learner.method.phases(task):
            inner.feed.begin(0, 0)
            inner.feed.advance()
            with NoReading():
                batch = inner.feed.draw()
                prepared = inner.prepare(batch, torch.Generator()) if inner.prepare else batch
                sum(inner.losses(prepared).values()).backward()
    with pytest.raises(AssertionError, match="waits"), NoReading():
        torch.ones(2).sum().item()


class AStepAhead:
    """What a captured step does, without a graph: it prepares its batch one step ahead."""

    def __init__(self, work, device):
        self.work, self.before = work, None
        put_back = work.rewind()
        work.learn(work.next_batch())  # warming up
        put_back()

    def begin(self):
        self.before = self.work.rng.get_state()
        self.now = self.work.next_batch()

    def __call__(self):
        self.work.learn(self.now)
        self.begin()

    def rng_state(self):
        return self.before

    def release(self):
        self.now = None


@pytest.mark.parametrize("stop_after", [None, 1, 4, 5, 6, 12])
@pytest.mark.parametrize("changes", CHANGES)
def test_working_a_step_ahead_changes_nothing(monkeypatch, stop_after, changes):
    monkeypatch.setattr("reverie.engine.loop.CapturedStep", AStepAhead)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)
    whole, seen_whole = net(), Recorder()
    Engine(CPU).run(phase(whole, **changes), 7, seen_whole)
    ahead = Engine(CPU)
    ahead.capture = True
    model, seen, rest = net(), Recorder(stop_after), Recorder()
    if stop_after is None:
        ahead.run(phase(model, **changes), 7, seen)
    else:
        with pytest.raises(KeyboardInterrupt):
            ahead.run(phase(model, **changes), 7, seen)
        model = net(seed=99)
        ahead.run(phase(model, **changes), 7, rest, start=seen.saved)
    assert seen.epochs + rest.epochs == seen_whole.epochs
    for a, b in zip(state(whole), state(model), strict=True):
        assert torch.equal(a, b)


def test_capture_without_a_gpu_is_a_persons_mistake():
    with pytest.raises(UserError, match=r"engine\.capture"):
        Engine(CPU, capture=True)


def test_few_steps_are_not_compiled_unless_asked_for():
    long, short = phase(net(), epochs=4000), phase(net(), epochs=400)
    auto = Engine(CPU)
    auto.compile = True
    assert auto.compiles(long)
    assert not auto.compiles(short)
    auto.repeats = 10
    assert auto.compiles(short)
    assert Engine(CPU, compile=True).compiles(short)
    assert not Engine(CPU).compiles(long)


def test_a_batch_inside_another_is_copied_and_filled_for_a_captured_step():
    @dataclass(frozen=True)
    class Outer:
        inner: Batch
        more: torch.Tensor
        rows: int

    first = Outer(Batch(torch.zeros(2), torch.zeros(2)), torch.zeros(1), 2)
    second = Outer(Batch(torch.ones(2), torch.full((2,), 3.0)), torch.ones(1), 2)
    held = _copy_of(first)
    place = held.inner.images
    _fill(held, second)
    assert torch.equal(first.inner.images, torch.zeros(2))
    assert held.inner.images is place
    assert torch.equal(place, torch.ones(2)) and torch.equal(held.inner.labels, second.inner.labels)
    assert (held.rows, held.inner.others) == (2, None)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda loss: loss, r"The losses of phase 'learn' are a Tensor, not named scalars: return a dictionary"),
        (lambda loss: None, "are nothing, not named scalars"),
        (lambda loss: {}, "are nothing, not named scalars"),
        (lambda loss: {"a": loss.expand(2)}, r"The loss 'a' of phase 'learn' is a tensor of shape \[2\]"),
        (lambda loss: {"a": 0.5}, "The loss 'a' of phase 'learn' is a float"),
    ],
)
def test_losses_in_another_form_are_told_in_a_sentence(made, said):
    model = net()
    with pytest.raises(UserError, match=said):
        Engine(torch.device("cpu")).run(
            phase(model, losses=lambda batch: made(sum(p.sum() for p in model.parameters()))), 0
        )


# --- stages


class Figures(Observer):
    found = None

    def stage_ends(self, stage, figures):
        self.found = figures


def test_figures_of_a_stage_are_plain_numbers():
    observer = Figures()
    figures = {"share": torch.tensor(0.5), "count": torch.tensor(3), "many": [1, 2.5], "name": "a"}
    Engine(CPU).compute(Stage("fit", lambda rng: figures), 0, observer)
    assert observer.found == {"share": 0.5, "count": 3, "many": [1, 2.5], "name": "a"}
    assert type(observer.found["share"]) is float


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (torch.ones(2), TypeError),
        (Batch, TypeError),
        (float("nan"), ValueError),
        (torch.tensor(math.inf), ValueError),
        ([1, math.nan], ValueError),
    ],
)
def test_a_figure_that_is_none_is_named_with_its_stage(value, error):
    with pytest.raises(error, match=r"the figure 'share' of the stage 'fit' must be a finite number"):
        Engine(CPU).compute(Stage("fit", lambda rng: {"share": value}), 0)

"""The only training loop in the package: a phase in, trained parameters out.

fp32, eager and uncaptured is the reference; `precision`, `capture` and `compile` are switches, set as is best for the
device unless a person says otherwise. The loop can be left after any step and entered again there: what it needs for
that is in `snapshot()`, and all random numbers are a function of (seed of the phase, epoch).
"""

from __future__ import annotations

import copy
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from reverie.compile import compiling
from reverie.config.choices import Precision
from reverie.engine.average import MovingAverage
from reverie.engine.cuda_graph import CapturedStep, CaptureFailed
from reverie.engine.device import has_triton
from reverie.engine.observer import Observer, Snapshot
from reverie.engine.phase import SGD, Adam, AdamW, Phase, Stage
from reverie.errors import Diverged, UserError
from reverie.seeding import derive
from reverie.text import shortened

log = logging.getLogger("reverie")
PAYS_FROM = 20_000  # steps: compiling takes up to a minute for a small network, and brings 1 to 3 ms a step


class Engine:
    """Runs phases and stages on one device. A switch that is not given is set as is best for the device.

    `precision`: `bf16` computes networks in mixed precision and losses in single; with it and with `tf32` the GPU may
    round the factors of single products; `fp32` does neither. `capture`: a step becomes a CUDA graph. `compile`: marked
    parts go through torch.compile; left open, where there are steps enough for it to pay.
    """

    repeats = 1  # how often a phase of the same kind is run: in an experiment, once for each task

    def __init__(
        self,
        device: torch.device,
        precision: Precision | None = None,
        capture: bool | None = None,
        compile: bool | None = None,
    ) -> None:
        self.device, self.on_gpu = device, device.type == "cuda"
        self.precision = precision or ("bf16" if self.on_gpu and torch.cuda.is_bf16_supported(False) else "fp32")
        self.capture = self.on_gpu if capture is None else capture
        self.compile = (self.on_gpu and has_triton(device)) if compile is None else compile
        self.compile_from = PAYS_FROM if compile is None else 0  # steps
        if self.capture and not self.on_gpu:
            raise UserError("engine.capture needs a GPU. Leave it out, or set it to false.")
        if self.precision == "tf32" and not self.on_gpu:
            raise UserError("engine.precision=tf32 needs a GPU. Leave it out, or set it to fp32.")

    def run(self, phase: Phase, seed: int, observer: Observer | None = None, start: Snapshot | None = None) -> None:
        """Train. `seed` belongs to (run, task, phase); `start` is a snapshot of the same phase to go on from."""
        numbers_of_layers = torch.random.fork_rng([self.device] if self.on_gpu else [])  # dropout takes the global ones
        with self.arithmetic(tuned=self.capture), compiling(self.compiles(phase)), numbers_of_layers:
            _Loop(self, phase, seed, observer or Observer()).run(start)

    def compute(self, stage: Stage, seed: int, observer: Observer | None = None) -> None:
        """Do the work of a stage. `seed` belongs to (run, task, stage)."""
        observer = observer or Observer()
        observer.stage_begins(stage)
        numbers_of_layers = torch.random.fork_rng([self.device] if self.on_gpu else [])
        with torch.no_grad(), self.arithmetic(), compiling(False), numbers_of_layers:
            torch.manual_seed(derive(seed, "layers"))
            figures = stage.work(torch.Generator().manual_seed(seed))
        observer.stage_ends(stage, {key: _figure(stage, key, value) for key, value in (figures or {}).items()})

    def compiles(self, phase: Phase) -> bool:
        return self.compile and phase.total_steps * self.repeats >= self.compile_from

    def switches(self) -> dict[str, Any]:
        return {"precision": self.precision, "capture": self.capture, "compile": self.compile}

    def autocast(self, phase: Phase) -> AbstractContextManager[Any]:
        if self.precision != "bf16" or phase.full_precision:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False)

    @contextmanager
    def arithmetic(self, tuned: bool = False) -> Iterator[None]:
        """Inside, products of single-precision numbers are as exact as `precision` says.

        `tuned`: the fastest convolution is tried out for every shape, which takes a while and pays in many equal steps.
        """
        if not self.on_gpu:
            yield
            return
        cudnn, rounded = torch.backends.cudnn, self.precision != "fp32"
        before = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark
        torch.set_float32_matmul_precision("high" if rounded else "highest")
        cudnn.allow_tf32, cudnn.benchmark = rounded, tuned
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            cudnn.allow_tf32, cudnn.benchmark = before[1:]


def _figure(stage: Stage, key: object, value: Any) -> Any:
    """A figure of a stage as JSON has it; numbers may be tensors."""
    plain = value.item() if isinstance(value, Tensor) and not value.ndim else value
    try:
        json.dumps({key: plain}, allow_nan=False)
    except (TypeError, ValueError) as error:
        what = f"the figure {key!r} of the stage {stage.name!r} must be a finite number, text, or lists of these"
        raise type(error)(f"{what}, not {shortened(plain)}") from None
    return plain


class _Loop:
    """One phase being run."""

    def __init__(self, engine: Engine, phase: Phase, seed: int, observer: Observer) -> None:
        self.engine, self.phase, self.seed, self.observer = engine, phase, seed, observer
        self.rng = torch.Generator(engine.device)
        self.done = 0  # steps
        self.names: tuple[str, ...] = ()
        self.sums: Tensor | None = None  # of the losses in this epoch, on the device
        self.captured: CapturedStep | None = None
        _place(phase, engine)
        self.optimizer = make_optimizer(phase, engine.device)
        self.average = _make_average(phase)

    def run(self, start: Snapshot | None) -> None:
        phase = self.phase
        if start is not None:
            self._restore(start)
        self.observer.phase_begins(phase, self.done)
        per_epoch, total = phase.feed.steps_per_epoch, phase.total_steps
        setup = self._set_up() if self.done < total else 0.0
        try:
            while self.done < total:
                epoch, first = divmod(self.done, per_epoch)
                lr = self._begin_epoch(epoch, first)
                last = min((epoch + 1) * per_epoch, total)
                self._before_first()
                while self.done < last:
                    self._step(more=self.done + 1 < last)
                    self.done += 1
                    if self.done == last:  # first, so that no snapshot stands between an epoch's last step and its end
                        if last < total:
                            self.phase.feed.expect(self._epoch_seed(epoch + 1))
                        self._end_epoch(epoch, lr)
                    self.observer.step_ends(self.done, self.snapshot)
        finally:
            self._tear_down()
        if self.average is not None:
            self.average.settle()
        self._refuse_broken_weights()
        if phase.memory is not None:
            phase.memory.state = self.optimizer.state_dict()
        with compiling(False), self.engine.arithmetic():  # for what is done once, neither is worth it
            summary = phase.summary() if phase.summary else {}
            self.observer.phase_ends(phase, {**summary, "setup_seconds": round(setup, 3)})

    # --- a step

    def next_batch(self) -> Any:
        """What the losses are computed from: the next batch, and what `prepare` makes of it."""
        batch = self.phase.feed.draw()
        if self.engine.on_gpu and batch.images.ndim == 4:
            batch = replace(batch, images=batch.images.contiguous(memory_format=torch.channels_last))
        if self.phase.prepare is None:
            return batch
        with torch.no_grad(), self.engine.autocast(self.phase):
            return self.phase.prepare(batch, self.rng)

    def learn(self, batch: Any) -> None:
        with self.engine.autocast(self.phase):
            losses = self.phase.losses(batch)
        if not self.names:  # the first step
            _check_losses(losses, self.phase.name)
        values = torch.stack([loss.float() for loss in losses.values()])
        self.optimizer.zero_grad(set_to_none=True)
        values.sum().backward()
        if self.phase.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.phase.trainable(), self.phase.clip)
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        self.names = tuple(losses)
        if self.sums is None:
            self.sums = torch.zeros_like(values)
        self.sums += values.detach()

    def _before_first(self) -> None:
        """A captured step prepares its batch one step ahead."""
        if self.captured is not None:
            self.phase.feed.advance()
            self.captured.begin()

    def _step(self, more: bool) -> None:
        if self.captured is None:
            self.phase.feed.advance()
            self.learn(self.next_batch())
        else:
            if more:
                self.phase.feed.advance()
            self.captured()

    # --- epochs

    def _epoch_seed(self, epoch: int) -> int:
        return derive(self.seed, "epoch", epoch)

    def _begin_epoch(self, epoch: int, step: int) -> float:
        seed = self._epoch_seed(epoch)
        if step == 0:
            self.rng.manual_seed(derive(seed, "steps"))
            torch.manual_seed(derive(seed, "layers"))
            if self.sums is not None:
                self.sums.zero_()
        self.phase.feed.begin(seed, step)
        lr = self.phase.optimizer.lr * self.phase.optimizer.schedule.factor(epoch)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
        return lr

    def _end_epoch(self, epoch: int, lr: float) -> None:
        assert self.sums is not None
        steps = self.done - epoch * self.phase.feed.steps_per_epoch
        means = dict(zip(self.names, (self.sums / steps).tolist(), strict=True))  # the only look at the device's values
        broken = [name for name, value in means.items() if not math.isfinite(value)]
        if broken:
            raise self._diverged(f"The loss {broken[0]!r} of phase {self.phase.name!r} is", f" (epoch {epoch + 1})")
        if self.phase.after_epoch:
            self.phase.after_epoch()
        self.observer.epoch_ends(epoch, lr, means)

    def _refuse_broken_weights(self) -> None:
        """The last step may break what no loss has seen any more. Buffers of a network's own may hold anything."""
        for module in self.phase.moves.values():
            statistics = [item for item in module.named_buffers() if item[0].endswith(("running_mean", "running_var"))]
            for name, value in (*module.named_parameters(), *statistics):
                if not bool(value.isfinite().all()):
                    raise self._diverged(f"After phase {self.phase.name!r}, {name!r} is")

    def _diverged(self, what: str, where: str = "") -> Diverged:
        setting = {"learn": ": train.lr.", "dream": ": dream.lr."}.get(self.phase.name, ".")
        return Diverged(f"{what} no longer a number{where}. A lower learning rate may help{setting}")

    # --- capture

    def _set_up(self) -> float:
        """Compile and record what is to be; the seconds it took."""
        if not self.engine.capture:
            return 0.0
        began = time.monotonic()
        self._begin_epoch(*divmod(self.done, self.phase.feed.steps_per_epoch))
        self.phase.feed.advance()
        state = self.rng.get_state()
        try:
            self.captured = CapturedStep(self, self.engine.device)
        except CaptureFailed as error:
            log.warning("The phase %r runs uncaptured, which is slower: %s", self.phase.name, error)
            self.rng = torch.Generator(self.engine.device)  # the old one may still believe that it is being captured
            self.rng.set_state(state)
        return time.monotonic() - began

    def _tear_down(self) -> None:
        if self.captured is None:
            return
        self.optimizer.zero_grad(set_to_none=True)  # gradients lie in the graph's memory
        self.captured.release()
        self.captured = None
        torch.cuda.empty_cache()

    def rewind(self) -> Callable[[], None]:
        modules = [module.state_dict() for module in self.phase.moves.values()]
        before = [{name: value.clone() for name, value in state.items()} for state in modules]
        memories = {
            parameter: {name: value.clone() for name, value in state.items() if isinstance(value, Tensor)}
            for parameter, state in self.optimizer.state.items()
        }
        put_back_average = self.average.rewind() if self.average is not None else None
        sums = self.sums.clone() if self.sums is not None else None
        rng, layers = self.rng.get_state(), torch.get_rng_state()

        def put_back() -> None:
            with torch.no_grad():
                for now, then in zip(modules, before, strict=True):
                    for name, value in now.items():
                        value.copy_(then[name])
                for parameter, state in self.optimizer.state.items():
                    then = memories.get(parameter, {})
                    for name, value in state.items():
                        if isinstance(value, Tensor):
                            _put(value, then.get(name))  # momentum and moments begin with zero
                if self.sums is not None:
                    _put(self.sums, sums)
                if put_back_average is not None:
                    put_back_average()
            self.rng.set_state(rng)
            torch.set_rng_state(layers)

        return put_back

    # --- the way back after an interruption

    def snapshot(self) -> Snapshot:
        """Everything that moves, as nested dictionaries of tensors and numbers."""
        return {
            "done": self.done,
            "names": list(self.names),
            "sums": self.sums.clone() if self.sums is not None else None,
            "device": self.engine.device.type,
            "rng": self.captured.rng_state() if self.captured is not None else self.rng.get_state(),
            "layers": torch.get_rng_state(),
            "optimizer": self.optimizer.state_dict(),
            "moves": {name: module.state_dict() for name, module in self.phase.moves.items()},
            **({"average": self.average.state_dict()} if self.average is not None else {}),
        }

    def _restore(self, start: Snapshot) -> None:
        for name, module in self.phase.moves.items():
            module.load_state_dict(start["moves"][name])
        _load_optimizer(self.optimizer, start["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(start["average"])
        self.done, self.names = start["done"], tuple(start["names"])
        torch.manual_seed(derive(self.seed, "layers", self.done))  # those of a GPU are others after an interruption
        if "layers" in start:
            torch.set_rng_state(start["layers"])
        if start["device"] == self.engine.device.type:
            self.rng.set_state(start["rng"])
        else:  # moved to another kind of device, whose numbers are others in any case
            self.rng.manual_seed(derive(self.seed, "moved", self.done))
        self.sums = start["sums"].to(self.engine.device) if start["sums"] is not None else None


def _check_losses(losses: object, phase: str) -> None:
    """A method is somebody's own."""
    if not isinstance(losses, Mapping) or not losses:
        found = "nothing" if losses is None or isinstance(losses, Mapping) else f"a {type(losses).__name__}"
        raise UserError(
            f"The losses of phase {phase!r} are {found}, not named scalars: return a dictionary such as "
            "{'cross_entropy': loss}."
        )
    for name, loss in losses.items():
        if not isinstance(loss, Tensor) or loss.ndim:
            found = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise UserError(f"The loss {name!r} of phase {phase!r} is {found}, not a tensor of one number.")


def make_optimizer(phase: Phase, device: torch.device) -> torch.optim.Optimizer:
    """On a GPU the learning rate is a tensor there, so that a captured step follows its schedule."""
    settings, fused = phase.optimizer, device.type == "cuda"
    lr = torch.tensor(settings.lr, device=device) if fused else settings.lr
    optimizer: torch.optim.Optimizer
    if type(settings) is SGD:
        optimizer = torch.optim.SGD(
            phase.trainable(),
            lr=lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            nesterov=settings.nesterov,
            fused=fused or None,
        )
    elif type(settings) is Adam or type(settings) is AdamW:
        kind = torch.optim.Adam if type(settings) is Adam else torch.optim.AdamW
        optimizer = kind(
            phase.trainable(), lr=lr, weight_decay=settings.weight_decay, capturable=fused, fused=fused or None
        )
    else:  # also a subclass: what it adds would be passed over in silence
        raise TypeError(f"phase {phase.name!r} must have SGD, Adam or AdamW for its optimizer, not {settings!r}")
    if phase.memory is not None and phase.memory.state:
        _load_optimizer(optimizer, copy.deepcopy(phase.memory.state))  # or it would be changed in place
    return optimizer


def _make_average(phase: Phase) -> MovingAverage | None:
    unmoved = [name for name in phase.averages or () if name not in phase.moves]
    if unmoved:
        raise ValueError(f"phase {phase.name!r} averages {unmoved[0]!r}, which is not among what moves")
    return MovingAverage(phase.moves, phase.averages) if phase.averages else None


def _load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """A state from another device, or from a CPU where learning rates are plain numbers, will do."""
    ours = [
        {key: group[key] for key in ("lr", "fused", "capturable") if key in group} for group in optimizer.param_groups
    ]
    groups = [{**theirs, **settings} for theirs, settings in zip(state["param_groups"], ours, strict=True)]
    optimizer.load_state_dict({**state, "param_groups": groups})


def _put(into: Tensor, value: Tensor | None) -> None:
    if value is None:
        into.zero_()
    else:
        into.copy_(value)


def _place(phase: Phase, engine: Engine) -> None:
    """What moves trains, what rests does not; on a GPU all of it lies as its convolutions like it best."""
    for module in phase.moves.values():
        module.train()
    for module in phase.rests:
        module.eval()
    if engine.on_gpu:
        for module in (*phase.moves.values(), *phase.rests):
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

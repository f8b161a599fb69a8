"""Moving averages of what a phase learns: the weights at its end are a mean over its last steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


class MovingAverage:
    """After every step, `decay` times the average plus the rest of what the modules hold now; after the first, that.

    Running statistics of BatchNorm are averaged with the weights that they belong to. Whole numbers, such as how many
    batches were seen, stay the module's own. Nothing waits for the device, so that a captured step can hold it.
    """

    def __init__(self, modules: Mapping[str, nn.Module], decays: Mapping[str, float]) -> None:
        self.decays = dict(decays)
        self.values = {name: _numbers(modules[name]) for name in decays}
        self.averages = {name: _copies(values) for name, values in self.values.items()}
        device = next(value.device for values in self.values.values() for value in values.values())
        self.steps = torch.zeros((), dtype=torch.long, device=device)

    @torch.no_grad()
    def update(self) -> None:
        for name, values in self.values.items():
            rest = torch.full_like(self.steps, 1 - self.decays[name], dtype=torch.float64)
            share = torch.where(self.steps == 0, 1.0, rest)
            for key, value in values.items():
                self.averages[name][key].lerp_(value, share.to(value.dtype))
        self.steps += 1

    @torch.no_grad()
    def settle(self) -> None:
        """The modules take their averages on."""
        for name, values in self.values.items():
            for key, value in values.items():
                value.copy_(self.averages[name][key])

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "averages": self.averages}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps.copy_(state["steps"])
        for name, averages in self.averages.items():
            for key, average in averages.items():
                average.copy_(state["averages"][name][key])

    def rewind(self) -> Callable[[], None]:
        """A function that puts it back to what it is now, in place."""
        before = {
            "steps": self.steps.clone(),
            "averages": {name: _copies(averages) for name, averages in self.averages.items()},
        }
        return lambda: self.load_state_dict(before)


def _numbers(module: nn.Module) -> dict[str, Tensor]:
    return {key: value for key, value in module.state_dict().items() if value.is_floating_point()}


def _copies(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in values.items()}

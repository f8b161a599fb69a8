"""The device that training runs on: found by name, waited for, and what it can do."""

from __future__ import annotations

import importlib.util

import torch

from reverie.errors import UserError
from reverie.text import plural, shortened


def has_triton(device: torch.device) -> bool:
    """What torch.compile needs on a GPU."""
    return importlib.util.find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (7, 0)


def synchronise(device: torch.device) -> None:
    """Wait until the device is done with what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def find_device(name: str | torch.device) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:1`, if it is there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"The device {shortened(name)} is unknown; use auto, cpu, cuda or cuda:1.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"The device {name} was asked for, but there is no GPU here that torch can use. Try cpu.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = plural(torch.cuda.device_count(), "GPU")
        raise UserError(f"The device {name} was asked for, but torch finds {found}; they are counted from cuda:0.")
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"reverie runs on cpu and cuda, not on {device.type}.")
    return device

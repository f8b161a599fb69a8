"""Weight files of other people, read without running any code that may be in them."""

from __future__ import annotations

import hashlib
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from reverie.errors import UserError, explaining
from reverie.nets.backbone import Backbone, Headless

NESTS = ("state_dict", "model", "model_state_dict")  # where training scripts put the weights in what they save
IN_MODEL = "backbone."  # before the names of a backbone in a model folder, beside the head's
FURTHER_HEADS = ("aux1", "aux2", "AuxLogits")  # of GoogLeNet and Inception, for their first training alone
WRAPPERS = ("module.", "_orig_mod.", "model.")  # before every name, by DataParallel, torch.compile and Lightning users


def read_weights(file: Path) -> dict[str, Tensor]:
    """A state dict, from a .safetensors file or from one that torch.save wrote, whatever it is wrapped in."""
    try:
        with warnings.catch_warnings(action="ignore"):
            found = load_file(file) if file.suffix == ".safetensors" else torch.load(file, "cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}.") from None
    except pickle.UnpicklingError as error:
        if "GLOBAL" not in str(error):  # the name of a function or class, in torch's words
            raise _damaged(file) from None
        raise UserError(
            f"{file} holds more than weights, and reading it would run code. Where the model was made, save its "
            "weights alone: torch.save(model.state_dict(), file)."
        ) from None
    except (SafetensorError, EOFError, RuntimeError, ValueError, KeyError) as error:
        if "TorchScript" in str(error):
            raise UserError(
                f"{file} is a TorchScript program. Save its weights alone: "
                "torch.save(torch.jit.load(file).state_dict(), other_file)."
            ) from None
        raise _damaged(file) from None
    for nest in NESTS:
        if isinstance(found, Mapping) and isinstance(found.get(nest), Mapping):
            found = found[nest]
    if not isinstance(found, Mapping) or not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise UserError(f"{file} holds no state dict: it should be what model.state_dict() gives.")
    return _unwrapped(dict(found))


@explaining("read", "Choose another file of weights.")
def fingerprint(file: Path) -> str:
    """Of the file as it is, so that it can be known again: SHA-256."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def load_weights(module: nn.Module, weights: Mapping[str, Tensor], file: Path) -> None:
    """Every weight must be there and fit. `file` is where they are from, for messages."""
    own = module.state_dict()
    further = {name for name in weights if name not in own and name.partition(".")[0] in FURTHER_HEADS}
    weights = {name: value for name, value in weights.items() if name not in further}
    missing = [name for name in own if name not in weights and not name.endswith("num_batches_tracked")]
    surplus = [name for name in weights if name not in own]
    misfits = [name for name in own if name in weights and own[name].shape != weights[name].shape]
    if missing or surplus:
        lacks = f"has no {_some(missing)}" if missing else ""
        what = ", but ".join(filter(None, [lacks, f"has {_some(surplus)} besides" if surplus else ""]))
        raise UserError(f"The weights in {file} are not of this network ({type(module).__name__}): the file {what}.")
    if misfits:
        first = misfits[0]
        theirs, ours = list(weights[first].shape), list(own[first].shape)
        raise UserError(f"The weights in {file} do not fit: {first} is {theirs} there, and {ours} in this network.")
    module.load_state_dict(as_state_of(module, weights), strict=False)


def as_state_of(module: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights with the versions of the module's layers, which some ask for and files do not hold."""
    state = OrderedDict(weights)
    state._metadata = module.state_dict()._metadata  # type: ignore[attr-defined]
    return state


def load_backbone(backbone: Backbone, file: Path) -> None:
    """A library's network without its head takes the weights of the whole network, whatever classes it knew."""
    if not isinstance(backbone, Headless):
        raise UserError(f"Weights are for networks of torchvision and timm, not for {backbone.architecture}.")
    load_weights(backbone.body, _without_head(read_weights(file), backbone.head), file)


def start_backbone(backbone: Backbone, file: Path, sha256: str | None) -> None:
    """Any network takes the weights of its like: of a library's whole network, of a backbone, or of a model folder.

    Raises UserError where the file is not the one that the configuration was made with, or of another network.
    """
    if sha256 is not None and fingerprint(file) != sha256:
        raise UserError(f"net.weights: {file} is not what it was when this run was configured. Put the old file back.")
    weights = read_weights(file)
    of_model = {name.removeprefix(IN_MODEL): value for name, value in weights.items() if name.startswith(IN_MODEL)}
    if of_model:
        load_weights(backbone, {name: value for name, value in of_model.items() if ".noted" not in name}, file)
    elif isinstance(backbone, Headless):
        load_weights(backbone.body, _without_head(weights, backbone.head), file)
    else:
        load_weights(backbone, weights, file)


def _without_head(weights: Mapping[str, Tensor], head: str) -> dict[str, Tensor]:
    return {name: value for name, value in weights.items() if not name.startswith(f"{head}.")}


def _damaged(file: Path) -> UserError:
    return UserError(f"{file} is no file of weights (.safetensors, or written by torch.save), or it is damaged.")


def _unwrapped(weights: dict[str, Any]) -> dict[str, Tensor]:
    for wrapper in WRAPPERS:
        if all(name.startswith(wrapper) for name in weights):
            return _unwrapped({name.removeprefix(wrapper): value for name, value in weights.items()})
    return weights


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"

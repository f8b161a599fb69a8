"""Weights that torchvision and timm publish: found in their usual caches, or downloaded into them."""

from __future__ import annotations

import re
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from reverie.data.download import download
from reverie.data.folder import Progress
from reverie.errors import UserError, explaining
from reverie.nets.backbone import Architecture
from reverie.nets.external import check_network_name, torchvision_weights
from reverie.nets.weights import fingerprint
from reverie.text import first_line

PRETRAINED_NET = "torchvision/efficientnet_b0"  # 20 MB, quick on a CPU
FILES = ("model.safetensors", "pytorch_model.bin")  # of a network on the Hugging Face hub, the better first
INSTEAD = "Fetch the file where there is a network, and give it as `weights`."


def pretrained_file(wanted: Architecture, progress: Progress | None = None) -> Path:
    """The file of the weights that the library publishes for this network (usually learned from ImageNet).

    Looked for where the library itself keeps it, else downloaded there and compared with its published checksum.
    Raises UserError where there are none, or they cannot be had.
    """
    check_network_name(wanted)
    return _of_timm(wanted) if wanted.family == "timm" else _of_torchvision(wanted, progress)


def _of_torchvision(wanted: Architecture, progress: Progress | None) -> Path:
    """In torch's own cache; eight digits or more of the file's SHA-256 stand in its name."""
    address = str(torchvision_weights(wanted).url)
    file = Path(torch.hub.get_dir()) / "checkpoints" / Path(address).name
    begins = re.search(r"-([0-9a-f]{8,64})\.", file.name)
    if file.is_file() and _is_whole(file, begins):
        return file
    part = file.with_name(f"{file.name}.part")
    try:
        with explaining("written", "Make room, or set TORCH_HOME to another folder."):
            file.parent.mkdir(parents=True, exist_ok=True)
        download(address, part, progress)
        if not _is_whole(part, begins):
            raise ValueError("the file differs from the published one")
        part.replace(file)
    except (OSError, ValueError, HTTPException) as error:
        reason = first_line(getattr(error, "reason", error))
        raise UserError(f"The weights of {wanted} could not be downloaded: {address}: {reason}. {INSTEAD}") from None
    finally:
        part.unlink(missing_ok=True)
    return file


def _is_whole(file: Path, begins: re.Match[str] | None) -> bool:
    return begins is None or fingerprint(file).startswith(begins[1])


def _of_timm(wanted: Architecture) -> Path:
    """From the Hugging Face hub, by its own client: into its cache, with its own bar."""
    timm, hub = import_module("timm"), import_module("huggingface_hub")
    place = getattr(timm.get_pretrained_cfg(wanted.name), "hf_hub_id", None)
    if not place:
        raise UserError(f"timm publishes no weights for {wanted.name}. Choose another `backbone`.")
    name, _, revision = str(place).partition("@")
    reason: Any = ""
    for file in FILES:
        try:
            found = Path(hub.hf_hub_download(name, file, revision=revision or None))
        except (OSError, ValueError, RuntimeError, hub.errors.HfHubHTTPError) as error:
            reason = reason or first_line(error)
            continue
        sha256 = found.resolve().name  # in the hub's cache a large file is called by its checksum
        if re.fullmatch("[0-9a-f]{64}", sha256) and fingerprint(found) != sha256:
            raise UserError(f"{found} is damaged. Delete it, and it is downloaded again.")
        return found
    raise UserError(f"The weights of {wanted} could not be downloaded from {name}: {reason} {INSTEAD}")

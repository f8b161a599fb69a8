"""Files that are there whole or not at all, even if the power fails; and loading that runs no code."""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

SCRATCH = ".reverie-"  # how the name of everything begins that is not yet whole


def write_bytes(file: Path, content: bytes) -> None:
    """Write beside the file, flush to the disk, then take its place in one move."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(dir=file.parent, prefix=f"{SCRATCH}{file.name}-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(scratch).chmod(0o644)
        Path(scratch).replace(file)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise
    _sync_folder(file.parent)


def write_text(file: Path, content: str) -> None:
    write_bytes(file, content.encode("utf-8", "backslashreplace"))  # a path may hold bytes that are no text


def write_json(file: Path, content: Any) -> None:
    write_text(file, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(file: Path) -> Any:
    return json.loads(file.read_text("utf-8"))


def write_state(file: Path, state: Mapping[str, Any]) -> None:
    write_bytes(file, state_bytes(state))


def state_bytes(state: Mapping[str, Any]) -> bytes:
    """A nested state of tensors and plain values, as `read_state` takes it."""
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def read_state(file: Path) -> dict[str, Any]:
    import torch

    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return state


def write_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Make a folder whole: `fill` writes into a scratch folder that then takes its place."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{SCRATCH}{folder.name}-"))
    try:
        scratch.chmod(0o755)
        fill(scratch)
        if folder.exists():
            old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{SCRATCH}{folder.name}-old-"))
            folder.replace(old / "old")
            scratch.replace(folder)
            shutil.rmtree(old)
        else:
            scratch.replace(folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""Files that are there whole or not at all, even if the power fails; and loading that runs no code."""

from __future__ import annotations

import ctypes
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
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
    write_bytes(file, text_bytes(content))


def text_bytes(content: str) -> bytes:
    return content.encode("utf-8", "backslashreplace")  # a path may hold bytes that are no text


def write_json(file: Path, content: Any) -> None:
    write_bytes(file, json_bytes(content))


def json_bytes(content: Any) -> bytes:
    return text_bytes(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


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
    above = [parent for parent in folder.absolute().parents if not parent.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{SCRATCH}{folder.name}-"))
    try:
        scratch.chmod(0o755)
        fill(scratch)
        if not folder.exists():
            scratch.replace(folder)
        elif not _exchange(scratch, folder):
            old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{SCRATCH}{folder.name}-old-"))
            folder.replace(old / "old")
            scratch.replace(folder)
            shutil.rmtree(old)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        for parent in above:
            with suppress(OSError):  # somebody else has put something there
                parent.rmdir()
        raise
    shutil.rmtree(scratch, ignore_errors=True)  # what was there before
    _sync_folder(folder.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change places in one move, where the system can."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename is not None and rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""Files that are there whole or not at all, even if the power fails; and loading that runs no code."""

from __future__ import annotations

import ctypes
import errno
import glob
import hashlib
import io
import json
import os
import pickle
import secrets
import shutil
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reverie.errors import UserError, explaining

if TYPE_CHECKING:
    from collections.abc import Mapping

SCRATCH = ".reverie-"  # how the name of everything begins that is not yet whole


def write_bytes(file: Path, content: bytes | memoryview) -> None:
    """Write beside the file, flush to the disk, then take its place in one move. Who may read it stays as it is.

    Raises UserError where a FIFO, a socket or a device is in that place: a plain file would end it.
    """
    file = _resolved(file)
    refuse_special_file(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = _scratch_name(file)
    try:
        with scratch.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        if file.exists():
            shutil.copymode(file, scratch)
        scratch.replace(file)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    sync_folder(file.parent)


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
    """A nested state of tensors and plain values, which `read_state` reads back."""
    write_bytes(file, state_bytes(state))
    _remove_parts(file)


def remove_state(file: Path) -> None:
    file.unlink(missing_ok=True)
    _remove_parts(file)


def _remove_parts(file: Path) -> None:
    """Version 0.1 wrote a large state in parts beside the file."""
    for part in file.parent.glob(f"{glob.escape(file.name)}.*"):
        part.unlink()


def state_bytes(state: Mapping[str, Any]) -> bytes:
    """A nested state of tensors and plain values, as `read_state` takes it."""
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def read_state(file: Path) -> dict[str, Any]:
    """Raises ValueError, which says what is wrong with the file. No code that may be in it is run."""
    state = _unpacked(file.read_bytes())
    if set(state) != {"parts", "digest"}:
        return state
    content = b"".join(file.with_name(name).read_bytes() for name in state["parts"])
    if hashlib.sha256(content).hexdigest() != state["digest"]:
        raise ValueError("its parts do not belong together")
    return _unpacked(content)


def _unpacked(content: bytes) -> dict[str, Any]:
    import torch

    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            whole = packed.testzip() is None  # torch looks at no checksum
        if whole:
            state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            if isinstance(state, dict):
                return state
    except pickle.UnpicklingError:  # torch's words would advise to trust the file
        raise ValueError("it holds what reverie does not write") from None
    except Exception:  # a damaged file can fail in any way
        pass
    raise ValueError("it is cut off, or was changed")


def write_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Make a folder whole: `fill` writes into a scratch folder that then takes its place."""
    folder = _resolved(folder)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is no folder, and stays as it is. Choose another place.")
    above = [parent for parent in folder.absolute().parents if not parent.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = _scratch_name(folder)
    scratch.mkdir()
    try:
        fill(scratch)
        for new in (scratch, *scratch.rglob("*")):
            if (old := folder / new.relative_to(scratch)).exists():
                shutil.copymode(old, new)
        if not folder.exists():
            scratch.replace(folder)
        elif not _exchange(scratch, folder):
            aside = _scratch_name(folder)
            try:
                folder.replace(aside)
                scratch.replace(folder)
            except BaseException:
                if aside.exists() and not folder.exists():
                    aside.replace(folder)
                raise
            shutil.rmtree(aside)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        for parent in above:
            with suppress(OSError):  # somebody else has put something there
                parent.rmdir()
        raise
    shutil.rmtree(scratch, ignore_errors=True)  # what was there before
    sync_folder(folder.parent)


def check_writable(folder: Path) -> None:
    """Could files be made there, or where it would be made? Before the work, not after it; a full disk shows later."""
    place = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not place.is_dir():
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
    if not os.access(place, os.W_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(place))


def check_target(file: Path, overwrite: bool, model: Path | None = None) -> None:
    """May this file be written? Before the work, not after it.

    No file of the folder of the `model` that is read is ever a target, nor one beside them.
    """
    with explaining("read", "Choose another model."):
        inside = resolved_path(model) if model is not None else None
    with explaining("written", "Choose another `out`."):
        place = resolved_path(file)
        if file.is_dir():
            raise UserError(f"{file} is a folder. Name a file: `out`.")
        if inside is not None and place.is_relative_to(inside):
            raise UserError(f"{file} is inside the model folder {model}, which is left as it is. Choose another `out`.")
        if file.exists() and not overwrite:
            raise UserError(f"{file} exists already. Choose another `out`, or say `overwrite`.")
        refuse_special_file(file, "Choose another `out`.")
        check_writable(file.parent)


def refuse_special_file(file: Path, advice: str = "Choose another place.") -> None:
    """A FIFO, a socket or a device is neither read nor replaced as if it were a file. A folder the system refuses."""
    if file.exists() and not file.is_file() and not file.is_dir():
        raise UserError(f"{file} is no regular file, and stays as it is. {advice}")


def _scratch_name(place: Path) -> Path:
    """For what is to take that place. What is made under it can be read by whom the system's mask lets read."""
    return place.with_name(f"{SCRATCH}{place.name}-{secrets.token_hex(4)}")


def _resolved(place: Path) -> Path:
    """Where a link leads to: it is what changes, and the link stays."""
    return resolved_path(place) if place.is_symlink() else place


def resolved_path(path: Path) -> Path:
    """Where links lead to. Raises OSError where they lead in a circle, which no two versions of Python tell alike."""
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise
    return path.resolve()


def read_marked_text(file: Path, advice: str) -> str:
    """A text file that a person wants a part of renewed. Raises UserError for anything else."""
    with explaining("read", advice):
        refuse_special_file(file, advice)
        try:
            return file.read_text("utf-8")
        except UnicodeDecodeError:
            raise UserError(f"{file} is no text in UTF-8. {advice}") from None


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change places in one move, where the system can."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename is not None and rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


def sync_folder(folder: Path) -> None:
    """So that what was renamed in it bears its name after a power cut."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

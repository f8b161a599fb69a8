"""Where a figure comes from: versions, hardware, commit. No paths, no names of people or machines."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from reverie.system.plugins import plugin_packages
from reverie.system.records import Record
from reverie.version import __version__


class Environment(Record):
    """Everything a figure may depend on besides the configuration and the data."""

    sparse: ClassVar[bool] = True

    reverie: str | None = None
    commit: str | None = None
    python: str | None = None
    torch: str | None = None
    torchvision: str | None = None
    numpy: str | None = None
    system: str | None = None
    cpu: str | None = None
    cores: int | None = None
    threads: int | None = None
    device: str | None = None
    gpu: str | None = None
    cuda: str | None = None
    plugins: dict[str, str] | None = None  # packages that add methods, heads or backbones, with their versions


def environment(device: Any) -> Environment:
    """Of this process, at work on the device."""
    import numpy
    import torch

    on_gpu = device.type == "cuda"
    return Environment(
        reverie=__version__,
        commit=commit(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        torchvision=version("torchvision"),
        numpy=numpy.__version__,
        system=f"{platform.system()} {platform.machine()}",
        cpu=_cpu(),
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
        device=device.type,
        gpu=torch.cuda.get_device_name(device) if on_gpu else None,
        cuda=torch.version.cuda if on_gpu else None,
        plugins=plugin_packages() or None,
    )


def digest(state: Mapping[str, Any]) -> str:
    """Of every tensor of a state dict, by name: equal for equal networks, on whatever device."""
    content = blake2b(digest_size=16)
    for name, value in state.items():
        content.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        content.update(value.detach().cpu().contiguous().numpy().tobytes())
    return content.hexdigest()


def now() -> str:
    """To the second, in universal time."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def command_line() -> str:
    """The command as it was typed, without the folders in which its files lie."""
    return shlex.join(["reverie", *map(_without_folders, sys.argv[1:])])


def _without_folders(word: str) -> str:
    """A path that begins elsewhere than here is shortened to its name, behind `--option=`, too."""
    option, sign, value = word.partition("=")
    if word.startswith("-") and sign:
        return f"{option}={_without_folders(value)}"
    path = Path(word)
    return path.name if path.is_absolute() or word.startswith("~") or ".." in path.parts else word


def commit() -> str | None:
    """The commit of reverie's own checkout, with a plus sign behind it if files differ; none where it is installed."""
    source = Path(__file__).resolve().parents[1]  # the package

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(source), *words], capture_output=True, text=True, check=True, timeout=10
        )
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != source.parent:
            return None  # somebody else's repository, with reverie installed inside it
        changed = git("status", "--porcelain", "--", str(source))
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def peak_memory(device: Any) -> int | None:
    """Bytes: the most held on the device since the last call, or, without one, by this process ever."""
    if device.type == "cuda":
        import torch

        most = int(torch.cuda.max_memory_allocated(device))
        torch.cuda.reset_peak_memory_stats(device)
        return most
    try:  # on Linux, where the call below also counts what started this process
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        pass
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"

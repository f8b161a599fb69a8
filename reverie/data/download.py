"""Fetch a data set's official files, when a person asks for it: with progress, a checksum and mirrors."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path

from reverie.data.folder import Progress, files_below
from reverie.data.sources import ARCHIVES, Archive
from reverie.errors import UserError, explaining

BLOCK = 1 << 20


def fetch(name: str, root: Path, mirrors: Sequence[str] = (), progress: Progress | None = None) -> Path:
    """Download, check and unpack `name` under `root`. A mirror is the address of the archive, or of its folder."""
    archive = find_archive(name)
    target = root / archive.folder
    if target.is_dir() and not damaged_files(name, target):
        return target
    addresses = [_address(mirror, archive) for mirror in mirrors] + [archive.url]
    with explaining("written", "Choose another `data`."):
        is_new = not root.exists()
        root.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix=".reverie-", dir=root)
    with _leaving_nothing(root if is_new else None), made as scratch:
        packed = Path(scratch) / "archive"
        _download_any(addresses, packed, archive, progress)
        unpacked = Path(scratch) / "unpacked"
        _unpack(packed, unpacked)
        bad = damaged_files(name, unpacked / archive.folder)
        if bad:
            raise UserError(f"The archive of {archive.title} holds damaged files: {', '.join(bad)}.")
        if target.exists():  # an incomplete or damaged copy
            target.replace(Path(scratch) / "old")
        (unpacked / archive.folder).replace(target)
    return target


@contextmanager
def _leaving_nothing(folder: Path | None) -> Iterator[None]:
    """An empty folder goes if what it was made for fails."""
    try:
        yield
    except BaseException:
        if folder is not None:
            with suppress(OSError):
                folder.rmdir()
        raise


def find_archive(name: str) -> Archive:
    known = [known for known, archive in ARCHIVES.items() if archive.md5]
    if name not in known:
        where = f" {ARCHIVES[name].url} has it, for those with an account (docs/data.md)." if name in ARCHIVES else ""
        raise UserError(f"{name!r} is not a data set reverie can download; it knows {', '.join(known)}.{where}")
    return ARCHIVES[name]


@explaining("read", "Change its permissions.")
def damaged_files(name: str, folder: Path) -> list[str]:
    """What is missing from the official `folder` or differs from what was published; of images, how many there are."""
    archive = ARCHIVES[name]
    files = archive.files.items()
    bad = [file for file, md5 in files if not (folder / file).is_file() or md5_of(folder / file) != md5]
    if archive.images:
        inner = [folder / part for part in archive.folders if (folder / part).is_dir()]
        images = sum(file.suffix.lower() in (".jpeg", ".jpg") for part in inner for file in files_below(part))
        if images != archive.images:
            bad.append(f"{images:,} of {archive.images:,} images")
    return bad


def md5_of(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "md5").hexdigest()


def _address(mirror: str, archive: Archive) -> str:
    return (
        mirror if mirror.endswith((".gz", ".tgz", ".tar", ".zip")) else f"{mirror.rstrip('/')}/{Path(archive.url).name}"
    )


def _unpack(packed: Path, target: Path) -> None:
    if zipfile.is_zipfile(packed):
        with zipfile.ZipFile(packed) as archive:
            archive.extractall(target)
    else:
        with tarfile.open(packed) as tar:
            if hasattr(tarfile, "data_filter"):
                tar.extractall(target, filter="data")
            else:  # Python 3.11.0 to 3.11.3; what is unpacked was compared with its published checksum
                tar.extractall(target)


def _download_any(addresses: Sequence[str], packed: Path, archive: Archive, progress: Progress | None) -> None:
    failures = []
    for address in addresses:
        try:
            download(address, packed, progress)
        except (OSError, ValueError, HTTPException) as error:
            failures.append(f"{address}: {getattr(error, 'reason', error)}")
            continue
        if md5_of(packed) == archive.md5:
            return
        failures.append(f"{address}: the file differs from the official one (MD5 {archive.md5})")
    tried = "\n".join(f"  {failure}" for failure in failures)
    raise UserError(f"{archive.title} could not be downloaded:\n{tried}\nTry another address: `mirrors`.")


def download(address: str, packed: Path, progress: Progress | None) -> None:
    """One file, whole or not; whoever calls this removes what is left of one that failed. Raises OSError and others."""
    with urllib.request.urlopen(address, timeout=60) as response, packed.open("wb") as file:
        total = int(response.headers.get("Content-Length") or 0)
        if total and shutil.disk_usage(packed.parent).free < 3 * total:
            raise UserError(f"Not enough room in {packed.parent.parent}: {3 * total >> 20} MB are needed.")
        done = 0
        while block := response.read(BLOCK):
            file.write(block)
            done += len(block)
            if progress:
                progress(done, total)
    if total and done != total:
        raise OSError(f"the connection broke after {done} of {total} bytes")

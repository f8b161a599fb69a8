"""One process at a time: locks that go with the process, however it ends."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from reverie.errors import UserError, explaining

LOCK = ".lock"  # the file in a folder that one process at a time works in
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # what file systems say that have none


class Lock:
    """A lock that this process holds, until `release`."""

    def __init__(self, file: Path, held: FileLock | None) -> None:
        self.file, self._held = file, held

    def release(self, remove: bool = False) -> None:
        """`remove` deletes the file, too: before the lock is let go where the system can, so that no two get it."""
        removed = remove and self._remove()
        if self._held is not None:
            self._held.release()
        if remove and not removed:
            self._remove()

    def _remove(self) -> bool:
        try:
            self.file.unlink(missing_ok=True)
        except OSError:  # Windows deletes no file that is open
            return False
        return True


def try_lock(file: Path) -> Lock | None:
    """None while another process has the lock. On a file system without locks, everybody may have it."""
    lock = FileLock(file)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return None
    except NotImplementedError:
        return Lock(file, None)
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        return Lock(file, None)
    return Lock(file, lock)


def is_locked(file: Path) -> bool:
    """Has another process the lock now?"""
    if not file.is_file():
        return False
    lock = try_lock(file)
    if lock is None:
        return True
    lock.release()
    return False


@contextmanager
def locked_folder(folder: Path, advice: str, what: Path | None = None) -> Iterator[None]:
    """One process at a time works in the folder, to make `what`; a second one is refused."""
    with explaining("written", advice, what):
        folder.mkdir(parents=True, exist_ok=True)
        lock = try_lock(folder / LOCK)
    if lock is None:
        raise UserError(f"Another process is at work in {folder}.")
    try:
        yield
    finally:
        lock.release()


@contextmanager
def replacing(folder: Path) -> Iterator[None]:
    """One process at a time puts another folder in the place of this one. No file is left behind."""
    with explaining("changed", "Make it writable, or choose another folder for the result.", folder):
        place = folder.resolve()  # by whatever links it is named
        lock = try_lock(place.with_name(f".{place.name}.lock"))
    if lock is None:
        raise UserError(f"Another process is changing {folder}. Repeat the command when it has ended.")
    try:
        yield
    finally:
        lock.release(remove=True)

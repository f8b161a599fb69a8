"""Locks between real processes: a second one is refused, and a lock goes with its process, however that ends."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reverie.errors import UserError
from reverie.system.locks import LOCK, is_locked, locked_folder, replacing, try_lock
from tests.support.processes import as_nobody

HOLDER = """
import sys
from pathlib import Path
from reverie.system.locks import locked_folder, replacing, try_lock

kind, place = sys.argv[1], Path(sys.argv[2])
if kind == "file":
    lock = try_lock(place)
    print("held" if lock else "refused", flush=True)
    sys.stdin.read()
else:
    with locked_folder(place, "") if kind == "folder" else replacing(place):
        print("held", flush=True)
        sys.stdin.read()
"""


@contextmanager
def held_elsewhere(kind: str, place: Path) -> Iterator[subprocess.Popen]:
    """Another process has the lock; it ends when its input is closed."""
    words = [sys.executable, "-c", HOLDER, kind, str(place)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def kill(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def leave(process: subprocess.Popen) -> None:
    process.stdin.close()
    assert process.wait() == 0


@pytest.mark.parametrize("end", [leave, kill])
def test_a_second_process_is_refused_until_the_first_ends_even_if_it_is_killed(
    tmp_path: Path, end: Callable[[subprocess.Popen], None]
):
    file = tmp_path / "x.lock"
    with held_elsewhere("file", file) as process:
        assert is_locked(file)
        assert try_lock(file) is None
        end(process)
        assert not is_locked(file)
        lock = try_lock(file)
    assert lock is not None
    assert try_lock(file) is None  # not even this process gets it twice
    lock.release()
    assert not is_locked(file)


@pytest.mark.parametrize("end", [leave, kill])
def test_one_process_at_a_time_works_in_a_folder(tmp_path, end):
    folder = tmp_path / "not" / "yet" / "there"
    with held_elsewhere("folder", folder) as process:
        assert is_locked(folder / LOCK)
        with (
            pytest.raises(UserError, match=r"Another process is at work in .*/not/yet/there\."),
            locked_folder(folder, ""),
        ):
            pass
        end(process)
        with locked_folder(folder, ""):
            assert is_locked(folder / LOCK)


def test_a_folder_is_free_again_after_work_that_failed(tmp_path):
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), locked_folder(tmp_path, ""):
            raise ZeroDivisionError
    assert not is_locked(tmp_path / LOCK)


def test_one_process_at_a_time_replaces_a_folder_and_no_file_is_left(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    with held_elsewhere("replacing", folder) as process:
        with (
            pytest.raises(UserError, match=r"Another process is changing .*/model\. Repeat the command"),
            replacing(folder),
        ):
            pass
        leave(process)
    with replacing(folder):
        assert len([*tmp_path.iterdir()]) == 2
    with pytest.raises(ZeroDivisionError), replacing(folder):
        raise ZeroDivisionError
    assert [*tmp_path.iterdir()] == [folder]
    assert not [*folder.iterdir()]


def test_what_a_killed_process_left_keeps_nobody_from_replacing_the_folder(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    with held_elsewhere("replacing", folder) as process:
        kill(process)
    with replacing(folder):
        pass
    assert [*tmp_path.iterdir()] == [folder]


def test_a_folder_in_the_current_one_is_locked_by_the_same_file_as_by_its_whole_path(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    with replacing(Path("model")), pytest.raises(UserError, match="Another process"), replacing(tmp_path / "model"):
        pass


def test_asking_whether_somebody_is_at_work_makes_no_file(tmp_path):
    assert not is_locked(tmp_path / "x.lock")
    assert not [*tmp_path.iterdir()]


def test_a_place_where_no_lock_can_be_made_is_said_with_what_to_do(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(UserError, match=r"file cannot be written: .*\. Choose another `out`\."),
        locked_folder(tmp_path / "file", "Choose another `out`."),
    ):
        pass
    (tmp_path / "closed").mkdir(mode=0o500)
    (tmp_path / "closed").chmod(0o555)
    tmp_path.chmod(0o755)
    with (
        as_nobody(),
        pytest.raises(UserError, match=r"model cannot be written: Permission denied\. Choose another `out`\."),
        locked_folder(tmp_path / "closed", "Choose another `out`.", Path("model")),
    ):
        pass


@pytest.mark.skipif(os.name != "posix", reason="locks are flock's there")
@pytest.mark.parametrize("says", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_the_file_system_has_no_locks_everybody_may_have_them(tmp_path, monkeypatch, says):
    def without(handle, how):
        raise OSError(says, os.strerror(says))

    monkeypatch.setattr("fcntl.flock", without)
    for _ in range(2):
        lock = try_lock(tmp_path / "x.lock")
        assert lock is not None
        lock.release(remove=True)
    with locked_folder(tmp_path, ""), locked_folder(tmp_path, ""):
        pass
    assert not is_locked(tmp_path / LOCK)

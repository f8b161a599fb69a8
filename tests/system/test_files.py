"""Files are there whole or not at all, and loading them runs no code."""

import hashlib
import os
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reverie.errors import UserError
from reverie.system.files import (
    SCRATCH,
    check_target,
    check_writable,
    read_json,
    read_marked_text,
    read_state,
    remove_state,
    resolved_path,
    state_bytes,
    write_folder,
    write_json,
    write_state,
    write_text,
)
from tests.support.processes import as_nobody


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("pwned",))


def test_a_file_is_replaced_in_one_move(tmp_path):
    file = tmp_path / "deep" / "x.json"
    write_json(file, {"a": 1})
    write_json(file, {"a": 2})
    assert read_json(file) == {"a": 2}
    assert [entry.name for entry in file.parent.iterdir()] == ["x.json"]


def test_who_has_the_old_file_open_or_linked_keeps_it(tmp_path):
    write_text(tmp_path / "x", "old")
    os.link(tmp_path / "x", tmp_path / "y")
    write_text(tmp_path / "x", "new")
    assert (tmp_path / "y").read_text() == "old"


def test_what_is_written_is_on_the_disk_before_it_has_its_name_and_the_name_is_too(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(os, "fsync", lambda handle: seen.append(os.fstat(handle)))
    write_text(tmp_path / "x", "new")
    assert seen[0].st_size == 3
    seen.clear()
    write_folder(tmp_path / "z", lambda scratch: None)
    assert seen[-1].st_ino == tmp_path.stat().st_ino


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    file = tmp_path / "x"
    write_text(file, "old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_text(file, "new")
    assert file.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_what_is_not_yet_whole_has_a_name_of_our_own(tmp_path, monkeypatch):
    seen = []

    def look(handle):
        seen.extend(entry.name for entry in tmp_path.iterdir())

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", look)
        write_text(tmp_path / "x", "new")
    write_folder(tmp_path / "y", lambda folder: seen.append(folder.name))
    assert [name.startswith(SCRATCH) for name in seen] == [True, False, True]


def test_text_that_is_no_text_is_written_and_read_again(tmp_path):
    """As Python gives the names of files whose bytes are not UTF-8."""
    write_json(tmp_path / "x.json", {"a": "\udcff.png"})
    assert read_json(tmp_path / "x.json") == {"a": "\udcff.png"}


def test_numbers_that_json_does_not_have_are_refused(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", {"a": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_state_comes_back_bit_for_bit(tmp_path):
    state = {"a": torch.randn(3), "b": {"c": [torch.arange(4), 2.5, None, "text"]}}
    write_state(tmp_path / "x.pt", state)
    again = read_state(tmp_path / "x.pt")
    assert torch.equal(again["a"], state["a"])
    assert torch.equal(again["b"]["c"][0], state["b"]["c"][0])
    assert again["b"]["c"][1:] == [2.5, None, "text"]


def test_a_state_that_would_run_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"x": Evil()}, tmp_path / "x.pt")
    with pytest.raises(ValueError, match="it holds what reverie does not write"):
        read_state(tmp_path / "x.pt")
    assert not (tmp_path / "pwned").exists()


@given(st.data())
def test_a_state_of_which_a_bit_or_the_end_is_lost_is_never_read(data):
    raw = bytearray(state_bytes({"a": torch.arange(500.0), "b": {"c": ["text", 2.5, None]}}))
    place = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        del raw[place:]
    else:
        raw[place] ^= 1 << data.draw(st.integers(0, 7))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "x.pt")
        file.write_bytes(raw)
        try:
            state = read_state(file)
        except ValueError as error:
            assert str(error) in ("it is cut off, or was changed", "it holds what reverie does not write")
        else:  # a bit that means nothing, such as one of the padding between two entries
            assert torch.equal(state["a"], torch.arange(500.0)) and state["b"] == {"c": ["text", 2.5, None]}


def test_where_nothing_can_be_written_is_known_before_the_work(tmp_path):
    check_writable(tmp_path / "not" / "yet" / "there")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        check_writable(tmp_path / "file" / "below")
    (tmp_path / "closed").mkdir(mode=0o500)
    with as_nobody(), pytest.raises(PermissionError):
        check_writable(tmp_path / "closed")


# --- large states, which version 0.1 wrote in parts


def write_in_parts(file: Path, state: dict, size: int = 1000) -> list[Path]:
    """As version 0.1 did where a state was larger than 12 MiB."""
    content = state_bytes(state)
    parts = [file.with_name(f"{file.name}.1a2b3c4d-{n}") for n in range(1, 1 + -(-len(content) // size))]
    for number, part in enumerate(parts):
        part.write_bytes(content[number * size : (number + 1) * size])
    names = {"parts": [part.name for part in parts], "digest": hashlib.sha256(content).hexdigest()}
    file.write_bytes(state_bytes(names))
    return parts


def test_a_large_state_is_one_file(tmp_path):
    file, state = tmp_path / "x.pt", {"a": torch.randn(4_000_000), "b": 5}
    write_state(file, state)
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.pt"]
    again = read_state(file)
    assert torch.equal(again["a"], state["a"])
    assert again["b"] == 5
    remove_state(file)
    assert not [*tmp_path.iterdir()]


def test_a_state_in_parts_is_read_and_removed(tmp_path):
    file, state = tmp_path / "x.pt", {"a": torch.randn(1000), "b": 5}
    (tmp_path / "x.pth").write_text("somebody else's")
    assert len(write_in_parts(file, state)) > 3
    again = read_state(file)
    assert torch.equal(again["a"], state["a"])
    assert again["b"] == 5
    remove_state(file)
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.pth"]


def test_parts_of_an_earlier_state_go_when_the_next_is_there(tmp_path):
    file = tmp_path / "x.pt"
    (tmp_path / "x.pth").write_text("somebody else's")
    write_in_parts(file, {"a": torch.ones(1000)})
    write_state(file, {"a": torch.zeros(2000)})
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["x.pt", "x.pth"]
    assert torch.equal(read_state(file)["a"], torch.zeros(2000))


@pytest.mark.parametrize("earlier", [write_state, write_in_parts], ids=["one file", "parts"])
def test_a_state_that_cannot_be_written_leaves_the_old_one_and_nothing_else(tmp_path, monkeypatch, earlier):
    file = tmp_path / "x.pt"
    earlier(file, {"a": torch.ones(1000)})
    before = {*tmp_path.iterdir()}

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_state(file, {"a": torch.zeros(1000)})
    assert {*tmp_path.iterdir()} == before
    assert torch.equal(read_state(file)["a"], torch.ones(1000))


def test_a_state_that_is_in_its_place_stays_whatever_happens_then(tmp_path, monkeypatch):
    """Such as a second Ctrl-C, before the parts of the one before are gone."""
    file = tmp_path / "x.pt"
    write_in_parts(file, {"a": torch.ones(1000)})

    def interrupted(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr("reverie.system.files.sync_folder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_state(file, {"a": torch.zeros(1000)})
    assert torch.equal(read_state(file)["a"], torch.zeros(1000))


@pytest.mark.parametrize("harm", ["missing", "shortened", "changed", "of another"])
def test_a_state_with_a_part_that_is_not_right_is_refused(tmp_path, harm):
    file = tmp_path / "x.pt"
    part = write_in_parts(file, {"a": torch.ones(1000)})[2]
    if harm == "missing":
        part.unlink()
    elif harm == "shortened":
        part.write_bytes(part.read_bytes()[:-1])
    elif harm == "changed":
        part.write_bytes(b"x" * 1000)
    else:
        (tmp_path / "secret").write_bytes(b"x")
        torch.save({"parts": ["../secret"], "digest": ""}, file)
    with pytest.raises((OSError, ValueError)):
        read_state(file)


@pytest.mark.parametrize("what", [5, [[1], [2]], torch.ones(2), "text", None])
def test_what_is_no_state_is_refused(tmp_path, what):
    torch.save(what, tmp_path / "x.pt")
    with pytest.raises(ValueError, match="it is cut off, or was changed"):
        read_state(tmp_path / "x.pt")


# --- folders


def test_without_an_exchange_of_folders_an_interruption_leaves_the_old_one_in_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr("reverie.system.files._exchange", lambda one, other: False)
    write_folder(tmp_path / "x", lambda folder: (folder / "a").write_text("1"))
    replace, moves = Path.replace, []

    def interrupted(self, target):
        moves.append(self)
        if len(moves) == 2:
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "replace", interrupted)
        write_folder(tmp_path / "x", lambda folder: (folder / "a").write_text("2"))
    assert (tmp_path / "x" / "a").read_text() == "1"
    write_folder(tmp_path / "x", lambda folder: (folder / "a").write_text("3"))
    assert (tmp_path / "x" / "a").read_text() == "3"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_a_folder_is_made_whole_or_not_at_all(tmp_path):
    def fill(folder):
        (folder / "a").write_text("1")

    def fail(folder):
        (folder / "a").write_text("2")
        raise ZeroDivisionError

    write_folder(tmp_path / "x", fill)
    for place in ("x", "not/there/yet"):
        with pytest.raises(ZeroDivisionError):
            write_folder(tmp_path / place, fail)
    assert (tmp_path / "x" / "a").read_text() == "1"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_a_file_that_would_be_lost_or_lie_in_a_model_is_refused_before_the_work(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "there.onnx").touch()
    for place, overwrite, message in (
        (tmp_path / "model", True, "is a folder. Name a file: `out`"),
        (tmp_path / "model" / "x.onnx", True, "is inside the model folder .* Choose another `out`"),
        (tmp_path / "there.onnx", False, "exists already. Choose another `out`, or say `overwrite`"),
        (tmp_path / "there.onnx" / "x.onnx", False, "cannot be written: Not a directory. Choose another `out`"),
    ):
        with pytest.raises(UserError, match=message):
            check_target(place, overwrite, tmp_path / "model")
    check_target(tmp_path / "there.onnx", True, tmp_path / "model")
    check_target(tmp_path / "new" / "x.onnx", False)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="FIFOs are those of POSIX")
@pytest.mark.parametrize("linked", [False, True])
def test_what_is_no_regular_file_is_never_replaced_by_one(tmp_path, linked):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    place = tmp_path / ("link" if linked else "fifo")
    for deed in (
        lambda: write_text(place, "new"),
        lambda: write_json(place, {}),
        lambda: write_state(place, {}),
        lambda: check_target(place, overwrite=True),
    ):
        with pytest.raises(UserError, match=" is no regular file, and stays as it is"):
            deed()
    with pytest.raises(UserError, match="fifo is no folder, and stays as it is"):
        write_folder(place, lambda folder: None)
    assert place.is_fifo()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["fifo", "link"]


def test_links_that_lead_in_a_circle_are_an_error_of_the_system(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for deed in (
        lambda: write_text(tmp_path / "loop", "new"),
        lambda: write_folder(tmp_path / "loop", lambda folder: None),
        lambda: resolved_path(tmp_path / "loop" / "below"),
    ):
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            deed()
    for place in (tmp_path / "loop", tmp_path / "loop" / "x"):
        with pytest.raises(
            UserError, match=r"cannot be written: Too many levels of symbolic links\. Choose another `out`"
        ):
            check_target(place, overwrite=True)
    with pytest.raises(
        UserError, match=r"loop cannot be read: Too many levels of symbolic links\. Choose another model"
    ):
        check_target(tmp_path / "x", overwrite=True, model=tmp_path / "loop")
    assert [entry.name for entry in tmp_path.iterdir()] == ["loop"]
    assert resolved_path(tmp_path / "not" / "there") == (tmp_path / "not" / "there").resolve()


def test_a_text_that_a_part_is_renewed_of_is_a_regular_file_in_utf_8(tmp_path):
    (tmp_path / "page.md").write_text("grüße", "utf-8")
    assert read_marked_text(tmp_path / "page.md", "Name the page.") == "grüße"
    (tmp_path / "page.md").write_bytes(b"gr\xfc\xdfe")
    with pytest.raises(UserError, match=r"page\.md is no text in UTF-8\. Name the page\."):
        read_marked_text(tmp_path / "page.md", "Name the page.")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "fifo")
        with pytest.raises(UserError, match=r"fifo is no regular file, and stays as it is\. Name the page\."):
            read_marked_text(tmp_path / "fifo", "Name the page.")


@pytest.mark.parametrize("system", ["linux", "another"])
def test_a_folder_takes_the_place_of_an_older_one(tmp_path, monkeypatch, system):
    """In one move where the system can, in two where it cannot."""
    monkeypatch.setattr(sys, "platform", system)
    for text in ("1", "2"):
        write_folder(tmp_path / "x", lambda folder, text=text: (folder / text).write_text(text))
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]
    assert [entry.name for entry in (tmp_path / "x").iterdir()] == ["2"]


@pytest.mark.skipif(os.name != "posix", reason="modes and masks are those of POSIX")
def test_who_may_read_is_the_systems_and_the_persons_choice(tmp_path):
    def fill(folder):
        write_text(folder / "a", "a")
        write_text(folder / "b", "b")

    def modes(folder):
        return [oct(entry.stat().st_mode & 0o777) for entry in (folder, *sorted(folder.iterdir()))]

    before = os.umask(0o077)
    try:
        write_folder(tmp_path / "x", fill)
        write_text(tmp_path / "y", "y")
    finally:
        os.umask(before)
    assert modes(tmp_path / "x") == ["0o700", "0o600", "0o600"]
    assert (tmp_path / "y").stat().st_mode & 0o777 == 0o600
    (tmp_path / "x" / "a").chmod(0o640)
    write_folder(tmp_path / "x", fill)
    write_text(tmp_path / "y", "z")
    assert modes(tmp_path / "x") == ["0o700", "0o640", "0o600"]
    assert (tmp_path / "y").stat().st_mode & 0o777 == 0o600


def test_what_a_link_leads_to_is_what_changes(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").symlink_to("text")
    write_folder(tmp_path / "link", lambda folder: write_text(folder / "a", "new"))
    write_text(tmp_path / "file", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").is_symlink()
    assert (tmp_path / "real" / "a").read_text() == (tmp_path / "text").read_text() == "new"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "link", "real", "text"]

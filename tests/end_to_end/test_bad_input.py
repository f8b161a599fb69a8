"""What people really hand over: each with a message that says what to do, and nothing lost."""

import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from reverie.data.folder import read_folder
from reverie.data.images import MemoryImages
from reverie.data.preprocessing import Preprocessing
from reverie.data.stream import Task
from reverie.errors import UserError
from reverie.learner.task_learner import TaskLearner
from reverie.model.folder import load_model, save_model
from reverie.runs.run import run
from tests.support.processes import hear_ctrl_c


def picture(file: Path, seed: int = 0) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(file)


def bomb(file: Path, side: int = 20_000) -> None:
    """A whole and valid PNG of black pixels, written row by row: 20,000 x 20,000 take some hundred thousand bytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    packer, row = zlib.compressobj(1), bytes(1 + side)
    packed = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b""))


def no_images(root: Path) -> None:
    shutil.rmtree(root)
    root.mkdir()


def images_without_folders(root: Path) -> None:
    no_images(root)
    picture(root / "one.png")


def one_image(root: Path) -> None:
    for file in sorted((root / "banana").iterdir())[1:]:
        file.unlink()


def all_corrupt(root: Path) -> None:
    for file in (root / "banana").iterdir():
        file.write_bytes(file.read_bytes()[:40])


def link_to_itself(root: Path) -> None:
    (root / "again").symlink_to(root, target_is_directory=True)


def link_upwards(root: Path) -> None:
    (root / "again").symlink_to(root.parent, target_is_directory=True)


REFUSED = [
    (no_images, r"has no sub-folders\. reverie expects one folder of images a class"),
    (images_without_folders, r"has no sub-folders\. reverie expects one folder of images a class"),
    (one_image, r"Class 'banana' in .* has a single image"),
    (all_corrupt, r"Class 'banana' in .* has no images that can be read"),
    (link_to_itself, r"again is a link back to .*photos, in which it lies\. Remove the link"),
    (link_upwards, r"again is a link back to .*, in which it lies\. Remove the link"),
]


@pytest.mark.parametrize(("spoil", "message"), REFUSED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_folder_that_cannot_be_learned_from_is_refused_in_a_line_or_two(photos, spoil, message):
    spoil(photos)
    with pytest.raises(UserError, match=message) as refused:
        read_folder(photos, size=8)
    assert len(str(refused.value).splitlines()) <= 2


def corrupt(root: Path) -> None:
    (root / "banana" / "bad.jpg").write_bytes((root / "banana" / "0.jpg").read_bytes()[:300])


def huge(root: Path) -> None:
    bomb(root / "banana" / "bad.png")


def failing_disk(root: Path) -> None:
    (root / "banana" / "bad.png").symlink_to("/proc/self/mem")  # whose first bytes cannot be read


def link_in_a_circle(root: Path) -> None:
    (root / "banana" / "bad.png").symlink_to("bad.png")


def link_to_a_folder(root: Path) -> None:
    (root / "banana" / "bad").symlink_to(root, target_is_directory=True)


def class_linked_nowhere(root: Path) -> None:
    (root / "bad").symlink_to(root / "nothing")


PASSED_OVER = [
    (corrupt, "banana/bad.jpg is cut off: its end is missing; skipped"),
    (huge, r"banana/bad.png has more than 178,956,970 pixels; scale it down; skipped"),
    (failing_disk, "banana/bad.png cannot be read: Input/output error; skipped"),
    (link_in_a_circle, "banana/bad.png is a link that leads nowhere or to a folder; left out"),
    (link_to_a_folder, "banana/bad is a link that leads nowhere or to a folder; left out"),
    (class_linked_nowhere, "photos/bad is a link that leads nowhere; left out"),
]


@pytest.mark.parametrize(("spoil", "message"), PASSED_OVER, ids=lambda value: getattr(value, "__name__", ""))
def test_what_is_no_image_is_named_and_passed_over(photos, caplog, spoil, message):
    whole = read_folder(photos, size=8)
    spoil(photos)
    data = read_folder(photos, size=8)
    assert message in caplog.text
    assert data.class_names == ("apple", "banana", "cherry")
    assert len(data.train) + len(data.test) == len(whole.train) + len(whole.test) == 36


READER = """
import resource, sys
from pathlib import Path
from reverie.data.folder import read_folder

def most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read_folder(Path(sys.argv[1]), size=8)
before = most()
read_folder(Path(sys.argv[2]), size=8)
print(most() - before)
"""


def test_a_huge_image_costs_no_memory(photos, tmp_path):
    shutil.copytree(photos, tmp_path / "trap")
    huge(tmp_path / "trap")
    words = [sys.executable, "-c", READER, str(photos), str(tmp_path / "trap")]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) < 50_000  # kilobytes; decoded it would be 400,000


NAMES = ["with space", "🍎🍏", "Apple", "apple", "a|b`c`", "<b>x", "näm\u0308e", "-dash", "con", "train"]


def test_awkward_class_names_stay_what_they_are(tmp_path):
    """Those that differ in case, too: two classes, never one."""
    for number, name in enumerate(NAMES):
        for image in range(3):
            picture(tmp_path / "photos" / name / f"{image}.png", seed=10 * number + image)
    (tmp_path / "photos" / "train").rename(tmp_path / "photos" / "Train")  # which alone would be taken for a part
    data = read_folder(tmp_path / "photos", size=8)
    assert set(data.class_names) == {*NAMES[:-1], "Train"}
    assert torch.bincount(data.train.labels).tolist() == [2] * len(NAMES)


def test_awkward_class_names_come_back_from_a_model_folder(tiny, tmp_path):
    names = [*NAMES, "and/or", "../../etc", "two\nlines", ""]
    learner = TaskLearner.fresh(tiny("base", "train.epochs=1"), Preprocessing(8, (0.5,), (0.25,)))
    pixels = torch.randint(0, 256, (2 * len(names), 1, 8, 8)).to(torch.uint8)
    learner.learn(Task(0, names, 0, MemoryImages(pixels, torch.arange(len(names)).repeat(2))))
    save_model(learner, tmp_path / "deep" / "model")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["deep"]
    again = load_model(tmp_path / "deep" / "model")
    assert again.classifier.class_names == tuple(names)
    assert again.ledger[0].classes == names


@pytest.fixture
def slow(tmp_path):
    """Images that take seconds to read."""
    big = np.random.default_rng(0).integers(0, 256, (1500, 1500, 3), dtype=np.uint8)
    for name in ("apple", "banana"):
        (tmp_path / "slow" / name).mkdir(parents=True)
        Image.fromarray(big).save(tmp_path / "slow" / name / "0.jpg")
        for number in range(1, 600):
            os.link(tmp_path / "slow" / name / "0.jpg", tmp_path / "slow" / name / f"{number}.jpg")
    return tmp_path / "slow"


def test_ctrl_c_while_images_are_read_ends_it_at_once(slow):
    def interrupt(done, total):
        raise KeyboardInterrupt

    began = time.process_time()
    with pytest.raises(KeyboardInterrupt):
        read_folder(slow, size=8, progress=interrupt)
    assert time.process_time() - began < 1.5


def opened_by(process: subprocess.Popen) -> Iterator[bool]:
    """For every file that it has open: is it an image?"""
    for link in Path(f"/proc/{process.pid}/fd").glob("*"):
        with suppress(FileNotFoundError):  # closed since
            yield link.readlink().suffix == ".jpg"


def test_ctrl_c_ends_the_command_with_a_word_and_no_traceback(slow):
    words = [sys.executable, "-m", "reverie", "data", "check", str(slow)]
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hear_ctrl_c,
    )
    opened, deadline = False, time.monotonic() + 30
    while not opened and time.monotonic() < deadline and process.poll() is None:
        opened = any(opened_by(process))
        time.sleep(0.005)
    if not opened and process.poll() is None:
        pytest.skip("what a process has opened cannot be seen here")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert said.startswith("reverie: stopped")
    assert "Traceback" not in said


def test_a_run_whose_disk_is_full_says_so_and_goes_on_when_there_is_room(tiny, tmp_path):
    config = tiny("base", "stream.take=1", "train.epochs=1")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises((OSError, UserError), match="File too large"):
            run(config, tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list((tmp_path / "run").rglob(".reverie-*"))
    assert run(config, tmp_path / "run").metrics.final_accuracy >= 0

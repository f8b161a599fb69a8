"""Nothing of the images is left anywhere, and nobody looks at old ones: searched for and watched, in real processes."""

import base64
import ctypes
import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from reverie.data.folder import read_folder
from tests.support.paths import ROOT
from tests.support.searching import Search, normalise

SIZE = 16
SETTINGS = [
    "data.size=16",
    "train.epochs=3",
    "train.batch_size=8",
    "dream.steps=12",
    "dream.width=8",
    "augment.crop=2",
]
MEAN, DEVIATION = (0.5, 0.4, 0.45), (0.25, 0.2, 0.3)


def take_photographs(root: Path, names: list[str], seed: int) -> None:
    """Soft coloured shapes with some noise, as JPEG and PNG, with names that stand nowhere else."""
    rng = np.random.default_rng(seed)
    for name in names:
        (root / name).mkdir(parents=True)
        for number in range(6):
            coarse = Image.fromarray(rng.integers(30, 225, (4, 5, 3), dtype=np.uint8))
            soft = np.asarray(coarse.resize((28, 24), Image.Resampling.BICUBIC), np.int16)
            pixels = (soft + rng.integers(-6, 7, soft.shape)).clip(0, 255).astype(np.uint8)
            file = root / name / f"IMG_{rng.integers(10**8, 10**9)}.{'png' if number % 2 else 'jpg'}"
            Image.fromarray(pixels).save(file, **({"quality": 92} if number % 2 == 0 else {}))


class Watch:
    """Told by the system itself of every file that is opened in a folder, by whatever means. Only Linux does that."""

    def __init__(self, folder: Path) -> None:
        system, opened = ctypes.CDLL(None), 0x20  # IN_OPEN
        self.handle = system.inotify_init1(os.O_NONBLOCK)
        for inner in (folder, *(entry for entry in folder.iterdir() if entry.is_dir())):
            assert system.inotify_add_watch(self.handle, os.fsencode(inner), opened) > 0

    def told(self) -> bytes:
        try:
            return os.read(self.handle, 1 << 16)
        except BlockingIOError:
            return b""


class Step:
    """A process that learns, watched."""

    behind = b""  # what the system told of old images

    def __init__(self, place: Path, photos: Path, to: str, old: str | None = None) -> None:
        self.place, self.name = place, to
        for folder in ("home", "tmp", f"graves-{to}"):
            (place / folder).mkdir(exist_ok=True)
        self.log = place / f"{to}.log"
        words = [str(photos), "--to", str(place / "models" / to)]
        words += ["--from", str(place / "models" / old)] if old else []
        words += [word for setting in SETTINGS for word in ("--set", setting)]
        words += ["--checkpoint-every", "0"]
        program = ["reverie", "learn"]
        watched = [
            sys.executable,
            str(ROOT / "tests" / "support" / "watched.py"),
            str(self.log),
            str(place / f"graves-{to}"),
        ]
        (place / "models").mkdir(exist_ok=True)
        places = {"HOME": str(place / "home"), "TMPDIR": str(place / "tmp"), "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [*watched, *program, *words], cwd=place, env={**os.environ, **places}, stderr=subprocess.PIPE, text=True
        )

    def finish(self) -> None:
        _, said = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, said

    def kill_inside(self) -> None:
        """When a checkpoint has been written in the middle of a phase."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            if list((self.place / "models").rglob("moving.pt")):
                break
            time.sleep(0.005)
        assert self.process.poll() is None, self.process.communicate()
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=30)

    def events(self) -> list[dict]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def opened(self) -> set[str]:
        return {event["path"] for event in self.events() if event["event"] == "open"}

    def written(self) -> list[Path]:
        """Everything that is left, and everything that was there for a while."""
        return [self.place / name for name in ("models", "home", "tmp", f"graves-{self.name}")]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("kept")
    take_photographs(place / "album-one", ["apple", "banana"], seed=1)
    take_photographs(place / "album-two", ["cherry", "damson"], seed=2)
    return place


@pytest.fixture(scope="module")
def steps(place) -> list[Step]:
    """A first model, and a second one learned onto it while the first photographs are still there to be looked at."""
    first = Step(place, place / "album-one", "one")
    first.finish()
    watch = Watch(place / "album-one") if sys.platform == "linux" else None
    second = Step(place, place / "album-two", "two", "one")
    second.finish()
    second.behind = watch.told() if watch else b""
    return [first, second]


@pytest.fixture(scope="module")
def search(place, steps) -> Search:
    """For all images: as the files have them, and as the network is shown them, mirrored, too."""
    roots = [place / "album-one", place / "album-two"]
    files = [file for root in roots for file in sorted(root.rglob("*.*"))]
    images = [np.asarray(Image.open(file).convert("RGB")).transpose(2, 0, 1).copy() for file in files]
    for data in (read_folder(root, size=SIZE) for root in roots):
        for square in (*data.train.pixels.numpy(), *data.test.pixels.numpy()):
            images += [square, square[:, :, ::-1].copy()]
    shape = json.loads((place / "models" / "one" / "config.json").read_text())["preprocessing"]
    return Search(images, files, [(shape["mean"], shape["deviation"]), (MEAN, DEVIATION)])


def test_no_image_and_no_name_of_one_is_in_what_two_steps_leave_or_wrote_for_a_while(place, steps, search):
    assert (place / "models" / "two" / "model.safetensors").is_file()
    buried = [file for step in steps for file in (place / f"graves-{step.name}").rglob("*") if file.is_file()]
    assert any(file.suffix == ".pt" for file in buried)  # checkpoints were written, and have been searched
    for folder in {folder for step in steps for folder in step.written()}:
        assert search.folder(folder) == {}


def test_where_the_photographs_lie_is_written_nowhere(place, steps):
    """The name of the folder may be in the ledger; the way to it may not."""
    for folder in {folder for step in steps for folder in step.written()}:
        for file in (file for file in folder.rglob("*") if file.is_file()):
            assert str(place).encode() not in file.read_bytes()


def test_an_interrupted_step_leaves_no_image_either(place, steps, search):
    step = Step(place, place / "album-two", "three", "one")
    step.kill_inside()
    assert not (place / "models" / "three").exists()
    assert list((place / "models").rglob("moving.pt"))
    for folder in step.written():
        assert search.folder(folder) == {}


def test_a_step_opens_its_own_images_and_none_of_an_earlier_step(place, steps):
    first, second = steps
    for step, own, other in ((first, "album-one", "album-two"), (second, "album-two", "album-one")):
        images = {str(file) for file in (place / own).rglob("*.*")}
        assert len(images) == 12
        assert images <= step.opened()  # so that what is watched can be seen
        reached = {event["path"] for event in step.events()}
        assert not [path for path in reached if Path(path).is_relative_to(place / other)]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_no_library_looks_at_earlier_images_behind_pythons_back(place, steps):
    assert steps[1].behind == b""
    watch = Watch(place / "album-one")  # so that what is watched can be seen
    next((place / "album-one" / "apple").iterdir()).read_bytes()
    assert b"IMG_" in watch.told()


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="only Linux has files without names")
def test_no_step_writes_where_nobody_can_look(steps):
    """A file without a name is gone before it could be copied."""
    for step in steps:
        assert not [event for event in step.events() if event["flags"] & os.O_TMPFILE == os.O_TMPFILE]


# --- the search can find


@pytest.fixture(scope="module")
def image(place) -> np.ndarray:
    """One as the network is shown it."""
    return read_folder(place / "album-one", size=SIZE).train.pixels[3].numpy()


@pytest.fixture(scope="module")
def file(place) -> Path:
    return sorted((place / "album-one" / "apple").glob("*.jpg"))[0]


def normalised(image: np.ndarray) -> torch.Tensor:
    return normalise(torch.from_numpy(image).float() / 255, MEAN, DEVIATION)


def saved(write, *arguments, **named) -> bytes:
    buffer = io.BytesIO()
    write(buffer, *arguments, **named)
    return buffer.getvalue()


def picture(image: np.ndarray, kind: str, **named) -> bytes:
    return saved(lambda buffer: Image.fromarray(image.transpose(1, 2, 0)).save(buffer, kind, **named))


def tensors(values: torch.Tensor, folder: Path) -> bytes:
    save_file({"a": torch.randn(1000), "b": values.contiguous(), "c": torch.randn(1000)}, folder / "x.safetensors")
    return (folder / "x.safetensors").read_bytes()


PIXELS = {
    "channels first": lambda image: image.tobytes(),
    "channels last": lambda image: image.transpose(1, 2, 0).tobytes(),
    "column by column": lambda image: image.transpose(0, 2, 1).tobytes(),
    "one row of one channel": lambda image: image[1, 7].tobytes(),
    "a patch of eight by eight": lambda image: image[:, 4:12, 3:11].tobytes(),
    "upside down": lambda image: image[:, ::-1].tobytes(),
    "mirrored": lambda image: image[:, :, ::-1].tobytes(),
    "between 0 and 1": lambda image: (torch.from_numpy(image).float() / 255).numpy().tobytes(),
    "normalised": lambda image: normalised(image).numpy().tobytes(),
    "normalised, half precision": lambda image: normalised(image).half().numpy().tobytes(),
    "normalised, bfloat16": lambda image: normalised(image).bfloat16().view(torch.int16).numpy().tobytes(),
    "normalised, double precision": lambda image: normalised(image).double().numpy().tobytes(),
    "whole numbers of 8 bytes": lambda image: image.astype(np.int64).tobytes(),
    "a numpy file": lambda image: saved(np.save, image),
    "a compressed numpy archive": lambda image: saved(np.savez_compressed, x=image.astype(np.float32)),
    "a checkpoint": lambda image: saved(lambda buffer: torch.save({"a": [torch.from_numpy(image)]}, buffer)),
    "gzip": lambda image: gzip.compress(image.tobytes()),
    "zlib": lambda image: zlib.compress(image.transpose(1, 2, 0).tobytes(), 1),
    "base64 in JSON": lambda image: json.dumps({"x": base64.b64encode(image.tobytes()).decode()}).encode(),
    "compressed in base64 in JSON": lambda image: json.dumps(
        [base64.b64encode(zlib.compress(image.tobytes())).decode()]
    ).encode(),
    "PNG": lambda image: picture(image, "png"),
    "PNG in a compressed archive": lambda image: archive("x.bin", picture(image, "png")),
    "an archive that is cut off": lambda image: archive("x.bin", image.tobytes() * 9)[:-60],
}


def archive(name: str, content: bytes) -> bytes:
    def write(buffer):
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
            made.writestr(name, content)

    return saved(write)


@pytest.mark.parametrize("kind", PIXELS)
def test_pixels_are_found(search, image, kind):
    around = np.random.default_rng(5).bytes(1237)
    assert "pixels" in search.content(around + PIXELS[kind](image) + around)


def test_pixels_are_found_in_a_file_of_weights(search, image, tmp_path):
    assert "pixels" in search.content(tensors(normalised(image).flatten(), tmp_path))


@pytest.mark.parametrize("quality", [60, 95])
def test_an_image_compressed_anew_as_jpeg_is_found(search, image, quality):
    around = np.random.default_rng(5).bytes(1237)
    content = around + picture(image, "jpeg", quality=quality) + around
    assert "picture" in search.content(content)
    assert "picture" in search.content(archive("x", content))


def test_a_part_of_the_file_itself_is_found(search, file):
    content = file.read_bytes()
    assert "pixels" in search.content(b"x" * 77 + content[len(content) // 2 :][:200])


@pytest.mark.parametrize("code", ["utf-8", "utf-16"])
def test_a_name_is_found(search, file, code):
    assert search.content(f'{{"source": "{file.name}"}}'.encode(code)) == {"name"}
    assert search.content(zlib.compress(f"apple/{file.stem}".encode(code) * 3)) == {"name"}
    assert "name" in search.content(archive(file.name, b"nothing of interest"))


def test_what_is_planted_in_a_model_folder_is_found(search, image, place, steps, tmp_path):
    shutil.copytree(place / "models" / "two", tmp_path / "model")
    assert search.folder(tmp_path) == {}
    card = tmp_path / "model" / "README.md"
    card.write_bytes(card.read_bytes() + b"\n<!-- " + base64.b64encode(picture(image, "jpeg")) + b" -->\n")
    assert "picture" in search.folder(tmp_path)["model/README.md"]


def test_what_is_no_image_is_not_found(search, place, tmp_path):
    take_photographs(tmp_path / "others", ["apple"], seed=9)
    for other in (tmp_path / "others").rglob("*.*"):
        assert search.content(other.read_bytes()) == set()
    assert search.content(bytes(10**6)) == set()
    assert search.content(bytes(range(256)) * 1000) == set()
    assert search.content(np.random.default_rng(7).bytes(10**6)) == set()

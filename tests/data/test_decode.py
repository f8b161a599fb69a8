"""Images of every kind become pixels of one kind: by threads, in order, without waiting for what nobody wants."""

import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
from PIL import Image

from reverie.data import decode as decode_module
from reverie.data.decode import AHEAD, NotAnImage, Room, _threads, by_threads, decode, pixels_of, problem_lines
from tests.support.processes import as_nobody


def test_what_threads_make_comes_in_order():
    assert [*by_threads(lambda n: n * n, range(3 * AHEAD))] == [n * n for n in range(3 * AHEAD)]


def test_what_goes_wrong_for_an_item_goes_wrong_for_whoever_asks():
    def refuse(number):
        if number == 7:
            raise ValueError("seven")
        return number

    made = by_threads(refuse, range(100))
    assert [next(made) for _ in range(7)] == [*range(7)]
    with pytest.raises(ValueError, match="seven"):
        next(made)


def test_who_stops_asking_has_little_to_wait_for():
    begun, go = [], threading.Event()

    def make(number):
        begun.append(number)
        go.wait(10)
        return number

    def asked_for():
        """As Ctrl-C would, while files are still being handed to threads."""
        for number in range(10_000):
            if number == AHEAD - 1:
                raise KeyboardInterrupt
            yield number

    with pytest.raises(KeyboardInterrupt):
        next(by_threads(make, asked_for()))
    go.set()
    assert next(by_threads(lambda n: n, [1])) == 1  # the threads are free again
    assert len(begun) <= _threads()._max_workers < AHEAD - 1


def test_no_more_than_a_few_are_begun_ahead():
    asked = []
    made = by_threads(lambda n: n, (asked.append(n) or n for n in range(10_000)))
    assert next(made) == 0
    made.close()
    assert len(asked) <= AHEAD


# --- kinds of files


def test_a_colour_that_counts_as_transparent_is_shown_on_white(tmp_path):
    image = Image.new("RGB", (8, 8), (255, 0, 255))
    image.paste((10, 20, 30), (0, 0, 4, 8))
    image.save(tmp_path / "t.png", transparency=(255, 0, 255))
    pixels, converted = decode(tmp_path / "t.png", 8)
    assert pixels[:, 0, 0].tolist() == [10, 20, 30]
    assert pixels[:, 0, 7].tolist() == [255, 255, 255]
    assert converted == {"transparency"}


def test_a_pixel_that_is_no_number_does_not_darken_the_others(tmp_path):
    values = np.full((8, 8), 0.5, np.float32)
    values[0, 0], values[0, 1] = np.nan, np.inf
    Image.fromarray(values).save(tmp_path / "f.tiff")
    pixels, _ = decode(tmp_path / "f.tiff", 8)
    assert pixels[0, 0, :3].tolist() == [0, 0, 128]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_opened_image_is_turned_as_a_file_is(tmp_path, orientation):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8))
    exif = image.getexif()
    exif[0x0112] = orientation
    image.save(tmp_path / "x.png", exif=exif)
    with Image.open(tmp_path / "x.png") as opened:
        assert (pixels_of(opened) == decode(tmp_path / "x.png", 8)[0]).all()


@pytest.mark.parametrize(
    ("image", "value"),
    [
        (Image.fromarray(np.full((9, 9), 40000, np.uint16)), round(40000 / 65535 * 255)),
        (Image.new("RGBA", (9, 9), (10, 20, 30, 0)), 255),  # clear: what lies behind is white
        (Image.new("L", (9, 9), 77), 77),
        (Image.fromarray(np.full((9, 9), 0.5, np.float32)), 128),
        (Image.new("I", (9, 9), 30000), round(30000 / 65535 * 255)),
    ],
)
def test_pixels_keep_their_brightness_through_conversion(tmp_path, image, value):
    file = tmp_path / f"x.{'tiff' if image.mode in 'FI' else 'png'}"
    image.save(file)
    pixels, _ = decode(file, 8)
    assert pixels.shape == (3, 8, 8)
    assert abs(int(pixels.mean()) - value) <= 1


def test_a_photograph_is_turned_upright(tmp_path):
    image = Image.new("RGB", (16, 16), "black")
    image.paste("white", (0, 0, 16, 8))
    exif = Image.Exif()
    exif[0x0112] = 3  # taken upside down
    image.save(tmp_path / "x.png", exif=exif)
    pixels, _ = decode(tmp_path / "x.png", 16)
    assert pixels[:, 0].max() < 20
    assert pixels[:, 15].min() > 235


def test_dark_images_of_16_bits_stay_dark_in_either_byte_order(tmp_path):
    values = np.full((9, 9), 200, np.uint16)
    Image.fromarray(values).save(tmp_path / "little.tiff")
    Image.frombytes("I;16B", (9, 9), values.astype(">u2").tobytes()).save(tmp_path / "big.tiff")
    assert [int(decode(tmp_path / f"{name}.tiff", 8)[0].max()) for name in ("little", "big")] == [1, 1]


def test_a_dark_file_of_16_bits_stays_dark_in_every_format(tmp_path):
    (tmp_path / "a.pgm").write_bytes(b"P5 8 8 65535\n" + np.full((8, 8), 200, ">u2").tobytes())
    Image.fromarray(np.full((8, 8), 200, np.uint16)).save(tmp_path / "a.png")
    for file in tmp_path.iterdir():
        assert int(decode(file, 8)[0].max()) == 1
        with Image.open(file) as opened:
            assert int(pixels_of(opened).max()) == 1


def test_grey_is_the_same_grey_in_every_kind_of_file(tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (16, 16), np.uint8)
    grey = Image.fromarray(values)
    palette = Image.fromarray(values, "P")
    palette.putpalette([value for value in range(256) for _ in range(3)])
    kinds = {
        "plain.png": grey,
        "colour.png": grey.convert("RGB"),
        "clear.png": grey.convert("LA"),
        "palette.png": palette,
        "palette.gif": palette,
        "deep.png": Image.fromarray(values * np.uint16(257)),
        "deep.tiff": Image.fromarray(values * np.uint16(257)),
        "whole.tiff": Image.fromarray(values.astype(np.int32)),
    }
    for name, image in kinds.items():
        image.save(tmp_path / name)
        assert (decode(tmp_path / name, 16)[0] == values).all(), name
        assert (decode(tmp_path / name, 16, channels=1)[0] == values).all(), name


@pytest.mark.parametrize("kind", ["gif", "webp", "png", "tiff"])
def test_of_a_film_the_first_picture_counts(tmp_path, kind):
    first, *others = (Image.new("RGB", (16, 16), colour) for colour in ("red", "lime", "blue"))
    first.save(tmp_path / f"film.{kind}", save_all=True, append_images=others)
    red, green, blue = decode(tmp_path / f"film.{kind}", 8)[0].reshape(3, -1).astype(int)
    assert red.min() > 250 and green.max() < 5 and blue.max() < 5


def test_premultiplied_transparency_is_shown_on_white_as_any_other():
    clear, half = Image.new("RGBA", (8, 8), (0, 0, 0, 0)), Image.new("LA", (8, 8), (0, 128))
    assert pixels_of(clear.convert("RGBa")).min() == 255
    assert abs(int(pixels_of(half.convert("La")).max()) - 127) <= 1


# --- HEIC, with and without the extra


def test_heic_pictures_are_read(tmp_path):
    heif = pytest.importorskip("pillow_heif")
    image = Image.new("RGB", (64, 48), (200, 30, 30))
    heif.from_pillow(image).save(tmp_path / "IMG_1.HEIC")
    pixels, _ = decode(tmp_path / "IMG_1.HEIC", 8)
    assert abs(pixels.astype(int) - np.array([200, 30, 30]).reshape(3, 1, 1)).max() < 12
    (tmp_path / "cut.heic").write_bytes((tmp_path / "IMG_1.HEIC").read_bytes()[:60])
    with pytest.raises(NotAnImage, match=r"^is (damaged|cut off)"):
        decode(tmp_path / "cut.heic", 8)


WITHOUT_THE_EXTRA = """
import sys
sys.modules["pillow_heif"] = None
from pathlib import Path
from reverie.data.folder import read_folder
read_folder(Path(sys.argv[1]), size=8)
"""


def test_without_the_extra_heic_is_named_once_with_what_to_install(photos):
    for number in range(3):  # as they begin
        content = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(99)
        (photos / "apple" / f"IMG_{number}.HEIC").write_bytes(content)
    words = [sys.executable, "-c", WITHOUT_THE_EXTRA, str(photos)]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stderr
    assert said.startswith("3 files skipped, each of which is HEIC, which is read after pip install 'reverie[heic]': ")
    assert said.count("\n") == 1


def test_a_file_that_cannot_be_read_is_not_said_to_be_no_image(tmp_path):
    with pytest.raises(NotAnImage, match=r"^cannot be read: No such file or directory$"):
        decode(tmp_path / "gone.png", 8)
    (tmp_path / "unreadable.png").symlink_to("/proc/self/mem")  # whose first bytes cannot be read
    with pytest.raises(NotAnImage, match=r"^cannot be read: Input/output error$"):
        decode(tmp_path / "unreadable.png", 8)
    (tmp_path / "notes.png").write_text("no image")
    with pytest.raises(NotAnImage, match=r"^is not an image that can be read$"):
        decode(tmp_path / "notes.png", 8)


def test_a_file_that_may_not_be_read_is_said_to_be_that(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "secret.png")
    (tmp_path / "secret.png").chmod(0)
    with as_nobody(), pytest.raises(NotAnImage, match=r"^cannot be read: Permission denied$"):
        decode(tmp_path / "secret.png", 8)


def broken_files(folder):
    """One of each kind, and what is said of it."""
    Image.effect_noise((64, 64), 50).save(folder / "whole.jpg")
    Image.effect_noise((64, 64), 50).save(folder / "whole.png")
    jpeg, png = ((folder / f"whole.{kind}").read_bytes() for kind in ("jpg", "png"))
    contents = {
        "empty.jpg": (b"", "is empty"),
        "cut.jpg": (jpeg[: len(jpeg) // 2], "is cut off: its end is missing"),
        "cut.png": (png[: len(png) // 2], "is cut off: its end is missing"),
        "spoilt.png": (png[:60] + bytes(600) + png[660:], "is damaged"),
        "header.png": (png[:20], "is cut off: its end is missing"),
        "notes.jpg": (b"bought on Friday", "is not an image that can be read"),
        "drawing.svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is SVG, a format that is not supported; save"),
        "paper.pdf": (b"%PDF-1.7", "is PDF, a format that is not supported; save"),
        "clip.mov": (b"\0\0\0\x14ftypqt  \0\0\0\0qt  ", "is a video, not an image"),
    }
    for name, (content, _) in contents.items():
        (folder / name).write_bytes(content)
    return {folder / name: said for name, (_, said) in contents.items()}


def test_broken_files_are_told_apart(tmp_path):
    for file, said in broken_files(tmp_path).items():
        with pytest.raises(NotAnImage) as why:
            decode(file, 8)
        assert str(why.value).startswith(said), file


def test_too_little_memory_is_not_said_to_be_a_damaged_file(tmp_path, monkeypatch):
    def fail(*_):
        raise MemoryError

    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    monkeypatch.setattr(decode_module, "loaded", fail)
    with pytest.raises(NotAnImage, match="does not fit into the memory; scale it down"):
        decode(tmp_path / "a.png", 8)


def test_problems_are_counted_by_kind_and_the_first_files_are_named():
    problems = {f"{number}.jpg": "is empty" for number in range(12)} | {"a.txt": "is damaged"}
    many, one = problem_lines(problems, "skipped")
    assert many.startswith("12 files skipped, each of which is empty: 0.jpg, 1.jpg, ")
    assert many.endswith(", 9.jpg and 2 more.")
    assert one == "a.txt is damaged; skipped."


# --- large pictures

PEAK = """
import sys
from pathlib import Path
from reverie.data.decode import by_threads, decode

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024

before = peak()
for _ in by_threads(lambda file: decode(file, 64), sorted(Path(sys.argv[1]).iterdir())):
    pass
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_large_pictures_need_little_memory_however_many_there_are(tmp_path):
    """Six of 64 million pixels, 256 MB each: two at a time, and no second copy of any."""
    large = Image.new("RGB", (8000, 8000), (10, 200, 30))
    large.save(tmp_path / "0.png", compress_level=1)
    large.save(tmp_path / "1.jpg")
    large.convert("RGBA").save(tmp_path / "2.png", compress_level=1)
    for number, like in enumerate(("0.png", "1.jpg", "2.png"), start=3):
        shutil.copy(tmp_path / like, tmp_path / f"{number}.{like[-3:]}")
    words = [sys.executable, "-c", PEAK, str(tmp_path)]
    peak = float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    assert 200 < peak < 1300  # megabytes; all at once, and copied, they took 3,000


def test_a_picture_larger_than_the_room_waits_for_all_of_it_and_is_let_in():
    room, free = Room(10), []

    def enter():
        with room.taken(99):
            free.append(room.free)

    with room.taken(4), room.taken(6):
        waiting = threading.Thread(target=enter)
        waiting.start()
        waiting.join(0.05)
        assert free == []
    waiting.join(10)
    assert (free, room.free) == ([0], 10)


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "LA", "CMYK", "I;16", "F", "1"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_large_picture_shows_what_a_small_one_of_it_does(tmp_path, monkeypatch, mode, orientation):
    """Halved twice, while it is decoded or right after, in strips of many rows."""
    small = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8))
    large = small.resize((401, 303), Image.Resampling.NEAREST)
    large = Image.fromarray(np.asarray(large.convert("L")) * np.uint16(257)) if mode == "I;16" else large.convert(mode)
    exif = Image.Exif()
    exif[0x0112] = orientation
    for kind in {"CMYK": ("jpg", "tiff"), "F": ("tiff",)}.get(
        mode, ("png", "jpg") if mode in ("RGB", "L") else ("png",)
    ):
        file = tmp_path / f"x.{kind}"
        large.save(file, exif=exif)
        expected = decode(file, 24)[0].astype(int)
        with monkeypatch.context() as patched:
            patched.setattr(decode_module, "LARGE", 10_000)
            patched.setattr(decode_module, "STRIP", 4_000)
            found = decode(file, 24)[0].astype(int)
        assert abs(found - expected).mean() < 6
        assert (found != expected).any()  # it was halved


def test_an_ordinary_picture_is_the_same_to_the_bit_in_strips(tmp_path, monkeypatch):
    values = np.random.default_rng(0).integers(0, 256, (97, 61, 4), np.uint8)
    Image.fromarray(values).save(tmp_path / "a.png")
    Image.fromarray((values[..., 0] * 3.0).astype(np.float32)).save(tmp_path / "f.tiff")
    for file in tmp_path.iterdir():
        whole = decode(file, 32)[0]
        with monkeypatch.context() as patched:
            patched.setattr(decode_module, "STRIP", 500)
            assert (decode(file, 32)[0] == whole).all()


def test_a_thin_picture_is_not_made_smaller_than_what_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(decode_module, "LARGE", 1000)
    Image.effect_noise((900, 20), 50).save(tmp_path / "a.png")
    image, _ = decode_module.loaded(Image.open(tmp_path / "a.png"), 16)
    assert image.size == (900, 20)


READER = """
import sys
from pathlib import Path
import numpy as np
from reverie.data.folder import read_folder
from reverie.data.inputs import as_inputs, as_pixels

as_inputs(sys.argv[1]).look()
print(len(read_folder(Path(sys.argv[1]), size=8).train))
protected = np.zeros((8, 8, 3), np.uint8)
protected.flags.writeable = False
as_pixels(protected)
"""


def test_harmless_warnings_of_the_libraries_do_not_reach_the_terminal(photos):
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a long description, of which the end is missing"
    with Image.open(photos / "apple" / "1.png") as image:
        image.save(photos / "apple" / "cut.jpg", exif=exif.tobytes()[:40])
    Image.new("L", (10_000, 9_000)).save(photos / "apple" / "large.png")
    words = [sys.executable, "-c", READER, str(photos)]
    read = subprocess.run(words, capture_output=True, text=True, check=True)
    assert (int(read.stdout) > 30, read.stderr) == (True, "")
    warned = subprocess.run([words[0], "-W", "always", *words[1:]], capture_output=True, text=True, check=True)
    assert "TiffImagePlugin.py" in warned.stderr  # of EXIF data, for whoever asks
    assert "DecompressionBombWarning" in warned.stderr

"""Data sets by name, from files of the official layout."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from reverie.config.schema import DataConfig
from reverie.data import sources
from reverie.errors import UserError


def write_cifar100(root: Path, per_class: int = 2) -> None:
    """Small files of the official layout, as pickles."""
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        labels = list(range(100)) * per_class
        data = rng.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
        content = {b"data": data, b"fine_labels": labels, b"coarse_labels": labels, b"filenames": [b"x"] * len(labels)}
        (folder / part).write_bytes(pickle.dumps(content, protocol=3))
    names = [f"class {i}".encode() for i in range(100)]
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": names}, protocol=3))


def write_cifar10(root: Path) -> None:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        content = {b"data": rng.integers(0, 256, (10, 3072), dtype=np.uint8), b"labels": list(range(10))}
        (folder / name).write_bytes(pickle.dumps(content, protocol=3))
    names = [f"class {i}".encode() for i in range(10)]
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}, protocol=3))


def test_digits_come_with_the_library():
    data = sources.read(DataConfig(source="digits"), Path("nowhere"))
    assert data.train.shape == (1, 8, 8)
    assert len(data.train) + len(data.test) == 1797
    assert torch.bincount(data.test.labels).min() >= 34
    assert data.class_names == tuple("0123456789")
    assert data.train.pixels.max() == 255
    mean, deviation = data.normalisation
    pixels = data.train.pixels.float() / 255
    assert abs(pixels.mean() - mean[0]) < 0.02
    assert abs(pixels.std() - deviation[0]) < 0.02


def test_no_digit_is_in_both_parts():
    data = sources.read(DataConfig(source="digits"), Path("nowhere"))
    train = {bytes(image.numpy().tobytes()) for image in data.train.pixels}
    test = {bytes(image.numpy().tobytes()) for image in data.test.pixels}
    assert not train & test


def test_digits_are_those_that_the_library_gives_if_asked(monkeypatch):
    ours = sources.read(DataConfig(source="digits"), Path("nowhere"))
    monkeypatch.setattr(sources, "DIGITS_FILE", "nowhere")
    theirs = sources.read(DataConfig(source="digits"), Path("nowhere"))
    for part in ("train", "test"):
        assert torch.equal(getattr(ours, part).pixels, getattr(theirs, part).pixels)
        assert torch.equal(getattr(ours, part).labels, getattr(theirs, part).labels)


def test_digits_can_be_enlarged():
    assert sources.read(DataConfig(source="digits", size=16), Path("nowhere")).train.shape == (1, 16, 16)


def test_cifar100_is_read_from_the_official_files(tmp_path):
    write_cifar100(tmp_path)
    data = sources.read(DataConfig(source="cifar100"), tmp_path)
    assert data.train.shape == (3, 32, 32)
    assert len(data.train) == len(data.test) == 200
    assert data.class_names[7] == "class 7"
    raw = pickle.loads((tmp_path / "cifar-100-python" / "train").read_bytes(), encoding="bytes")[b"data"]
    assert np.array_equal(data.train.pixels[3].numpy().ravel(), raw[3])
    inside = sources.read(DataConfig(source="cifar100"), tmp_path / "cifar-100-python")
    assert inside.fingerprint() == data.fingerprint()


def test_cifar10_is_its_five_batches_and_a_test(tmp_path):
    write_cifar10(tmp_path)
    data = sources.read(DataConfig(source="cifar10"), tmp_path)
    assert (len(data.train), len(data.test)) == (50, 10)


def test_missing_data_say_where_to_get_them(tmp_path):
    with pytest.raises(UserError, match=r"cifar-100-python/train is missing.\n.*reverie data get cifar100"):
        sources.read(DataConfig(source="cifar100"), tmp_path)


def test_a_folder_that_may_not_be_read_is_an_error(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(UserError, match=r"train cannot be read: Permission denied\. .* choose another --data"):
        sources.read(DataConfig(source="cifar100"), tmp_path)


def test_an_unknown_source_is_an_error_with_a_hint():
    with pytest.raises(UserError, match="Did you mean 'cifar100'"):
        sources.read(DataConfig(source="cifar_100"), Path("data"))


class _Evil:
    def __reduce__(self):
        return (exec, ("import pathlib; pathlib.Path('pwned').touch()",))


def test_a_pickle_that_would_run_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_cifar100(tmp_path)
    (tmp_path / "cifar-100-python" / "train").write_bytes(pickle.dumps({b"data": _Evil()}))
    with pytest.raises(UserError, match="damaged or not a data file"):
        sources.read(DataConfig(source="cifar100"), tmp_path)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("content", [b"", b"garbage", pickle.dumps([1, 2]), pickle.dumps({b"data": 3})])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, content):
    write_cifar100(tmp_path)
    (tmp_path / "cifar-100-python" / "test").write_bytes(content)
    with pytest.raises(UserError, match="test"):
        sources.read(DataConfig(source="cifar100"), tmp_path)


def test_the_fingerprint_sees_a_single_pixel(tmp_path):
    write_cifar100(tmp_path)
    data = sources.read(DataConfig(source="cifar100"), tmp_path)
    before = data.fingerprint()
    data.test.pixels[5, 0, 0, 0] ^= 1
    assert data.fingerprint() != before

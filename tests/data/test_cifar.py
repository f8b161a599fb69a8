"""CIFAR-10 and CIFAR-100 from small files of the official layout, and what can be wrong with them."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from reverie.config.schema import DataConfig
from reverie.data.cifar import read_cifar10, read_cifar100
from reverie.errors import UserError
from tests.support.images import write_cifar100


def write_cifar10(root: Path) -> None:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        content = {b"data": rng.integers(0, 256, (10, 3072), dtype=np.uint8), b"labels": list(range(10))}
        (folder / name).write_bytes(pickle.dumps(content, protocol=3))
    names = [f"class {i}".encode() for i in range(10)]
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}, protocol=3))


def test_cifar100_is_read_from_the_official_files(tmp_path):
    write_cifar100(tmp_path)
    data = read_cifar100(tmp_path / "cifar-100-python", DataConfig())
    assert data.train.shape == (3, 32, 32)
    assert len(data.train) == len(data.test) == 200
    assert data.class_names[7] == "class 7"
    raw = pickle.loads((tmp_path / "cifar-100-python" / "train").read_bytes(), encoding="bytes")[b"data"]
    assert np.array_equal(data.train.pixels[3].numpy().ravel(), raw[3])


def test_cifar10_is_its_five_batches_and_a_test(tmp_path):
    write_cifar10(tmp_path)
    data = read_cifar10(tmp_path / "cifar-10-batches-py", DataConfig())
    assert (len(data.train), len(data.test)) == (50, 10)


class Evil:
    def __reduce__(self):
        return (exec, ("import pathlib; pathlib.Path('pwned').touch()",))


def test_a_pickle_that_would_run_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_cifar100(tmp_path)
    (tmp_path / "cifar-100-python" / "train").write_bytes(pickle.dumps({b"data": Evil()}))
    with pytest.raises(UserError, match="damaged or not a data file"):
        read_cifar100(tmp_path / "cifar-100-python", DataConfig())
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("content", [b"", b"garbage", pickle.dumps([1, 2]), pickle.dumps({b"data": 3})])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, content):
    write_cifar100(tmp_path)
    (tmp_path / "cifar-100-python" / "test").write_bytes(content)
    with pytest.raises(UserError, match=r"cifar-100-python/test (is damaged|does not hold)"):
        read_cifar100(tmp_path / "cifar-100-python", DataConfig())


def test_images_have_the_size_that_is_asked_for(tmp_path):
    write_cifar100(tmp_path)
    data = read_cifar100(tmp_path / "cifar-100-python", DataConfig(size=8))
    assert data.train.shape == data.test.shape == (3, 8, 8)


def test_a_file_without_class_names_is_an_error_that_names_it(tmp_path):
    write_cifar100(tmp_path)
    (tmp_path / "cifar-100-python" / "meta").write_bytes(pickle.dumps({b"names": []}))
    with pytest.raises(UserError, match=r"cifar-100-python/meta does not hold CIFAR's class names"):
        read_cifar100(tmp_path / "cifar-100-python", DataConfig())

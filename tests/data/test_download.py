"""Downloads from a real server on this machine: progress, checksum, mirrors, and nothing left behind by a failure."""

import hashlib
import tarfile
import zipfile
from dataclasses import replace

import pytest

from reverie.config.schema import DataConfig
from reverie.data import download
from reverie.data.sources import ARCHIVES, Archive, read_dataset
from reverie.errors import UserError
from tests.support.images import write_cifar100, write_tiny_imagenet
from tests.support.serving import served


@pytest.fixture
def server(tmp_path):
    """Serves `tmp_path/web` and gives its address."""
    with served(tmp_path / "web") as address:
        yield address, tmp_path / "web"


@pytest.fixture
def archive(server, tmp_path, monkeypatch):
    """A small archive of the official layout, on the server, with its true checksums in place of the published ones."""
    address, web = server
    write_cifar100(tmp_path / "made")
    folder = tmp_path / "made" / "cifar-100-python"
    packed = web / "cifar-100-python.tar.gz"
    with tarfile.open(packed, "w:gz") as tar:
        tar.add(folder, "cifar-100-python")
    files = {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    md5 = hashlib.md5(packed.read_bytes()).hexdigest()
    made = Archive("CIFAR-100", "cifar-100-python", 1, f"{address}/cifar-100-python.tar.gz", md5, files)
    monkeypatch.setitem(ARCHIVES, "cifar100", made)
    return made


def test_the_archive_is_fetched_checked_and_unpacked_with_progress(archive, tmp_path):
    calls = []
    folder = download.fetch("cifar100", tmp_path / "data", progress=lambda done, total: calls.append((done, total)))
    assert sorted(file.name for file in folder.iterdir()) == ["meta", "test", "train"]
    assert calls[-1][0] == calls[-1][1] > 0
    assert [entry.name for entry in (tmp_path / "data").iterdir()] == ["cifar-100-python"]


def test_what_is_there_already_is_not_fetched_again(archive, tmp_path, server):
    download.fetch("cifar100", tmp_path / "data")
    (server[1] / "cifar-100-python.tar.gz").unlink()
    assert download.fetch("cifar100", tmp_path / "data").is_dir()


def test_a_damaged_copy_is_replaced(archive, tmp_path):
    folder = download.fetch("cifar100", tmp_path / "data")
    (folder / "test").write_bytes(b"scratched")
    assert download.damaged_files("cifar100", folder) == ["test"]
    download.fetch("cifar100", tmp_path / "data")
    assert download.damaged_files("cifar100", folder) == []


def test_a_mirror_is_tried_first_and_the_official_address_last(archive, tmp_path, server):
    address, web = server
    (web / "mirror").mkdir()
    (web / "mirror" / "cifar-100-python.tar.gz").write_bytes(b"not what was published")
    mirrors = [f"{address}/gone", "http://no such host/x.zip", f"{address}/mirror/"]
    assert download.fetch("cifar100", tmp_path / "data", mirrors).is_dir()


def test_failure_names_every_address_and_leaves_nothing(archive, tmp_path, server):
    address, web = server
    (web / "cifar-100-python.tar.gz").write_bytes(b"not what was published")
    with pytest.raises(UserError) as failure:
        download.fetch("cifar100", tmp_path / "data", [f"{address}/gone"])
    message = str(failure.value)
    assert "404" in message or "not found" in message.lower()
    assert "differs from the official one" in message
    assert "Try another address: `mirrors`." in message
    assert not (tmp_path / "data").exists()
    (tmp_path / "data").mkdir()  # somebody's own stays
    with pytest.raises(UserError):
        download.fetch("cifar100", tmp_path / "data", [f"{address}/gone"])
    assert list((tmp_path / "data").iterdir()) == []


def test_a_place_that_cannot_be_written_is_an_error(archive, tmp_path):
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file" / "data"):
        with pytest.raises(UserError, match=r"file.* cannot be written: .*\. Choose another `data`"):
            download.fetch("cifar100", root)


def test_a_file_that_may_not_be_read_is_an_error(archive, tmp_path, monkeypatch):
    def refuse(path, *args):
        raise PermissionError(13, "Permission denied", str(path))

    folder = download.fetch("cifar100", tmp_path / "data")
    monkeypatch.setattr(type(folder), "open", refuse)
    with pytest.raises(UserError, match=r"cifar-100-python/.* cannot be read: Permission denied"):
        download.damaged_files("cifar100", folder)


def test_an_unknown_name_is_an_error():
    with pytest.raises(UserError, match="cifar10, cifar100, tinyimagenet"):
        download.find_archive("mnist")


def test_imagenet_cannot_be_downloaded_and_it_is_said_who_has_it():
    with pytest.raises(UserError, match=r"'imagenet' is not .*https://image-net\.org"):
        download.fetch("imagenet", "data")


def test_tiny_imagenet_is_fetched_from_its_zip_and_its_images_are_counted(server, tmp_path, monkeypatch):
    address, web = server
    folder = write_tiny_imagenet(tmp_path / "made")
    packed = web / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder.parent))
    md5 = hashlib.md5(packed.read_bytes()).hexdigest()
    small = replace(ARCHIVES["tinyimagenet"], url=f"{address}/{packed.name}", md5=md5, images=28)
    monkeypatch.setitem(ARCHIVES, "tinyimagenet", small)
    target = download.fetch("tinyimagenet", tmp_path / "data")
    assert len(read_dataset(DataConfig(source="tinyimagenet"), tmp_path / "data").train) == 16
    next((target / "val" / "images").iterdir()).unlink()
    assert download.damaged_files("tinyimagenet", target) == ["27 of 28 images"]
    download.fetch("tinyimagenet", tmp_path / "data", [f"{address}/{packed.name}"])
    assert download.damaged_files("tinyimagenet", target) == []

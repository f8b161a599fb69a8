"""Data sets by name: which there are, where they come from, and whether they are as published."""

import hashlib
import io
import tarfile

import pytest
from rich.console import Console

from reverie.data.sources import ARCHIVES, SOURCES, Archive
from reverie.errors import UserError
from reverie.runs.datasets import check_dataset, download_dataset, list_datasets
from tests.support.images import write_cifar100, write_digits, write_tiny_imagenet


@pytest.fixture
def published(tmp_path, monkeypatch):
    """The address of a small archive of CIFAR-100's layout, with its true checksums in place of the published ones."""
    write_cifar100(tmp_path / "made")
    folder, packed = tmp_path / "made" / "cifar-100-python", tmp_path / "cifar-100-python.tar.gz"
    with tarfile.open(packed, "w:gz") as tar:
        tar.add(folder, "cifar-100-python")
    files = {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    md5 = hashlib.md5(packed.read_bytes()).hexdigest()
    nowhere = (tmp_path / "nowhere.tar.gz").as_uri()
    monkeypatch.setitem(ARCHIVES, "cifar100", Archive("CIFAR-100", "cifar-100-python", 1, nowhere, md5, files))
    return packed.as_uri()


def test_every_data_set_is_listed_with_whether_it_is_there(tmp_path):
    write_cifar100(tmp_path)
    listed = {info.name: info for info in list_datasets(tmp_path)}
    assert [*listed] == [*SOURCES]
    assert listed["cifar100"].state == "found"
    assert listed["cifar10"].state == "missing; `download_dataset('cifar10')`"
    assert listed["imagenet"].state == "missing; https://image-net.org/download.php"
    assert listed["digits"].state == "always there"
    assert all(info.about for info in listed.values())


def test_a_data_set_is_downloaded_from_a_mirror_and_is_complete_and_as_published(published, tmp_path):
    folder = download_dataset("cifar100", tmp_path / "data", mirrors=[published])
    assert folder == tmp_path / "data" / "cifar-100-python"
    check = check_dataset("cifar100", tmp_path / "data")
    assert (check.folder, check.complete, check.problem) == (folder, True, "")
    assert str(check) == f"cifar100 in {folder} is complete and as published"
    assert download_dataset("cifar100", tmp_path / "data") == folder  # from nowhere: it is there


def test_a_download_that_no_address_has_leaves_nothing(published, tmp_path):
    with pytest.raises(UserError, match=r"CIFAR-100 could not be downloaded:\n.*\nTry another address: `mirrors`\."):
        download_dataset("cifar100", tmp_path / "data")
    assert not (tmp_path / "data").exists()
    with pytest.raises(UserError, match="'digits' is not a data set reverie can download"):
        download_dataset("digits", tmp_path / "data")


def test_how_far_a_download_is_is_seen_in_a_terminal(published, tmp_path):
    text = io.StringIO()
    terminal = Console(file=text, force_terminal=True, width=100)
    download_dataset("cifar100", tmp_path / "data", mirrors=[published], progress=terminal)
    assert "downloading cifar100" in text.getvalue()
    assert "100 %" in text.getvalue()


def test_damaged_files_are_named_with_the_way_to_mend_them(published, tmp_path):
    folder = download_dataset("cifar100", tmp_path / "data", mirrors=[published])
    (folder / "test").write_bytes(b"scratched")
    with pytest.raises(UserError, match=r"Damaged in .*: test\. `download_dataset\('cifar100'\)` fetches them anew\."):
        check_dataset("cifar100", tmp_path / "data")
    download_dataset("cifar100", tmp_path / "data", mirrors=[published])
    assert check_dataset("cifar100", tmp_path / "data").complete


def test_images_that_are_missing_are_told_and_the_others_counted(tmp_path):
    write_tiny_imagenet(tmp_path)
    check = check_dataset("tinyimagenet", tmp_path)
    assert not check.complete
    assert "28 of 110,000 images" in check.problem
    assert "A run takes it as it is" in check.problem
    assert list(check.counts.values()) == [(4, 3)] * 4
    assert str(check).splitlines()[0] == check.problem
    assert len(str(check).splitlines()) == 6


def test_a_folder_of_images_is_read_and_counted(photos):
    check = check_dataset(str(photos))
    assert check.complete
    assert check.counts == {"apple": (10, 2), "banana": (10, 2), "cherry": (10, 2)}
    assert "banana: 10 + 2" in str(check)


def test_the_digits_are_counted_unless_a_folder_bears_their_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(check_dataset("digits").counts) == 10
    write_digits(tmp_path / "digits", (3, 4), 10)
    assert set(check_dataset("digits").counts) == {"3", "4"}


def test_a_data_set_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="CIFAR-100 is not under"):
        check_dataset("cifar100", tmp_path)
    with pytest.raises(UserError, match="nowhere"):
        check_dataset(str(tmp_path / "nowhere"))

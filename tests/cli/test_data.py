"""`reverie data` as a person types it: what there is, download it, check it."""

from dataclasses import replace
from pathlib import Path

import pytest

from reverie.data.sources import ARCHIVES
from tests.support.images import write_cifar100, write_imagenet, write_tiny_imagenet
from tests.support.mistakes import PYTHON, assert_mistake


def test_data_sets_are_listed_with_how_to_get_them(reverie):
    sources = reverie("data", "list")[1]
    assert "always there" in sources
    assert "missing; `reverie data get tinyimagenet`" in sources
    assert "missing; https://image-net.org" in sources


def test_data_that_come_with_reverie_can_be_checked_too(reverie):
    code, out, _ = reverie("data", "check", "digits")
    assert code == 0
    counts = [list(map(int, line.split()[1:])) for line in out.splitlines() if line.split()[0] in map(str, range(10))]
    assert (len(counts), sum(map(sum, counts))) == (10, 1797)


def test_data_check_reads_a_folder_and_counts_its_images(reverie, photos):
    (photos / "apple" / "note.txt").write_text("no image")
    code, out, _ = reverie("data", "check", str(photos))
    assert code == 0
    assert "note.txt" in out
    assert "banana" in out


def test_data_check_counts_the_images_of_tiny_imagenet_and_imagenet(reverie, tmp_path, monkeypatch):
    write_tiny_imagenet(tmp_path / "data")
    write_imagenet(tmp_path / "data")
    code, out, err = reverie("data", "check", "tinyimagenet")  # cut down, as a run takes it
    assert code == 0
    assert "tiny-imagenet-200 is not as published: it has 28 of 110,000 images." in err
    assert "`reverie data get tinyimagenet` puts all of it in its place." in err
    assert not PYTHON.findall(err)
    assert "has 4 classes, not 200" in out
    assert ["goldfish", "4", "3"] in [line.split() for line in out.splitlines()]
    monkeypatch.setitem(ARCHIVES, "tinyimagenet", replace(ARCHIVES["tinyimagenet"], images=28))
    for name, row in (("tinyimagenet", ["goldfish", "4", "3"]), ("imagenet", ["n01443537", "6", "2"])):
        code, out, _ = reverie("data", "check", name)
        assert code == 0
        assert row in [line.split() for line in out.splitlines()]
    assert [line.split()[-1] for line in reverie("data", "list")[1].splitlines()].count("found") == 2


MISTAKES = {
    "data get": "Missing argument",
    "data get mnist": "it knows cifar10, cifar100",
    "data get cifar100 --data /dev/null": "/dev/null cannot be written: File exists. Choose another --data.",
    "data check cifar100": "`reverie data get cifar100 --data data` downloads it",
    "data check nowhere": "There is no folder nowhere, and no data set of that name.",
    "data check cifar1000": "The data sets are cifar100, cifar10, ",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_told_in_a_line_or_two_and_leaves_nothing(reverie, words):
    assert_mistake(reverie, words, MISTAKES[words])


def test_files_that_are_damaged_are_named_with_the_command_that_mends_them(reverie, tmp_path):
    write_cifar100(tmp_path / "data")
    said = assert_mistake(reverie, "data check cifar100", "`reverie data get cifar100` fetches them anew.")
    assert "Damaged in data/cifar-100-python: " in said


def test_a_download_that_fails_everywhere_names_every_address_and_the_flag_for_others(reverie, tmp_path, monkeypatch):
    nobody = (tmp_path / "nowhere").as_uri()
    monkeypatch.setitem(ARCHIVES, "cifar10", replace(ARCHIVES["cifar10"], url=f"{nobody}/official.tar.gz"))
    code, _, err = reverie("data", "get", "cifar10", "--mirror", f"{nobody}/mirror.tar.gz")
    assert code == 2
    assert [line.split(": ")[0] for line in err.splitlines()[1:3]] == [
        f"  {nobody}/mirror.tar.gz",
        f"  {nobody}/official.tar.gz",
    ]
    assert err.endswith("Try another address: --mirror.\n")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_may_not_be_read_is_a_mistake(reverie, photos, monkeypatch):
    real = Path.is_dir

    def refuse(path):
        if path.parent == photos:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "is_dir", refuse)
    assert_mistake(reverie, ["data", "check", str(photos)], "cannot be read: Permission denied. Change its permissions")

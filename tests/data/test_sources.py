"""Data sets by name: each is found at its folder or above it, and what is missing is said."""

from pathlib import Path

import pytest

from reverie.config.schema import DataConfig
from reverie.data.digits import read_digits
from reverie.data.sources import SOURCES, read_dataset, refuse_missing
from reverie.errors import UserError
from tests.support.images import write_cifar100


def test_a_data_set_is_found_in_its_folder_and_in_the_one_above(tmp_path):
    write_cifar100(tmp_path)
    above, inside = (
        read_dataset(DataConfig(source="cifar100"), root) for root in (tmp_path, tmp_path / "cifar-100-python")
    )
    assert above.name == "cifar100"
    assert inside.fingerprint() == above.fingerprint()


def test_digits_need_no_folder():
    refuse_missing(DataConfig(source="digits"), Path("nowhere"))
    data = read_dataset(DataConfig(source="digits"), Path("nowhere"))
    assert data.fingerprint() == read_digits(DataConfig()).fingerprint()


def test_every_source_says_what_it_is():
    assert all(source.about for source in SOURCES.values())


@pytest.mark.parametrize("look", [read_dataset, refuse_missing])
def test_missing_data_say_where_to_get_them(tmp_path, look):
    with pytest.raises(
        UserError, match=r"cifar-100-python/train is missing.\n`download_dataset\('cifar100', .*\)` downloads it"
    ):
        look(DataConfig(source="cifar100"), tmp_path)


def test_a_folder_that_may_not_be_read_is_an_error(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(UserError, match=r"train cannot be read: Permission denied\. .* choose another `data`"):
        read_dataset(DataConfig(source="cifar100"), tmp_path)


def test_an_unknown_source_is_an_error_with_a_hint():
    with pytest.raises(UserError, match="Did you mean 'cifar100'"):
        read_dataset(DataConfig(source="cifar_100"), Path("data"))

"""What a person is told of a path that cannot be read or written."""

import pytest

from reverie.errors import UserError, explaining


def test_an_error_of_the_system_becomes_a_sentence_with_what_to_do(tmp_path):
    gone = tmp_path / "gone"
    with pytest.raises(UserError) as told, explaining("read", "Choose another `data`."):
        gone.read_bytes()
    assert str(told.value) == f"{gone} cannot be read: No such file or directory. Choose another `data`."
    with pytest.raises(UserError) as told, explaining("written", "Choose another `out`.", tmp_path):
        (gone / "below").write_bytes(b"")
    assert str(told.value) == f"{tmp_path} cannot be written: No such file or directory. Choose another `out`."


def test_a_disk_that_is_full_has_no_name():
    with (
        pytest.raises(UserError, match=r"^The disk cannot be written: No space left on device\. Make room\.$"),
        explaining("written", "Make room."),
    ):
        raise OSError(28, "No space left on device")


def test_other_errors_are_left_as_they_are():
    for other in (ValueError("x"), UserError("x"), KeyboardInterrupt()):
        with pytest.raises(type(other)) as told, explaining("read", ""):
            raise other
        assert told.value is other

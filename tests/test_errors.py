"""What a person is told of a path that cannot be read or written, and of an argument that cannot be."""

import numpy as np
import pytest
import torch

from reverie.errors import UserError, check_number, check_whole_number, explaining


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


@pytest.mark.parametrize("value", [0, 10, -1, 2.0, "2", None, True, [2], float("nan"), torch.tensor(2.5), 10**400])
def test_what_is_no_count_is_refused(value):
    with pytest.raises(UserError, match=r"^`folds` must be a whole number from 1 to 9, not .{1,61}\.$"):
        check_whole_number("folds", value, 1, 9)


def test_counts_and_numbers_of_numpy_and_torch_will_do():
    for value in (2, np.int64(2), torch.tensor(2)):
        assert check_whole_number("folds", value, 1, 9) == 2
    for number in (2, 2.0, np.float32(2), torch.tensor(2.0)):
        assert check_number("reject", number) == 2.0
    assert check_number("checkpoint_seconds", float("inf"), least=0) == float("inf")


@pytest.mark.parametrize("value", [float("nan"), "5", None, True, [1.0], np.zeros(2), torch.zeros(2), 10**400, -1])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(UserError, match=r"^`seconds` must be a number of at least 0, not .{1,61}\.$"):
        check_number("seconds", value, least=0)

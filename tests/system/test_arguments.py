"""Arguments in the forms that people give them in."""

import numpy as np
import pytest
import torch

from reverie.errors import UserError
from reverie.system.arguments import as_names, as_seeds, check_number, check_whole_number, renaming_argument


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


def test_names_may_be_one_several_or_a_text_with_commas():
    assert as_names("abd", "methods") == ["abd"]
    assert as_names("base, abd,", "methods") == as_names(("base", "abd"), "methods") == ["base", "abd"]
    for wrong in ("", [], 5, [5]):
        with pytest.raises(UserError, match="`methods` wants one or several names"):
            as_names(wrong, "methods")


def test_seeds_are_several_whole_numbers_each_of_them_once():
    assert as_seeds([2, 0, 2]) == as_seeds(np.array([2, 0])) == [2, 0]
    assert as_seeds(range(2)) == [0, 1]
    for wrong in (0, [], "0,1", [0.5], None):
        with pytest.raises(UserError, match="`seeds` is a list of whole numbers, such as"):
            as_seeds(wrong)


def test_an_argument_of_another_function_goes_by_the_name_that_it_has_for_the_caller():
    with pytest.raises(UserError, match=r"^Choose another `out`, not a folder.$"), renaming_argument("folder", "out"):
        raise UserError("Choose another `folder`, not a folder.")

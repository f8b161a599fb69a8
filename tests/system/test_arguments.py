"""Arguments in the forms that people give them in."""

import numpy as np
import pytest

from reverie.errors import UserError
from reverie.system.arguments import as_names, as_seeds, check_least, renaming_argument


def test_a_number_below_the_least_is_named_by_its_argument():
    check_least(1, top=1, steps=None, seconds=2.5, count=np.int64(3))
    with pytest.raises(UserError, match=r"^`top` is at least 1, not 0.$"):
        check_least(1, steps=4, top=0)
    for strange in ("2", [1], float("nan")):
        with pytest.raises(UserError, match=r"^`top` is a number, not "):
            check_least(1, top=strange)


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

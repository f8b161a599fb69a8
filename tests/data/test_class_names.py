"""Names of classes that a person could not tell apart are refused wherever they come in."""

import pytest

from reverie.data.class_names import alike, checked, refuse_twins
from reverie.errors import UserError

NFC, NFD = "caf\u00e9", "cafe\u0301"


def test_names_become_text():
    assert checked([7, "cat", 8]) == ["7", "cat", "8"]


@pytest.mark.parametrize("names", [["a", ""], [" a"], ["b "], ["a", "b", "a"], ["\t"]])
def test_names_that_are_none_are_refused(names):
    with pytest.raises(UserError):
        checked(names)


@pytest.mark.parametrize("names", [["a", "A"], [NFC, NFD]])
def test_names_that_nobody_could_tell_apart_are_refused(names):
    with pytest.raises(UserError):
        refuse_twins(names)


def test_known_names_are_compared_with_new_ones_but_not_with_each_other():
    """A model that somebody made elsewhere must be able to learn on."""
    refuse_twins(["dog", "Apple", NFC], known=["Apple", "apple", NFC, NFD])
    with pytest.raises(UserError, match="differs from 'dog', which the model knows, only in case"):
        refuse_twins(["DOG"], known=["dog"])


def test_alike_is_what_a_person_takes_for_the_same():
    assert alike(NFC) == alike(NFD) == alike(NFC.upper())
    assert alike("a") != alike("b")


@pytest.mark.parametrize("names", [{0: "ant", 1: "bee"}, {"1": "bee", "0": "ant"}])
def test_a_mapping_gives_each_label_its_name(names):
    assert checked(names) == ["ant", "bee"]


@pytest.mark.parametrize("names", ["ant", {"ant": 0, "bee": 1}, {1: "ant", 2: "bee"}])
def test_what_is_no_list_of_names_is_refused(names):
    with pytest.raises(UserError, match=r"list|mapping"):
        checked(names)

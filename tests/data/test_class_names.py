"""Names of classes that a person could not tell apart are refused wherever they come in."""

import pytest

from reverie.data.class_names import checked_names, folded, refuse_lookalikes, sort_names
from reverie.errors import UserError

NFC, NFD = "caf\u00e9", "cafe\u0301"


def test_names_become_text():
    assert checked_names([7, "cat", 8]) == ["7", "cat", "8"]


@pytest.mark.parametrize("names", [["a", ""], [" a"], ["b "], ["a", "b", "a"], ["\t"]])
def test_names_that_are_none_are_refused(names):
    with pytest.raises(UserError):
        checked_names(names)


@pytest.mark.parametrize("names", [["a", "A"], [NFC, NFD]])
def test_names_that_nobody_could_tell_apart_are_refused(names):
    with pytest.raises(UserError):
        refuse_lookalikes(names)


def test_known_names_are_compared_with_new_ones_but_not_with_each_other():
    """A model that somebody made elsewhere must be able to learn on."""
    refuse_lookalikes(["dog", "Apple", NFC], known=["Apple", "apple", NFC, NFD])
    with pytest.raises(UserError, match="differs from 'dog', which the model knows, only in case"):
        refuse_lookalikes(["DOG"], known=["dog"])


def test_names_that_a_person_takes_for_the_same_fold_to_the_same():
    assert folded(NFC) == folded(NFD) == folded(NFC.upper())
    assert folded("a") != folded("b")


@pytest.mark.parametrize("names", [{0: "ant", 1: "bee"}, {"1": "bee", "0": "ant"}])
def test_a_mapping_gives_each_label_its_name(names):
    assert checked_names(names) == ["ant", "bee"]


@pytest.mark.parametrize("names", ["ant", {"ant": 0, "bee": 1}, {1: "ant", 2: "bee"}])
def test_what_is_no_list_of_names_is_refused(names):
    with pytest.raises(UserError, match=r"list|mapping"):
        checked_names(names)


def test_names_are_sorted_into_new_and_known():
    assert sort_names(["cat", "dog", "emu 🐦"], ["dog"]) == (["cat", "emu 🐦"], ["dog"])


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["Dog"], "'Dog' differs from 'dog', which the model knows, only in case"),
        (["cat", "Cat"], "'Cat' differs from 'cat', which is there, too, only in case"),
        (["café", "cafe\u0301"], "encoding of its letters"),
        (["cat", "dog", "cat"], "Class names must differ, but 'cat' is there 2 times"),
        ([" cat"], "begins or ends with a space"),
    ],
)
def test_names_that_people_would_confuse_are_refused(names, says):
    with pytest.raises(UserError, match=says):
        sort_names(names, ["dog"])

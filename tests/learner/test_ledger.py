"""The ledger: typed entries in memory, JSON without what does not belong to a step on disk."""

import json

import pytest

from reverie.errors import UserError
from reverie.learner.ledger import LedgerEntry, plain_ledger, read_ledger

LEARNED = LedgerEntry(task=1, classes=["ant", "bee"], images_seen=20, kept={"weights": 5}, kept_bytes=0)
RENAMED = LedgerEntry(action="renamed", date="2026-01-01", renamed={"ant": "Ant"})


def test_a_ledger_is_plain_values_and_back():
    plain = json.loads(json.dumps(plain_ledger([LEARNED, RENAMED])))
    assert plain[1] == {"action": "renamed", "date": "2026-01-01", "renamed": {"ant": "Ant"}}
    assert read_ledger(plain) == [LEARNED, RENAMED]


def test_what_a_later_version_or_a_person_adds_is_kept():
    entry = {"task": 1, "weather": ["fine"]}
    assert plain_ledger(read_ledger([entry])) == [entry]


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([{"task": "1"}], "task must be a whole number or null, not '1'"),
        ([{"classes": "ant"}], "classes must be a list of text or null, not 'ant'"),
        ([{"kept_bytes": -1}], "kept_bytes must be a whole number of at least 0 or null, not -1"),
        ([{"images": {"ant": "many"}}], "images"),
        ([5], "it must be keys and values, not 5"),
        ("ledger", "it must be a list of steps, not 'ledger'"),
        ({"task": 1}, "it must be a list of steps"),
    ],
)
def test_what_is_no_ledger_is_refused_in_one_sentence(entries, said):
    with pytest.raises(UserError) as refusal:
        read_ledger(entries)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)

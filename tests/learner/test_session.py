"""Sessions: who worked on a run, as this version writes it and as version 0.1 did."""

import pytest

from reverie.errors import UserError
from reverie.learner.session import KeptPhase, Session, TrainedBy
from reverie.system.provenance import Environment
from reverie.system.records import as_record

BASE = TrainedBy(preset="digits-5", method="base", recipe="paper", seed=0)
KEPT = KeptPhase(task=0, phase="learn", circumstances="a1", key="b2", trained_by=BASE)


def test_a_session_is_plain_values_and_back():
    session = Session(command="reverie run", started="now", environment=Environment(torch="2.6"), keeping=KEPT)
    assert as_record(Session, session.as_dict()) == session
    assert "wall_seconds" not in session.as_dict()


def test_a_phase_that_version_0_1_was_training_for_others_is_read_from_its_list():
    old = {"command": "reverie table", "keeping": [0, "learn", "a1", "b2", BASE.as_dict()]}
    assert as_record(Session, old).keeping == KEPT


def test_what_becomes_of_a_session_is_noted_in_it_and_looked_at():
    session = Session()
    session.wall_seconds = 2.5
    session.keeping = KEPT
    session.keeping = None
    with pytest.raises(ValueError, match="wall_seconds"):
        session.wall_seconds = "long"


@pytest.mark.parametrize("keeping", [[0, "learn"], [0, "learn", "a1", "b2", 5], 7, ["0", "learn", "a", "b", {}]])
def test_what_is_no_phase_is_refused(keeping):
    with pytest.raises(UserError, match="keeping"):
        as_record(Session, {"keeping": keeping})

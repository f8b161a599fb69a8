"""What a diagnosis says: its words, its tables, whether the paper's finding holds; and that files give it back."""

import json

import pytest

from reverie.diagnosis.records import SCHEMA, Diagnosis, paper_finding
from reverie.errors import UserError
from reverie.system.records import read_record
from tests.support.diagnoses import made_up_diagnosis, whole_diagnosis
from tests.support.paths import ROOT

COMMITTED = ROOT / "results" / "diagnosis" / "cifar100-10" / "diagnosis.json"


@pytest.mark.parametrize(
    ("deepinversion", "abd", "says"),
    [
        (((3, 2), (0.3, 0.2)), ((1, 2), (0.1, 0.2)), "holds."),
        (((3, 2), (0.1, 0.2)), ((1, 2), (0.1, 0.2)), "holds by MID alone."),
        (((1, 2), (0.3, 0.2)), ((1, 2), (-0.1, 0.2)), "holds by MMD alone."),
        (((1, 2), (0.1, 0.2)), ((1, 2), (0.1, 0.2)), "does not hold."),
        (((3, 2), (0.3, 0.2)), ((3, 2), (0.3, 0.2)), "does not hold."),
    ],
)
def test_it_says_whether_the_papers_finding_holds(deepinversion, abd, says):
    made = [made_up_diagnosis("deepinversion", *deepinversion), made_up_diagnosis("abd", *abd)]
    diagnosis = whole_diagnosis(*made)
    assert diagnosis.lines()[-1].endswith(says)
    assert str(diagnosis) == "\n".join(diagnosis.lines())
    assert paper_finding(made).holds == (says == "holds.")
    assert paper_finding(made[:1]) is None
    assert paper_finding([made_up_diagnosis("deepinversion", *deepinversion, task=3), made[1]]) is None


def test_it_says_how_many_sub_batches_agree():
    batches = {"old": [1.0, 1.0], "dreamed": [3.0, 3.0], "new": [2.0, 2.0]}
    assert made_up_diagnosis(mid=(3, 2), batches=batches).mid.agreeing_batches() == 1
    batches = {"old": [1.0, 1.0], "dreamed": [1.0, 1.0], "new": [2.0, 0.0]}
    half = made_up_diagnosis("ABD", mid=(1, 2), batches=batches)
    assert half.mid.agreeing_batches() == 0.5
    line = "ABD: seen from real old images, dreams lie nearer than the new task by MID (1 and 2; 50 % of sub-batches"
    assert line in str(whole_diagnosis(half))


def test_the_tables_hold_distances_and_mistakes():
    far, named = whole_diagnosis(made_up_diagnosis("ABD", (8.0, 15.0), (0.1, 0.25))).tables()
    assert dict(zip(far[0], far[1][0], strict=True)) == {
        "Method": "ABD",
        "MID dreamed": "8",
        "MID new": "15",
        "MMD dreamed": "0.1",
        "MMD new": "0.25",
    }
    assert named[1] == [["ABD", "0.0 %", "0.0 %", "10.0 %", "2 of 2", "0.90"]]


def test_the_diagnosis_in_this_project_is_read_and_gives_back_exactly_what_stands_there():
    diagnosis = read_record(Diagnosis, COMMITTED, "")
    assert diagnosis.as_dict() == json.loads(COMMITTED.read_text())
    assert [run.method for run in diagnosis.runs] == ["deepinversion", "abd"]
    assert diagnosis.verdicts == [run.verdict() for run in diagnosis.runs]
    assert diagnosis.paper == paper_finding(diagnosis.runs)
    assert "The paper's finding" in diagnosis.lines()[-1]


def test_a_diagnosis_that_was_written_is_the_same_when_it_is_read(tmp_path):
    diagnosis = whole_diagnosis(made_up_diagnosis("deepinversion", (3, 2)), made_up_diagnosis())
    (tmp_path / "diagnosis.json").write_text(json.dumps(diagnosis.as_dict()))
    assert read_record(Diagnosis, tmp_path / "diagnosis.json", "") == diagnosis
    assert diagnosis.as_dict()["schema"] == SCHEMA
    assert "files" not in diagnosis.as_dict()  # which lie where they were written, and nowhere else


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runs": None}, "runs must be a list"),
        ({"verdicts": [{"mid": "behind"}]}, "verdicts"),
        ({"environment": 3}, "environment must be keys and values, not 3"),
    ],
)
def test_a_file_that_is_none_says_what_is_wrong_with_it(tmp_path, change, message):
    plain = whole_diagnosis(made_up_diagnosis()).as_dict()
    (tmp_path / "diagnosis.json").write_text(json.dumps(plain | change))
    with pytest.raises(UserError, match=rf"diagnosis\.json is damaged: {message}.* Make it anew\."):
        read_record(Diagnosis, tmp_path / "diagnosis.json", "Make it anew.")

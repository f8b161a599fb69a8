"""The result of a run: read back as it was written, shown to people, and refused in one sentence where it is none."""

import json

import pytest

from reverie.config.schema import Config
from reverie.errors import UserError
from reverie.runs.result import Result, read_result
from tests.support.experiments import method_config
from tests.support.paths import ROOT

COMMITTED = sorted((ROOT / "results").glob("*/*.json"))


def test_there_are_committed_results():
    assert len(COMMITTED) > 50


@pytest.mark.parametrize("folder", sorted({file.parent for file in COMMITTED}), ids=lambda folder: folder.name)
def test_every_committed_result_is_read_and_gives_back_what_stands_in_the_file(folder):
    """Of whatever version: what came to be told later is null."""
    for file in sorted(folder.glob("*.json")):
        stands, read = json.loads(file.read_text("utf-8")), read_result(file)
        given = read.as_dict()
        assert {key: given[key] for key in stands} == stands, file
        assert {given[key] for key in given.keys() - stands.keys()} <= {None}, file
        assert isinstance(read.configuration(), Config)
        assert read.configuration().preset == read.preset
        assert read.upper_bound_digest == stands["config"]["reference"]


def test_what_a_run_wrote_is_read_back_as_the_result_that_it_returned(whole):
    made = whole(method_config("abd"))
    file = made.folder / "result.json"
    assert read_result(file) == made.result
    assert json.loads(file.read_text()) == made.result.as_dict()


def test_what_a_later_version_adds_is_kept(whole, tmp_path):
    plain = whole(method_config("abd")).result.as_dict()
    plain["metrics"]["calibration"] = plain["carbon"] = 0.5
    (tmp_path / "result.json").write_text(json.dumps(plain))
    again = read_result(tmp_path / "result.json")
    assert again.as_dict() == plain
    assert again.replace(finished="now").as_dict() == plain | {"finished": "now"}


def test_a_result_shows_its_figures(whole):
    result = whole(method_config("bic")).result
    shown, metrics = str(result).splitlines(), result.metrics
    assert shown[0] == "bic on digits-5, paper recipe, seed 0"
    assert f"{100 * metrics.final_accuracy:.1f} %" in shown[1]
    assert f"{100 * metrics.average_incremental_accuracy:.1f} %" in shown[2]
    assert shown[3].startswith("Omega: –")
    assert f"forgetting: {100 * metrics.forgetting:.1f} %" in shown[3]
    assert shown[4].endswith("  ".join(f"{100 * share:.1f}" for share in metrics.accuracy_after))
    assert shown[5].endswith("  ".join(f"{100 * share:.1f}" for share in result.uncorrected_accuracy_after))


def test_keys_of_version_0_1_still_work_and_say_what_to_write_instead(whole):
    result = whole(method_config("abd")).result
    with pytest.warns(DeprecationWarning, match=r"use \.metrics"):
        assert result["metrics"] == result.metrics.as_dict()
    with pytest.warns(DeprecationWarning), pytest.raises(KeyError):
        result["accuracy"]


def test_a_result_cannot_be_changed_by_accident(whole):
    result = whole(method_config("abd")).result
    with pytest.raises(ValueError, match="frozen"):
        result.seed = 5
    assert result.replace(seed=5).seed == 5
    assert result.seed == 0


def changed(path, value):
    """A change of one value of a result, by its way there; `...` takes it away."""

    def change(plain):
        *above, last = path
        for key in above:
            plain = plain[key]
        if value is ...:
            del plain[last]
        else:
            plain[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed(["metrics"], ...), "'metrics' is missing"),
        (changed(["metrics"], 5), "metrics"),
        (changed(["metrics", "final_accuracy"], ...), "'metrics.final_accuracy' is missing"),
        (changed(["metrics", "final_accuracy"], float("nan")), "metrics.final_accuracy"),
        (changed(["metrics", "final_accuracy"], 1.5), "metrics.final_accuracy must be a number from 0 to 1, not 1.5"),
        (changed(["metrics", "accuracy_after"], [0.5]), "does not speak of the 3 tasks"),
        (changed(["seed"], "0"), "seed must be a whole number, not '0'"),
        (changed(["seed"], True), "seed must be a whole number, not True"),
        (changed(["accuracy_matrix"], [[1.0]]), "does not speak of the 3 tasks"),
        (changed(["accuracy_matrix", 0], [1.0]), "does not speak of the 3 tasks"),
        (changed(["accuracy_matrix", 0, 0], float("inf")), "accuracy_matrix"),
        (changed(["accuracy_matrix"], "perfect"), "accuracy_matrix"),
        (changed(["task_sizes"], []), "does not speak of"),
        (changed(["task_sizes", 0], 0), "task_sizes"),
        (changed(["seconds", "by_task"], [{}]), "does not speak of the 3 tasks"),
        (changed(["seconds", "total"], None), "seconds.total"),
        (changed(["ledger"], {"task": 1}), "ledger"),
        (changed(["ledger", 0, "kept_bytes"], -1), "kept_bytes"),
        (changed(["sessions", 0], "reverie run"), "sessions"),
        (changed(["config"], []), "config"),
        (changed(["schema"], 0), "schema"),
        (changed(["schema"], 99), "written by a newer reverie; please upgrade"),
    ],
)
def test_a_file_that_is_no_result_is_refused_in_one_sentence(whole, tmp_path, change, said):
    plain = json.loads(json.dumps(whole(method_config("abd")).result.as_dict()))
    change(plain)
    refuse(tmp_path / "result.json", json.dumps(plain), said)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "it is not JSON"),
        ("[]", "result.json is damaged"),
        ('{"metrics": ' + '{"a": ' * 100_000, "it is not JSON"),
        ('{"metrics": ' + '{"a":' * 400 + "1" + "}" * 401, "nested too deeply"),
        ("\udcff", "it is not JSON"),
        ("1" * 5000, "result.json is damaged"),
    ],
    ids=["empty", "a list", "too deep", "deep", "no text", "a long number"],
)
def test_a_file_of_something_else_is_refused_in_one_sentence(tmp_path, content, said):
    refuse(tmp_path / "result.json", content, said)


def refuse(file, content, said):
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError) as refusal:
        read_result(file)
    message = str(refusal.value)
    assert message.startswith(str(file))
    assert said in message
    assert "\n" not in message
    assert len(message) < len(str(file)) + 300


def test_a_result_made_in_python_is_looked_at_as_one_from_a_file(whole):
    result = whole(method_config("abd")).result
    with pytest.raises(ValueError, match="final_accuracy"):
        Result(**{**result.as_dict(), "metrics": {**result.metrics.as_dict(), "final_accuracy": 7}})

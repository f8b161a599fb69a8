"""The plan of a table: which runs, in which order and folders; and everything that can be wrong before the first."""

import pytest

from reverie.config.layers import preset_names
from reverie.errors import UserError
from reverie.methods import method_names
from reverie.tables import paper
from reverie.tables.plan import Entry, Plan, entries_for, entries_of_paper
from tests.support.experiments import TINY
from tests.support.tables import plan_of


def test_the_upper_bound_is_first_then_those_that_keep_nothing(tmp_path):
    rows = [entry.method for entry in entries_for("digits-5", ["all"])]
    assert rows[:3] == ["joint", "base", "lwf"]
    assert sorted(rows) == sorted(method_names())
    assert [run.name for run in plan_of(tmp_path, ["abd", "base", "abd"], settings=(), seeds=(1, 0, 1)).runs] == [
        f"digits-5-{method}-paper-seed{seed}" for method in ("joint", "base", "abd") for seed in (1, 0)
    ]
    assert [entry.method for entry in entries_for("digits-5", ["abd"], upper_bound=False)] == ["abd"]
    assert Entry("digits-5", "joint") not in entries_for("digits-5", ["all"], upper_bound=False)


def test_changes_are_in_the_folders_name_and_a_methods_options_are_not_for_the_upper_bound(tmp_path):
    settings = ["method.distillation=1", "stream.order=[1, 0, 3, 2, 4]"]
    joint, abd = plan_of(tmp_path, ["abd"], settings).runs
    assert abd.name == "digits-5-abd-paper-method.distillation=1,stream.order=_1,_0,_3,_2,_4_-seed0"
    assert joint.name == "digits-5-joint-paper-stream.order=_1,_0,_3,_2,_4_-seed0"
    assert abd.config.upper_bound_digest() == joint.config.upper_bound_digest()
    long = plan_of(tmp_path, ["abd"], [*TINY, "augment.flip=true"]).runs[0].name
    assert len(long) < 120
    assert long != plan_of(tmp_path, ["abd"], [*TINY, "augment.flip=false"]).runs[0].name


def test_settings_by_key_plan_the_same_runs_as_texts(tmp_path):
    by_key = plan_of(tmp_path, ["abd"], {"method.distillation": 1, "train.milestones": [1, 2]})
    texts = plan_of(tmp_path, ["abd"], ["method.distillation=1", "train.milestones=[1, 2]"])
    assert [(run.name, run.config) for run in by_key.runs] == [(run.name, run.config) for run in texts.runs]


@pytest.mark.parametrize("setting", [" method.distillation=1", "method={distillation: 1}"])
def test_an_option_is_for_methods_alone_however_it_is_written(tmp_path, setting):
    joint, abd = plan_of(tmp_path, ["abd"], [setting]).runs
    assert (joint.settings, abd.settings) == ((), (setting,))
    assert abd.config.options["distillation"] == 1


def test_what_is_wrong_is_told_before_anything_is_begun(tmp_path):
    with pytest.raises(UserError, match="Did you mean 'abd'"):
        plan_of(tmp_path, ["abdd"])
    with pytest.raises(UserError, match=r"The method 'base' has no such option"):
        plan_of(tmp_path, ["abd", "base"], ["method.distillation=1"])
    with pytest.raises(UserError, match="10 classes cannot be cut into 20 equal tasks"):
        plan_of(tmp_path, ["abd"], ["stream.split=20"])
    (tmp_path / "digits-5-abd-paper-seed0").mkdir()
    (tmp_path / "digits-5-abd-paper-seed0" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="not a run folder"):
        plan_of(tmp_path, ["abd"], ())


def test_rows_of_the_paper_that_cannot_be_run_here_are_named():
    row = paper.PaperRow("made-up", "cifar100-10", "magic", (), "", paper.Figure(1.0, None, 1), None)
    known = paper.find_table("data-free").rows
    table = paper.PaperTable("made-up", "", "", 1, ("cifar100-10",), (row, *known))
    entries, missing = entries_of_paper(table, [], [])
    assert [line for line in missing if "magic is left out: There is no method 'magic'." in line]
    assert [entry.method for entry in entries][:3] == ["joint", "base", "lwf"]
    with pytest.raises(UserError, match="has no preset 'digits-5'"):
        entries_of_paper(table, ["digits-5"], [])
    for wrong in ("bic", "cifar100-10"):
        with pytest.raises(UserError, match=f"has no method '{wrong}'"):
            entries_of_paper(table, [], [wrong])
    with pytest.raises(UserError, match="has no preset 'abd'"):
        entries_of_paper(table, ["abd"], [])


@pytest.mark.parametrize("setting", ["method.fine_tuning=1", "method.fine_tuning =0", "method={fine_tuning: 1}"])
def test_what_makes_a_row_of_the_paper_cannot_be_set_for_all(tmp_path, setting):
    entries, _ = entries_of_paper(paper.find_table("ablation"), [], [])
    Plan.make(entries, [0], "paper", ["method.bn_momentum=0.2", "keep=[models]"], tmp_path)
    said = r"The setting method\.fine_tuning cannot be for all rows: .* the row 'ABD, no fine-tuning of the head'"
    with pytest.raises(UserError, match=said):
        Plan.make(entries, [0], "paper", [setting], tmp_path)


@pytest.mark.parametrize("name", paper.tables())
def test_every_table_of_the_paper_can_be_planned_as_far_as_its_methods_are_there(tmp_path, name):
    table = paper.find_table(name)
    entries, missing = entries_of_paper(table, [], [])
    assert entries or missing
    assert {entry.preset for entry in entries} == {*table.presets} & {*preset_names()}
    assert all(" is left out: " in line for line in missing)
    assert len(Plan.make(entries, [0, 1, 2], "paper", (), tmp_path).runs) == 3 * len(entries)
    if set(table.presets) <= set(preset_names()):
        assert entries[0] == Entry(table.presets[0], "joint", table=name)

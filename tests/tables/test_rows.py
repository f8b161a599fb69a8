"""Rows of a table: which runs make one, what it is called, what it costs, and which figure of the paper it has."""

import json
from importlib.metadata import EntryPoint

import pytest

from reverie.methods.lwf import LwF
from reverie.runs.configure import configure
from reverie.runs.result import EngineSwitches, PhaseCost
from reverie.system import plugins
from reverie.tables import paper
from reverie.tables.formats import load_results
from reverie.tables.plan import entries_for
from reverie.tables.rows import Cost, Row, paper_row, rows_beside_paper, rows_of
from tests.support.results import by_foreign_method, made_up_result, of_own_preset


def titles(results):
    return [row.title for row in rows_of(results)]


def test_a_row_is_the_mean_and_the_sample_deviation_over_seeds():
    rows = rows_of([made_up_result("abd", 0.5), made_up_result("lwf", 0.2), made_up_result("abd", 0.7)])
    assert [row.title for row in rows] == ["ABD", "LwF"]
    assert rows[0].cells() == ["ABD", "60.0 ± 14.1", "60.0 ± 14.1", "–", "25.0 ± 0.0", "10"]
    assert rows[1].cells()[1] == "20.0"


def test_a_figure_of_nought_counts():
    made = made_up_result("abd", 0.5)
    steady = made.replace(metrics=made.metrics.replace(forgetting=0.0))
    (row,) = rows_of([steady, made_up_result("abd", 0.7, seed=1)])
    assert row.values("forgetting") == [0.0, 0.25]


def test_what_is_not_known_for_all_seeds_is_no_mean_over_some():
    (row,) = rows_of([made_up_result("abd", 0.5, omega=0.8), made_up_result("abd", 0.7, seed=1)])
    assert row.cells()[3] == "–"
    assert row.values("final_accuracy") == [0.5, 0.7]


def test_what_is_not_known_is_a_dash():
    (row,) = rows_of([made_up_result("joint", 0.9, omega=1.0)])
    assert row.cells() == ["Upper Bound", "90.0", "90.0", "100.0", "–", "10"]


def test_runs_that_differ_in_more_than_the_seed_are_rows_of_their_own():
    changed = made_up_result("abd", 0.4, settings=["dream.life=carried", "engine.precision=bf16"])
    released = made_up_result("abd", 0.3, recipe="released")
    rows = rows_of([made_up_result("abd", 0.5), made_up_result("abd", 0.6, seed=1), changed, released])
    assert [row.title for row in rows] == ["ABD", "ABD, dream.life=carried", "ABD, released recipe"]
    assert rows[0].cells()[1].startswith("55.0 ±")


@pytest.mark.parametrize(
    ("options", "title"),
    [({"gone": 2.0}, "ABD, method.gone=2.0"), ({"distillation": -1.0}, "ABD, method.distillation=-1.0")],
)
def test_a_result_with_options_that_its_method_has_no_more_is_a_row_that_names_them(options, title):
    usual = made_up_result("abd", 0.5, preset="cifar100-10")
    earlier = usual.replace(config={**usual.config, "method": {**usual.config["method"], **options}})
    assert titles([usual, earlier]) == ["ABD", title]
    assert [bool(rows_beside_paper([one])[0].paper) for one in (usual, earlier)] == [True, False]


def test_how_dreams_are_computed_is_named_only_where_it_decides_something():
    mixed = [
        made_up_result(
            "abd",
            0.5,
            settings=["dream.mixed=true"],
            engine=EngineSwitches(precision=precision, capture=False, compile=False),
        )
        for precision in ("fp32", "bf16")
    ]
    assert titles(mixed) == ["ABD", "ABD, dream.mixed=True"]


def test_runs_of_ones_own_preset_that_differ_are_rows_of_their_own_and_say_in_what():
    usual = configure("digits-5", "abd")
    others = of_own_preset(0.5), of_own_preset(0.7, seed=1)
    rows = rows_of([*others, of_own_preset(0.3, "train.epochs=2", "dream.steps=7")])
    assert [row.title for row in rows] == [
        f"ABD, train.epochs={usual.train.epochs}, dream.steps={usual.dream.steps}",
        "ABD, train.epochs=2, dream.steps=7",
    ]
    assert rows[0].cells()[1].startswith("60.0 ±")
    assert titles([of_own_preset(0.5), of_own_preset(0.4, method="lwf", data_fingerprint="0123456789")]) == [
        "ABD",
        "LwF",
    ]
    apart = [of_own_preset(0.5, "data.source=folder", data_fingerprint=letter * 32) for letter in "ab"]
    assert titles(apart) == ["ABD, data=aaaaaaaa", "ABD, data=bbbbbbbb"]


class Mine(LwF):
    """Somebody's own, which has its title from LwF."""


@pytest.fixture
def packages(monkeypatch):
    """Methods of other packages; one of them is broken."""
    own = {"mine": f"{__name__}:Mine", "another": f"{__name__}:Mine", "a-broken": "nowhere.to_be:Found"}
    points = [EntryPoint(name, value, "reverie.methods") for name, value in own.items()]
    monkeypatch.setattr(plugins, "entry_points", lambda group: points)


@pytest.mark.usefixtures("packages")
def test_methods_with_the_same_title_are_told_apart_by_their_names(tmp_path):
    for number, name in enumerate(("lwf", "mine", "another")):
        result = made_up_result(name, 0.2 + 0.1 * number)
        (tmp_path / f"{name}.json").write_text(json.dumps(result.as_dict()))
    rows = rows_of(load_results(tmp_path))
    assert [row.title for row in rows] == ["LwF", "LwF (another)", "LwF (mine)"]
    assert [row.cells()[1] for row in rows] == ["20.0", "40.0", "30.0"]
    assert [entry.name for entry in entries_for("digits-5", ["mine", "lwf"], False)] == ["LwF", "LwF (mine)"]


def test_presets_are_never_mixed_in_one_row():
    other = made_up_result("abd", 0.3, preset="cifar100-5")
    rows = rows_of([made_up_result("abd", 0.5), other, of_own_preset(0.4)])
    assert [len(row.results) for row in rows] == [1, 1, 1]


@pytest.mark.parametrize("preset", ["mine", "digits-5"])
def test_a_method_that_is_not_installed_has_rows_too(preset):
    results = of_own_preset(0.5, name=preset), of_own_preset(0.6, "train.epochs=2", name=preset)
    strange = [by_foreign_method(result) for result in results]
    assert [title.partition(",")[0] for title in titles(strange)] == ["theirs", "theirs"]


# --- what a row costs


def test_cost_counts_from_the_second_task_on():
    results = [made_up_result("abd", 0.30), made_up_result("abd", 0.32, seed=1)]
    assert Cost.of(results) == Cost(
        seconds_a_step=0.04,  # five seconds less one to set up, a hundred steps
        learn_seconds_a_task=6.0,  # with the phase `bias`
        dream_seconds_a_task=3.0,
        peak_memory_bytes=2_400_000_001,
        kept_bytes=6_144_000,
    )
    assert Cost.of(results[::-1]) == Cost.of(results)


def test_a_step_of_any_phase_but_the_dreamers_counts():
    made = made_up_result("r-dfcil", 0.3)
    first, _ = made.seconds.by_task
    parts = {"dream": 3.0, "represent": 5.0, "refine": 2.0, "evaluate": 1.0}
    steps = {"dream": 10, "represent": 80, "refine": 20}
    phases = {name: PhaseCost(steps=count, setup_seconds=1.0) for name, count in steps.items()}
    other = made.replace(seconds=made.seconds.replace(by_task=[first, parts]), phases=[made.phases[0], phases])
    assert Cost.of([other]).seconds_a_step == pytest.approx((4.0 + 1.0) / 100)


def test_a_result_from_before_steps_were_counted_has_no_cost_of_a_step():
    assert Cost.of([made_up_result("abd", 0.3, phases=None)]).seconds_a_step is None


# --- beside the paper's figures


def test_the_papers_figure_is_only_for_the_papers_experiment():
    def published(preset, method, *settings):
        return paper_row(configure(preset, method, seed=3, settings=settings))

    assert published("cifar100-10", "abd").final_accuracy.mean == 33.7
    assert published("cifar100-10", "abd", "engine.precision=bf16").final_accuracy.mean == 33.7
    assert published("cifar100-10", "abd", "train.epochs=2") is None
    both = configure("cifar100-10", "abd")
    assert [paper_row(both, name).table for name in ("ablation", "data-free")] == ["ablation", "data-free"]
    assert published("digits-5", "abd") is None
    ablated = next(row for row in paper.find_table("ablation").rows if row.settings)
    assert published(ablated.preset, ablated.method, *ablated.settings) == ablated


def test_a_row_of_results_goes_by_the_papers_name_for_it():
    ablated = next(row for row in paper.find_table("ablation").rows if row.title)
    rows = []
    for recipe in ("paper", "released"):
        made = made_up_result(ablated.method, 0.3, preset=ablated.preset, recipe=recipe, settings=ablated.settings)
        rows += rows_beside_paper([made])
    assert [row.paper for row in rows] == [ablated, ablated]
    assert rows[0].title == ablated.title
    assert "released recipe" in rows[1].title


def test_a_row_as_plain_values_has_the_difference_to_the_papers_figure_and_the_verdict():
    ours = [made_up_result("abd", 0.30, 0.68), made_up_result("abd", 0.32, 0.70, seed=1)]
    plain = Row("ABD", ours, paper_row(configure("cifar100-10", "abd"))).as_dict()
    assert (plain["title"], plain["seeds"]) == ("ABD", [0, 1])
    assert plain["final_accuracy_difference"] == pytest.approx(-2.7)
    assert (plain["final_accuracy_verdict"], plain["omega_verdict"]) == ("below", "agrees")
    assert plain["kept_bytes"] == 6_144_000
    assert json.loads(json.dumps(plain)) == plain

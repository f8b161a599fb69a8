"""The paper's figures, as typed from its LaTeX source by another hand; and when ours agree with them."""

import subprocess
import sys

import pytest

from reverie.config.layers import preset_names
from reverie.errors import UserError
from reverie.methods import method_names
from reverie.runs.configure import configure
from reverie.tables import paper

# table, preset, method, A_N, its spread, Omega, its spread
TYPED = [
    ("data-free", "cifar100-5", "joint", 69.9, 0.2, 100.0, 0.0),
    ("data-free", "cifar100-20", "base", 4.4, 0.3, 19.7, 0.7),
    ("data-free", "cifar100-10", "lwf", 9.2, 0.0, 33.3, 0.9),
    ("data-free", "cifar100-5", "lwf-mc", 32.5, 1.0, 69.8, 1.1),
    ("data-free", "cifar100-10", "dgr", 8.1, 0.1, 30.5, 0.6),
    ("data-free", "cifar100-20", "lwf-synthetic", 4.7, 0.0, 19.7, 0.0),
    ("data-free", "cifar100-10", "deepinversion", 10.9, 0.6, 37.9, 0.8),
    ("data-free", "cifar100-10", "abd", 33.7, 1.2, 69.6, 1.6),
    ("data-free", "cifar100-20", "abd", 20.0, 1.4, 52.5, 2.5),
    ("replay", "cifar100-5", "rehearsal", 34.0, 0.2, 73.4, 0.8),
    ("replay", "cifar100-20", "lwf-coreset", 16.6, 0.4, 54.2, 2.2),
    ("replay", "cifar100-10", "e2e", 38.4, 1.3, 75.0, 1.4),
    ("replay", "cifar100-20", "bic", 37.5, 3.2, 71.7, 3.4),
    ("tiny-imagenet", "tinyimagenet-20", "bic", 17.4, None, 59.8, None),
    ("tiny-imagenet", "tinyimagenet-20", "abd", 12.1, None, 49.3, None),
    ("imagenet-50", "imagenet50-5", "lwf-mc", 72.7, None, None, None),
]


@pytest.mark.parametrize("typed", TYPED, ids=lambda typed: " ".join(typed[:3]))
def test_figures_are_as_printed(typed):
    table, preset, method, *values = typed
    (row,) = [row for row in paper.find_table(table).rows if (row.preset, row.method) == (preset, method)]
    omega = (row.omega.mean, row.omega.spread) if row.omega else (None, None)
    assert [row.final_accuracy.mean, row.final_accuracy.spread, *omega] == values
    assert row.final_accuracy.runs == (1 if values[1] is None else 3)


def test_the_ablations_are_settings_of_abd():
    rows = {row.settings: row for row in paper.find_table("ablation").rows}
    assert len(rows) == 6
    assert {row.method for row in rows.values()} == {"abd"}
    assert str(rows[()].final_accuracy) == "33.7 ± 1.2"
    assert str(rows[("method.distil_dreams=false",)].final_accuracy) == "12.7 ± 7.4"
    assert str(rows[("method.task_weights=false",)].omega) == "62.2 ± 2.4"


def test_every_row_names_a_method_and_a_preset_that_are_there():
    for table in paper.tables().values():
        printed = any(row.final_accuracy for row in table.rows)
        assert ("ICCV 2021" in table.source) is ("tab:" in table.source) is printed
        assert table.rows
        for row in table.rows:
            assert row.method in method_names()
            assert row.preset in preset_names()
            configure(row.preset, row.method, settings=row.settings)


def test_tables_have_as_many_rows_as_printed_and_know_their_order():
    assert {name: len(table.rows) for name, table in paper.tables().items()} == {
        "data-free": 24, "replay": 18, "ablation": 6, "tiny-imagenet": 11, "imagenet-50": 6, "lucid": 48
    }  # fmt: skip
    assert paper.order()[:4] == ["joint", "base", "lwf", "lwf-mc"]


def test_an_unknown_table_is_a_mistake():
    with pytest.raises(UserError, match="Did you mean 'data-free'"):
        paper.find_table("datafree")


def test_reading_them_loads_no_torch():
    program = (
        "import sys; from reverie.tables import paper; paper.tables(); assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


THREE_RUNS, ONE_RUN = paper.Figure(30.0, 3.0, 3), paper.Figure(30.0, None, 1)


@pytest.mark.parametrize(
    ("figure", "ours", "tolerance"),
    [
        (THREE_RUNS, [26.0, 30.0, 34.0], 2 * (16 / 3 + 9 / 3) ** 0.5),
        (THREE_RUNS, [30.0], 2 * (9 + 9 / 3) ** 0.5),  # our spread is taken to be the paper's
        (paper.Figure(30.0, 0.0, 3), [30.0, 30.2], 1.5),  # never below a point and a half
        (ONE_RUN, [26.0, 30.0, 34.0], 2 * (16 / 3 + 16) ** 0.5),  # and theirs ours
        (ONE_RUN, [30.0], 1.5),
    ],
)
def test_the_tolerance_is_two_standard_errors_of_the_difference(figure, ours, tolerance):
    assert figure.tolerance(ours) == pytest.approx(tolerance)


def test_the_verdict_says_on_which_side_we_are():
    assert [ONE_RUN.verdict([value]) for value in (28.4, 28.5, 30.0, 31.5, 31.6)] == [
        "below", "agrees", "agrees", "agrees", "above"
    ]  # fmt: skip

"""Rows and cells of a table."""

from reverie import tables


def result(method, accuracy, omega=None, seconds=10.0):
    metrics = {
        "final_accuracy": accuracy,
        "average_incremental_accuracy": accuracy,
        "omega": omega,
        "forgetting": None if method == "joint" else 0.25,
    }
    return {"method": method, "metrics": metrics, "seconds": {"total": seconds}}


def test_a_row_is_the_mean_and_the_sample_deviation_over_seeds():
    rows = tables.rows_of([result("abd", 0.5), result("lwf", 0.2), result("abd", 0.7)])
    assert [row.title for row in rows] == ["ABD", "LwF"]
    assert rows[0].cells() == ["ABD", "60.0 ± 14.1", "60.0 ± 14.1", "–", "25.0 ± 0.0", "10"]
    assert rows[1].cells()[1] == "20.0"


def test_what_is_not_known_is_a_dash():
    assert tables.rows_of([result("joint", 0.9, omega=1.0)])[0].cells() == [
        "Upper Bound",
        "90.0",
        "90.0",
        "100.0",
        "–",
        "10",
    ]


def test_markdown_has_a_line_a_row():
    text = tables.markdown(tables.rows_of([result("abd", 0.5), result("lwf", 0.2)]))
    assert text.splitlines()[0].startswith("| Method | A_N |")
    assert text.splitlines()[2] == "| ABD | 50.0 | 50.0 | – | 25.0 | 10 |"
    assert len(text.splitlines()) == 4

"""Figures of a diagnosis: real PNG files, drawn from what was found."""

import numpy as np
import pytest

from reverie.diagnosis.figures import LOOKS, draw_figures
from tests.support.diagnoses import made_up_diagnosis
from tests.support.images import opened


def marks(picture, colour):
    """Pixels of about this colour."""
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return int((np.abs(picture.astype(int) - wanted).sum(axis=2) < 12).sum())


@pytest.fixture(scope="module")
def pictures():
    """Those of one run."""
    return {name: opened(content) for name, content in draw_figures([made_up_diagnosis()]).items()}


def test_every_figure_has_a_panel_a_run(pictures):
    two = {
        name: opened(content)
        for name, content in draw_figures([made_up_diagnosis(), made_up_diagnosis("deepinversion")]).items()
    }
    assert pictures.keys() == two.keys() == {"mid", "mmd", "tsne", "confusion", "dreams"}
    for name in ("mid", "mmd", "tsne", "confusion"):
        assert two[name].shape[1] == 2 * pictures[name].shape[1]
    assert two["dreams"].shape == pictures["dreams"].shape  # they share their dreams


def test_lines_stand_where_all_images_together_are(pictures):
    picture = pictures["mid"]
    for kind in ("dreamed", "new"):
        assert marks(picture, LOOKS[kind][0]) > 300
    columns = [np.flatnonzero((np.abs(picture.astype(int) - rgb).sum(axis=2) < 12).sum(axis=0) > 200) for rgb in rgbs()]
    assert columns[0].size and columns[1].size
    assert columns[0].max() < columns[1].min()


def rgbs():
    return [np.array([int(LOOKS[kind][0][i : i + 2], 16) for i in (1, 3, 5)]) for kind in ("dreamed", "new")]


def test_points_of_every_kind_are_in_the_cloud_with_a_colour_and_a_marker_of_their_own(pictures):
    assert all(marks(pictures["tsne"], colour) > 20 for colour, _, _ in LOOKS.values())
    assert len({look[2] for look in LOOKS.values()}) == len({look[0] for look in LOOKS.values()}) == 3


def test_odd_names_many_classes_and_no_spread_are_drawn():
    """A dollar sign begins a formula elsewhere."""
    flat = {kind: [0.0] * 100 for kind in LOOKS}
    odd = made_up_diagnosis(names=["$x", "100 $ \\frac", "<b>", "☃"], batches=flat)
    many = made_up_diagnosis(classes=100, old=90, task=10, batches=flat)
    assert all(opened(picture).size for picture in draw_figures([odd, many]).values())

"""Plots as files: real PNGs with something on them."""

import numpy as np

from reverie.report.plots import COLOURS, accuracy_plot
from tests.support.images import opened


def test_the_plot_draws_every_curve():
    few = opened(accuracy_plot({"a": [[1.0, 0.5]]}, "title"))
    many = opened(accuracy_plot({"a": [[1.0, 0.5], [0.9, 0.4]], "b": [[1.0, 0.1]]}, "title"))
    assert few.shape[0] > 300
    colour = np.array([int(COLOURS[1][i : i + 2], 16) for i in (1, 3, 5)])
    assert (np.abs(many.astype(int) - colour).sum(2) < 10).sum() > 50
    assert (np.abs(few.astype(int) - colour).sum(2) < 10).sum() == 0

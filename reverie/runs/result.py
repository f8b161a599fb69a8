"""From predictions on disk to the figures of `result.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from reverie import metrics
from reverie.config.schema import Config
from reverie.errors import UserError
from reverie.learner.checkpoint import RunFolder
from reverie.methods import UPPER_BOUND, find_method
from reverie.methods.base import Keeps
from reverie.runs.predictions import Predictions
from reverie.runs.shared import UpperBounds
from reverie.system import files as disk

SCHEMA = 1
Result = dict[str, Any]


def figures(folder: RunFolder, config: Config, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The accuracy matrix and everything derived from it, with Omega where the upper bound is known.

    `facts` is the rest of the result: which classes were learned, from which data.
    """
    top, sizes = config.evaluate.top, facts["task_sizes"]
    judged = [Predictions.from_bytes(folder.predictions(i).read_bytes()) for i in range(len(sizes))]
    matrix = metrics.accuracy_matrix([p.right(top) for p in judged], [p.tasks(sizes) for p in judged])
    last, tasks = judged[-1], judged[-1].tasks(sizes)
    assert last.local is not None
    images = np.bincount(tasks, minlength=len(sizes)).tolist()
    local = [float(np.equal(last.local, last.label)[tasks == j].mean()) for j in range(len(sizes))]
    offline, keys = _upper_bound(UpperBounds(folder.path), config, facts)
    if config.method == UPPER_BOUND:  # measured by itself: its last network is trained anew, even if one was found
        own = metrics.accuracy_after(matrix, images)
        offline = own if min(own) > 0 else None
    summary = metrics.summarise(matrix, images, local, offline)
    if find_method(config.method).keeps == Keeps.EVERYTHING:  # each network learns once: nothing could be forgotten
        summary = replace(summary, forgetting=None, backward_transfer=None)
    return {
        "metrics": asdict(summary),
        "accuracy_matrix": [[None if np.isnan(value) else value for value in row] for row in matrix.tolist()],
        "test_images": images,
        "uncorrected_accuracy_after": _uncorrected(judged, top),
        "upper_bound": {"accuracy_after": offline, "keys": keys} if offline else None,
    }


def _uncorrected(judged: Sequence[Predictions], top: int) -> list[float] | None:
    """The accuracy if logits were not corrected, which no first task does; none where they never are."""
    if all(predictions.uncorrected is None for predictions in judged):
        return None
    return [predictions.before_correction().accuracy(top) for predictions in judged]


def refreshed(folder: RunFolder, config: Config) -> Result:
    """A finished run's result. Omega is added when the upper bound has been trained since."""
    try:
        result: Result = disk.read_json(folder.result)
        newer, alone = result["schema"] > SCHEMA, result["upper_bound"] is None
    except (ValueError, LookupError, TypeError):
        raise UserError(f"{folder.result} is damaged. Delete it to start the run anew.") from None
    if newer:
        raise UserError(f"{folder.result} was written by a newer reverie; please upgrade.")
    if alone and _upper_bound(UpperBounds(folder.path), config, result)[0] is not None:
        result.update(figures(folder, config, result))
        disk.write_json(folder.result, result)
    return result


def _upper_bound(bounds: UpperBounds, config: Config, facts: Mapping[str, Any]) -> tuple[list[float] | None, list[str]]:
    """Its accuracy for every class prefix, if all of them are known, and the names under which they are kept."""
    data, classes, normalisation = facts["data_fingerprint"], facts["class_order"], facts.get("normalisation")
    keys = [
        UpperBounds.key(config.reference, data, config.seed, classes[:end], normalisation)
        for end in np.cumsum(facts["task_sizes"])
    ]
    found = [known for key in keys if (known := bounds.find(key))]
    if len(found) < len(keys):
        return None, keys
    accuracies = [predictions.accuracy(config.evaluate.top) for _, predictions in found]
    return (accuracies if min(accuracies) > 0 else None), keys

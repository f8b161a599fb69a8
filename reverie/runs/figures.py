"""From predictions on disk to the figures of a result; Omega where the upper bound is known. Loads no engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from reverie import metrics
from reverie.config.choices import UPPER_BOUND
from reverie.config.schema import Config
from reverie.learner.folder import RunFolder
from reverie.methods import find_method
from reverie.methods.keeps import Keeps
from reverie.runs.predictions import Predictions
from reverie.runs.result import MetricsRecord, Result, UpperBoundRecord, read_result
from reverie.runs.shared import UpperBounds
from reverie.system.files import write_json


@dataclass(frozen=True)
class Tested:
    """What a run was tested on, besides its configuration."""

    task_sizes: Sequence[int]
    class_order: Sequence[int]
    data_fingerprint: str
    normalisation: Sequence[Sequence[float]] | None
    upper_bound_digest: str

    @classmethod
    def of(cls, result: Result) -> Tested:
        return cls(
            result.task_sizes,
            result.class_order,
            result.data_fingerprint,
            result.normalisation,
            result.upper_bound_digest,
        )


@dataclass(frozen=True)
class Figures:
    """The accuracy matrix and everything made of it: fields of a `Result`."""

    metrics: MetricsRecord
    accuracy_matrix: list[list[float | None]]
    test_images: list[int]
    uncorrected_accuracy_after: list[float] | None
    upper_bound: UpperBoundRecord | None


def make_figures(folder: RunFolder, config: Config, tested: Tested) -> Figures:
    """From the predictions after each task; Omega where the upper bound is known."""
    top, sizes = config.evaluate.top, tested.task_sizes
    predicted = [Predictions.from_bytes(folder.predictions(i).read_bytes()) for i in range(len(sizes))]
    matrix = metrics.accuracy_matrix([p.right(top) for p in predicted], [p.tasks(sizes) for p in predicted])
    last, tasks = predicted[-1], predicted[-1].tasks(sizes)
    assert last.local is not None
    images = np.bincount(tasks, minlength=len(sizes)).tolist()
    local = [float(np.equal(last.local, last.label)[tasks == j].mean()) for j in range(len(sizes))]
    offline, keys = _upper_bound(UpperBounds(folder.path), config, tested)
    if config.method == UPPER_BOUND:  # measured by itself: its last network is trained anew, even if one was found
        own = metrics.accuracy_after(matrix, images)
        offline = own if min(own) > 0 else None
    summary = metrics.summarise(matrix, images, local, offline)
    if Keeps.EVERYTHING in find_method(config.method).keeps:  # each network learns once: nothing could be forgotten
        summary = replace(summary, forgetting=None, backward_transfer=None)
    return Figures(
        metrics=MetricsRecord(**asdict(summary)),
        accuracy_matrix=[[None if np.isnan(value) else value for value in row] for row in matrix.tolist()],
        test_images=images,
        uncorrected_accuracy_after=_uncorrected(predicted, top),
        upper_bound=UpperBoundRecord(accuracy_after=offline, networks=keys) if offline else None,
    )


def _uncorrected(predicted: Sequence[Predictions], top: int) -> list[float] | None:
    """The accuracy if logits were not corrected, which no first task does; none where they never are."""
    if all(predictions.uncorrected is None for predictions in predicted):
        return None
    return [predictions.before_correction().accuracy(top) for predictions in predicted]


def finished_result(folder: RunFolder, config: Config) -> Result:
    """A finished run's result. Omega is added when the upper bound has been trained since."""
    result = read_result(folder.result, "Delete it to start the run anew.")
    tested = Tested.of(result)
    if result.upper_bound is None and _upper_bound(UpperBounds(folder.path), config, tested)[0] is not None:
        result = result.replace(**vars(make_figures(folder, config, tested)))
        write_json(folder.result, result.as_dict())
    return result


def _upper_bound(bounds: UpperBounds, config: Config, tested: Tested) -> tuple[list[float] | None, list[str]]:
    """Its accuracy for every class prefix, if all of them are known, and the names under which they are kept."""
    keys = [
        UpperBounds.key(
            tested.upper_bound_digest,
            tested.data_fingerprint,
            config.seed,
            tested.class_order[:end],
            tested.normalisation,
        )
        for end in np.cumsum(tested.task_sizes)
    ]
    found = [known for key in keys if (known := bounds.find(key))]
    if len(found) < len(keys):
        return None, keys
    accuracies = [predictions.accuracy(config.evaluate.top) for _, predictions in found]
    return (accuracies if min(accuracies) > 0 else None), keys

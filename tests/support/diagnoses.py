"""Diagnoses of runs that nobody has made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reverie.diagnosis.records import (
    KINDS,
    Batches,
    Bias,
    Confusion,
    Diagnosis,
    DreamFacts,
    Embedding,
    ImageCounts,
    MaximumMeanDiscrepancies,
    MeanImageDistances,
    NamedShares,
    RunDiagnosis,
    Shared,
    paper_finding,
)
from reverie.system.provenance import Environment

Pair = tuple[float, float]  # how far dreamed and new images are from old ones


def made_up_diagnosis(
    method: str = "abd",
    mid: Pair = (8.0, 15.0),
    mmd: Pair = (8.0, 15.0),
    *,
    task: int = 2,
    classes: int = 4,
    old: int = 2,
    names: Sequence[str] | None = None,
    batches: dict[str, list[float]] | None = None,
) -> RunDiagnosis:
    """Of one run. Distances of a hundred sub-batches spread around those of all images, unless they are given."""
    rng = np.random.default_rng(0)
    names = list(names or (f"class {i}" for i in range(classes)))

    def spread(far: Pair) -> dict[str, list[float]]:
        middles = dict(zip(KINDS, (1.0, *far), strict=True))
        return batches or {kind: (middle + rng.normal(size=100)).tolist() for kind, middle in middles.items()}

    shares = NamedShares(right=1.0, wrong_among_themselves=0.0, taken_for_the_others=0.0)
    return RunDiagnosis(
        run=method,
        title=method,
        preset="digits-5",
        method=method,
        recipe="paper",
        seed=0,
        task=task,
        shared=Shared(data=None, classes=names, seed=0, teacher="a", generator="b"),
        images=ImageCounts(old=20, dreamed=20, new=20),
        batches=Batches(count=100, size=10),
        mid=MeanImageDistances(dreamed=mid[0], new=mid[1], batches=spread(mid), features=8, dead_features=0),
        mmd=MaximumMeanDiscrepancies(dreamed=mmd[0], new=mmd[1], batches=spread(mmd), kernel="k", bandwidth=1.0),
        dreams=DreamFacts(
            classes=old,
            covered=old,
            shares=[1 / old] * old,
            confidence=0.9,
            class_names=names[:old],
            teacher_confidence=rng.uniform(0.5, 1, 100).tolist(),
            named_alike=0.8,
            named_new=0.1,
        ),
        confusion=Confusion(
            old=shares,
            new=shares,
            old_classes=old,
            class_names=names,
            counts=(9 * np.eye(classes, dtype=int)).tolist(),
        ),
        bias=Bias(are_new=0.5, named_new=0.6, towards_new=0.1),
        tsne=Embedding(
            perplexity=5.0,
            kind=[kind for kind in KINDS for _ in range(20)],
            label=[0] * 60,
            x=rng.normal(size=60).tolist(),
            y=rng.normal(size=60).tolist(),
        ),
    )


def whole_diagnosis(*runs: RunDiagnosis) -> Diagnosis:
    return Diagnosis(
        environment=Environment(),
        runs=list(runs),
        verdicts=[run.verdict() for run in runs],
        paper=paper_finding(runs),
    )

"""Judging a model that has just learned more: on held-out images, and against the previous model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from reverie import seeding
from reverie.data.images import Images
from reverie.learner.task_learner import TaskLearner
from reverie.methods.base import count_bytes
from reverie.metrics import CALIBRATION_BINS, calibration_error
from reverie.model.acceptance import (
    CHECK,
    DREAMS,
    FEW_OF_CLASS,
    FURTHER,
    HELD_OUT,
    RULE,
    Acceptance,
    Accuracy,
    Calibration,
    ClassShare,
    Comparison,
    ModelCost,
    decide,
)
from reverie.nets import count_parameters
from reverie.nets.heads import AT_ONCE, UNKNOWN
from reverie.text import plural

BATCH = 32  # images whose latency is measured together
DRAWN = 100  # features of each old class, from its statistics
REPEATS = 15  # of which the median is taken
ASKED = 2_000  # images, about, that a saved model is asked again
ROUNDING = 1e-3  # of the distance between the largest and the smallest logit


def judge_model(
    before: TaskLearner | None,
    after: TaskLearner,
    held_out: Images,
    dreams: Iterable[Tensor] | None = None,
    check: Images | Tensor | None = None,
    *,
    previous: Acceptance | None = None,
) -> Acceptance:
    """Judge `after`, which has learned what `before` knew and more; a first model has no `before`.

    Labels count in learned order. `dreams`, part by part, are in the classifier's normalised pixel space. `check`
    holds labelled images or bare uint8 pixels; a label below 0 means that nobody knows. `previous` is the report of
    `before` itself.
    """
    old = before.classifier.seen if before is not None else 0
    names = after.classifier.class_names
    if before is not None and before.classifier.class_names != names[:old]:
        raise ValueError("the previous model's classes must be the first ones of the new model's")
    new, refined, calibration = _on_held_out(after, held_out, old, previous)
    of_dreams = on_check = check_accuracy = None
    if before is not None and dreams is not None:
        of_dreams, errors = _on_dreams(before, after, dreams, old)
        calibration.append(errors)
    if check is not None and len(check):
        on_check, check_accuracy, errors_on_check = _on_check(before, after, check, old)
        calibration += errors_on_check
    drawn = _on_statistics(after, old)
    verdict, reasons = decide(new, refined, of_dreams, on_check, check_accuracy, names, old, calibration, drawn)
    costs = _costs([after] if before is None else [before, after])
    return Acceptance(
        verdict=verdict,
        reasons=reasons,
        rule=RULE,
        new=new,
        dreams=of_dreams,
        check=on_check,
        check_accuracy=check_accuracy,
        calibration=calibration,
        calibration_bins=CALIBRATION_BINS,
        before=costs[0] if before is not None else None,
        after=costs[-1],
        batch=BATCH,
        device=_device_name(after.device),
        refined=refined,
        statistics=drawn,
    )


def disagreement(learner: TaskLearner, images: Images, judged: Tensor) -> tuple[int, int]:
    """Of how many images a model says another class than `judged`, and of how many that was asked.

    Many images are asked evenly. Two classes that are equally likely, but for rounding, are the same answer.
    """
    rows = torch.arange(len(images))[:: max(1, len(images) // ASKED)]
    logits = torch.cat([*learner.logits(images.select(rows))])
    best, least = logits.amax(dim=1), logits.masked_fill(logits == UNKNOWN, torch.inf).amin(dim=1)
    behind = best - logits.gather(1, judged[rows, None])[:, 0]
    allowed = ROUNDING * (best - least) + 4 * torch.finfo(best.dtype).eps * best.abs()
    return int((behind > allowed).sum()), len(rows)


# --- what is judged on


def _on_held_out(
    after: TaskLearner, held_out: Images, old: int, previous: Acceptance | None
) -> tuple[Accuracy | None, Accuracy | None, list[Calibration]]:
    """Images of new classes, and further images of known ones."""
    names, labels = after.classifier.class_names, held_out.labels
    guess, confidence = _top(after.logits(held_out))
    right = guess == labels
    new = refined = None
    calibration: list[Calibration] = []
    if (rows := labels >= old).any():
        new = _accuracy(right[rows], labels[rows], names)
        told = [entry.after for entry in previous.calibration if entry.on == HELD_OUT] if previous else []
        note = "before: on the previous step's" if told else ""
        error = _error(confidence[rows], right[rows])
        calibration.append(Calibration(on=HELD_OUT, before=told[0] if told else None, after=error, note=note))
    if (rows := labels < old).any():
        refined = _accuracy(right[rows], labels[rows], names)
        error = _error(confidence[rows], right[rows])
        calibration.append(Calibration(on=FURTHER, before=None, after=error))
    return new, refined, calibration


def _on_dreams(
    before: TaskLearner, after: TaskLearner, dreams: Iterable[Tensor], old: int
) -> tuple[Comparison, Calibration]:
    """What the previous model sees in them counts as right. A class counts as much as any other, however often it was
    dreamed of: hundreds of dreams of one would hide that another is gone.
    """
    seen, seen_confidence = _top(logits_of_dreams(before, dreams))
    guess, confidence = _top(logits_of_dreams(after, dreams))
    names = after.classifier.class_names
    compared = _compare(seen, guess, seen, names, old, right=seen, alike=_judged_classes(seen))
    calibration = Calibration(
        on=DREAMS,
        before=_error(seen_confidence, torch.ones_like(seen, dtype=torch.bool)),
        after=_error(confidence, guess == seen),
        note="what the previous model sees counts as right",
    )
    return compared, calibration


def _on_statistics(after: TaskLearner, old: int) -> Accuracy | None:
    """What answers is asked about features that are drawn from the statistics of old classes, where they are enough.

    It is asked about these alone: how fixed features spread inside old classes, nothing tells.
    """
    kept, head = after.method.statistics, after.classifier.answering_head
    if not old or kept is None or head is None or kept.form not in ("own", "diagonal"):
        return None
    if kept.means.shape[1] != after.classifier.backbone.feature_dim:
        return None
    features, labels = kept.select(torch.arange(old)).sample(DRAWN, seeding.generator(0, "statistics"))
    with torch.inference_mode():
        parts = [head.by_features(part.to(after.device)).argmax(dim=1).cpu() for part in features.split(AT_ONCE)]
    labels = labels.cpu()
    return _accuracy(torch.cat(parts) == labels, labels, after.classifier.class_names)


def _on_check(
    before: TaskLearner | None, after: TaskLearner, check: Images | Tensor, old: int
) -> tuple[Comparison | None, Accuracy | None, list[Calibration]]:
    names = after.classifier.class_names
    labels = torch.full((len(check),), -1) if isinstance(check, Tensor) else check.labels
    guess, confidence = _top(after.logits(check))
    known = labels >= 0
    accuracy = _accuracy((guess == labels)[known], labels[known], names) if known.any() else None
    rows = labels < old  # images of new classes cannot be named as before
    if before is None or not rows.any():
        return None, accuracy, []
    seen, seen_confidence = (part[rows] for part in _top(before.logits(check)))
    if not known[rows].all():
        return _compare(seen, guess[rows], seen, names, old), accuracy, []
    right = labels[rows]
    errors = Calibration(
        on=CHECK,
        before=_error(seen_confidence, seen == right),
        after=_error(confidence[rows], guess[rows] == right),
    )
    return _compare(seen, guess[rows], right, names, old, right=right), accuracy, [errors]


# --- figures


def logits_of_dreams(learner: TaskLearner, dreams: Iterable[Tensor]) -> Iterator[Tensor]:
    """Part by part."""
    learner.classifier.eval()
    for part in dreams:
        with torch.inference_mode(), learner.engine.arithmetic():
            logits = learner.classifier.answer(part.to(learner.device)).float().cpu()
        yield logits


def _top(parts: Iterator[Tensor]) -> tuple[Tensor, Tensor]:
    """The class each image most likely shows, and how probable it is."""
    best = [logits.softmax(dim=1).max(dim=1) for logits in parts]
    return torch.cat([part.indices for part in best]), torch.cat([part.values for part in best])


def _accuracy(right: Tensor, labels: Tensor, names: Sequence[str]) -> Accuracy:
    return Accuracy(images=len(labels), accuracy=_mean(right), by_class=_by_class(right, labels, names))


def _judged_classes(labels: Tensor) -> list[Tensor]:
    """The rows of each class of which there are enough to judge by; where no class has enough, all rows at once."""
    rows = [labels == label for label in labels.unique()]
    return [its for its in rows if int(its.sum()) >= FEW_OF_CLASS] or [torch.ones_like(labels, dtype=torch.bool)]


def _compare(
    seen: Tensor,
    guess: Tensor,
    classes: Tensor,
    names: Sequence[str],
    old: int,
    right: Tensor | None = None,
    alike: Sequence[Tensor] = (),
) -> Comparison:
    """`seen` before, `guess` after; by which `classes` agreement is broken down; `right` where it is known.

    `alike`: rows that count as much as any others.
    """

    def mean(shares: Tensor) -> float:
        return statistics.mean(_mean(shares[rows]) for rows in alike) if alike else _mean(shares)

    same = seen == guess
    compared = Comparison(
        images=len(seen),
        agreement=mean(same),
        lost_to_new=mean(guess >= old),
        by_class=_by_class(same, classes, names),
    )
    if right is None:
        return compared
    was, still = seen == right, guess == right
    return compared.replace(
        negative_flips=mean(was & ~still),
        positive_flips=mean(~was & still),
        accuracy_before=mean(was),
        accuracy_after=mean(still),
    )


def _by_class(right: Tensor, labels: Tensor, names: Sequence[str]) -> list[ClassShare]:
    shares = []
    for label in labels.unique().tolist():
        rows = labels == label
        shares.append(ClassShare(name=names[label], images=int(rows.sum()), share=_mean(right[rows])))
    return shares


def _mean(shares: Tensor) -> float:
    return float(shares.double().mean())


def _error(confidence: Tensor, right: Tensor) -> float:
    return calibration_error(confidence.tolist(), right.tolist())


# --- costs


def _costs(learners: Sequence[TaskLearner]) -> list[ModelCost]:
    """Measured by turns, so that whatever else the machine does meets both alike."""
    shape = learners[0].classifier.preprocessing
    rng = seeding.generator(0, "latency")
    images = torch.randn(BATCH, shape.channels, shape.size, shape.size, generator=rng)
    milliseconds: list[list[float]] = [[] for _ in learners]
    for count in (1, BATCH):
        times: list[list[float]] = [[] for _ in learners]
        for repeat in range(REPEATS + 2):  # the first two warm up
            for learner, taken in zip(learners, times, strict=True):
                seconds = _seconds(learner, images[:count].to(learner.device))
                if repeat >= 2:
                    taken.append(seconds)
        for found, taken in zip(milliseconds, times, strict=True):
            found.append(round(1000 * statistics.median(taken), 4))
    return [
        ModelCost(
            parameters=count_parameters(learner.classifier),
            bytes=count_bytes(learner.classifier.state_dict()),
            image_ms=image_ms,
            batch_ms=batch_ms,
            statistics_bytes=None if (kept := learner.method.statistics) is None else count_bytes(kept.state_dict()),
        )
        for learner, (image_ms, batch_ms) in zip(learners, milliseconds, strict=True)
    ]


def _seconds(learner: TaskLearner, images: Tensor) -> float:
    learner.classifier.eval()
    began = time.perf_counter()
    with torch.inference_mode(), learner.engine.arithmetic():
        learner.classifier.answer(images).cpu()  # waits for the logits, as whoever asks does
    return time.perf_counter() - began


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {plural(torch.get_num_threads(), 'thread')}"

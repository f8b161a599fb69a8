"""The acceptance report: what a person needs to decide whether to deploy a model that has just learned more.

No old image is needed. New classes are judged on images held out of training; old ones by comparing the model with the
previous one, on dreams and on whatever images a person has (`--check`). docs/model-folder.md explains every figure.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from reverie import seeding
from reverie.config.typed import build
from reverie.data.class_names import DASH, brief
from reverie.data.images import Images
from reverie.methods.base import count_bytes
from reverie.metrics import CALIBRATION_BINS, calibration_error
from reverie.model import card
from reverie.nets import count_parameters

if TYPE_CHECKING:
    from reverie.learner.task_learner import TaskLearner

Verdict = Literal["accept", "look closer", "reject"]

# The rule. Below the second number the model is rejected; between the two a person should look closer.
NEW_ACCURACY = (0.80, 0.50)  # of held-out images of new classes that are named rightly
AGREEMENT = (0.90, 0.70)  # of dreams that are named as the previous model names them
UNFLIPPED = (0.95, 0.80)  # of labelled check images that are not right before and wrong after
CLASS_SHARE = 0.50  # of each class alone; below, a person should look closer
SOME = 5  # classes that a reason names
FEW, FEW_OF_CLASS = 10, 5  # fewer images than this, in all and of a class, say too little
RULE = (
    f"Accept when at least {NEW_ACCURACY[0]:.0%} of the held-out images of new classes are named rightly (and of known "
    "classes that further images were learned of), at least "
    f"{AGREEMENT[0]:.0%} of dreams (and of unlabelled check images) are named as before, at most "
    f"{1 - UNFLIPPED[0]:.0%} of labelled check images are right before and wrong after, and no class of "
    f"{FEW_OF_CLASS} images or more is below {CLASS_SHARE:.0%}. Reject when one of the first three is worse than "
    f"{NEW_ACCURACY[1]:.0%}, {AGREEMENT[1]:.0%} or {1 - UNFLIPPED[1]:.0%}. Look closer in between, and where there is "
    "too little to judge by."
)
BATCH = 32  # images whose latency is measured together
REPEATS = 15  # of which the median is taken

HELD_OUT, DREAMS, CHECK = "held-out new images", "dreams", "check images of old classes"
FURTHER = "held-out further images of known classes"


@dataclass(frozen=True)
class ClassShare:
    """Of the images of one class: how many are named rightly, or as before."""

    name: str
    images: int
    share: float


@dataclass(frozen=True)
class Accuracy:
    images: int
    accuracy: float
    by_class: tuple[ClassShare, ...]


@dataclass(frozen=True)
class Comparison:
    """With the previous model, on images of classes that it knew. All figures but the counts are shares of `images`."""

    images: int
    agreement: float  # named alike by both
    lost_to_new: float  # named as one of the new classes now
    by_class: tuple[ClassShare, ...]  # agreement by the class that counts as right, or that the previous model saw
    negative_flips: float | None = None  # right before, wrong after; none where nobody knows what is right
    positive_flips: float | None = None  # wrong before, right after
    accuracy_before: float | None = None
    accuracy_after: float | None = None


@dataclass(frozen=True)
class Calibration:
    """Expected calibration error: how far confidence is from accuracy. `before` may be of other images: see `note`."""

    on: str
    before: float | None
    after: float
    note: str = ""


@dataclass(frozen=True)
class Cost:
    parameters: int
    bytes: int  # of all weights and statistics
    image_ms: float  # latency of a single image, the median of several
    batch_ms: float  # of a batch


@dataclass(frozen=True)
class Acceptance:
    verdict: Verdict
    reasons: tuple[str, ...]  # why it is not "accept"
    rule: str
    new: Accuracy | None  # on held-out images of new classes; none where there are none
    dreams: Comparison | None
    check: Comparison | None
    check_accuracy: Accuracy | None  # on all labelled check images, of old and new classes
    calibration: tuple[Calibration, ...]
    calibration_bins: int
    before: Cost | None
    after: Cost
    batch: int
    device: str
    refined: Accuracy | None = None  # on held-out images of known classes, where further ones were learned

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Acceptance:
        made: Acceptance = build(cls, values, "acceptance.")
        return made

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` reads them back."""
        plain: dict[str, Any] = dataclasses.asdict(self)
        return plain

    def lines(self) -> list[str]:
        """In short, for the terminal."""
        text = [f"verdict: {self.verdict}" + (f" ({'; '.join(self.reasons)})" if self.reasons else "")]
        text += [f"{title}: {said}" for title, said in self._said()]
        return text

    def markdown(self) -> str:
        """For the card."""
        reasons = f": {card.plain('; '.join(self.reasons))}" if self.reasons else ""
        parts = [f"**Verdict: {self.verdict}**{reasons}.", "", f"The rule: {card.plain(self.rule)}", ""]
        parts += [f"- {title}: {card.plain(said)}" for title, said in self._said()]
        parts.append("")
        held_out = [figure.by_class for figure in (self.refined, self.new) if figure]
        columns = [("held-out accuracy", tuple(share for shares in held_out for share in shares))]
        columns += [("dreams named as before", self.dreams.by_class)] if self.dreams else []
        columns += [("check accuracy", self.check_accuracy.by_class)] if self.check_accuracy else []
        names = dict.fromkeys(share.name for _, shares in columns for share in shares)
        rows = [[card.plain(name), *(_of_class(shares, name) for _, shares in columns)] for name in names]
        return "\n".join([*parts, *card.table(["class", *(title for title, _ in columns)], rows)]).rstrip()

    def _said(self) -> Iterator[tuple[str, str]]:
        for title, figure in (("new classes", self.new), ("known classes, further images", self.refined)):
            if figure:
                yield title, f"{_percent(figure.accuracy)} right of {figure.images} held-out images" + _worst(figure)
        if self.dreams:
            yield "old classes", _compared(self.dreams, "dreams") + _worst(self.dreams)
        if self.check:
            labelled = self.check.negative_flips is not None
            yield "check", _compared(self.check, "images of old classes" if labelled else "images")
        if self.check_accuracy:
            yield (
                "check, all classes",
                f"{_percent(self.check_accuracy.accuracy)} right of {self.check_accuracy.images}",
            )
        errors = []
        for entry in self.calibration:
            note = f" ({entry.note})" if entry.note else ""
            errors.append(f"{_arrow(entry.before, entry.after, '{:.3f}'.format)} on {entry.on}{note}")
        yield f"calibration error ({self.calibration_bins} bins)", "; ".join(errors)
        before = self.before
        yield "size", _arrow(before and before.bytes, self.after.bytes, "{:,} bytes".format)
        single = _arrow(before and before.image_ms, self.after.image_ms, "{:.2f} ms".format)
        batch = _arrow(before and before.batch_ms, self.after.batch_ms, "{:.1f} ms".format)
        yield "latency", f"{single} for one image, {batch} for {self.batch} ({self.device})"


def judge(
    before: TaskLearner | None,
    after: TaskLearner,
    held_out: Images,
    dreams: Iterable[Tensor] | None = None,
    check: Images | Tensor | None = None,
    *,
    previous: Mapping[str, Any] | None = None,
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
    labels = held_out.labels
    guess, sure = _answers(after, held_out)
    told = [c["after"] for c in (previous or {}).get("calibration", ()) if c["on"] == HELD_OUT]
    note = "before: on the previous step's" if told else ""
    calibration, new, refined = list[Calibration](), None, None
    if (rows := labels >= old).any():
        new = _accuracy(guess[rows], labels[rows], names)
        error = _error(sure[rows], (guess == labels)[rows])
        calibration.append(Calibration(HELD_OUT, told[0] if told else None, error, note))
    if (rows := labels < old).any():
        refined = _accuracy(guess[rows], labels[rows], names)
        calibration.append(Calibration(FURTHER, None, _error(sure[rows], (guess == labels)[rows])))
    of_dreams = on_check = check_accuracy = None
    if before is not None and dreams is not None:
        seen, seen_sure = _top(on_dreams(before, dreams))
        guess, sure = _top(on_dreams(after, dreams))
        of_dreams = _compare(seen, guess, seen, seen, names, old)
        errors = _error(seen_sure, torch.ones_like(seen, dtype=torch.bool)), _error(sure, guess == seen)
        calibration.append(Calibration(DREAMS, *errors, "what the previous model sees counts as right"))
    if check is not None and len(check):
        labels = torch.full((len(check),), -1) if isinstance(check, Tensor) else check.labels
        guess, sure = _answers(after, check)
        known = labels >= 0
        if known.any():
            check_accuracy = _accuracy(guess[known], labels[known], names)
        rows = labels < old  # images of new classes cannot be named as before
        if before is not None and rows.any():
            seen, seen_sure = (answer[rows] for answer in _answers(before, check))
            right = labels[rows] if known[rows].all() else None
            on_check = _compare(seen, guess[rows], right, seen if right is None else right, names, old)
            if right is not None:
                errors = _error(seen_sure, seen == right), _error(sure[rows], guess[rows] == right)
                calibration.append(Calibration(CHECK, *errors))
    verdict, reasons = _verdict(new, refined, of_dreams, on_check, check_accuracy, names, old)
    costs = _costs([after] if before is None else [before, after])
    return Acceptance(
        verdict=verdict,
        reasons=tuple(reasons),
        rule=RULE,
        new=new,
        dreams=of_dreams,
        check=on_check,
        check_accuracy=check_accuracy,
        calibration=tuple(calibration),
        calibration_bins=CALIBRATION_BINS,
        before=costs[0] if before is not None else None,
        after=costs[-1],
        batch=BATCH,
        device=_device(after.device),
        refined=refined,
    )


# --- figures


def _answers(learner: TaskLearner, images: Images | Tensor) -> tuple[Tensor, Tensor]:
    return _top(learner.logits(images))


def on_dreams(learner: TaskLearner, dreams: Iterable[Tensor]) -> Iterator[Tensor]:
    """Logits, part by part."""
    learner.classifier.eval()
    for part in dreams:
        with torch.inference_mode(), learner.engine.arithmetic():
            logits = learner.classifier(part.to(learner.device)).float().cpu()
        yield logits


def _top(parts: Iterator[Tensor]) -> tuple[Tensor, Tensor]:
    """The class each image most likely shows, and how probable it is."""
    best = [logits.softmax(dim=1).max(dim=1) for logits in parts]
    return torch.cat([part.indices for part in best]), torch.cat([part.values for part in best])


def _accuracy(guess: Tensor, labels: Tensor, names: Sequence[str]) -> Accuracy:
    right = guess == labels
    return Accuracy(len(labels), _mean(right), _by_class(right, labels, names))


def _compare(
    seen: Tensor, guess: Tensor, right: Tensor | None, classes: Tensor, names: Sequence[str], old: int
) -> Comparison:
    """`seen` before, `guess` after; `right` where it is known, and by which `classes` agreement is broken down."""
    same = seen == guess
    shares = _mean(same), _mean(guess >= old)
    if right is None:
        return Comparison(len(seen), *shares, _by_class(same, classes, names))
    was, still = seen == right, guess == right
    flips = (_mean(flip) for flip in (was & ~still, ~was & still, was, still))
    return Comparison(len(seen), *shares, _by_class(same, classes, names), *flips)


def _by_class(right: Tensor, labels: Tensor, names: Sequence[str]) -> tuple[ClassShare, ...]:
    shares = []
    for label in labels.unique().tolist():
        rows = labels == label
        shares.append(ClassShare(names[label], int(rows.sum()), _mean(right[rows])))
    return tuple(shares)


def _mean(shares: Tensor) -> float:
    return float(shares.double().mean())


def _error(sure: Tensor, right: Tensor) -> float:
    return calibration_error(sure.tolist(), right.tolist())


def _costs(learners: Sequence[TaskLearner]) -> list[Cost]:
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
        Cost(count_parameters(learner.classifier), count_bytes(learner.classifier.state_dict()), *found)
        for learner, found in zip(learners, milliseconds, strict=True)
    ]


def _seconds(learner: TaskLearner, images: Tensor) -> float:
    began = time.perf_counter()
    with torch.inference_mode(), learner.engine.arithmetic():
        learner.classifier.eval()(images).cpu()  # waits for the answer, as whoever asks does
    return time.perf_counter() - began


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{device.type}, {threads} thread{'s' if threads > 1 else ''}"


# --- the verdict


def _verdict(
    new: Accuracy | None,
    refined: Accuracy | None,
    dreams: Comparison | None,
    check: Comparison | None,
    check_accuracy: Accuracy | None,
    names: Sequence[str],
    old: int,
) -> tuple[Verdict, list[str]]:
    """`RULE`, applied. The first `old` of the `names` are those that the previous model knew."""
    reasons: list[str] = []
    rejected = False

    def want(share: float, images: int, bounds: tuple[float, float], said: str) -> None:
        nonlocal rejected
        if share < bounds[0]:
            reasons.append(f"{said}: {_percent(share)} of {images}, wanted {bounds[0]:.0%}")
            rejected = rejected or (share < bounds[1] and images >= FEW)

    for figure, said in ((new, "held-out new images"), (refined, "held-out further images")):
        if figure:
            want(figure.accuracy, figure.images, NEW_ACCURACY, f"{said} named rightly")
            if figure.images < FEW:
                reasons.append(f"only {figure.images} {said}")
    if dreams:
        want(dreams.agreement, dreams.images, AGREEMENT, "dreams named as before")
        if unseen := _unjudged(names[:old], dreams):
            reasons.append(f"too few dreams of {brief(unseen, SOME, str)}")
    if check and check.negative_flips is not None:
        want(1 - check.negative_flips, check.images, UNFLIPPED, "check images without a negative flip")
    elif check:
        want(check.agreement, check.images, AGREEMENT, "check images named as before")
    if check and not dreams and check.images < FEW:
        reasons.append(f"only {check.images} check images of old classes")
    if old and not dreams and not check:
        reasons.append("neither dreams nor check images tell how the old classes fare")
    if new and not old and len(new.by_class) == 1:
        reasons.append("one class alone: there is nothing yet to tell it from")
    held_out = ((new, "held-out images"), (refined, "held-out further images"))
    for judged_on, said in (*held_out, (dreams, "dreams"), (check_accuracy or check, "check images")):
        shares = judged_on.by_class if judged_on else ()
        weak = [share.name for share in shares if share.share < CLASS_SHARE and share.images >= FEW_OF_CLASS]
        if weak:
            reasons.append(f"below {CLASS_SHARE:.0%} on {said}: {brief(weak, SOME, str)}")
    if unseen := _unjudged(names[old:], new, check_accuracy):
        reasons.append(f"too few held-out images of {brief(unseen, SOME, str)} to judge {_them(unseen)}")
    return ("reject" if rejected else "look closer" if reasons else "accept"), reasons


def _unjudged(names: Sequence[str], *figures: Accuracy | Comparison | None) -> list[str]:
    """Classes of which no figure has as many images as a class needs to count: all wrong, they would pass unseen."""
    shares = [share for figure in figures if figure for share in figure.by_class]
    judged = {share.name for share in shares if share.images >= FEW_OF_CLASS}
    return [name for name in names if name not in judged]


# --- words


def _them(names: Sequence[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _compared(comparison: Comparison, what: str) -> str:
    said = f"{_percent(comparison.agreement)} of {comparison.images} {what} named as before"
    if comparison.lost_to_new:
        said += f", {_percent(comparison.lost_to_new)} named as new classes"
    if comparison.negative_flips is not None:
        said += f", negative flips {_percent(comparison.negative_flips)}"
    if comparison.positive_flips:
        said += f", positive flips {_percent(comparison.positive_flips)}"
    return said


def _worst(figure: Accuracy | Comparison) -> str:
    worst = min(figure.by_class, key=lambda share: share.share)
    if len(figure.by_class) < 2 or worst.share == 1:
        return ""
    return f"; worst: {worst.name} with {_percent(worst.share)} of {worst.images}"


def _of_class(shares: Sequence[ClassShare], name: str) -> str:
    found = [f"{_percent(share.share)} of {share.images}" for share in shares if share.name == name]
    return found[0] if found else DASH


def _arrow(before: Any, after: Any, shown: Any) -> str:
    return shown(after) if before is None else f"{shown(before)} → {shown(after)}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"

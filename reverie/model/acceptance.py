"""The acceptance report: what a person needs to decide whether to deploy a model that has just learned more.

No old image is needed. New classes are judged on images held out of training; old ones by comparing the model with the
previous one, on dreams and on whatever images a person has (`check`). docs/model-folder.md explains every figure. This
file has the report, its rule and its words; `judging.py` measures. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from reverie.model.markdown import plain, table
from reverie.system.records import Record
from reverie.text import DASH, listing, percent

Verdict = Literal["accept", "look closer", "reject"]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]

# The rule. Below the second number the model is rejected; between the two a person should look closer.
NEW_ACCURACY = (0.80, 0.50)  # of held-out images of new classes that are named rightly
AGREEMENT = (0.90, 0.70)  # of dreams that are named as the previous model names them
UNFLIPPED = (0.95, 0.80)  # of labelled check images that are not right before and wrong after
CLASS_SHARE = 0.50  # of each class alone; below, a person should look closer
GONE = 0.20  # of a class that the previous model knew, as before: below, it is as good as gone
OFF = 0.1  # the largest calibration error on real images; above, a person should look closer
NAMED = 5  # classes that a reason names
FEW, FEW_OF_CLASS = 10, 5  # fewer images than this, in all and of a class, say too little
FEW_FOR_CONFIDENCE = 50  # of fewer, each bin has a handful, and chance alone makes the error large
RULE = (
    f"Accept when at least {NEW_ACCURACY[0]:.0%} of the held-out images of new classes are named rightly (and of known "
    f"classes that further images were learned of), at least {AGREEMENT[0]:.0%} of dreams (each class counting alike, "
    "and of unlabelled check images) are named as before, at most "
    f"{1 - UNFLIPPED[0]:.0%} of labelled check images are right before and wrong after, no class of "
    f"{FEW_OF_CLASS} images or more is below {CLASS_SHARE:.0%}, and confidence is off by {OFF:g} at most on "
    f"{FEW_FOR_CONFIDENCE} held-out or check images or more. Reject when one of the first three is worse than "
    f"{NEW_ACCURACY[1]:.0%}, {AGREEMENT[1]:.0%} or {1 - UNFLIPPED[1]:.0%}, or an old class is as good as gone, below "
    f"{GONE:.0%}; by dreams alone, not where labelled check images or class statistics say that all is well. Look "
    "closer in between, and where there is too little to judge by."
)

HELD_OUT, DREAMS, CHECK = "held-out new images", "dreams", "check images of old classes"
FURTHER = "held-out further images of known classes"


class ClassShare(Record):
    """Of the images of one class: how many are named rightly, or as before."""

    name: str
    images: Count
    share: Share


class Accuracy(Record):
    images: Count
    accuracy: Share
    by_class: list[ClassShare]


class Comparison(Record):
    """With the previous model, on images of classes that it knew. All figures but the counts are shares of `images`.

    On dreams they are means over classes, of which there are enough dreams to judge by.
    """

    images: Count
    agreement: Share  # named alike by both
    lost_to_new: Share  # named as one of the new classes now
    by_class: list[ClassShare]  # agreement by the class that counts as right, or that the previous model saw
    negative_flips: Share | None = None  # right before, wrong after; none where nobody knows what is right
    positive_flips: Share | None = None  # wrong before, right after
    accuracy_before: Share | None = None
    accuracy_after: Share | None = None


class Calibration(Record):
    """Expected calibration error: how far confidence is from accuracy. `before` may be of other images: see `note`."""

    on: str
    before: float | None
    after: float
    note: str = ""


class ModelCost(Record):
    parameters: Count
    bytes: Count  # of all weights and statistics
    image_ms: float  # latency of a single image, the median of several
    batch_ms: float  # of a batch
    statistics_bytes: Count | None = (
        None  # of class statistics, which lie beside the classifier; none where there are none
    )


class Acceptance(Record):
    """The report on one step. `print(report)` shows it; `markdown()` is what the model's card has."""

    verdict: Verdict
    reasons: list[str]  # why it is not "accept"
    rule: str
    new: Accuracy | None  # on held-out images of new classes; none where there are none
    dreams: Comparison | None
    check: Comparison | None
    check_accuracy: Accuracy | None  # on all labelled check images, of old and new classes
    calibration: list[Calibration]
    calibration_bins: Count
    before: ModelCost | None
    after: ModelCost
    batch: Count
    device: str
    refined: Accuracy | None = None  # on held-out images of known classes, where further ones were learned
    statistics: Accuracy | None = None  # on features drawn from the class statistics of old classes

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """In short, for the terminal."""
        reasons = f" ({'; '.join(self.reasons)})" if self.reasons else ""
        return [f"verdict: {self.verdict}{reasons}", *(f"{title}: {words}" for title, words in self._findings())]

    def markdown(self) -> str:
        """For the card."""
        reasons = f": {plain('; '.join(self.reasons))}" if self.reasons else ""
        parts = [f"**Verdict: {self.verdict}**{reasons}.", "", f"The rule: {plain(self.rule)}", ""]
        parts += [f"- {title}: {plain(words)}" for title, words in self._findings()]
        parts.append("")
        held_out = [share for figure in (self.refined, self.new) if figure for share in figure.by_class]
        columns = [("held-out accuracy", held_out)]
        if self.dreams:
            columns.append(("dreams named as before", self.dreams.by_class))
        if self.statistics:
            columns.append(("features drawn, named rightly", self.statistics.by_class))
        if self.check_accuracy:
            columns.append(("check accuracy", self.check_accuracy.by_class))
        names = dict.fromkeys(share.name for _, shares in columns for share in shares)
        rows = [[plain(name), *(_of_class(shares, name) for _, shares in columns)] for name in names]
        return "\n".join([*parts, *table(["class", *(title for title, _ in columns)], rows)]).rstrip()

    def _findings(self) -> Iterator[tuple[str, str]]:
        """What was measured, and what came out, in words."""
        for title, figure in (("new classes", self.new), ("known classes, further images", self.refined)):
            if figure:
                yield title, f"{percent(figure.accuracy)} right of {figure.images} held-out images" + _worst(figure)
        if self.dreams:
            yield "old classes", _compared(self.dreams, "dreams") + _worst(self.dreams)
        if self.statistics:
            drawn = f"{percent(self.statistics.accuracy)} right of {self.statistics.images} features drawn from them"
            yield "old classes, by their statistics", f"{drawn}{_worst(self.statistics)}; kinder than images are"
        if self.check:
            labelled = self.check.negative_flips is not None
            yield "check", _compared(self.check, "images of old classes" if labelled else "images")
        if self.check_accuracy:
            right = f"{percent(self.check_accuracy.accuracy)} right of {self.check_accuracy.images}"
            yield "check, all classes", right
        errors = []
        for entry in self.calibration:
            note = f" ({entry.note})" if entry.note else ""
            errors.append(f"{_arrow(entry.before, entry.after, '{:.3f}'.format)} on {entry.on}{note}")
        yield f"calibration error ({self.calibration_bins} bins)", "; ".join(errors)
        before = self.before
        size = _arrow(before and before.bytes, self.after.bytes, "{:,} bytes".format)
        if self.after.statistics_bytes:
            kept = _arrow(before and before.statistics_bytes, self.after.statistics_bytes, "{:,} bytes".format)
            size += f"; class statistics beside it: {kept}"
        yield "size", size
        single = _arrow(before and before.image_ms, self.after.image_ms, "{:.2f} ms".format)
        batch = _arrow(before and before.batch_ms, self.after.batch_ms, "{:.1f} ms".format)
        yield "latency", f"{single} for one image, {batch} for {self.batch} ({self.device})"


# --- the verdict


def decide(
    new: Accuracy | None,
    refined: Accuracy | None,
    dreams: Comparison | None,
    check: Comparison | None,
    check_accuracy: Accuracy | None,
    names: Sequence[str],
    old: int,
    calibration: Sequence[Calibration] = (),
    statistics: Accuracy | None = None,
) -> tuple[Verdict, list[str]]:
    """`RULE`, applied. The first `old` of the `names` are those that the previous model knew."""
    reasons: list[str] = []
    rejected = False

    def want(share: float, images: int, bounds: tuple[float, float], what: str, doubted: bool = False) -> None:
        nonlocal rejected
        if share < bounds[0]:
            reasons.append(f"{what}: {percent(share)} of {images}, wanted {bounds[0]:.0%}")
            rejected = rejected or (share < bounds[1] and images >= FEW and not doubted)

    held_out = ((new, "held-out new images"), (refined, "held-out further images"))
    for figure, what in held_out:
        if figure:
            want(figure.accuracy, figure.images, NEW_ACCURACY, f"{what} named rightly")
            if figure.images < FEW:
                reasons.append(f"only {figure.images} {what}")
    doubted = _better_witness(check, statistics)
    if dreams:
        want(dreams.agreement, dreams.images, AGREEMENT, "dreams named as before", doubted)
        if unseen := _unjudged(names[:old], dreams):
            reasons.append(f"too few dreams of {listing(unseen, NAMED, str)}")
    if check and check.negative_flips is not None:
        want(1 - check.negative_flips, check.images, UNFLIPPED, "check images without a negative flip")
    elif check:
        want(check.agreement, check.images, AGREEMENT, "check images named as before")
    if check and not dreams and check.images < FEW:
        reasons.append(f"only {check.images} check images of old classes")
    if old and not dreams and not check:
        reasons.append("neither dreams nor check images tell how the old classes fare; give some to `check`")
    if new and not old and len(new.by_class) == 1:
        reasons.append("one class alone: there is nothing yet to tell it from")
    by_class = ((new, "held-out images"), (refined, "held-out further images"), (dreams, "dreams"))
    others = ((check_accuracy or check, "check images"), (statistics, "features drawn from class statistics"))
    for judged_on, what in (*by_class, *others):
        shares = [share for share in judged_on.by_class if share.images >= FEW_OF_CLASS] if judged_on else []
        gone = [share.name for share in shares if share.share < GONE and share.name in names[:old]]
        weak = [share.name for share in shares if share.share < CLASS_SHARE and share.name not in gone]
        if gone:
            reasons.append(f"as good as gone on {what}: {listing(gone, NAMED, str)}")
            rejected = rejected or not (judged_on is dreams and doubted)
        if weak:
            reasons.append(f"below {CLASS_SHARE:.0%} on {what}: {listing(weak, NAMED, str)}")
    if unseen := _unjudged(names[old:], new, check_accuracy):
        them = "it" if len(unseen) == 1 else "them"
        reasons.append(f"too few held-out images of {listing(unseen, NAMED, str)} to judge {them}")
    real = ((HELD_OUT, new), (FURTHER, refined), (CHECK, check))  # of dreams nobody knows what is right
    enough = {on for on, images in real if images and images.images >= FEW_FOR_CONFIDENCE}
    for entry in calibration:
        if entry.on in enough and entry.after > OFF:
            reasons.append(f"confidence is off by {entry.after:.2f} on {entry.on}")
    if rejected:
        return "reject", reasons
    return ("look closer" if reasons else "accept"), reasons


def _better_witness(check: Comparison | None, statistics: Accuracy | None) -> bool:
    """Do real images of old classes, or their statistics, say that these are well? Then dreams alone do not reject."""
    if check and check.negative_flips is not None and check.images >= FEW:
        return 1 - check.negative_flips >= UNFLIPPED[0]
    return bool(statistics and statistics.accuracy >= AGREEMENT[0])


def _unjudged(names: Sequence[str], *figures: Accuracy | Comparison | None) -> list[str]:
    """Classes of which no figure has as many images as a class needs to count: all wrong, they would pass unseen."""
    shares = [share for figure in figures if figure for share in figure.by_class]
    judged = {share.name for share in shares if share.images >= FEW_OF_CLASS}
    return [name for name in names if name not in judged]


# --- words


def _compared(comparison: Comparison, what: str) -> str:
    words = f"{percent(comparison.agreement)} of {comparison.images} {what} named as before"
    if comparison.lost_to_new:
        words += f", {percent(comparison.lost_to_new)} named as new classes"
    if comparison.negative_flips is not None:
        words += f", negative flips {percent(comparison.negative_flips)}"
    if comparison.positive_flips:
        words += f", positive flips {percent(comparison.positive_flips)}"
    return words


def _worst(figure: Accuracy | Comparison) -> str:
    if len(figure.by_class) < 2:  # a file may hold none at all
        return ""
    worst = min(figure.by_class, key=lambda share: share.share)
    if worst.share == 1:
        return ""
    return f"; worst: {worst.name} with {percent(worst.share)} of {worst.images}"


def _of_class(shares: Sequence[ClassShare], name: str) -> str:
    found = [f"{percent(share.share)} of {share.images}" for share in shares if share.name == name]
    return found[0] if found else DASH


def _arrow(before: Any, after: Any, write: Any) -> str:
    return write(after) if before is None else f"{write(before)} → {write(after)}"

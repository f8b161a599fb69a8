"""The acceptance report: every figure against a count by hand, the verdict by its rule, the same words everywhere."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from reverie.data.images import MemoryImages
from reverie.learner.task_learner import TaskLearner
from reverie.metrics import calibration_error
from reverie.model import acceptance
from reverie.model.acceptance import Acceptance, judge
from reverie.nets.backbone import Backbone
from reverie.nets.classifier import Classifier, Preprocessing

NAMES = ("ant", "bee", "cat", "dog")


class Pixels(Backbone):
    """Features are the first pixels themselves, so that a test says what a model answers."""

    feature_dim = 16

    def forward(self, images):
        return images.flatten(1)


def learner(tiny, classes, turned=0):
    """Answers the brightest of the first pixels; `turned` moves the answer on by so many classes."""
    classifier = Classifier(Pixels(), Preprocessing(4, (0.0,), (1.0,)))
    classifier.grow(NAMES[:classes])
    weight = torch.zeros(classes, 16)
    for row in range(classes):
        weight[row, (row - turned) % classes] = 4.0
    classifier.head.weight, classifier.head.bias = nn.Parameter(weight), nn.Parameter(torch.zeros(classes))
    return TaskLearner(tiny("base"), classifier)


def images(count, labels, seed=0):
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=torch.Generator().manual_seed(seed))
    return MemoryImages(pixels.to(torch.uint8), torch.tensor(labels))


def shown(label, count=1):
    """Pixels in which everybody sees `label`."""
    pixels = torch.zeros(count, 1, 4, 4, dtype=torch.uint8)
    pixels.flatten(1)[:, label] = 255
    return pixels


def answers(model, pixels):
    probabilities = model.classifier(pixels.float() / 255).softmax(dim=1)
    return probabilities.argmax(dim=1).tolist(), probabilities.max(dim=1).values.tolist()


def error_by_hand(sure, right):
    """Fifteen bins (0, 1/15], (1/15, 2/15], …"""
    total = 0.0
    for number in range(15):
        inside = [i for i, s in enumerate(sure) if number / 15 < s <= (number + 1) / 15]
        if inside:
            confidence = sum(sure[i] for i in inside) / len(inside)
            accuracy = sum(right[i] for i in inside) / len(inside)
            total += len(inside) / len(sure) * abs(confidence - accuracy)
    return total


def test_calibration_error_is_that_of_fifteen_bins_counted_by_hand():
    rng = torch.Generator().manual_seed(1)
    sure, right = torch.rand(500, generator=rng).tolist(), (torch.rand(500, generator=rng) < 0.6).tolist()
    assert calibration_error(sure, right) == pytest.approx(error_by_hand(sure, right), abs=1e-12)
    assert calibration_error([0.8] * 10, [True] * 8 + [False] * 2) == pytest.approx(0)
    assert calibration_error([1.0] * 4, [True, False, False, False]) == pytest.approx(0.75)


def test_a_first_model_is_judged_on_held_out_images_alone(tiny):
    after = learner(tiny, 4)
    held_out = images(80, [i % 4 for i in range(80)])
    report = judge(None, after, held_out)
    guess, sure = answers(after, held_out.pixels)
    right = [g == label for g, label in zip(guess, held_out.labels.tolist(), strict=True)]
    assert report.new.accuracy == pytest.approx(sum(right) / 80)
    for share in report.new.by_class:
        of_class = [r for r, label in zip(right, held_out.labels.tolist(), strict=True) if NAMES[label] == share.name]
        assert (share.images, share.share) == (len(of_class), pytest.approx(sum(of_class) / len(of_class)))
    assert report.calibration[0].after == pytest.approx(error_by_hand(sure, right))
    assert report.calibration[0].before is None
    assert (report.before, report.dreams, report.check) == (None, None, None)
    assert report.after.parameters == 4 * 16 + 4
    assert report.after.bytes == 4 * (4 * 16 + 4)


def test_further_images_of_known_classes_are_not_counted_as_new_ones(tiny):
    """Many of them, all right, must not hide that the one new class is always wrong."""
    before, after = learner(tiny, 2), learner(tiny, 3)
    held_out = images(200, [i % 3 for i in range(200)], seed=5)
    guess, _ = answers(after, held_out.pixels)
    rows = [i for i in range(200) if (guess[i] == i % 3) if i % 3 < 2]
    wrong = [i for i in range(200) if i % 3 == 2 and guess[i] != 2][:12]
    assert len(rows) >= 20 and len(wrong) == 12
    report = judge(before, after, held_out.select(torch.tensor([*rows, *wrong])), dreams_of(0, 1))
    assert (report.refined.images, report.refined.accuracy) == (len(rows), 1)
    assert (report.new.images, report.new.accuracy) == (12, 0)
    assert report.verdict == "reject" and "held-out new images named rightly: 0.0 %" in report.reasons[0]
    assert f"known classes, further images: 100.0 % right of {len(rows)} held-out images" in report.lines()[2]
    assert acceptance.Acceptance.from_dict(report.as_dict()) == report
    only = judge(before, after, held_out.select(torch.tensor(rows)), dreams_of(0, 1))
    assert only.new is None and only.calibration[0].on == acceptance.FURTHER
    without = {key: value for key, value in report.as_dict().items() if key != "refined"}
    assert acceptance.Acceptance.from_dict(without).refined is None  # of a folder from before


def test_old_classes_are_compared_with_the_previous_model_on_dreams(tiny):
    before, after = learner(tiny, 2), learner(tiny, 4)
    dreams = torch.rand(300, 1, 4, 4)
    report = judge(before, after, images(40, [2, 3] * 20), dreams.split(70))
    then, now = ([int(v) for v in model.classifier(dreams).argmax(dim=1)] for model in (before, after))
    same = [a == b for a, b in zip(then, now, strict=True)]
    assert 0.1 < sum(same) / 300 < 0.9
    assert report.dreams.agreement == pytest.approx(sum(same) / 300)
    assert report.dreams.negative_flips == pytest.approx(1 - sum(same) / 300)
    assert report.dreams.positive_flips == 0
    assert report.dreams.lost_to_new == pytest.approx(sum(n >= 2 for n in now) / 300)
    for share in report.dreams.by_class:
        of_class = [s for s, t in zip(same, then, strict=True) if NAMES[t] == share.name]
        assert (share.images, share.share) == (len(of_class), pytest.approx(sum(of_class) / len(of_class)))


def test_labelled_check_images_tell_flips_of_both_kinds_and_both_accuracies(tiny):
    before, after = learner(tiny, 2), learner(tiny, 3)
    check = images(200, [i % 3 for i in range(200)], seed=3)
    report = judge(before, after, images(20, [2] * 20), None, check)
    rows = [i for i in range(200) if i % 3 < 2]  # of classes that the previous model knew
    (then, then_sure), (now, now_sure) = answers(before, check.pixels), answers(after, check.pixels)
    was, still = [then[i] == i % 3 for i in rows], [now[i] == i % 3 for i in rows]
    assert report.check.images == len(rows)
    assert report.check.accuracy_before == pytest.approx(sum(was) / len(rows))
    assert report.check.accuracy_after == pytest.approx(sum(still) / len(rows))
    negative = sum(a and not b for a, b in zip(was, still, strict=True))
    positive = sum(b and not a for a, b in zip(was, still, strict=True))
    assert (report.check.negative_flips, report.check.positive_flips) == pytest.approx(
        (negative / len(rows), positive / len(rows))
    )
    assert report.check.agreement == pytest.approx(sum(then[i] == now[i] for i in rows) / len(rows))
    assert report.check_accuracy.images == 200
    assert report.check_accuracy.accuracy == pytest.approx(sum(now[i] == i % 3 for i in range(200)) / 200)
    on_check = next(entry for entry in report.calibration if entry.on == acceptance.CHECK)
    assert on_check.before == pytest.approx(error_by_hand([then_sure[i] for i in rows], was))
    assert on_check.after == pytest.approx(error_by_hand([now_sure[i] for i in rows], still))


def test_of_check_images_some_of_which_have_labels_only_these_tell_what_is_right(tiny):
    before, after = learner(tiny, 2), learner(tiny, 3)
    labels = [i % 3 if i < 30 else -1 for i in range(50)]
    check = images(50, labels, seed=5)
    report = judge(before, after, images(20, [2] * 20), None, check)
    then, now = (answers(model, check.pixels)[0] for model in (before, after))
    rows = [i for i in range(50) if labels[i] < 2]  # all but those of the new class
    assert report.check.images == len(rows)
    assert report.check.agreement == pytest.approx(sum(then[i] == now[i] for i in rows) / len(rows))
    assert report.check.negative_flips is report.check.accuracy_after is None
    assert report.check_accuracy.images == 30
    assert report.check_accuracy.accuracy == pytest.approx(sum(now[i] == labels[i] for i in range(30)) / 30)
    assert acceptance.CHECK not in [entry.on for entry in report.calibration]


def test_check_images_without_labels_tell_agreement_and_no_more(tiny):
    pixels = images(50, [0] * 50, seed=5).pixels
    before, after = learner(tiny, 2), learner(tiny, 3)
    for check in (pixels, MemoryImages(pixels, torch.full((50,), -1))):
        report = judge(before, after, images(20, [2] * 20), None, check)
        assert report.check.images == 50
        assert report.check.negative_flips is report.check.accuracy_after is report.check_accuracy is None
        assert 0 < report.check.agreement < 1
        assert report.check.agreement == pytest.approx(
            sum(a == b for a, b in zip(answers(before, pixels)[0], answers(after, pixels)[0], strict=True)) / 50
        )


def test_the_previous_report_says_how_well_calibrated_the_model_was(tiny):
    first = judge(None, learner(tiny, 2), images(40, [0, 1] * 20))
    second = judge(learner(tiny, 2), learner(tiny, 3), images(20, [2] * 20), previous=first.as_dict())
    assert second.calibration[0].before == first.calibration[0].after
    assert "previous step" in second.calibration[0].note


def test_latency_is_measured_before_and_after(tiny):
    report = judge(learner(tiny, 2), learner(tiny, 3), images(20, [2] * 20))
    for cost in (report.before, report.after):
        assert 0 < cost.image_ms < 1000
        assert 0 < cost.batch_ms < 1000
    assert report.before.bytes < report.after.bytes
    assert report.device == "cpu, 1 thread"


def test_models_that_do_not_belong_together_are_refused(tiny):
    other = learner(tiny, 2)
    other.classifier.class_names = ("x", "y")
    with pytest.raises(ValueError, match="first ones"):
        judge(other, learner(tiny, 3), images(20, [2] * 20))


# --- the verdict


def seen(label, count):
    return MemoryImages(shown(label, count), torch.full((count,), label))


def dreams_of(*labels, each=20):
    return [shown(label, each).float() / 255 for label in labels]  # in parts


def test_a_model_that_is_good_throughout_is_accepted(tiny):
    report = judge(learner(tiny, 2), learner(tiny, 3), seen(2, 20), dreams_of(0, 1), seen(0, 20))
    assert (report.verdict, report.reasons) == ("accept", ())


@pytest.mark.parametrize(
    ("right", "verdict"), [(20, "accept"), (16, "accept"), (15, "look closer"), (10, "look closer"), (9, "reject")]
)
def test_new_classes_decide(tiny, right, verdict):
    held_out = MemoryImages(torch.cat([shown(2, right), shown(0, 20 - right)]), torch.full((20,), 2))
    report = judge(learner(tiny, 2), learner(tiny, 3), held_out, dreams_of(0, 1))
    assert report.verdict == verdict


@pytest.mark.parametrize(
    ("kept", "verdict"), [(90, "accept"), (89, "look closer"), (70, "look closer"), (69, "reject")]
)
def test_old_classes_decide(tiny, kept, verdict):
    lost = shown(0, 100 - kept).float() / 255  # seen as 0 before, as 2 after
    lost.view(len(lost), -1)[:, 2] = 2.0
    dreams = [*dreams_of(1, each=50), *dreams_of(0, each=kept - 50), lost]
    report = judge(learner(tiny, 2), learner(tiny, 3), seen(2, 20), dreams)
    assert report.dreams.agreement == pytest.approx(kept / 100)
    assert report.verdict == verdict


@pytest.mark.parametrize(
    ("flipped", "verdict"), [(5, "accept"), (6, "look closer"), (20, "look closer"), (21, "reject")]
)
def test_real_images_decide(tiny, flipped, verdict):
    lost = shown(0, flipped)
    lost.view(flipped, -1)[:, 0] = 200
    lost.view(flipped, -1)[:, 2] = 255
    check = MemoryImages(torch.cat([shown(0, 100 - flipped), lost]), torch.zeros(100, dtype=torch.long))
    report = judge(learner(tiny, 2), learner(tiny, 3), seen(2, 20), dreams_of(0, 1), check)
    assert report.check.negative_flips == pytest.approx(flipped / 100)
    assert report.verdict == verdict


def test_a_single_class_that_is_lost_is_named(tiny):
    held_out = MemoryImages(torch.cat([shown(2, 40), shown(0, 6)]), torch.tensor([2] * 40 + [3] * 6))
    report = judge(learner(tiny, 2), learner(tiny, 4), held_out, dreams_of(0, 1))
    assert report.new.accuracy > 0.8
    assert report.verdict == "look closer"
    assert report.reasons == ("below 50% on held-out images: dog",)


def test_an_old_class_that_is_lost_is_named_whatever_shows_it(tiny):
    lost = shown(0, 10)  # seen as 0 before, as 2 after
    lost.flatten(1)[:, 0], lost.flatten(1)[:, 2] = 200, 255
    pixels = torch.cat([shown(1, 190), lost])
    check = MemoryImages(pixels, torch.tensor([1] * 190 + [0] * 10))
    for dreams, images_to_check, said in (
        ([pixels.float() / 255], None, "dreams"),
        (None, check, "check images"),
        (None, pixels, "check images"),
    ):
        report = judge(learner(tiny, 2), learner(tiny, 3), seen(2, 20), dreams, images_to_check)
        assert (report.verdict, report.reasons) == ("look closer", (f"below 50% on {said}: ant",))


def test_labelled_check_images_are_judged_by_what_is_right_not_by_what_was_said_before(tiny):
    """The last class was always mistaken and no longer is; a new one is not known at all."""
    before, after = learner(tiny, 2, turned=1), learner(tiny, 4)
    pixels = torch.cat([shown(0, 100), shown(1, 100), shown(0, 10)])
    check = MemoryImages(pixels, torch.tensor([0] * 100 + [1] * 100 + [3] * 10))
    report = judge(before, after, MemoryImages(shown(2, 20), torch.full((20,), 2)), None, check)
    assert report.check.agreement == 0 and report.check.negative_flips == 0
    assert (report.verdict, report.reasons) == ("look closer", ("below 50% on check images: dog",))


@pytest.mark.parametrize("labelled", [True, False])
def test_few_check_images_alone_reject_nothing(tiny, labelled):
    lost = shown(0, 2)  # seen as 0 before, as 2 after
    lost.flatten(1)[:, 0], lost.flatten(1)[:, 2] = 200, 255
    check = MemoryImages(lost, torch.zeros(2, dtype=torch.long)) if labelled else lost
    report = judge(learner(tiny, 2), learner(tiny, 3), seen(2, 20), dreams_of(0, 1), check)
    assert report.verdict == "look closer"
    assert "of 2, wanted" in report.reasons[0]
    good = judge(learner(tiny, 2), learner(tiny, 3), seen(2, 20), dreams_of(0, 1), shown(0, 2))
    assert good.verdict == "accept"
    alone = judge(learner(tiny, 2), learner(tiny, 3), seen(2, 20), None, shown(0, 2))
    assert (alone.verdict, alone.reasons) == ("look closer", ("only 2 check images of old classes",))


def test_one_class_alone_is_no_reason_to_accept(tiny):
    report = judge(None, learner(tiny, 1), seen(0, 20))
    assert report.verdict == "look closer"
    assert "nothing yet to tell it from" in report.reasons[0]


def test_just_enough_is_enough(tiny):
    report = judge(learner(tiny, 2), learner(tiny, 3), seen(2, 10), dreams_of(0, 1, each=5))
    assert (report.verdict, report.reasons) == ("accept", ())
    few = judge(learner(tiny, 2), learner(tiny, 3), seen(2, 10), dreams_of(0, 1, each=4))
    assert (few.verdict, few.reasons) == ("look closer", ("too few dreams of ant, bee",))
    half = MemoryImages(torch.cat([shown(2, 30), shown(3, 3), shown(0, 3)]), torch.tensor([2] * 30 + [3] * 6))
    report = judge(learner(tiny, 2), learner(tiny, 4), half, dreams_of(0, 1))
    assert (report.verdict, report.reasons) == ("accept", ())


@pytest.mark.parametrize(
    ("count", "dreams", "why"),
    [
        (9, (0, 1), "only 9 held-out new images"),
        (20, (0,), "too few dreams of bee"),
        (20, None, "neither dreams nor check images"),
    ],
)
def test_too_little_to_judge_by_is_no_acceptance(tiny, count, dreams, why):
    report = judge(learner(tiny, 2), learner(tiny, 3), seen(2, count), dreams and dreams_of(*dreams))
    assert report.verdict == "look closer"
    assert why in report.reasons[0]


@pytest.mark.parametrize(("count", "named"), [(0, True), (4, True), (5, False)])
def test_a_new_class_of_which_too_few_images_are_held_out_is_named_though_all_others_are_right(tiny, count, named):
    held_out = MemoryImages(torch.cat([shown(2, 40), shown(3, count)]), torch.tensor([2] * 40 + [3] * count))
    report = judge(learner(tiny, 2), learner(tiny, 4), held_out, dreams_of(0, 1))
    why = ("look closer", ("too few held-out images of dog to judge it",))
    assert (report.verdict, report.reasons) == (why if named else ("accept", ()))
    checked = judge(learner(tiny, 2), learner(tiny, 4), held_out, dreams_of(0, 1), seen(3, 5))
    assert (checked.verdict, checked.reasons) == ("accept", ())  # check images tell as much


def test_what_a_model_is_rejected_for_stands_before_what_could_not_be_judged(tiny):
    held_out = MemoryImages(torch.cat([shown(0, 40), shown(3, 4)]), torch.tensor([2] * 40 + [3] * 4))
    report = judge(learner(tiny, 2), learner(tiny, 4), held_out, dreams_of(0, 1))
    assert report.verdict == "reject"
    assert report.reasons[0].startswith("held-out new images named rightly")
    assert report.reasons[-1] == "too few held-out images of dog to judge it"


def test_the_rule_and_the_page_state_every_bound_it_is_applied_with():
    page = (Path(__file__).parents[2] / "docs" / "model-folder.md").read_text("utf-8")
    verdict = page[page.index("**The verdict.**") :]
    shares = [*acceptance.NEW_ACCURACY, *acceptance.AGREEMENT, acceptance.CLASS_SHARE]
    for share in (*shares, *(1 - share for share in acceptance.UNFLIPPED)):
        assert f"{share:.0%}" in acceptance.RULE
        assert f"{100 * share:.0f} %" in verdict
    assert f"fewer than {acceptance.FEW} held-out" in verdict
    assert f"fewer than {acceptance.FEW_OF_CLASS} dreams" in verdict
    assert f"a new class with fewer than {acceptance.FEW_OF_CLASS} of" in verdict


# --- words


def full_report(tiny):
    check = images(60, [i % 3 for i in range(60)], seed=3)
    return judge(learner(tiny, 2), learner(tiny, 3, turned=1), seen(2, 20), dreams_of(0, 1), check)


def test_the_report_survives_json(tiny):
    report = full_report(tiny)
    assert Acceptance.from_dict(json.loads(json.dumps(report.as_dict(), allow_nan=False))) == report


def test_the_terminal_gets_a_few_short_lines_with_the_verdict_first(tiny):
    lines = full_report(tiny).lines()
    assert lines[0].startswith("verdict: reject (")
    assert len(lines) <= 8
    text = "\n".join(lines)
    for word in (
        "new classes",
        "old classes",
        "dreams",
        "negative flips",
        "calibration error (15 bins)",
        "→",
        "latency",
    ):
        assert word in text


def test_the_card_gets_the_rule_and_every_class(tiny):
    text = full_report(tiny).markdown()
    assert text.startswith("**Verdict: reject**")
    assert acceptance.RULE in text
    for name in ("ant", "bee", "cat"):
        assert f"| {name} |" in text

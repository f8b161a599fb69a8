"""Judging a model: every figure of the report against a count by hand."""

import pytest
import torch

from reverie.data.images import MemoryImages
from reverie.metrics import calibration_error
from reverie.model.acceptance import CHECK, FURTHER
from reverie.model.judging import disagreement, judge_model
from reverie.nets.class_statistics import ClassStatistics
from reverie.nets.heads import LinearAnswer
from reverie.system.records import as_record
from tests.support.models import NAMES, dreams_of, noise_images, pixel_learner, showing


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


def test_a_first_model_is_judged_on_held_out_images_alone():
    after = pixel_learner(4)
    held_out = noise_images(80, [i % 4 for i in range(80)])
    report = judge_model(None, after, held_out)
    guess, sure = answers(after, held_out.pixels)
    right = [g == label for g, label in zip(guess, held_out.labels.tolist(), strict=True)]
    assert report.new.accuracy == pytest.approx(sum(right) / 80)
    assert [share.name for share in report.new.by_class] == list(NAMES)
    for share in report.new.by_class:
        of_class = [r for r, label in zip(right, held_out.labels.tolist(), strict=True) if NAMES[label] == share.name]
        assert (share.images, share.share) == (len(of_class), pytest.approx(sum(of_class) / len(of_class)))
    assert report.calibration[0].after == pytest.approx(error_by_hand(sure, right))
    assert report.calibration[0].before is None
    assert (report.before, report.dreams, report.check) == (None, None, None)
    assert report.after.parameters == 4 * 16 + 4
    assert report.after.bytes == 4 * (4 * 16 + 4)


def test_further_images_of_known_classes_are_not_counted_as_new_ones():
    """Many of them, all right, must not hide that the one new class is always wrong."""
    before, after = pixel_learner(2), pixel_learner(3)
    held_out = noise_images(200, [i % 3 for i in range(200)], seed=5)
    guess, _ = answers(after, held_out.pixels)
    rows = [i for i in range(200) if (guess[i] == i % 3) if i % 3 < 2]
    wrong = [i for i in range(200) if i % 3 == 2 and guess[i] != 2][:12]
    assert len(rows) >= 20 and len(wrong) == 12
    report = judge_model(before, after, held_out.select(torch.tensor([*rows, *wrong])), dreams_of(0, 1))
    assert (report.refined.images, report.refined.accuracy) == (len(rows), 1)
    assert (report.new.images, report.new.accuracy) == (12, 0)
    assert report.verdict == "reject" and "held-out new images named rightly: 0.0 %" in report.reasons[0]
    assert f"known classes, further images: 100.0 % right of {len(rows)} held-out images" in report.lines()[2]
    assert as_record(type(report), report.as_dict()) == report
    only = judge_model(before, after, held_out.select(torch.tensor(rows)), dreams_of(0, 1))
    assert only.new is None and only.calibration[0].on == FURTHER
    without = {key: value for key, value in report.as_dict().items() if key != "refined"}
    assert as_record(type(report), without).refined is None  # of a folder from before


def test_old_classes_are_compared_with_the_previous_model_on_dreams():
    before, after = pixel_learner(2), pixel_learner(4)
    dreams = torch.rand(300, 1, 4, 4)
    report = judge_model(before, after, noise_images(40, [2, 3] * 20), dreams.split(70))
    then, now = ([int(v) for v in model.classifier(dreams).argmax(dim=1)] for model in (before, after))
    same = [a == b for a, b in zip(then, now, strict=True)]
    assert 0.1 < sum(same) / 300 < 0.9
    assert report.dreams.images == 300

    def over_classes(facts):
        """The mean over both classes of their shares."""
        shares = [[fact for fact, label in zip(facts, then, strict=True) if label == one] for one in (0, 1)]
        return pytest.approx(sum(sum(its) / len(its) for its in shares) / 2)

    assert report.dreams.agreement == over_classes(same)
    assert report.dreams.negative_flips == over_classes([not one for one in same])
    assert report.dreams.positive_flips == 0
    assert report.dreams.lost_to_new == over_classes([label >= 2 for label in now])
    assert [share.name for share in report.dreams.by_class] == ["ant", "bee"]
    for share in report.dreams.by_class:
        of_class = [s for s, t in zip(same, then, strict=True) if NAMES[t] == share.name]
        assert (share.images, share.share) == (len(of_class), pytest.approx(sum(of_class) / len(of_class)))


def test_labelled_check_images_tell_flips_of_both_kinds_and_both_accuracies():
    before, after = pixel_learner(2), pixel_learner(3)
    check = noise_images(200, [i % 3 for i in range(200)], seed=3)
    report = judge_model(before, after, noise_images(20, [2] * 20), None, check)
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
    on_check = next(entry for entry in report.calibration if entry.on == CHECK)
    assert on_check.before == pytest.approx(error_by_hand([then_sure[i] for i in rows], was))
    assert on_check.after == pytest.approx(error_by_hand([now_sure[i] for i in rows], still))


def test_of_check_images_some_of_which_have_labels_only_these_tell_what_is_right():
    before, after = pixel_learner(2), pixel_learner(3)
    labels = [i % 3 if i < 30 else -1 for i in range(50)]
    check = noise_images(50, labels, seed=5)
    report = judge_model(before, after, noise_images(20, [2] * 20), None, check)
    then, now = (answers(model, check.pixels)[0] for model in (before, after))
    rows = [i for i in range(50) if labels[i] < 2]  # all but those of the new class
    assert report.check.images == len(rows)
    assert report.check.agreement == pytest.approx(sum(then[i] == now[i] for i in rows) / len(rows))
    assert report.check.negative_flips is report.check.accuracy_after is None
    assert report.check_accuracy.images == 30
    assert report.check_accuracy.accuracy == pytest.approx(sum(now[i] == labels[i] for i in range(30)) / 30)
    assert CHECK not in [entry.on for entry in report.calibration]


def test_check_images_without_labels_tell_agreement_and_no_more():
    pixels = noise_images(50, [0] * 50, seed=5).pixels
    before, after = pixel_learner(2), pixel_learner(3)
    for check in (pixels, MemoryImages(pixels, torch.full((50,), -1))):
        report = judge_model(before, after, noise_images(20, [2] * 20), None, check)
        assert report.check.images == 50
        assert report.check.negative_flips is report.check.accuracy_after is report.check_accuracy is None
        assert 0 < report.check.agreement < 1
        assert report.check.agreement == pytest.approx(
            sum(a == b for a, b in zip(answers(before, pixels)[0], answers(after, pixels)[0], strict=True)) / 50
        )


def test_the_previous_report_says_how_well_calibrated_the_model_was():
    first = judge_model(None, pixel_learner(2), noise_images(40, [0, 1] * 20))
    second = judge_model(pixel_learner(2), pixel_learner(3), noise_images(20, [2] * 20), previous=first)
    assert second.calibration[0].before == first.calibration[0].after
    assert "previous step" in second.calibration[0].note


def test_latency_is_measured_before_and_after():
    report = judge_model(pixel_learner(2), pixel_learner(3), noise_images(20, [2] * 20))
    for cost in (report.before, report.after):
        assert 0 < cost.image_ms < 1000
        assert 0 < cost.batch_ms < 1000
    assert report.before.bytes < report.after.bytes
    assert report.device == "cpu, 1 thread"


def test_models_that_do_not_belong_together_are_refused():
    other = pixel_learner(2)
    other.classifier.class_names = ("x", "y")
    with pytest.raises(ValueError, match="first ones"):
        judge_model(other, pixel_learner(3), noise_images(20, [2] * 20))


# --- a model that was saved


@pytest.mark.parametrize("offset", [0, 1e4])
def test_another_answer_is_told_from_one_that_is_as_likely_but_for_rounding(offset):
    learner, images = pixel_learner(4), noise_images(60, [i % 4 for i in range(60)])
    with torch.no_grad():
        learner.classifier.head.bias.add_(offset)
    logits = torch.cat([*learner.logits(images)])
    assert disagreement(learner, images, logits.argmax(dim=1)) == (0, 60)
    assert disagreement(learner, images, logits.argmin(dim=1)) == (60, 60)
    with torch.no_grad():
        learner.classifier.head.weight[1] = learner.classifier.head.weight[0] * (1 + 1e-7)
    best = torch.cat([*learner.logits(images)]).argmax(dim=1)
    assert disagreement(learner, images, torch.where(best == 0, 1, best)) == (0, 60)


def test_features_drawn_from_the_statistics_of_old_classes_are_asked_about():
    before, after = pixel_learner(2), pixel_learner(3)
    means = torch.zeros(3, 16)
    means[range(3), range(3)] = 1.0
    means[1, 0] = 3.0  # so that the second class looks like the first
    narrow = torch.eye(16).expand(3, 16, 16) * 1e-4
    after.method.statistics = ClassStatistics(torch.tensor([9, 9, 9]), means, covariances=narrow)
    held_out = MemoryImages(showing(2, 20), torch.full((20,), 2))
    assert judge_model(before, after, held_out, dreams_of(0, 1)).statistics is None  # its training head answers
    directions = torch.eye(16)[:3] * 4
    after.classifier.answer_by(LinearAnswer.of(directions))
    report = judge_model(before, after, held_out, dreams_of(0, 1))
    assert [(share.name, share.images, share.share) for share in report.statistics.by_class] == [
        ("ant", 100, 1.0),
        ("bee", 100, 0.0),
    ]
    assert report.verdict == "reject"
    assert "as good as gone on features drawn from class statistics: bee" in report.reasons
    assert judge_model(None, after, held_out).statistics is None  # nothing is old yet
    after.method.statistics = ClassStatistics(torch.tensor([9, 9, 9]), torch.zeros(3, 40), covariances=None)
    assert judge_model(before, after, held_out, dreams_of(0, 1)).statistics is None

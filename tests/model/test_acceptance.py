"""The acceptance report: the verdict by its rule, and the same words on the terminal and on the card."""

import json

import pytest
import torch

from reverie.data.images import MemoryImages
from reverie.errors import UserError
from reverie.model.acceptance import (
    AGREEMENT,
    CLASS_SHARE,
    DREAMS,
    FEW,
    FEW_FOR_CONFIDENCE,
    FEW_OF_CLASS,
    HELD_OUT,
    NEW_ACCURACY,
    OFF,
    RULE,
    UNFLIPPED,
    Acceptance,
    Accuracy,
    Calibration,
    Comparison,
    decide,
)
from reverie.model.judging import judge_model
from reverie.system.records import as_record, parse_record
from tests.support.models import REPORT, dreams_of, images_of, noise_images, pixel_learner, showing
from tests.support.paths import ROOT

# --- the verdict


def test_a_model_that_is_good_throughout_is_accepted():
    report = judge_model(pixel_learner(2), pixel_learner(3), images_of(2, 20), dreams_of(0, 1), images_of(0, 20))
    assert (report.verdict, report.reasons) == ("accept", [])


@pytest.mark.parametrize(
    ("right", "verdict"), [(20, "accept"), (16, "accept"), (15, "look closer"), (10, "look closer"), (9, "reject")]
)
def test_new_classes_decide(right, verdict):
    held_out = MemoryImages(torch.cat([showing(2, right), showing(0, 20 - right)]), torch.full((20,), 2))
    report = judge_model(pixel_learner(2), pixel_learner(3), held_out, dreams_of(0, 1))
    assert report.verdict == verdict


@pytest.mark.parametrize(
    ("kept", "verdict"), [(90, "accept"), (89, "look closer"), (70, "look closer"), (69, "reject")]
)
def test_old_classes_decide(kept, verdict):
    lost = showing(0, 100 - kept).float() / 255  # seen as 0 before, as 2 after
    lost.view(len(lost), -1)[:, 2] = 2.0
    dreams = [*dreams_of(1, each=50), *dreams_of(0, each=kept - 50), lost]
    report = judge_model(pixel_learner(2), pixel_learner(3), images_of(2, 20), dreams)
    assert report.dreams.agreement == pytest.approx(kept / 100)
    assert report.verdict == verdict


@pytest.mark.parametrize(
    ("flipped", "verdict"), [(5, "accept"), (6, "look closer"), (20, "look closer"), (21, "reject")]
)
def test_real_images_decide(flipped, verdict):
    lost = showing(0, flipped)
    lost.view(flipped, -1)[:, 0] = 200
    lost.view(flipped, -1)[:, 2] = 255
    check = MemoryImages(torch.cat([showing(0, 100 - flipped), lost]), torch.zeros(100, dtype=torch.long))
    report = judge_model(pixel_learner(2), pixel_learner(3), images_of(2, 20), dreams_of(0, 1), check)
    assert report.check.negative_flips == pytest.approx(flipped / 100)
    assert report.verdict == verdict


def test_a_single_class_that_is_lost_is_named():
    held_out = MemoryImages(torch.cat([showing(2, 40), showing(0, 6)]), torch.tensor([2] * 40 + [3] * 6))
    report = judge_model(pixel_learner(2), pixel_learner(4), held_out, dreams_of(0, 1))
    assert report.new.accuracy > 0.8
    assert report.verdict == "look closer"
    assert report.reasons == ["below 50% on held-out images: dog"]


def test_an_old_class_that_is_lost_is_named_whatever_shows_it():
    lost = showing(0, 10)  # seen as 0 before, as 2 after
    lost.flatten(1)[:, 0], lost.flatten(1)[:, 2] = 200, 255
    pixels = torch.cat([showing(1, 190), lost])
    check = MemoryImages(pixels, torch.tensor([1] * 190 + [0] * 10))
    for dreams, images_to_check, said in (
        ([pixels.float() / 255], None, "dreams"),
        (None, check, "check images"),
        (None, pixels, "check images"),
    ):
        report = judge_model(pixel_learner(2), pixel_learner(3), images_of(2, 20), dreams, images_to_check)
        assert (report.verdict, report.reasons[-1]) == ("reject", f"as good as gone on {said}: ant")


def test_a_class_counts_as_much_as_any_other_however_often_it_was_dreamed_of():
    lost = showing(0, 20).float() / 255
    lost.view(20, -1)[:12, 2] = 2.0  # seen as 0 before, as 2 after
    report = judge_model(pixel_learner(2), pixel_learner(3), images_of(2, 20), [*dreams_of(1, each=980), lost])
    assert report.dreams.agreement == pytest.approx((1 + 8 / 20) / 2)
    assert report.dreams.lost_to_new == report.dreams.negative_flips == pytest.approx(0.3)
    assert report.verdict == "look closer" and "dreams named as before: 70.0 %" in report.reasons[0]
    rare = judge_model(pixel_learner(2), pixel_learner(3), images_of(2, 20), [*dreams_of(1, each=96), lost[:4]])
    assert (rare.dreams.agreement, rare.reasons) == (1, ["too few dreams of ant"])  # of which nobody knows


def test_labelled_check_images_are_judged_by_what_is_right_not_by_what_was_said_before():
    """The last class was always mistaken and no longer is; a new one is not known at all."""
    before, after = pixel_learner(2, turned=1), pixel_learner(4)
    pixels = torch.cat([showing(0, 100), showing(1, 100), showing(0, 10)])
    check = MemoryImages(pixels, torch.tensor([0] * 100 + [1] * 100 + [3] * 10))
    report = judge_model(before, after, MemoryImages(showing(2, 20), torch.full((20,), 2)), None, check)
    assert report.check.agreement == 0 and report.check.negative_flips == 0
    assert (report.verdict, report.reasons) == ("look closer", ["below 50% on check images: dog"])


@pytest.mark.parametrize("labelled", [True, False])
def test_few_check_images_alone_reject_nothing(labelled):
    lost = showing(0, 2)  # seen as 0 before, as 2 after
    lost.flatten(1)[:, 0], lost.flatten(1)[:, 2] = 200, 255
    check = MemoryImages(lost, torch.zeros(2, dtype=torch.long)) if labelled else lost
    report = judge_model(pixel_learner(2), pixel_learner(3), images_of(2, 20), dreams_of(0, 1), check)
    assert report.verdict == "look closer"
    assert "of 2, wanted" in report.reasons[0]
    good = judge_model(pixel_learner(2), pixel_learner(3), images_of(2, 20), dreams_of(0, 1), showing(0, 2))
    assert good.verdict == "accept"
    alone = judge_model(pixel_learner(2), pixel_learner(3), images_of(2, 20), None, showing(0, 2))
    assert (alone.verdict, alone.reasons) == ("look closer", ["only 2 check images of old classes"])


def test_one_class_alone_is_no_reason_to_accept():
    report = judge_model(None, pixel_learner(1), images_of(0, 20))
    assert report.verdict == "look closer"
    assert "nothing yet to tell it from" in report.reasons[0]


def test_just_enough_is_enough():
    report = judge_model(pixel_learner(2), pixel_learner(3), images_of(2, 10), dreams_of(0, 1, each=5))
    assert (report.verdict, report.reasons) == ("accept", [])
    few = judge_model(pixel_learner(2), pixel_learner(3), images_of(2, 10), dreams_of(0, 1, each=4))
    assert (few.verdict, few.reasons) == ("look closer", ["too few dreams of ant, bee"])
    half = MemoryImages(torch.cat([showing(2, 30), showing(3, 3), showing(0, 3)]), torch.tensor([2] * 30 + [3] * 6))
    report = judge_model(pixel_learner(2), pixel_learner(4), half, dreams_of(0, 1))
    assert (report.verdict, report.reasons) == ("accept", [])


@pytest.mark.parametrize(
    ("count", "dreams", "why"),
    [
        (9, (0, 1), "only 9 held-out new images"),
        (20, (0,), "too few dreams of bee"),
        (20, None, "neither dreams nor check images tell how the old classes fare; give some to `check`"),
    ],
)
def test_too_little_to_judge_by_is_no_acceptance(count, dreams, why):
    report = judge_model(pixel_learner(2), pixel_learner(3), images_of(2, count), dreams and dreams_of(*dreams))
    assert report.verdict == "look closer"
    assert why in report.reasons[0]


@pytest.mark.parametrize(("count", "named"), [(0, True), (4, True), (5, False)])
def test_a_new_class_of_which_too_few_images_are_held_out_is_named_though_all_others_are_right(count, named):
    held_out = MemoryImages(torch.cat([showing(2, 40), showing(3, count)]), torch.tensor([2] * 40 + [3] * count))
    report = judge_model(pixel_learner(2), pixel_learner(4), held_out, dreams_of(0, 1))
    why = ("look closer", ["too few held-out images of dog to judge it"])
    assert (report.verdict, report.reasons) == (why if named else ("accept", []))
    checked = judge_model(pixel_learner(2), pixel_learner(4), held_out, dreams_of(0, 1), images_of(3, 5))
    assert (checked.verdict, checked.reasons) == ("accept", [])  # check images tell as much


def test_what_a_model_is_rejected_for_stands_before_what_could_not_be_judged():
    held_out = MemoryImages(torch.cat([showing(0, 40), showing(3, 4)]), torch.tensor([2] * 40 + [3] * 4))
    report = judge_model(pixel_learner(2), pixel_learner(4), held_out, dreams_of(0, 1))
    assert report.verdict == "reject"
    assert report.reasons[0].startswith("held-out new images named rightly")
    assert report.reasons[-1] == "too few held-out images of dog to judge it"


def test_the_rule_and_the_page_state_every_bound_it_is_applied_with():
    page = (ROOT / "docs" / "model-folder.md").read_text("utf-8")
    verdict = page[page.index("**The verdict.**") :]
    shares = [*NEW_ACCURACY, *AGREEMENT, CLASS_SHARE]
    for share in (*shares, *(1 - share for share in UNFLIPPED)):
        assert f"{share:.0%}" in RULE
        assert f"{100 * share:.0f} %" in verdict
    assert f"fewer than {FEW} held-out" in verdict
    for text in (RULE, verdict):
        assert f"confidence is off by {OFF:g} at most on {FEW_FOR_CONFIDENCE} held-out or check images or more" in text
    assert f"fewer than {FEW_OF_CLASS} dreams" in verdict
    assert f"a new class with fewer than {FEW_OF_CLASS} of" in verdict


def of_class(name, images, share):
    return [{"name": name, "images": images, "share": share}]


def test_the_rule_is_applied_to_figures_from_wherever_they_come():
    """Figures of a page, without a model: the same verdict as judging gives."""
    new = as_record(Accuracy, {"images": 20, "accuracy": 0.6, "by_class": of_class("cat", 20, 0.6)})
    dreams = as_record(
        Comparison, {"images": 40, "agreement": 1.0, "lost_to_new": 0.0, "by_class": of_class("ant", 40, 1.0)}
    )
    verdict, reasons = decide(new, None, dreams, None, None, ["ant", "cat"], old=1)
    assert (verdict, reasons) == ("look closer", ["held-out new images named rightly: 60.0 % of 20, wanted 80%"])
    assert decide(new.replace(accuracy=0.9), None, dreams, None, None, ["ant", "cat"], old=1) == ("accept", [])
    assert decide(new.replace(accuracy=0.4), None, dreams, None, None, ["ant", "cat"], old=1)[0] == "reject"


@pytest.mark.parametrize(
    ("error", "images", "reasons"),
    [
        (0.26, 50, ["confidence is off by 0.26 on held-out new images"]),
        (0.26, 49, []),  # too few to tell
        (0.1, 50, []),
    ],
)
def test_a_confidence_that_is_far_off_is_a_reason_to_look_closer_and_no_more(error, images, reasons):
    new = as_record(Accuracy, {"images": images, "accuracy": 0.9, "by_class": of_class("cat", images, 0.9)})
    found = [
        as_record(Calibration, {"on": HELD_OUT, "before": None, "after": error}),
        as_record(Calibration, {"on": DREAMS, "before": 0.1, "after": 0.5}),
    ]
    dreams = as_record(
        Comparison, {"images": 400, "agreement": 1.0, "lost_to_new": 0.0, "by_class": of_class("ant", 400, 1.0)}
    )
    expected = ("look closer" if reasons else "accept", reasons)
    assert decide(new, None, dreams, None, None, ["ant", "cat"], 1, found) == expected


@pytest.mark.parametrize(
    ("drawn", "flips", "verdict"),
    [
        (None, None, "reject"),
        (0.95, None, "look closer"),
        (0.85, None, "reject"),
        (None, 0.02, "look closer"),
        (0.95, 0.3, "reject"),
        (0.5, 0.02, "look closer"),
    ],
)
def test_dreams_alone_do_not_reject_what_a_better_witness_finds_well(drawn, flips, verdict):
    """Real images, where there are any, and else class statistics."""
    new = as_record(Accuracy, {"images": 20, "accuracy": 1.0, "by_class": of_class("cat", 20, 1.0)})
    plain = {"images": 40, "agreement": 0.5, "lost_to_new": 0.5, "by_class": of_class("ant", 40, 0.1)}
    check = None
    if flips is not None:
        good = {"agreement": 1 - flips, "negative_flips": flips, "by_class": of_class("ant", 40, 1 - flips)}
        check = as_record(Comparison, plain | good)
    statistics = None
    if drawn is not None:
        statistics = as_record(Accuracy, {"images": 40, "accuracy": drawn, "by_class": of_class("ant", 40, drawn)})
    found, reasons = decide(new, None, as_record(Comparison, plain), check, None, ["ant", "cat"], 1, (), statistics)
    assert found == verdict
    assert "as good as gone on dreams: ant" in reasons


# --- the report


def full_report():
    check = noise_images(60, [i % 3 for i in range(60)], seed=3)
    return judge_model(pixel_learner(2), pixel_learner(3, turned=1), images_of(2, 20), dreams_of(0, 1), check)


def test_the_report_survives_json():
    report = full_report()
    assert parse_record(Acceptance, json.dumps(report.as_dict(), allow_nan=False)) == report


def test_the_terminal_gets_a_few_short_lines_with_the_verdict_first():
    lines = full_report().lines()
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


def test_a_report_that_is_printed_shows_what_the_terminal_gets(capsys):
    report = full_report()
    print(report)  # noqa: T201
    assert capsys.readouterr().out.splitlines() == report.lines()


def test_what_was_not_judged_is_not_spoken_of():
    assert str(REPORT).splitlines() == [
        "verdict: look closer (new class below 50%: a|b)",
        "new classes: 50.0 % right of 4 held-out images",
        "calibration error (15 bins): 0.100 on held-out new images",
        "size: 40 bytes",
        "latency: 1.00 ms for one image, 2.0 ms for 32 (cpu)",
    ]


def test_the_card_gets_the_rule_and_every_class():
    text = full_report().markdown()
    assert text.startswith("**Verdict: reject**")
    assert RULE in text
    for name in ("ant", "bee", "cat"):
        assert f"| {name} |" in text


def test_a_report_without_any_class_is_shown_all_the_same():
    """Nothing of ours writes one, and a file may hold it."""
    empty = {**REPORT.as_dict(), "new": {"images": 0, "accuracy": 0.0, "by_class": []}}
    report = as_record(Acceptance, empty)
    assert "new classes: 0.0 % right of 0 held-out images" in str(report)
    assert "0.0 % right of 0 held-out images" in report.markdown()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"verdict": "marvellous"}, "verdict must be one of accept, look closer, reject, not 'marvellous'"),
        ({"calibration_bins": -1}, "calibration_bins must be a whole number of at least 0, not -1"),
        ({"new": {"images": 4, "accuracy": 1.5, "by_class": []}}, "new.accuracy must be a number from 0 to 1, not 1.5"),
        ({"reasons": None}, "reasons must be a list of text, not None"),
        ({"after": {}}, "'after.parameters' is missing"),
    ],
)
def test_figures_that_cannot_be_are_refused_by_name(changes, why):
    with pytest.raises(UserError, match=why):
        as_record(Acceptance, {**REPORT.as_dict(), **changes})

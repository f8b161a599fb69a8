"""Heads: a row a class, added and taken away without a change to the others."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from reverie.errors import UserError
from reverie.nets.fixed_features import make_filters
from reverie.nets.heads import (
    AnsweringHead,
    CosineAnswer,
    FixedLinearAnswer,
    GaussianAnswer,
    LinearAnswer,
    LinearHead,
    PrototypeAnswer,
    SharedGaussianAnswer,
    find_head,
    head_from_state,
)


def grown(*sizes: int, features: int = 64) -> LinearHead:
    head = LinearHead(features)
    for seed, rows in enumerate(sizes):
        head.grow(rows, torch.Generator().manual_seed(seed))
    return head


def test_a_new_head_has_no_rows():
    assert LinearHead(4).rows == 0
    assert LinearHead(4)(torch.randn(3, 4)).shape == (3, 0)


def test_new_rows_are_kaiming_normal_with_uniform_bias():
    head = grown(500)
    assert head.weight.std().item() == pytest.approx((2 / 64) ** 0.5, rel=0.03)
    assert head.bias.abs().max().item() <= 1 / 8
    assert head.bias.std().item() == pytest.approx(1 / 8 / 3**0.5, rel=0.1)


def test_rows_are_added_below_the_others_which_stay():
    before, after = grown(3), grown(3, 2)
    assert after.rows == 5
    assert torch.equal(after.weight[:3], before.weight)
    assert torch.equal(after.bias[:3], before.bias)
    assert after.weight.requires_grad and after.bias.requires_grad


def test_rows_are_kept_in_the_order_that_is_asked_for():
    head = grown(4)
    weight, bias = head.weight.detach().clone(), head.bias.detach().clone()
    head.select(torch.tensor([3, 0]))
    assert torch.equal(head.weight, weight[[3, 0]])
    assert torch.equal(head.bias, bias[[3, 0]])
    assert isinstance(head.weight, torch.nn.Parameter)


def test_logits_are_of_single_precision_where_networks_are_not():
    head, features = grown(3), torch.randn(2, 64)
    with torch.autocast("cpu", torch.bfloat16):
        logits = head(features)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, head(features))


# --- heads that answer


def features(rows: int, size: int = 9, seed: int = 0) -> Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))


def some_heads(classes: int = 4, size: int = 9) -> dict[str, AnsweringHead]:
    means, whitening = features(classes, size, 1), features(classes * size, size, 2).view(classes, size, size)
    volumes = features(classes, 1, 3)[:, 0]
    return {
        "linear": LinearAnswer.of(means, volumes),
        "expanded": LinearAnswer.of(features(classes, 7, 4), expansion=features(size, 7, 5)),
        "cosine": CosineAnswer(directions=means),
        "prototype": PrototypeAnswer(means=means),
        "own": GaussianAnswer(means=means, whitening=whitening, log_volumes=volumes),
        "diagonal": GaussianAnswer(means=means, whitening=whitening[:, 0], log_volumes=volumes),
        "shared": SharedGaussianAnswer(means=means, whitening=whitening[0]),
        "shared diagonal": SharedGaussianAnswer(means=means, whitening=whitening[0, 0]),
        "fixed": FixedLinearAnswer(  # a feature, and eight fixed ones
            weight=means[:, :1],
            bias=volumes,
            evidence=features(classes, 8, 6),
            offset=features(classes, 1, 7)[:, 0],
            filters=make_filters(3)[:1],
            foretold=features(1, 8, 8),
            middle=features(1, 9, 9)[0],
        ),
    }


HEADS = list(some_heads())


@pytest.mark.parametrize("name", HEADS)
def test_scores_are_their_formulas_image_by_image_and_class_by_class(name):
    head, shown = some_heads()[name], features(6, seed=9)
    state = {key: value.double() for key, value in head.state_dict().items()}

    def score(image: Tensor, row: int) -> Tensor:
        if name in ("linear", "expanded"):
            inside = (image @ state["expansion"]).clamp(min=0) if name == "expanded" else image
            return inside @ state["weight"][row] + state["bias"][row]
        if name == "cosine":
            direction = state["directions"][row]
            return image @ direction / image.norm() / direction.norm()
        if name == "fixed":
            own, fixed = image[:1] - state["middle"][:1], image[1:] - state["middle"][1:]
            beyond = fixed - own @ state["foretold"]
            return (
                own @ state["weight"][row] + state["bias"][row] + beyond @ state["evidence"][row] + state["offset"][row]
            )
        left = image - state["means"][row]
        if name == "prototype":
            return -(left**2).sum()
        whitening = state["whitening"] if "shared" in name else state["whitening"][row]
        distance = ((whitening * left if "diagonal" in name else whitening @ left) ** 2).sum() / 2
        return -distance - (0 if "shared" in name else state["log_volumes"][row])

    expected = torch.stack([torch.stack([score(image, row) for row in range(4)]) for image in shown.double()])
    torch.testing.assert_close(head(shown).double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", HEADS)
def test_classes_that_arrive_are_never_answered_and_change_nothing_for_the_others(name):
    head, shown = some_heads()[name], features(6, seed=9)
    before = head(shown)
    head.grow(2)
    after = head(shown)
    assert head.rows == 6
    torch.testing.assert_close(after[:, :4], before)
    assert after.softmax(dim=1)[:, 4:].max() == 0
    head.check(1 if name == "fixed" else 9)


@pytest.mark.parametrize("name", HEADS)
def test_a_head_without_some_classes_answers_as_before_for_the_rest(name):
    head, shown = some_heads()[name], features(6, seed=9)
    before = head(shown)
    head.select(torch.tensor([3, 1]))
    torch.testing.assert_close(head(shown), before[:, [3, 1]])


@pytest.mark.parametrize("name", HEADS)
def test_a_state_says_which_head_it_is_of(name):
    head, shown = some_heads()[name], features(6, seed=9)
    head.calibrate(shown, torch.arange(6) % 4)
    head.grow(1)
    again = head_from_state(head.name, head.state_dict())
    assert type(again) is type(head)
    assert torch.equal(again(shown), head(shown))


@pytest.mark.parametrize("name", HEADS)
@given(factor=st.floats(1e-2, 1e2))
@settings(max_examples=10, deadline=None)
def test_a_temperature_changes_no_answer_and_none_nearby_is_likelier(name, factor):
    head, shown = some_heads()[name], factor * features(60, seed=9)
    with torch.no_grad():
        labels = (head(shown) + features(60, 4, 11) * head(shown).std()).argmax(dim=1)
        answers = head(shown).argmax(dim=1)
        fitted = head.calibrate(shown, labels)
        assert torch.equal(head(shown).argmax(dim=1), answers)
        mistaken = 4 / 3 / 62  # one of two further images
        likely = F.cross_entropy(head(shown), labels, label_smoothing=mistaken)
        for other in (0.9, 1.1):
            head.temperature.fill_(other * fitted)
            assert F.cross_entropy(head(shown), labels, label_smoothing=mistaken) >= likely - 1e-4


def test_images_that_are_all_right_do_not_make_a_head_sure_of_everything():
    """Of 60 and two further ones, one is taken for mistaken."""
    head, shown = PrototypeAnswer(means=10 * torch.eye(2)), 10 * torch.eye(2).repeat(30, 1)
    head.calibrate(shown, torch.arange(60) % 2)
    assert head(shown).softmax(dim=1).amax(dim=1).mean().item() == pytest.approx(61 / 62, abs=1e-3)


def test_a_temperature_is_fitted_among_the_classes_that_are_known():
    head, shown = some_heads()["prototype"], features(40, seed=9)
    labels = head(shown).argmax(dim=1)
    alone = head.calibrate(shown, labels)
    head.grow(3)
    assert head.calibrate(shown, labels) == alone


@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1e9, 1e30])
def test_a_temperature_is_fitted_to_scores_of_any_size(scale):
    shown, labels = features(60, 4, 9), features(60, 4, 9).argmax(dim=1).where(torch.arange(60) > 6, 0)
    usual = LinearAnswer.of(torch.eye(4)).calibrate(shown, labels)
    assert LinearAnswer.of(scale * torch.eye(4)).calibrate(shown, labels) == pytest.approx(scale * usual, rel=0.02)


def test_where_every_temperature_is_as_good_it_is_one():
    assert PrototypeAnswer(means=features(1)).calibrate(features(6), torch.zeros(6, dtype=torch.long)) == 1
    assert CosineAnswer(directions=features(1).expand(3, -1)).calibrate(features(6), torch.arange(6) % 3) == 1


def test_a_temperature_is_not_fitted_to_nothing():
    head = some_heads()["cosine"]
    head.grow(1)
    for shown, labels, said in (
        (features(0), torch.zeros(0).long(), "to 0 images with 0 labels"),
        (features(2), torch.zeros(3).long(), "to 2 images with 3 labels"),
        (features(2), torch.tensor([0, 4]), "classes that the head 'cosine' does not know"),
        (features(2), torch.tensor([0, 7]), "classes that the head 'cosine' does not know"),
        (features(2), torch.tensor([-1, 0]), "classes that the head 'cosine' does not know"),
        (features(2) * torch.nan, torch.tensor([0, 1]), "no longer numbers"),
    ):
        with pytest.raises(ValueError, match=said):
            head.calibrate(shown, labels)


def test_a_class_that_has_only_arrived_is_not_answered_however_unlikely_the_others_are():
    head = PrototypeAnswer(means=features(3))
    head.temperature.fill_(1e-12)
    head.grow(1)
    logits = head(1e6 * features(5))
    assert logits[:, :3].max() < -1e9
    assert bool(logits.isfinite().all()) and bool((logits.argmax(dim=1) < 3).all())
    assert logits.softmax(dim=1)[:, 3].max() == 0


@pytest.mark.parametrize("name", ["prototype", "shared", "shared diagonal"])
def test_what_all_features_have_in_common_drowns_no_difference(name):
    head, shown = some_heads()[name], features(20, seed=9)
    answers = head(shown)
    head.means += 3000
    torch.testing.assert_close(head(shown + 3000), answers, rtol=0.02, atol=0.02)


def test_heads_of_strange_parts_are_refused():
    with pytest.raises(ValueError, match="'prototype' is made of means, with a row for each class"):
        PrototypeAnswer(mean=features(2))
    with pytest.raises(ValueError, match="'gaussian' is made of means, whitening, log_volumes"):
        GaussianAnswer(means=features(2), whitening=features(3), log_volumes=features(2)[:, 0])
    state = some_heads()["cosine"].state_dict()
    with pytest.raises(ValueError, match="'cosine' does not consist of"):
        head_from_state("cosine", {**state, "images": features(2)})
    for change, said in (
        ({"known": state["known"][:2]}, r"4 rows, and `known` is of the shape \(2,\)"),
        ({"known": state["known"][0]}, r"`known` is of the shape \(\)"),
        ({"known": state["known"] & False}, "does not say which classes it knows"),
        ({"known": state["known"].float()}, "does not say which classes it knows"),
        *(({"temperature": torch.tensor(value)}, "not a number above zero") for value in (0.0, -1.0, torch.nan, [1.0])),
        ({"directions": state["directions"] * torch.nan}, "directions of the head 'cosine' are no longer numbers"),
    ):
        with pytest.raises(ValueError, match=said):
            head_from_state("cosine", {**state, **change})
    with pytest.raises(ValueError, match=r"parts of the head 'cosine' are not for 7 features"):
        some_heads()["cosine"].check(7)
    with pytest.raises(ValueError, match=r"'linear-fixed' are not for 1 features and 4 channels"):
        some_heads()["fixed"].check(1, channels=4)
    with pytest.raises(UserError, match=r"There is no head 'cosin' here; there are .* Did you mean 'cosine'\?"):
        find_head("cosin")

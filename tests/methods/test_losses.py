"""Each loss against its formula written out by hand (tests/by_hand.py), values and gradients, in double precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from reverie.methods import losses
from tests.support import by_hand

pytestmark = pytest.mark.usefixtures("float64")


def same(ours: Callable[[], Tensor], theirs: Callable[[], Tensor], *inputs: Tensor) -> None:
    """Equal values, and equal gradients with respect to every input."""
    a, b = ours(), theirs()
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)
    for x, y in zip(
        torch.autograd.grad(a, inputs, allow_unused=True, materialize_grads=True),
        torch.autograd.grad(b, inputs, allow_unused=True, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-9)


def random(*shape: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale
    return values.requires_grad_()


def test_cross_entropy_is_the_mean_over_rows_weighted_or_not():
    logits, labels = random(7, 5), torch.tensor([0, 4, 2, 2, 1, 3, 0])
    weights = [0.5, 2.0, 1.0, 0.0, 3.0, 0.25, 1.5]
    same(lambda: losses.cross_entropy(logits, labels), lambda: by_hand.cross_entropy(logits, labels), logits)
    same(
        lambda: losses.cross_entropy(logits, labels, torch.tensor(weights)),
        lambda: by_hand.cross_entropy(logits, labels, weights),
        logits,
    )


@pytest.mark.parametrize("first", [0, 2, 4])
def test_local_cross_entropy_knows_the_new_classes_only(first: int):
    logits, labels = (
        random(6, 5),
        torch.tensor([4, 4, 4, 4, 4, 4]) if first == 4 else torch.tensor([first, 4, 3, 4, first, 3]),
    )
    same(
        lambda: losses.local_cross_entropy(logits, labels, first),
        lambda: by_hand.cross_entropy(logits[:, first:], labels - first),
        logits,
    )
    losses.local_cross_entropy(logits, labels, first).backward()
    assert logits.grad is not None
    assert torch.all(logits.grad[:, :first] == 0)


def test_local_cross_entropy_of_one_new_class_is_zero_and_moves_nothing():
    logits = random(4, 3)
    loss = losses.local_cross_entropy(logits, torch.full((4,), 2), 2)
    loss.backward()
    assert loss.item() == 0
    assert torch.all(logits.grad == 0)


@pytest.mark.parametrize(("old", "total"), [(2, 6), (1, 2), (5, 6), (90, 100)])
def test_task_weights_are_the_share_of_each_side(old: int, total: int):
    labels = torch.arange(total)
    expected = torch.tensor(by_hand.abd_weights(labels, old, total))
    torch.testing.assert_close(losses.task_weights(labels, old, total), expected, rtol=1e-6, atol=0, check_dtype=False)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("classes", [1, 4])
def test_distillation_is_a_cross_entropy_inside_the_classes_without_a_factor(classes: int, temperature: float):
    student, teacher = random(5, classes), random(5, classes, seed=1).detach()
    same(
        lambda: losses.distillation(student, teacher, temperature),
        lambda: by_hand.distillation(student, teacher, classes, temperature),
        student,
    )


@pytest.mark.parametrize("sizes", [[4], [1, 3, 2], [2, 2], [1, 1]])
def test_distillation_by_task_is_inside_each_task_weighted_by_its_size(sizes: list[int]):
    student, teacher = random(5, sum(sizes)), random(5, sum(sizes), seed=1)
    same(
        lambda: losses.distillation_by_task(student, teacher, sizes, 2.0),
        lambda: by_hand.distillation_by_task(student, teacher, sizes, 2.0),
        student,
        teacher,
    )


@pytest.mark.parametrize(("old", "total"), [(1, 2), (3, 5), (4, 4)])
def test_padded_distillation_gives_new_classes_no_probability(old: int, total: int):
    student, teacher = random(5, total), random(5, old, seed=1).detach()
    same(
        lambda: losses.padded_distillation(student, teacher, 2.0),
        lambda: by_hand.padded_distillation(student, teacher, 2.0),
        student,
    )


@pytest.mark.parametrize("classes", [1, 3])
def test_weighted_feature_distillation_is_the_old_heads_view_and_its_bias_cancels(classes: int):
    student, teacher = random(4, 6), random(4, 6, seed=1).detach()
    head, bias = random(classes, 6, seed=2).detach(), random(classes, seed=3).detach()
    same(
        lambda: losses.weighted_feature_distillation(student, teacher, head),
        lambda: by_hand.weighted_features(student, teacher, head, bias),
        student,
    )


@pytest.mark.parametrize("temperature", [1.0, 1000.0])
def test_content_is_cross_entropy_with_the_first_choice(temperature: float):
    logits = random(6, 4)
    same(lambda: losses.content(logits, temperature), lambda: by_hand.content(logits, temperature), logits)


@pytest.mark.parametrize("classes", [1, 2, 7])
def test_diversity_is_one_less_the_normalised_entropy(classes: int):
    logits = random(9, classes)
    same(lambda: losses.diversity(logits), lambda: by_hand.diversity(logits), logits)


def test_diversity_is_between_zero_for_all_classes_and_one_for_a_single_one():
    sure = 100 * torch.eye(6)
    assert losses.diversity(sure).item() == pytest.approx(0, abs=1e-9)
    assert losses.diversity(sure[:1].repeat(6, 1)).item() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_diversity_stays_finite_where_a_class_has_no_probability_at_all(dtype: torch.dtype):
    logits = torch.tensor([[0.0, -1e4, 5.0]] * 4, dtype=dtype, requires_grad=True)
    loss = losses.diversity(logits)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()


def test_statistics_is_the_divergence_between_normal_distributions_mean_over_channels_and_layers():
    inputs = [random(3, 2, 2, 3), random(5, 4, seed=1)]
    means, variances = (
        [random(2, seed=2).detach(), random(4, seed=3).detach()],
        [torch.tensor([0.5, 2.0]), torch.rand(4) + 0.1],
    )

    def ours() -> Tensor:
        layers = [(*losses.batch_statistics(x), m, v) for x, m, v in zip(inputs, means, variances, strict=True)]
        return losses.statistics(layers)

    same(ours, lambda: by_hand.statistics(inputs, means, variances), *inputs)


def test_statistics_vanish_when_the_batch_is_as_remembered():
    x = random(8, 3, 4, 4).detach()
    mean, variance = losses.batch_statistics(x)
    assert losses.statistics([(mean, variance, mean, variance)]).item() == pytest.approx(0, abs=1e-12)


def test_the_blurs_taps_are_those_of_the_published_code():
    expected = torch.tensor([0.1117, 0.2365, 0.3036, 0.2365, 0.1117])
    torch.testing.assert_close(losses.blur_matrix(9)[4, 2:7], expected, rtol=0, atol=5e-5, check_dtype=False)


def test_smoothness_is_the_squared_distance_to_the_blurred_image():
    images = random(2, 2, 6, 6)

    def theirs() -> Tensor:
        differences = [(image - by_hand.blurred(image)) ** 2 for picture in images for image in picture]
        return torch.stack(differences).sum() / images.numel()

    same(lambda: losses.smoothness(images, losses.blur_matrix(6)), theirs, images)


def test_half_precision_inputs_are_summed_in_single_precision():
    half = torch.randn(4, 3, dtype=torch.bfloat16)
    assert losses.cross_entropy(half, torch.zeros(4, dtype=torch.long)).dtype == torch.float32
    assert losses.distillation(half, half).dtype == torch.float32
    assert losses.diversity(half).dtype == torch.float32
    assert losses.batch_statistics(half)[1].dtype == torch.float32


@pytest.mark.parametrize("old", [0, 1, 3])
def test_binary_cross_entropy_asks_the_teacher_about_old_classes_and_the_label_about_new_ones(old: int):
    logits, labels = random(5, 5), torch.tensor([3, 4, 4, 3, 4])
    taught = random(5, old, seed=1).detach() if old else None
    same(
        lambda: losses.binary_cross_entropy(logits, labels, taught),
        lambda: by_hand.binary_cross_entropy(logits, labels, taught),
        logits,
    )


def test_binary_cross_entropy_of_sure_answers_is_finite():
    logits = torch.tensor([[1e4, -1e4]], requires_grad=True)
    loss = losses.binary_cross_entropy(logits, torch.tensor([1]), torch.tensor([[-1e4]]))
    assert loss.item() == 2e4
    assert torch.autograd.grad(loss, logits)[0].tolist() == [[1.0, -1.0]]


def test_balanced_cross_entropy_is_divided_by_the_sum_of_the_weights():
    logits, labels, weights = random(6, 4), torch.tensor([0, 3, 1, 1, 2, 0]), [1.0, 2.5, 4.0, 1.5]
    same(
        lambda: losses.balanced_cross_entropy(logits, labels, torch.tensor(weights)),
        lambda: by_hand.balanced_cross_entropy(logits, labels, weights),
        logits,
    )


def test_logit_distillation_is_the_mean_absolute_difference():
    student, teacher = random(4, 3), random(4, 3, seed=1)
    same(
        lambda: losses.logit_distillation(student, teacher),
        lambda: by_hand.absolute_difference(student, teacher),
        student,
        teacher,
    )


@pytest.mark.parametrize("rows", [2, 3, 6])
def test_relation_distillation_compares_the_angles_of_all_triplets(rows: int):
    student, teacher = random(rows, 4), random(rows, 3, seed=1)
    same(
        lambda: losses.relation_distillation(student, teacher),
        lambda: by_hand.relations(student, teacher),
        student,
        teacher,
    )


def test_relation_distillation_does_not_care_about_size_place_and_turns():
    points = random(5, 3).detach()
    turn, _ = torch.linalg.qr(random(3, 3, seed=2).detach())
    assert losses.relation_distillation(7 * points @ turn + 3, points).item() < 1e-12


def test_relation_distillation_stands_rows_that_are_equal():
    """No direction leads from a point to itself: value and gradients are those of the loop, which leaves them out."""
    base, teacher = random(3, 4), random(5, 4, seed=1)
    twice = torch.tensor([0, 1, 2, 0, 1])
    same(
        lambda: losses.relation_distillation(base[twice], teacher),
        lambda: by_hand.relations(base[twice], teacher),
        base,
        teacher,
    )
    single = base.detach().float().requires_grad_()
    losses.relation_distillation(single[twice], teacher.float()).backward()
    assert single.grad is not None and single.grad.abs().max() < 1


def test_reconstruction_is_the_pixels_cross_entropy_weighted_by_image():
    logits, images, weights = random(3, 1, 2, 3), torch.rand(3, 1, 2, 3), [0.5, 1.0, 2.0]
    same(
        lambda: losses.reconstruction(logits, images, torch.tensor(weights)),
        lambda: by_hand.reconstruction(logits, images, weights),
        logits,
    )


def test_code_divergence_is_the_distance_from_standard_noise():
    mean, log_variance = random(4, 3), random(4, 3, seed=1, scale=1.0)
    same(
        lambda: losses.code_divergence(mean, log_variance),
        lambda: by_hand.code_divergence(mean, log_variance),
        mean,
        log_variance,
    )
    assert losses.code_divergence(torch.zeros(2, 3), torch.zeros(2, 3)).item() == 0


def test_half_precision_is_widened_before_sums_of_the_new_losses():
    half = random(3, 4, seed=4).detach().bfloat16()
    made = (
        losses.binary_cross_entropy(half, torch.tensor([0, 1, 2])),
        losses.logit_distillation(half, half + 1),
        losses.relation_distillation(half, half.flip(0)),
        losses.code_divergence(half, half),
        losses.reconstruction(half, half.sigmoid(), torch.ones(3)),
    )
    assert all(loss.dtype in (torch.float32, torch.float64) for loss in made)


@pytest.mark.parametrize("loss", ["smoothness", "relation", "features"])
def test_inside_mixed_precision_they_are_computed_in_single(loss):
    a, b, head = (random(6, 8, seed=seed).float() for seed in range(3))
    images = random(2, 3, 8, 8).float()
    computed = {
        "smoothness": lambda: losses.smoothness(images, losses.blur_matrix(8).float()),
        "relation": lambda: losses.relation_distillation(a, b),
        "features": lambda: losses.weighted_feature_distillation(a, b, head),
    }[loss]
    with torch.autocast("cpu", torch.bfloat16):
        inside = computed()
    torch.testing.assert_close(inside, computed(), rtol=0, atol=0)


# --- smoothed labels


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_smoothed_labels_are_torchs_and_only_those_of_real_rows(smoothing):
    rng = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(6, 4, generator=rng), torch.tensor([0, 1, 2, 3, 1, 0])
    torch.testing.assert_close(
        losses.cross_entropy(logits, labels, smoothing=smoothing),
        F.cross_entropy(logits, labels, label_smoothing=smoothing),
    )
    real = F.cross_entropy(logits[:4], labels[:4], reduction="sum", label_smoothing=smoothing)
    dreamed = F.cross_entropy(logits[4:], labels[4:], reduction="sum")
    mixed = losses.cross_entropy(logits, labels, smoothing=smoothing, real=4)
    torch.testing.assert_close(mixed, (real + dreamed) / 6)
    local = losses.local_cross_entropy(logits, labels.clamp_min(2), 2, smoothing=smoothing)
    torch.testing.assert_close(
        local, F.cross_entropy(logits[:, 2:], labels.clamp_min(2) - 2, label_smoothing=smoothing)
    )
    weights = torch.tensor([1.0, 2.0, 0.5, 3.0])
    torch.testing.assert_close(
        losses.balanced_cross_entropy(logits, labels, weights, smoothing),
        F.cross_entropy(logits, labels, weights, label_smoothing=smoothing),
    )


def test_yes_or_no_of_smoothed_labels_keeps_what_a_teacher_says():
    logits, taught = torch.zeros(2, 4), torch.tensor([[3.0], [-1.0]])
    targets = torch.tensor([[0.0, 0.05, 0.85, 0.05], [0.0, 0.05, 0.05, 0.85]])
    targets[:, 0] = taught[:, 0].sigmoid()
    found = losses.binary_cross_entropy(logits + 1, torch.tensor([2, 3]), taught, 0.2)
    torch.testing.assert_close(found, F.binary_cross_entropy_with_logits(logits + 1, targets, reduction="sum") / 2)

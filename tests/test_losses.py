"""Each loss against its formula written out by hand (tests/by_hand.py), values and gradients, in double precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from reverie import losses
from tests import by_hand

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
    torch.testing.assert_close(losses.blur_taps(), expected, rtol=0, atol=5e-5, check_dtype=False)


def test_smoothness_is_the_squared_distance_to_the_blurred_image():
    images = random(2, 2, 5, 6)
    taps = losses.blur_taps()

    def theirs() -> Tensor:
        differences = [(image - by_hand.blurred(image)) ** 2 for picture in images for image in picture]
        return torch.stack(differences).sum() / images.numel()

    same(lambda: losses.smoothness(images, taps), theirs, images)


def test_half_precision_inputs_are_summed_in_single_precision():
    half = torch.randn(4, 3, dtype=torch.bfloat16)
    assert losses.cross_entropy(half, torch.zeros(4, dtype=torch.long)).dtype == torch.float32
    assert losses.distillation(half, half).dtype == torch.float32
    assert losses.diversity(half).dtype == torch.float32
    assert losses.batch_statistics(half)[1].dtype == torch.float32

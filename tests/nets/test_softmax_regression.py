"""Softmax regression, beside scikit-learn's and by its own law."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional as F

from reverie.nets.softmax_regression import softmax_regression


def overlapping(classes: int = 4, each: int = 60, size: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(each)
    scale = torch.tensor([0.01, 1.0, 100.0, 1.0, 3.0, 1.0])
    return (
        torch.randn(classes, size, generator=rng)[labels] + torch.randn(len(labels), size, generator=rng)
    ) * scale + 5, labels


def test_it_is_scikit_learns_on_standardised_features():
    features, labels = overlapping()
    weight, bias = softmax_regression(features, labels, 4, decay=0.01)
    standard = (features - features.mean(dim=0)) / features.std(dim=0, correction=0)
    theirs = LogisticRegression(C=1 / (0.01 * len(labels)), tol=1e-8, max_iter=10_000).fit(
        standard.numpy(), labels.numpy()
    )
    ours = F.softmax(features @ weight.T + bias, dim=1)
    torch.testing.assert_close(
        ours, torch.from_numpy(theirs.predict_proba(standard.numpy())).float(), rtol=0, atol=2e-3
    )


def test_at_the_end_no_direction_is_downhill():
    features, labels = overlapping()
    weight, bias = softmax_regression(features, labels, 4, decay=0.0)
    weight, bias = weight.double().requires_grad_(), bias.double().requires_grad_()
    F.cross_entropy(features.double() @ weight.T + bias, labels).backward()
    assert weight.grad.abs().max() < 1e-3
    assert bias.grad.abs().max() < 1e-3


@pytest.mark.parametrize("classes", [1, 2])
def test_classes_that_are_told_apart_for_sure_and_a_class_alone(classes):
    features = torch.eye(classes).repeat_interleave(5, dim=0)
    weight, bias = softmax_regression(features, torch.arange(classes).repeat_interleave(5), classes)
    assert bool(weight.isfinite().all()) and bool(bias.isfinite().all())
    assert torch.equal((features @ weight.T + bias).argmax(dim=1), torch.arange(classes).repeat_interleave(5))


def test_features_that_never_change_make_no_trouble():
    weight, bias = softmax_regression(torch.ones(6, 3), torch.arange(6) % 2, 2)
    assert bool(weight.isfinite().all()) and bool(bias.isfinite().all())

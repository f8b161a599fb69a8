"""The head: a row a class, added and taken away without a change to the others."""

import pytest
import torch

from reverie.nets.heads import LinearHead


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

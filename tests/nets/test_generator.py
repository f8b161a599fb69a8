"""Generators: parameter counts as published, any size, normalised output."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from reverie.nets import count_parameters
from reverie.nets.generator import Generator, upsamplings


@pytest.mark.parametrize(("size", "parameters"), [(32, 8_423_939), (64, 8_571_779), (224, 3_326_275)])
def test_parameter_counts_are_the_published_ones(size, parameters):
    assert count_parameters(Generator(size)) == parameters


@pytest.mark.parametrize(("size", "side", "doublings"), [(32, 8, 2), (64, 8, 3), (224, 7, 5), (8, 2, 2), (28, 7, 2)])
def test_the_first_map_follows_the_rule(size, side, doublings):
    assert upsamplings(size) == doublings
    assert Generator(size, noise=4, width=4).first_side == side


@settings(max_examples=25, deadline=None)
@given(size=st.integers(4, 130), channels=st.sampled_from([1, 3]), width=st.sampled_from([2, 32]))
def test_any_size_comes_out_with_zero_mean_and_unit_variance(size, channels, width):
    generator, painted = Generator(size, channels, noise=5, width=width), []
    generator.leave.register_forward_pre_hook(lambda _, inputs: painted.append(inputs[0]))
    images = generator(torch.randn(4, 5))
    assert images.shape == (4, channels, size, size)
    assert images.mean(dim=(0, 2, 3)).abs().max() < 1e-3
    before, after = (x.var(dim=(0, 2, 3), correction=0) for x in (painted[0], images))
    torch.testing.assert_close(
        after, before / (before + 1e-5), rtol=1e-3, atol=1e-4
    )  # one, but for BatchNorm's epsilon


def test_inner_batchnorms_have_the_fields_odd_epsilon_and_the_others_the_usual():
    layers = [m for m in Generator(32).modules() if isinstance(m, nn.BatchNorm2d)]
    assert [layer.eps for layer in layers] == [1e-5, 0.8, 0.8, 1e-5]
    assert [layer.affine for layer in layers] == [True, True, True, False]

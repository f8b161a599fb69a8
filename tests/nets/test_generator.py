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
    images = Generator(size, channels, noise=5, width=width)(torch.randn(4, 5))
    assert images.shape == (4, channels, size, size)
    assert images.mean(dim=(0, 2, 3)).abs().max() < 1e-3
    variance = images.var(dim=(0, 2, 3), correction=0)
    assert variance.max() < 1.001
    assert variance.min() > (0.9 if width == 32 else 0)  # a narrow, untrained one gives almost nothing to normalise


def test_inner_batchnorms_have_the_fields_odd_epsilon_and_the_others_the_usual():
    layers = [m for m in Generator(32).modules() if isinstance(m, nn.BatchNorm2d)]
    assert [layer.eps for layer in layers] == [1e-5, 0.8, 0.8, 1e-5]
    assert [layer.affine for layer in layers] == [True, True, True, False]

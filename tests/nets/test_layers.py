"""Layers that compute what torch's own compute."""

import torch
from torch import nn
from torch.nn import functional as F

from reverie.nets.layers import AlignedConv2d, Double


def test_doubling_is_nearest_neighbour_upsampling():
    maps, pull = torch.randn(2, 3, 4, 5, requires_grad=True), torch.randn(2, 3, 8, 10)
    ours, theirs = Double()(maps), nn.Upsample(scale_factor=2)(maps)
    assert torch.equal(ours, theirs)
    gradients = [torch.autograd.grad(made, maps, pull)[0] for made in (ours, theirs)]
    torch.testing.assert_close(*gradients)


class OnGpu(torch.Tensor):
    """Says that it lies on a GPU, so that the CPU takes the GPU's path."""

    is_cuda = True


def test_channels_of_zeros_change_nothing():
    for before, behind, bias in ((3, 16, False), (64, 3, True), (8, 8, True)):
        made = AlignedConv2d(before, behind, 3, padding=1, bias=bias)
        images = torch.randn(2, before, 6, 6)
        expected = F.conv2d(images, made.weight, made.bias, padding=1)
        torch.testing.assert_close(made(images), expected)
        torch.testing.assert_close(made(images.as_subclass(OnGpu)).as_subclass(torch.Tensor), expected)

"""Backbones: sizes as published, shortcuts without parameters."""

import pytest
import torch
from torch import nn

from reverie.data.preprocessing import Preprocessing
from reverie.errors import UserError
from reverie.nets import OWN_BACKBONES, count_parameters, make_backbone
from reverie.nets.classifier import Classifier
from reverie.nets.resnet import BasicBlock
from reverie.nets.statistics import batchnorm_layers


def classifier(name: str, classes: int, channels: int = 3) -> Classifier:
    made = Classifier(make_backbone(name, channels), Preprocessing(32, (0.0,) * channels, (1.0,) * channels))
    made.grow([str(i) for i in range(classes)])
    return made


def test_resnet32_has_the_published_number_of_parameters():
    assert count_parameters(classifier("resnet32", 100)) == 470_004
    assert count_parameters(classifier("resnet32", 200)) == 476_504


def test_resnet32_has_31_convolutions_and_31_batchnorms():
    net = make_backbone("resnet32", 3)
    assert sum(isinstance(m, nn.Conv2d) for m in net.modules()) == 31
    assert len(batchnorm_layers(net)) == 31


def test_resnet18_is_torchvisions():
    from torchvision.models import resnet18

    assert count_parameters(classifier("resnet18", 1000)) == count_parameters(resnet18(weights=None, num_classes=1000))
    assert make_backbone("resnet18", 3).feature_dim == 512


@pytest.mark.parametrize("name", list(OWN_BACKBONES))
@pytest.mark.parametrize("channels", [1, 3])
def test_every_backbone_gives_its_features_for_any_channels(name, channels):
    net = make_backbone(name, channels).eval()
    for layer in batchnorm_layers(net):
        nn.init.ones_(layer.weight)  # as it is, but for signed blocks, which begin as their shortcuts
    features = net(torch.randn(2, channels, 64, 64))
    assert features.shape == (2, net.feature_dim)
    assert (features.min() < 0) == name.endswith("-signed")  # after ReLU and mean, or without ReLU


def test_the_shortcut_takes_every_second_pixel_and_pads_channels_on_both_sides():
    block = BasicBlock(4, 8, stride=2).eval()
    nn.init.zeros_(block.conv2.weight)  # nothing but the shortcut is left
    x = torch.rand(1, 4, 6, 6)
    out = block(x)
    assert torch.equal(out[:, 2:6], x[:, :, ::2, ::2])
    assert torch.all(out[:, :2] == 0)
    assert torch.all(out[:, 6:] == 0)


def test_signed_resnet32_has_as_many_parameters_as_its_description_says():
    """3 x 3 convolutions without bias, two numbers a channel for each BatchNorm, five blocks a stage."""
    widths, expected, before = (16, 32, 64), 3 * 16 * 9 + 2 * 16, 16
    for width in widths:
        for _ in range(5):
            expected += 9 * before * width + 9 * width * width + 4 * width
            before = width
    assert count_parameters(make_backbone("resnet32-signed", 3)) == expected == 463_504


def test_a_signed_block_starts_as_its_shortcut_with_all_zero_channels_at_the_end():
    net = make_backbone("resnet32-signed", 3).eval()
    block, x = net.blocks[5], torch.randn(1, 16, 6, 6)
    out = block(x)
    assert torch.equal(out[:, :16], x[:, :, ::2, ::2])  # negative numbers, too
    assert torch.all(out[:, 16:] == 0)
    assert all(torch.all(each.bn2.weight == 0) for each in net.blocks)


def test_signed_convolutions_start_kaiming_normal_by_what_goes_out():
    weight = make_backbone("resnet32-signed", 3).blocks[10].conv1.weight  # 32 channels in, 64 out
    assert weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.05)


def test_convolutions_start_kaiming_normal():
    weight = make_backbone("resnet32", 3).blocks[-1].conv2.weight
    assert weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.05)


def test_an_unknown_net_is_an_error_with_a_hint():
    with pytest.raises(UserError, match="Did you mean 'resnet32'"):
        make_backbone("resnet-32", 3)

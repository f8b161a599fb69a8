"""Networks of torchvision and timm: by name, for any channels, and the same again from what was written down."""

import sys

import pytest
import torch
from torch import nn

from reverie import seeding
from reverie.errors import UserError
from reverie.nets import count_parameters, make_backbone, warn_of_stem
from reverie.nets.backbone import Architecture
from reverie.nets.external import find_network, usual_preprocessing

SMALL = ["torchvision/resnet18", "torchvision/mobilenet_v3_small", "timm/test_resnet", "timm/test_vit"]


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("name", SMALL)
def test_a_fresh_backbone_takes_any_channels_and_is_built_again_from_its_architecture(name, channels):
    made = make_backbone(name, channels, 32).eval()
    images = torch.randn(2, channels, 32, 32)
    assert made(images).shape == (2, made.feature_dim)
    again = make_backbone(Architecture.from_dict(made.architecture.as_dict()), channels).eval()
    assert again.architecture == made.architecture
    again.load_state_dict(made.state_dict())
    assert torch.equal(again(images), made(images))


def test_it_is_the_librarys_own_network():
    from torchvision.models import resnet18

    with seeding.initialising(3):
        theirs = resnet18()
    with seeding.initialising(3):
        ours = make_backbone("torchvision/resnet18", 3)
    theirs.fc = nn.Identity()
    assert ours.architecture.options == {"head": "fc"}
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.body.state_dict()[name], value)


def test_a_network_with_learned_positions_is_built_for_the_size_of_the_images():
    assert make_backbone("timm/test_vit", 3, 48).architecture.options["size"] == 48
    assert make_backbone("torchvision/vit_b_32", 3, 32).architecture.options["size"] == 32
    assert "size" not in make_backbone("timm/test_convnext", 3, 48).architecture.options
    with pytest.raises(UserError, match="cannot be built for images of 3 channels and 8 pixels"):
        make_backbone("torchvision/vit_b_32", 3, 8)


def test_images_that_are_too_small_are_refused_before_anything_is_trained():
    with pytest.raises(UserError, match="ConvNeXt does not take images of 3 channels and 16 pixels"):
        make_backbone("timm/test_convnext", 3, 16)


def test_further_heads_are_switched_off():
    made = make_backbone("torchvision/googlenet", 3)
    assert made.train()(torch.randn(2, 3, 64, 64)).shape == (2, 1024)
    assert not [name for name in made.state_dict() if "aux" in name]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torchvision/resnet-18", "Did you mean 'resnet18'"),
        ("torchvision/fasterrcnn_resnet50_fpn", "no network 'fasterrcnn_resnet50_fpn' that classifies"),
        ("timm/resnet10tt", "Did you mean 'resnet10t'"),
        ("timm/hf-hub:somebody/something", "timm has no network"),
        ("torchvision/squeezenet1_0", "does not end in one linear layer"),
        ("timm/deit_tiny_distilled_patch16_224", "does not end in one linear layer"),
    ],
)
def test_a_name_that_will_not_do_is_an_error_that_says_why(name, message):
    with pytest.raises(UserError, match=message):
        make_backbone(name, 3, 32)


def test_a_bare_name_is_torchvisions_or_else_timms():
    assert str(find_network("resnet18")) == "torchvision/resnet18"
    assert str(find_network("resnet10t")) == "timm/resnet10t"
    assert str(find_network("timm/resnet18")) == "timm/resnet18"
    with pytest.raises(UserError, match=r"nor has torchvision\. Did you mean 'resnet18'"):
        find_network("resnet1888")


def test_without_timm_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r"pip install 'reverie\[timm\]'"):
        make_backbone("timm/resnet10t", 3)


def test_usual_sizes_and_normalisations_are_those_of_the_librarys_weights():
    assert usual_preprocessing(Architecture("torchvision", "efficientnet_b1"))[0] == 240
    imagenet = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert usual_preprocessing(Architecture("torchvision", "resnet18")) == (224, *imagenet)
    assert usual_preprocessing(Architecture("torchvision", "inception_v3")) == (299, (0.5,) * 3, (0.5,) * 3)
    assert usual_preprocessing(Architecture("timm", "resnet10t")) == (176, *imagenet)
    assert usual_preprocessing(Architecture("timm", "test_resnet")) == (160, (0.5,) * 3, (0.5,) * 3)


def test_resnet18_for_small_images_keeps_all_pixels_to_its_second_stage():
    backbone = make_backbone("resnet18-cifar", 3, 32)
    assert backbone.architecture == Architecture("reverie", "resnet18-cifar")
    maps = {}
    for name in ("layer1", "layer4"):
        backbone.body.get_submodule(name).register_forward_hook(
            lambda layer, images, out, name=name: maps.update({name: tuple(out.shape[1:])})
        )
    assert backbone(torch.zeros(2, 3, 32, 32)).shape == (2, 512)
    assert maps == {"layer1": (64, 32, 32), "layer4": (512, 4, 4)}
    assert count_parameters(backbone) == 11_168_832
    assert make_backbone("resnet18-cifar", 1)(torch.zeros(2, 1, 8, 8)).shape == (2, 512)


def test_a_network_made_for_large_images_is_warned_of_where_images_are_small(caplog):
    warn_of_stem.cache_clear()
    for name in ("resnet18", "torchvision/resnet18"):
        make_backbone(name, 3, 32)
        assert f"{name} begins with ImageNet's stem" in caplog.text
        assert "net.name=resnet18-cifar" in caplog.text
        caplog.clear()
    for name, size in (("resnet18", 64), ("resnet18", None), ("resnet18-cifar", 32), ("resnet32", 32)):
        make_backbone(name, 3, size)
    make_backbone("resnet18", 3, 32)  # has been said
    assert not caplog.text

"""Networks without BatchNorm: what their layers note of the images, and that dreams are fitted to it."""

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.convnext import LayerNorm2d

from reverie.data.preprocessing import Preprocessing
from reverie.nets import make_backbone
from reverie.nets.backbone import Backbone
from reverie.nets.classifier import Classifier
from reverie.nets.statistics import batchnorm_layers, noting, noting_layers, remembered, remembering_layers

SHAPE = Preprocessing(8, (0.0,), (1.0,))


class Mixed(Backbone):
    """Maps, maps with channels last, and tokens, each with its own normalising layer; and one that is never used."""

    feature_dim = 6

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)
        self.group, self.maps = nn.GroupNorm(2, 6), LayerNorm2d(6)
        self.last, self.tokens, self.unused = nn.LayerNorm(6), nn.LayerNorm(6), nn.LayerNorm(6)

    def steps(self, images: Tensor) -> dict[str, Tensor]:
        """What comes into each layer, channels last."""
        x = self.conv(images)
        came = {"group": x.movedim(1, -1)}
        came["maps"] = (x := self.group(x).relu()).movedim(1, -1)
        came["last"] = x = self.maps(x).relu().permute(0, 2, 3, 1)
        came["tokens"] = x = (3 * self.last(x) + 1).flatten(1, 2)
        came["features"] = self.tokens(x).mean(1)
        return came

    def forward(self, images: Tensor) -> Tensor:
        return self.steps(images)["features"]


def make() -> Classifier:
    made = Classifier(Mixed(), SHAPE).eval()
    made.grow(["a", "b"])
    return made


@torch.no_grad()
def show(classifier: Classifier, images: Tensor, batch: int) -> None:
    with noting(classifier):
        for part in images.split(batch):
            classifier(part)


@pytest.mark.parametrize("layer", ["group", "maps", "last", "tokens"])
def test_means_and_variances_by_channel_are_those_of_all_images_so_far(layer):
    classifier, first, second = make(), torch.randn(30, 1, 8, 8), 2 * torch.randn(10, 1, 8, 8) + 1
    show(classifier, first, 7)
    show(classifier, second, 10)
    with torch.no_grad():
        values = classifier.backbone.steps(torch.cat([first, second]))[layer].flatten(0, -2)
    mean, variance = remembered(getattr(classifier.backbone, layer))
    torch.testing.assert_close(mean, values.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(variance, values.var(0, correction=0), rtol=1e-4, atol=1e-5)


def test_what_was_noted_travels_with_the_state_and_no_hook_stays_behind():
    classifier, again = make(), make()
    assert remembering_layers(classifier) == []
    show(classifier, torch.randn(9, 1, 8, 8), 4)
    again.load_state_dict(classifier.state_dict())
    assert len(remembering_layers(again)) == 4  # not the unused one
    assert len(noting_layers(again)) == 5
    assert not any(layer._forward_pre_hooks for layer in classifier.modules())


def test_a_network_with_batchnorm_is_left_as_it_is():
    net = make_backbone("resnet8", 1)
    before = list(net.state_dict())
    made = Classifier(net, SHAPE)
    assert list(net.state_dict()) == before
    assert noting_layers(made) == []
    assert remembering_layers(made) == batchnorm_layers(made)


def test_an_interrupted_look_at_the_images_leaves_the_notes_as_they_were():
    classifier = make()
    with pytest.raises(KeyboardInterrupt), noting(classifier):
        classifier(torch.randn(2, 1, 8, 8))
        raise KeyboardInterrupt
    assert remembering_layers(classifier) == []


@pytest.mark.parametrize("name", ["timm/test_vit", "timm/test_convnext", "torchvision/vit_b_32"])
def test_networks_of_the_libraries_note_at_every_layer_that_is_used(name):
    classifier = Classifier(make_backbone(name, 1, 32), Preprocessing(32, (0.0,), (1.0,))).eval()
    show(classifier, torch.randn(4, 1, 32, 32), 4)
    assert len(remembering_layers(classifier)) >= 5
    assert remembering_layers(classifier) == noting_layers(classifier)

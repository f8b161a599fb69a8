"""Architectures: named in one word, written down as plain JSON, nothing taken from a file but what is known."""

import json

import pytest
from torch import nn

from reverie.errors import UserError
from reverie.nets import make_backbone
from reverie.nets.backbone import Architecture, Headless


@pytest.mark.parametrize("text", ["resnet32", "torchvision/resnet18", "timm/resnet10t"])
def test_a_name_says_who_builds_it_and_comes_back_from_json(text):
    made = Architecture.parse(text)
    assert str(made) == text
    assert Architecture.from_dict(json.loads(json.dumps(made.as_dict()))) == made


def test_a_family_that_nobody_knows_is_refused():
    with pytest.raises(UserError, match="not from 'keras'"):
        Architecture.parse("keras/resnet50")


@pytest.mark.parametrize("options", [{"weights": "DEFAULT"}, {"checkpoint_path": "x.pth"}, {"head": 3}, {"size": "32"}])
def test_options_that_could_make_a_library_do_more_than_build_are_refused(options):
    with pytest.raises(UserError, match="cannot have the option"):
        Architecture.from_dict({"family": "timm", "name": "resnet10t", "options": options})


@pytest.mark.parametrize("name", ["resnet8", "resnet18"])
def test_reveries_own_backbones_say_what_they_are(name):
    assert make_backbone(name, 3).architecture == Architecture("reverie", name)


def test_a_headless_network_gives_what_the_head_took_and_its_dropout_stays():
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))
    backbone = Headless(module, "3")
    assert backbone.feature_dim == 3
    assert isinstance(backbone.body[2], nn.Dropout)
    assert isinstance(backbone.body[3], nn.Identity)


def test_a_network_of_ones_own_needs_its_builder_and_the_right_one():
    wanted = Architecture("own", "Net", {"head": "1"})
    with pytest.raises(UserError, match=r"reverie.load\(folder, build=function\)"):
        make_backbone(wanted, 1)
    assert make_backbone(wanted, 1, build=lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 3))).feature_dim == 4
    for other in (nn.Sequential(nn.Linear(4, 3)), nn.Sequential(nn.Linear(4, 3), nn.ReLU())):
        with pytest.raises(UserError, match="no linear layer '1', which the saved model had"):
            make_backbone(wanted, 1, build=lambda other=other: other)

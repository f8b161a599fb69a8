"""Adopting: the same answers as the module's own, the module left alone, and a reason where it cannot be done."""

import copy

import pytest
import torch
from torch import nn
from torchvision.models.densenet import DenseNet
from torchvision.models.resnet import Bottleneck, ResNet
from torchvision.models.vgg import VGG, make_layers

from reverie.data.preprocessing import ImageStatistics
from reverie.errors import UserError
from reverie.nets.backbone import Architecture
from reverie.nets.classifier import Classifier
from reverie.nets.external import build_network
from reverie.nets.surgery import adopt_module

NAMES = ["ant", "bee", "cat", "dog", "eel"]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def resnext() -> nn.Module:
    return ResNet(Bottleneck, [1, 1, 1, 1], num_classes=5, groups=32, width_per_group=4)


def densenet() -> nn.Module:
    return DenseNet(growth_rate=8, block_config=(2, 3, 2), num_init_features=16, num_classes=5)


def vgg() -> nn.Module:
    """With BatchNorm, and narrower: torchvision's own has a hundred million weights before the head."""
    with torch.device("meta"):
        made = VGG(nn.Identity(), num_classes=5)
    made.features = make_layers([8, "M", 16, "M", 32, "M"], batch_norm=True)
    made.avgpool, made.classifier[0], made.classifier[3] = (
        nn.AdaptiveAvgPool2d(2),
        nn.Linear(128, 24),
        nn.Linear(24, 16),
    )
    made.classifier[6] = nn.Linear(16, 5)
    return made


FAMILIES = {
    "torchvision/resnet18": "fc",
    "torchvision/mobilenet_v2": "classifier.1",
    "torchvision/mobilenet_v3_small": "classifier.3",
    "torchvision/efficientnet_b0": "classifier.1",
    "torchvision/regnet_y_400mf": "fc",
    "torchvision/mnasnet0_5": "classifier.1",
    "timm/resnet10t": "fc",
    "timm/mobilenetv2_035": "classifier",
    "timm/mobilenetv3_small_050": "classifier",
    "timm/test_efficientnet": "classifier",
    "timm/regnetx_002": "head.fc",
    "timm/test_byobnet": "head.fc",
}
SMALLER = {resnext: "fc", densenet: "classifier", vgg: "classifier.6"}  # torchvision's, with fewer layers


@pytest.mark.parametrize(("what", "head"), [*FAMILIES.items(), *SMALLER.items()])
def test_every_family_gives_the_same_answers_can_be_dreamed_from_and_learns(what, head, one_step_of_each):
    wanted = Architecture.parse(what) if isinstance(what, str) else None
    module = build_network(wanted, 3, 5) if wanted else what()
    classifier = adopt_module(module, NAMES, MEAN, STD, 32, architecture=wanted)
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(classifier(images), module.eval()(images), rtol=1e-4, atol=1e-5)
    assert classifier.backbone.architecture.options["head"] == head
    assert classifier.class_names == tuple(NAMES)
    one_step_of_each(classifier)


class Own(nn.Module):
    """A network as people write them: branches, a head that is not registered last, and no bias in it."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.out = nn.Linear(6, 5, bias=bias)
        self.conv = nn.Conv2d(1, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.side = nn.Linear(6, 6)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(x)).relu().mean((2, 3))
        return x + self.side(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.features(x))


@pytest.mark.parametrize("bias", [False, True])
def test_a_module_of_ones_own_is_adopted_with_or_without_bias_and_left_as_it_is(bias):
    module = Own(bias).train()
    before = copy.deepcopy(module.state_dict())
    module.conv.requires_grad_(False)
    classifier = adopt_module(module, NAMES, (0.3,), (0.4,), 8)
    images = torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(classifier(images), copy.deepcopy(module).eval()(images))
        classifier.head.weight.add_(1)
    assert classifier.backbone.architecture == Architecture("own", "Own", {"head": "out"})
    assert classifier.head.bias.any() == bias
    assert all(parameter.requires_grad for parameter in classifier.parameters())
    assert module.training
    assert isinstance(module.out, nn.Linear)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_half_precision_module_becomes_single():
    classifier = adopt_module(Own().to(torch.bfloat16), NAMES, (0.3,), (0.4,), 8)
    assert {parameter.dtype for parameter in classifier.parameters()} == {torch.float32}


class Synchronised(Own):
    def __init__(self):
        super().__init__()
        self.norm = nn.SyncBatchNorm(6)


def test_layers_that_need_several_gpus_become_plain_ones(one_step_of_each):
    module = Synchronised()
    module.norm.running_mean.normal_()
    classifier = adopt_module(module, NAMES, (0.3,), (0.4,), 8)
    images = torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(classifier(images), module.eval()(images))
    assert isinstance(module.norm, nn.SyncBatchNorm)
    one_step_of_each(classifier)


class Softmax(Own):
    def forward(self, x):
        return super().forward(x).softmax(1)


def damaged() -> Own:
    made = Own()
    nn.init.constant_(made.out.weight, float("nan"))
    return made


class Cosine(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(nn.functional.normalize(x), nn.functional.normalize(self.weight))


class WithCosine(Own):
    def __init__(self):
        super().__init__()
        self.out = Cosine(6, 5)


class Auxiliary(Own):
    def forward(self, x):
        logits = super().forward(x)
        return (logits, logits) if self.training else logits


class Pair(Own):
    def forward(self, x):
        return super().forward(x), x


class NoMemory(Own):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(6, track_running_stats=False)


class LayerNormed(Own):
    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(2, 6)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Softmax(), "does not end in a linear layer"),
        (damaged(), "answers with what are no numbers"),
        (nn.Sequential(nn.BatchNorm2d(1), nn.Conv2d(1, 5, 8), nn.Flatten()), "does not end in a linear layer"),
        (WithCosine(), "does more than multiply features"),
        (Auxiliary(), "further outputs in training"),
        (Pair(), "one row of logits for each image"),
        (NoMemory(), "no BatchNorm layers"),
        (LayerNormed(), "no BatchNorm layers"),
        (nn.Sequential(nn.LazyConv2d(6, 3), nn.BatchNorm2d(6)), "cannot be copied: "),
        (nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)), "does not take images of 1 channels and 8 pixels"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_cannot_be_adopted_is_refused_with_the_reason(module, message):
    with pytest.raises(UserError, match=message):
        adopt_module(module, NAMES, (0.3,), (0.4,), 8)


@pytest.mark.parametrize("name", ["timm/test_vit", "timm/test_convnext"])
def test_networks_without_batchnorm_are_refused(name):
    with pytest.raises(UserError, match="no BatchNorm layers"):
        adopt_module(build_network(Architecture.parse(name), 3, 5), NAMES, MEAN, STD, 160)


@pytest.mark.parametrize(
    ("classes", "mean", "std", "message"),
    [
        (NAMES[:4], (0.3,), (0.4,), "5 outputs, but there are 4 class names"),
        (["a", "b", "a", "c", "d"], (0.3,), (0.4,), "'a' is there 2 times"),
        (NAMES, (0.3,), (0.0,), "no std may be 0"),
        (NAMES, (0.3, 0.3), (0.4,), "a number for each channel"),
        (NAMES, (0.3,) * 4, (0.4,) * 4, "one channel or three, not 4"),
        (NAMES, torch.tensor([123.7]), torch.tensor([58.4]), "Divide by 255"),
    ],
)
def test_facts_that_do_not_fit_are_refused(classes, mean, std, message):
    with pytest.raises(UserError, match=message):
        adopt_module(Own(), classes, mean, std, 8)


def images_of(*facts) -> ImageStatistics | None:
    made: Classifier = adopt_module(Own(), NAMES, *facts[:2], 8, *facts[2:])
    return made.preprocessing.images


def test_numbers_that_no_images_have_are_not_taken_for_those_of_the_training_images():
    natural = ImageStatistics.natural(1)
    assert natural.mean[0] == pytest.approx(0.449)
    assert images_of((0.13,), (0.31,)) is None  # as of MNIST: its own
    assert images_of((0.5,), (0.5,)) == images_of((0.0,), (1.0,)) == natural
    assert images_of((0.5,), (0.5,), ((0.13,), (0.31,))) == ImageStatistics((0.13,), (0.31,))
    with pytest.raises(UserError, match="each of the 1 channels"):
        images_of((0.5,), (0.5,), ((0.1, 0.1), (0.3, 0.3)))

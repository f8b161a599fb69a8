"""The rules by which `reverie learn` chooses what nobody has said."""

import pytest

from reverie.config.schema import AugmentConfig
from reverie.errors import UserError
from reverie.model.defaults import (
    choose,
    choose_augmentation,
    choose_size,
    choose_size_for_weights,
    may_be_photographs,
    parse_duration,
    scaled,
)


def chosen(size=32, images=1000, settings=(), **given):
    augment = choose_augmentation(size, True)
    return choose(size, images, method="abd", seed=0, settings=settings, augment=augment, **given)


@pytest.mark.parametrize(
    ("side", "net", "size"),
    [
        (3000, None, 64),
        (64, None, 64),
        (63, None, 32),
        (8, None, 8),
        (5, None, 8),
        (3000, "torchvision/resnet18", 224),
        (200, "timm/resnet10t", 128),
        (3000, "resnet18", 224),
        (3000, "resnet20", 64),
    ],
)
def test_the_size_is_the_largest_that_enlarges_no_usual_image(side, net, size):
    assert choose_size(side, net) == size


@pytest.mark.parametrize(("side", "size"), [(3000, 224), (224, 224), (112, 224), (111, 64), (32, 32)])
def test_weights_see_the_size_they_were_learned_with_unless_images_are_far_smaller(side, size):
    assert choose_size_for_weights(side, 224) == size


def test_what_may_be_photographs_is_large_and_in_colour():
    assert may_be_photographs(64, 3)
    assert not may_be_photographs(64, 1) and not may_be_photographs(32, 3)


def test_larger_images_get_larger_networks():
    assert [chosen(size).net.name for size in (8, 16, 32, 64, 128)] == [
        *["resnet8"] * 2,
        *["resnet32"] * 2,
        "resnet18",
    ]


def test_only_images_in_colour_are_mirrored_and_large_ones_are_cut_freely():
    assert choose_augmentation(32, True).flip and not choose_augmentation(32, False).flip
    assert choose_augmentation(32, True).crop == 4
    large = choose_augmentation(224, True)
    assert large.resized_crop and not large.crop


def test_few_images_are_shown_more_often_and_many_in_larger_batches():
    few, many = chosen(images=60), chosen(images=50_000)
    assert few.train.epochs > many.train.epochs >= 50
    assert few.train.batch_size < many.train.batch_size
    assert few.train.even and many.train.even


def test_networks_of_other_libraries_learn_more_slowly():
    assert chosen(net="torchvision/resnet18").train.lr < chosen().train.lr


def test_one_new_class_alone_is_learned_among_all_classes_and_slowly():
    assert chosen(alone=True).train.lr < chosen().train.lr
    assert chosen().options["cross_entropy"] == "local"
    assert chosen(alone=True).options["cross_entropy"] == "standard"
    assert chosen(alone=True, settings=["method.cross_entropy=local"]).options["cross_entropy"] == "local"


def test_what_a_person_sets_wins_and_milestones_follow_the_epochs():
    config = chosen(settings=["train.epochs=10", "augment.flip=false", "method.distillation=1"])
    assert config.train.epochs == 10 and config.train.milestones == (6, 8)
    assert config.augment == AugmentConfig(crop=4, brightness=0.25, contrast=0.8)
    assert config.options["distillation"] == 1
    assert chosen(settings=["train.milestones=[3]"]).train.milestones == (3,)
    with pytest.raises(UserError, match=r"train.epoch' in the settings.* Did you mean 'train.epochs'"):
        chosen(settings=["train.epoch=10"])


def test_a_schedule_is_scaled_as_a_whole():
    config = chosen()
    half = scaled(config, 0.5)
    assert half.train.epochs == config.train.epochs // 2 and half.dream.steps == config.dream.steps // 2
    assert max(half.train.milestones) < half.train.epochs
    assert scaled(config, 1e-9).train.epochs == 2  # never nothing


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10min", 600), ("1h", 3600), ("1.5 h", 5400), (45, 45), (0.5, 0.5)]
)
def test_times_as_people_write_them_or_as_a_number_of_seconds(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["10", "10m", "ten", "0s", "-1s", "", 0, -1, 1e9, True, None, float("nan"), float("inf"), [10]]
)
def test_other_times_are_refused_with_examples(text):
    with pytest.raises(UserError, match="90s, 10min or 1h"):
        parse_duration(text)

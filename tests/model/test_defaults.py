"""The rules by which `reverie learn` chooses what nobody has said."""

import pytest

from reverie.config.schema import AugmentConfig
from reverie.errors import UserError
from reverie.model import defaults


def choose(size=32, images=1000, settings=(), **given):
    augment = defaults.choose_augmentation(size, True)
    return defaults.choose(size, images, method="abd", seed=0, settings=settings, augment=augment, **given)


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
    assert defaults.choose_size(side, net) == size


def test_larger_images_get_larger_networks():
    assert [choose(size).net.name for size in (8, 16, 32, 64, 128)] == [
        *["resnet8"] * 2,
        *["resnet32"] * 2,
        "resnet18",
    ]


def test_only_images_in_colour_are_mirrored_and_large_ones_are_cut_freely():
    assert defaults.choose_augmentation(32, True).flip and not defaults.choose_augmentation(32, False).flip
    assert defaults.choose_augmentation(32, True).crop == 4
    large = defaults.choose_augmentation(224, True)
    assert large.resized_crop and not large.crop


def test_few_images_are_shown_more_often_and_many_in_larger_batches():
    few, many = choose(images=60), choose(images=50_000)
    assert few.train.epochs > many.train.epochs >= 50
    assert few.train.batch_size < many.train.batch_size
    assert few.train.even and many.train.even


def test_networks_of_other_libraries_learn_more_slowly():
    assert choose(net="torchvision/resnet18").train.lr < choose().train.lr


def test_one_new_class_alone_is_learned_among_all_classes_and_slowly():
    assert choose(alone=True).train.lr < choose().train.lr
    assert choose().options["cross_entropy"] == "local"
    assert choose(alone=True).options["cross_entropy"] == "standard"
    assert choose(alone=True, settings=["method.cross_entropy=local"]).options["cross_entropy"] == "local"


def test_what_a_person_sets_wins_and_milestones_follow_the_epochs():
    config = choose(settings=["train.epochs=10", "augment.flip=false", "method.distillation=1"])
    assert config.train.epochs == 10 and config.train.milestones == (6, 8)
    assert config.augment == AugmentConfig(crop=4, brightness=0.25, contrast=0.8)
    assert config.options["distillation"] == 1
    assert choose(settings=["train.milestones=[3]"]).train.milestones == (3,)
    with pytest.raises(UserError, match=r"train.epoch' in --set.* Did you mean 'train.epochs'"):
        choose(settings=["train.epoch=10"])


def test_a_schedule_is_scaled_as_a_whole():
    config = choose()
    half = defaults.scaled(config, 0.5)
    assert half.train.epochs == config.train.epochs // 2 and half.dream.steps == config.dream.steps // 2
    assert max(half.train.milestones) < half.train.epochs
    assert defaults.scaled(config, 1e-9).train.epochs == 2  # never nothing


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10min", 600), ("1h", 3600), ("1.5 h", 5400)])
def test_times_as_people_write_them(text, seconds):
    assert defaults.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["10", "10m", "ten", "0s", "-1s", ""])
def test_other_times_are_refused_with_examples(text):
    with pytest.raises(UserError, match="90s, 10min or 1h"):
        defaults.parse_duration(text)

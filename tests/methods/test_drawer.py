"""Dreams that begin with new images: what is drawn, towards what, and who may draw."""

import pytest
import torch
from torch import nn

from reverie.config.schema import AugmentConfig
from reverie.data.augment import Augmenter
from reverie.data.images import MemoryImages
from reverie.data.preprocessing import Normaliser, Preprocessing
from reverie.errors import UserError
from reverie.learner.task_learner import TaskLearner
from reverie.methods import drawer as module
from reverie.methods.drawer import Drawer
from reverie.nets.backbone import Backbone
from reverie.nets.class_statistics import ClassStatistics
from reverie.nets.classifier import Classifier

IMAGES = "dream.source=images"


class Flat(Backbone):
    """No layer that remembers anything."""

    feature_dim = 12

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 12)

    def forward(self, images):
        return self.layer(images.flatten(1)).tanh()


@pytest.fixture
def drawer():
    """Of two old classes, a dark and a bright one, with images of a third between them."""
    torch.manual_seed(3)
    teacher = Classifier(Flat(), Preprocessing(8, (0.5,), (0.25,)))
    teacher.grow(["dark", "bright"])
    teacher.requires_grad_(False)
    augment = Augmenter(AugmentConfig(), Normaliser.of(teacher.preprocessing, torch.device("cpu")))
    rng = torch.Generator().manual_seed(0)

    def shades(least, most, count):
        return torch.randint(least, most, (count, 1, 8, 8), generator=rng, dtype=torch.uint8)

    known = torch.cat([shades(0, 90, 80), shades(160, 256, 80)])
    labels = torch.arange(2).repeat_interleave(80)
    statistics = ClassStatistics.measure(teacher.features(augment.normalise(known)), labels, 2)
    new = MemoryImages(shades(90, 160, 30), torch.full([30], 2))
    return Drawer(teacher, statistics, new, augment, seed=0, task=1)


def distances(drawer, pixels):
    """Of the mean features of each class's images from the class, in deviations inside classes."""
    features = drawer.teacher.features(drawer.augment.normalise(pixels)).view(2, -1, 12).mean(dim=1)
    return ((features - drawer.statistics.means) @ drawer.statistics.metric()).norm(dim=1)


def test_as_many_images_are_drawn_towards_each_class_and_end_much_nearer_to_it(drawer):
    metric = drawer.statistics.metric()
    before = drawer.images.read(drawer._nearest(metric, module.EACH))
    (stage,) = drawer.making()
    figures = stage.work(torch.Generator())
    assert drawer.pixels.dtype == torch.uint8 and drawer.pixels.shape == (2 * module.EACH, 1, 8, 8)
    assert (distances(drawer, drawer.pixels) < 0.5 * distances(drawer, before)).all()
    assert figures["classes"] == 2
    assert drawer.pixels[: module.EACH].float().mean() + 5 < drawer.pixels[module.EACH :].float().mean()


def test_a_state_holds_no_image_and_the_same_is_drawn_again_from_it(drawer):
    before = drawer.state_dict()
    drawer.draw()
    first, state = drawer.pixels, drawer.state_dict()
    assert {*state["statistics"]} == {"counts", "means", "diagonals", "correlations"}
    drawer.statistics, drawer.pixels = None, None
    drawer.load_state_dict(state)
    assert torch.equal(drawer.pixels, first)
    drawer.pixels = None
    drawer.load_state_dict(before)
    assert drawer.pixels is None  # nothing had been drawn
    drawer.seed = 1
    drawer.draw()
    assert not torch.equal(drawer.pixels, first)


def test_nothing_can_be_drawn_without_statistics(drawer):
    drawer.statistics = None
    with pytest.raises(RuntimeError, match="class statistics"):
        drawer.draw()


def test_few_new_images_and_little_memory_are_enough(drawer, monkeypatch):
    drawer.images = drawer.images.select(torch.arange(1))
    drawer.draw()
    assert len(drawer.pixels) == 2 * module.EACH
    monkeypatch.setattr(module, "MOST_BYTES", 2 * 64 * 5)
    drawer.draw()
    assert len(drawer.pixels) == 10
    monkeypatch.setattr(module, "MOST_BYTES", 1)
    drawer.draw()
    assert len(drawer.pixels) == 2


def test_the_gallery_is_the_same_each_time_and_says_what_the_teacher_sees(drawer):
    drawer.draw()
    once, again = ([torch.cat(part) for part in zip(*drawer.gallery(50), strict=True)] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    images, labels, sure = once
    assert len(images) == 50
    assert torch.equal(labels, drawer.teacher(images).argmax(dim=1)) and bool((sure >= 0.5).all())
    assert len(torch.cat([part[0] for part in drawer.gallery(10_000)])) == 2 * module.EACH  # all there are


def test_samples_are_augmented_as_images_are(drawer):
    drawer.draw()
    rng = torch.Generator()
    plain = drawer.sample(200, rng.manual_seed(1))
    own = drawer.augment.normalise(drawer.pixels)
    assert all(any(torch.equal(row, other) for other in own) for row in plain[:5])
    drawer.augment = Augmenter(
        AugmentConfig(flip=True), Normaliser.of(drawer.teacher.preprocessing, torch.device("cpu"))
    )
    mirrored = drawer.sample(200, rng.manual_seed(1))
    as_it_is = (mirrored == plain).flatten(1).all(dim=1)
    assert torch.equal(mirrored[~as_it_is], plain[~as_it_is].flip(3))
    assert 60 < int(as_it_is.sum()) < 140


@pytest.mark.parametrize(("method", "settings"), [("lucid", []), ("abd", ["method.statistics=true"])])
def test_methods_with_statistics_replay_drawn_images_instead_of_a_generators(tiny, tiny_stream, method, settings):
    learner = TaskLearner.fresh(tiny(method, IMAGES, *settings), tiny_stream.preprocessing())
    learner.learn(tiny_stream[0])
    method = learner.method
    method.begin(tiny_stream[1])
    names = [part.name for part in method.phases(tiny_stream[1])]
    assert names[0] == "draw" and "dream" not in names
    learner.learn(tiny_stream[1])
    assert learner.method.dreamer is None and learner.ledger[-1].images_kept == 0
    assert "dreamer" not in learner.method.state_dict()


@pytest.mark.parametrize("settings", [["abd"], ["deepinversion"], ["r-dfcil", "method.statistics=false"]])
def test_without_statistics_there_is_nothing_to_draw_towards(tiny, tiny_stream, settings):
    with pytest.raises(UserError, match=r"dream\.source=images draws new images towards the statistics"):
        TaskLearner.fresh(tiny(settings[0], IMAGES, *settings[1:]), tiny_stream.preprocessing())


def test_nothing_that_is_drawn_can_be_carried_over(tiny):
    with pytest.raises(UserError, match=r"dream\.life must be fresh"):
        tiny("lucid", IMAGES, "dream.life=carried")


def test_a_network_whose_layers_remember_nothing_learns_beside_drawn_images(tiny, tiny_stream):
    classifier = Classifier(Flat(), Preprocessing(8, (0.5,), (0.25,)))
    with pytest.raises(UserError, match="no BatchNorm"):
        TaskLearner(tiny("lucid"), classifier, "cpu")
    learner = TaskLearner(tiny("lucid", IMAGES, "train.rotations=one", "method.stillness=0.1"), classifier, "cpu")
    for task in tiny_stream[:2]:
        learner.learn(task)
    assert learner.classifier.seen == 4 and len(learner.method.statistics) == 4

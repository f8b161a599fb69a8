"""The coreset: its laws, its three ways to choose, and what it is after a resume."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import reverie
from reverie.data.images import DiskImages, MemoryImages
from reverie.learner.task_learner import TaskLearner
from reverie.methods.coreset import Coreset, herding, nearest, shares

SHAPE = (1, 2, 2)


def numbered(labels, first):
    """Images that all differ: each carries its own number in its pixels."""
    numbers = torch.arange(first, first + len(labels))
    pixels = torch.stack([numbers // 256, numbers % 256, numbers % 7, numbers % 5], dim=1)
    return MemoryImages(pixels.view(-1, *SHAPE).to(torch.uint8), torch.tensor(labels, dtype=torch.long))


def last_first(images, label):
    return reversed(range(len(images)))


def of_class(coreset, label):
    return coreset.images.pixels[coreset.images.labels == label].tolist()


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 40),
    tasks=st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), min_size=1, max_size=5),
)
def test_the_coreset_keeps_its_laws_whatever_arrives(size, tasks):
    """`tasks` says how many images each class of each task has."""
    coreset, seen, shown = Coreset(size, SHAPE), 0, 0
    for counts in tasks:
        labels = [seen + i for i, count in enumerate(counts) for _ in range(count)]
        images = numbered(labels, shown)
        before = {label: of_class(coreset, label) for label in range(seen)}
        shown, seen = shown + len(labels), seen + len(counts)
        coreset.admit(images, seen, last_first)
        first_time = coreset.images
        coreset.admit(images, seen, lambda *_: pytest.fail("chosen anew"))  # as a resumed run does
        assert torch.equal(coreset.images.pixels, first_time.pixels)
        quotas, now = shares(size, seen), {label: of_class(coreset, label) for label in range(seen)}
        assert len(coreset) <= size
        assert len({str(image) for image in coreset.images.pixels.tolist()}) == len(coreset)
        assert coreset.images.labels.tolist() == sorted(coreset.images.labels.tolist())
        for label, images_before in before.items():  # the end is lost, the beginning stays
            assert now[label] == images_before[: quotas[label]]
        for i, count in enumerate(counts):
            label = seen - len(counts) + i
            assert len(now[label]) == min(count, quotas[label])
            assert now[label] == images.pixels[images.labels == label].flip(0).tolist()[: quotas[label]]
        full = [len(images) for label, images in now.items() if len(images) == quotas[label]]
        assert not full or max(full) - min(full) <= 1


def test_a_picture_that_is_there_twice_is_taken_once_and_the_next_has_its_place(tmp_path):
    """From a copy of the file, or because another cannot be read."""
    images = numbered([0] * 6, 0)
    twice = MemoryImages(images.pixels[[0, 1, 1, 0, 2, 3]], images.labels)
    coreset = Coreset(3, SHAPE)
    coreset.admit(twice, 1, lambda images, label: range(len(images)))
    assert torch.equal(coreset.images.pixels, images.pixels[:3])
    coreset = Coreset(9, SHAPE)
    coreset.admit(twice, 1, lambda images, label: range(len(images)))
    assert torch.equal(coreset.images.pixels, images.pixels[:4])
    for number in range(3):
        Image.fromarray(torch.full((8, 8, 3), 50 * number, dtype=torch.uint8).numpy()).save(tmp_path / f"{number}.png")
    (tmp_path / "0.png").write_text("no image")
    streamed = DiskImages(tuple(sorted(tmp_path.iterdir())), torch.zeros(3, dtype=torch.long), 8, checked=False)
    coreset = Coreset(3, (3, 8, 8))
    coreset.admit(streamed, 1, lambda images, label: range(len(images)))
    assert coreset.images.pixels[:, 0, 0, 0].tolist() == [50, 100]


@given(size=st.integers(1, 5000), classes=st.integers(1, 300))
def test_shares_use_the_whole_budget_and_favour_the_most_recent_by_one(size, classes):
    made = shares(size, classes)
    assert sum(made) == size
    assert made == sorted(made)
    assert made[-1] - made[0] <= 1


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 9), seed=st.integers(0, 10**6))
def test_herding_is_the_greedy_choice_by_its_definition(rows, seed):
    features = torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    points = features.tolist()
    mean = [sum(point[d] for point in points) / rows for d in range(3)]
    made = [*herding(features)]
    assert sorted(made) == [*range(rows)]
    for place, taken in enumerate(made):

        def gap(candidate, before=tuple(made[:place])):
            group = [points[i] for i in [*before, candidate]]
            return sum((mean[d] - sum(point[d] for point in group) / len(group)) ** 2 for d in range(3))

        others = [i for i in range(rows) if i not in made[:place]]
        assert gap(taken) <= min(map(gap, others)) + 1e-12  # two points are as far from their mean as each other


def test_herding_is_not_nearest_to_the_mean():
    """Two are close to the mean on one side: herding takes one of them, and then the one on the other side."""
    features = torch.tensor([[1.0], [1.2], [-2.2]], dtype=torch.float64)
    assert [*nearest(features)] == [0, 1, 2]
    assert [*herding(features)] == [0, 2, 1]


def test_nearest_sorts_by_distance_to_the_mean():
    features = torch.tensor([[4.0, 0.0], [0.0, 0.0], [1.0, 0.0], [-5.0, 0.0]], dtype=torch.float64)
    assert [*nearest(features)] == [1, 2, 0, 3]


def task_learned(tiny, tiny_stream, method, *settings, tasks=1, seed=0):
    learner = TaskLearner.fresh(tiny(method, "coreset.size=13", *settings, seed=seed), tiny_stream.preprocessing())
    for task in list(tiny_stream)[:tasks]:
        learner.learn(task)
    return learner


@pytest.mark.parametrize(("method", "choose"), [("e2e", nearest), ("bic", herding)])
def test_features_are_those_of_the_learned_classifier_at_rest(tiny, tiny_stream, method, choose):
    learner = task_learned(tiny, tiny_stream, method)
    shape, images = learner.classifier.preprocessing, tiny_stream[0].images
    for label, count in ((0, 6), (1, 7)):
        pixels = images.pixels[images.labels == label]
        normalised = (pixels.float() / 255 - shape.mean[0]) / shape.deviation[0]
        with torch.no_grad():
            features = torch.cat([learner.classifier.eval().features(image[None]) for image in normalised])
        expected = pixels[[*choose(features.double())][:count]]
        stored = learner.method.coreset.images
        assert torch.equal(stored.pixels[stored.labels == label], expected)


def test_random_images_are_a_function_of_the_seed_and_nothing_else(tiny, tiny_stream):
    torch.manual_seed(1)
    first = task_learned(tiny, tiny_stream, "rehearsal").method.coreset.images
    torch.manual_seed(2)
    again = task_learned(tiny, tiny_stream, "lwf-coreset", "train.epochs=1").method.coreset.images
    other = TaskLearner.fresh(tiny("rehearsal", "coreset.size=13", seed=1), tiny_stream.preprocessing())
    other.learn(tiny_stream[0])
    assert torch.equal(first.pixels, again.pixels)
    assert not torch.equal(first.pixels, other.method.coreset.images.pixels)


@pytest.mark.parametrize("method", ["rehearsal", "e2e", "bic"])
def test_after_each_task_it_is_balanced_and_holds_distinct_training_images(tiny, tiny_stream, method):
    learner = task_learned(tiny, tiny_stream, method, "train.epochs=1", tasks=3)
    coreset, train = learner.method.coreset.images, torch.cat([task.images.pixels for task in list(tiny_stream)[:3]])
    labels = torch.cat([task.images.labels for task in list(tiny_stream)[:3]])
    assert torch.bincount(coreset.labels).tolist() == [2, 2, 2, 2, 2, 3]
    assert len(coreset.pixels.flatten(1).unique(dim=0)) == 13
    for pixels, label in zip(coreset.pixels, coreset.labels, strict=True):
        assert label in labels[(train == pixels).flatten(1).all(dim=1)]


def test_the_state_brings_the_coreset_back(tiny, tiny_stream):
    learner = task_learned(tiny, tiny_stream, "bic", "train.epochs=1", tasks=2)
    again = TaskLearner.fresh(learner.config, learner.classifier.preprocessing)
    again.load_state_dict(learner.state_dict())
    ours, theirs = learner.method.coreset, again.method.coreset
    assert torch.equal(ours.images.pixels, theirs.images.pixels)
    assert torch.equal(ours.images.labels, theirs.images.labels)
    assert ours.classes == theirs.classes == 4


@pytest.mark.parametrize("method", ["rehearsal", "lwf-coreset", "e2e", "bic"])
def test_a_model_that_comes_without_its_coreset_learns_on(tiny, tiny_stream, tmp_path, method):
    reverie.save_model(task_learned(tiny, tiny_stream, method, "train.epochs=1"), tmp_path / "model")
    again = reverie.load(tmp_path / "model").task_learner
    again.learn(tiny_stream[1])
    assert torch.bincount(again.method.coreset.images.labels).tolist() == [0, 0, 3, 4]
    assert again.classifier.seen == 4


@pytest.mark.parametrize("method", ["rehearsal", "e2e", "bic"])
def test_fewer_images_than_classes_still_work(tiny, tiny_stream, method):
    learner = TaskLearner.fresh(tiny(method, "coreset.size=3", "train.epochs=1"), tiny_stream.preprocessing())
    for task in list(tiny_stream)[:3]:
        learner.learn(task)
    assert learner.method.coreset.images.labels.tolist() == [3, 4, 5]

"""Streams: class orders, splits, and what a method may see."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reverie.data.images import Dataset, MemoryImages
from reverie.data.preprocessing import Preprocessing
from reverie.data.stream import PastTask, Stream, class_order, task_sizes
from reverie.errors import UserError


def dataset(classes: int, train: int = 3, test: int = 2) -> Dataset:
    def images(count: int, offset: int) -> MemoryImages:
        labels = torch.arange(classes).repeat(count)
        pixels = (labels * 10 + offset).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).contiguous()
        return MemoryImages(pixels, labels)

    return Dataset("numbers", images(train, 0), images(test, 1), tuple(f"c{i}" for i in range(classes)), None)


def test_order_zero_of_cifar100_is_the_papers():
    assert class_order("seed:0", 100, seed=5)[:10] == [23, 8, 11, 7, 48, 13, 1, 91, 94, 54]
    assert class_order("seed", 100, seed=0)[:10] == [23, 8, 11, 7, 48, 13, 1, 91, 94, 54]


def test_the_icarl_order_is_that_of_numpys_seed_1993():
    assert class_order("icarl-1993", 100, seed=0)[:10] == [68, 56, 78, 8, 23, 84, 90, 65, 74, 76]


def test_natural_order_and_a_list():
    assert class_order("natural", 4, seed=3) == [0, 1, 2, 3]
    assert class_order([2, 0], 4, seed=3) == [2, 0]


@pytest.mark.parametrize("order", ["sorted", "seed:x", f"seed:{'9' * 5000}", [0, 0, 1], [0, 9], []])
def test_an_order_that_makes_no_sense_is_refused(order):
    with pytest.raises(UserError, match=r"stream\.order"):
        class_order(order, 4, seed=0)


@given(st.integers(1, 200), st.integers(0, 10**6))
def test_every_order_is_a_permutation(classes, seed):
    for order in ("natural", "seed", "icarl-1993", f"seed:{seed}"):
        assert sorted(class_order(order, classes, seed)) == list(range(classes))


def test_splits():
    assert task_sizes(5, 10) == [2, 2, 2, 2, 2]
    assert task_sizes("50+5x10", 100) == [50, 10, 10, 10, 10, 10]
    assert task_sizes("2x3 + 4", 10) == [3, 3, 4]
    assert task_sizes([4, 3, 3], 10) == [4, 3, 3]


@pytest.mark.parametrize(
    ("split", "classes"),
    [
        (3, 10),
        (0, 10),
        (10**6, 10),
        ("50+5x10", 60),
        ("ten", 10),
        ("9999999x1", 10),
        ("9" * 5000, 10),
        ([5, 0], 10),
        ([10**18, 10**18], 10),
        ([], 10),
    ],
)
def test_a_split_that_does_not_fit_is_refused(split, classes):
    with pytest.raises(UserError):
        task_sizes(split, classes)


def test_a_task_without_classes_is_named_as_such():
    for split in ([5, 0, 5], "5+0x3+0"):
        with pytest.raises(UserError, match="has a task without classes"):
            task_sizes(split, 10)


def test_a_task_has_its_own_classes_with_labels_in_learned_order():
    stream = Stream(dataset(6), order=[4, 2, 0, 5, 1, 3], sizes=[2, 1, 3])
    task = stream[1]
    assert (task.index, task.names, task.first_label, task.classes_after) == (1, ("c0",), 2, 3)
    assert set(task.images.labels.tolist()) == {2}
    assert set(task.images.read(torch.arange(3)).flatten().tolist()) == {0}
    assert [t.names for t in stream] == [("c4", "c2"), ("c0",), ("c5", "c1", "c3")]


@given(st.permutations(range(6)), st.sampled_from([[6], [2, 2, 2], [1, 5], [3, 2]]))
def test_tasks_partition_the_classes_and_pixels_keep_their_class(order, sizes):
    stream = Stream(dataset(6), order, sizes)
    for task in stream:
        for pixels, label in zip(task.images.read(torch.arange(task.size)), task.images.labels.tolist(), strict=True):
            assert order[label] * 10 == int(pixels[0, 0, 0])
            assert task.first_label <= label < task.classes_after
    seen = [label for task in stream for label in set(task.images.labels.tolist())]
    assert sorted(seen) == list(range(sum(sizes)))


def test_a_slice_is_a_shorter_stream_with_its_own_tests():
    stream = Stream(dataset(6), order=[4, 2, 0, 5, 1, 3], sizes=[2, 2, 2])
    assert len(stream[:2]) == 2
    assert stream[:2].class_names == ("c4", "c2", "c0", "c5")
    assert set(stream[:2].test().labels.tolist()) == {0, 1, 2, 3}
    assert set(stream[1:].test().labels.tolist()) == {2, 3, 4, 5}
    assert stream[1:][0].names == stream[1].names
    assert stream[-1].index == 2
    assert stream[:1].classes_in_all == 6


def test_the_union_is_everything_so_far_as_one_task():
    stream = Stream(dataset(6), order=[4, 2, 0, 5, 1, 3], sizes=[2, 2, 2])
    task = stream[:2].union()
    assert (task.index, task.first_label, task.names) == (0, 0, ("c4", "c2", "c0", "c5"))
    assert task.size == 12


def test_images_are_normalised_as_published():
    published = replace(dataset(4), normalisation=((0.25,), (0.5,)))
    assert Stream(published, [0, 1, 2, 3], [2, 2]).preprocessing() == Preprocessing(4, (0.25,), (0.5,))


def test_images_that_nobody_has_published_are_normalised_by_those_of_the_first_task_alone():
    stream = Stream(dataset(4), order=[3, 0, 1, 2], sizes=[2, 2])
    (mean,), (deviation,) = stream.preprocessing().mean, stream.preprocessing().deviation
    assert (mean, deviation) == pytest.approx((15 / 255, 15 / 255), abs=1e-6)  # pixels of 30 and of 0


def test_the_images_of_a_closed_task_are_out_of_reach():
    task = Stream(dataset(4), [0, 1, 2, 3], [2, 2])[0]
    task.close()
    with pytest.raises(PastTask, match="task 1 is over"):
        _ = task.images
    assert task.names == ("c0", "c1")

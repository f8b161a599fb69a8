"""Sets of images: their size, their fingerprint, and several that are read as one, in memory or on disk."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reverie.config.schema import AugmentConfig
from reverie.data.augment import Augmenter
from reverie.data.draws import DRAWS
from reverie.data.feed import DeviceFeed, Source, StreamingFeed, make_feed
from reverie.data.folder import read_folder
from reverie.data.images import MOST_BYTES, Dataset, JoinedImages, MemoryImages, join
from reverie.data.preprocessing import Normaliser
from reverie.errors import UserError


def numbered(count, first=0):
    numbers = torch.arange(first, first + count)
    return MemoryImages(numbers.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).contiguous(), numbers)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.data())
def test_joined_images_are_those_of_their_parts_end_to_end(sizes, data):
    parts = tuple(numbered(size, first=sum(sizes[:i])) for i, size in enumerate(sizes))
    joined = JoinedImages(parts, torch.arange(sum(sizes)), torch.arange(sum(sizes)))
    whole = join(*parts)
    assert isinstance(whole, MemoryImages)
    assert len(whole) == len(joined) == sum(sizes)
    rows = st.lists(st.integers(0, max(0, sum(sizes) - 1)), max_size=8 if sum(sizes) else 0)
    index, again = (torch.tensor(data.draw(rows), dtype=torch.long) for _ in range(2))
    assert torch.equal(joined.read(index), whole.read(index))
    assert torch.equal(joined.select(index).labels, whole.labels[index])
    again = again[again < len(index)]
    assert torch.equal(joined.select(index).read(again), whole.select(index).read(again))
    assert joined.relabel(whole.labels + 7).labels.tolist() == [label + 7 for label in range(sum(sizes))]


def test_a_feed_of_images_on_disk_and_in_memory_is_the_feed_of_all_in_memory(photos):
    augment = Augmenter(AugmentConfig(crop=2, flip=True), Normaliser((0.5,) * 3, (0.3,) * 3))
    on_disk = read_folder(photos, size=16, storage="stream").train
    in_memory = read_folder(photos, size=16, storage="memory").train
    coreset = in_memory.select(torch.tensor([5, 1, 8]))
    draws = torch.rand(5, DRAWS)
    joined = join(on_disk, coreset)
    cut = joined.read(torch.tensor([0, len(on_disk), 1, len(on_disk) + 2, 2]), draws)
    assert torch.equal(cut[[1, 3]], coreset.read(torch.tensor([0, 2]), draws[[1, 3]]))
    assert torch.equal(cut[[0, 2, 4]], on_disk.read(torch.tensor([0, 1, 2]), draws[[0, 2, 4]]))
    for sources in (
        lambda images: [Source(join(images, coreset), 7)],
        lambda images: [Source(images, 4), Source(coreset, 3, rule="replace")],
    ):
        streamed, held = (make_feed(sources(images), augment, torch.device("cpu")) for images in (on_disk, in_memory))
        assert isinstance(streamed, StreamingFeed)
        assert isinstance(held, DeviceFeed)
        for feed in (streamed, held):
            feed.begin(3, 0)
        for _ in range(held.steps_per_epoch):
            streamed.advance()
            a, b = streamed.draw(), held.draw()
            assert torch.equal(a.images, b.images)
            assert torch.equal(a.labels, b.labels)


def test_the_fingerprint_sees_a_single_pixel_a_label_and_a_name():
    def fingerprint(**changes):
        parts = {"train": numbered(5), "test": numbered(3), "class_names": ("a", "b")} | changes
        return Dataset("numbers", normalisation=None, **parts).fingerprint()

    before, other = fingerprint(), numbered(3)
    other.pixels[2, 0, 0, 0] ^= 1
    assert fingerprint(test=other) != before
    assert fingerprint(test=numbered(3).relabel(torch.tensor([0, 1, 1]))) != before
    assert fingerprint(class_names=("a", "c")) != before
    assert fingerprint() == before


def test_a_name_that_is_no_text_has_a_fingerprint():
    """As Python gives the names of folders whose bytes are not UTF-8."""
    one, other = (Dataset("x", numbered(2), numbered(1), (name, "b"), None) for name in ("caf\udce9", "café"))
    assert one.fingerprint() != other.fingerprint()


def test_images_that_no_memory_would_hold_are_refused_before_they_are_made():
    side = int((MOST_BYTES / 40) ** 0.5) + 1
    with pytest.raises(UserError, match=rf"40 images of {side} pixels a side would take 17.2 GB .* smaller data.size"):
        numbered(40).resized(side)
    assert numbered(40).resized(4).shape == (1, 4, 4)


@pytest.mark.parametrize(
    ("pixels", "labels"),
    [(torch.zeros(2, 1, 4, 4), 2), (torch.zeros(2, 4, 4).byte(), 2), (torch.zeros(2, 1, 4, 4).byte(), 3)],
    ids=["floats", "no channels", "another number of labels"],
)
def test_pixels_and_labels_must_belong_together(pixels, labels):
    with pytest.raises(ValueError, match="pixels must be uint8"):
        MemoryImages(pixels, torch.zeros(labels).long())


def test_numpy_arrays_are_images_too_and_a_set_is_printed_in_short():
    images = MemoryImages(np.zeros((3, 1, 2, 2), np.uint8), np.array([0, 1, 1], np.int32))
    assert images.labels.dtype == torch.long
    assert images.select(torch.tensor([2])).labels.tolist() == [1]
    assert repr(images) == "MemoryImages(3 images of 1×2×2)"
    dataset = Dataset("mine", images, images.select(torch.tensor([0])), ("a", "b"))
    assert repr(dataset) == "Dataset('mine', 3 training and 1 test image, 2 classes)"
    with pytest.raises(ValueError, match="labels must be whole numbers"):
        MemoryImages(np.zeros((1, 1, 2, 2), np.uint8), [0.5])

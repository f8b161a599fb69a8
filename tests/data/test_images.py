"""Sets of images that are joined: partly in memory, partly on disk, read as one."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from reverie.config.schema import AugmentConfig
from reverie.data.augment import DRAWS, Augmenter, Normaliser
from reverie.data.feed import DeviceFeed, Source, StreamingFeed, make_feed
from reverie.data.folder import read_folder
from reverie.data.images import JoinedImages, MemoryImages, join


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

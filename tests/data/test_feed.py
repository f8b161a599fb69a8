"""Feeds: every image once an epoch, the same batch for the same (seed, step), from memory and from disk alike."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from reverie.config.schema import AugmentConfig
from reverie.data.augment import Augmenter
from reverie.data.feed import DeviceFeed, NoData, Source, StreamingFeed, make_feed
from reverie.data.folder import read_folder
from reverie.data.images import DiskImages, MemoryImages
from reverie.data.preprocessing import Normaliser

CPU = torch.device("cpu")
PLAIN = Augmenter(AugmentConfig(), Normaliser((0.0,), (1.0,)))


def numbered(count, first=0, side=4):
    """Images that carry their own number in every pixel; the label is the number, too."""
    numbers = torch.arange(first, first + count)
    return MemoryImages(numbers.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, side, side).contiguous(), numbers)


def epoch(feed, seed=1, step=0):
    feed.begin(seed, step)
    batches = []
    for _ in range(feed.steps_per_epoch - step):
        feed.advance()
        batches.append(feed.draw())
    return batches


@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(1, 60),
    batch=st.integers(2, 20),
    seed=st.integers(0, 1000),
    kind=st.sampled_from([DeviceFeed, StreamingFeed]),
)
def test_an_epoch_shows_each_image_at_most_once_and_fills_every_batch(count, batch, seed, kind):
    feed = kind([Source(numbered(count), batch)], PLAIN, CPU)
    batches = epoch(feed, seed)
    labels = torch.cat([b.labels for b in batches]).tolist()
    assert len(batches) == max(1, count // batch)
    assert {len(b.labels) for b in batches} == {max(2, min(batch, count))}
    if count >= 2:
        assert len(set(labels)) == len(labels)
    for b in batches:
        assert torch.equal((b.images[:, 0, 0, 0] * 255).round().long(), b.labels)


def test_two_sources_are_not_shuffled_alike():
    a, b = Source(numbered(16), 4), Source(numbered(16), 4)
    assert not torch.equal(a.plan(1, 0, 4)[0], b.plan(1, 1, 4)[0])
    labels = torch.cat([batch.labels.view(2, 4) for batch in epoch(DeviceFeed([a, b], PLAIN, CPU))], dim=1)
    assert not torch.equal(*labels)


@pytest.mark.parametrize("kind", [DeviceFeed, StreamingFeed])
def test_classes_are_drawn_evenly_however_many_images_they_have(kind):
    images = numbered(60)
    classes = torch.tensor([0] * 50 + [3] * 8 + [7] * 2)
    feed = kind([Source(images.relabel(classes), 6, "even")], PLAIN, CPU)
    batches = epoch(feed)
    assert len(batches) == 10
    for batch in batches:
        assert torch.bincount(batch.labels).tolist() == [2, 0, 0, 2, 0, 0, 0, 2]
    shown = (torch.cat([b.images[:, 0, 0, 0] for b in batches]) * 255).round().long()
    times = torch.bincount(shown, minlength=60)
    assert times[:50].sum() == times[50:58].sum() == times[58:].sum() == 20
    assert set(times[:50].tolist()) == {0, 1}  # none again before all were shown
    assert set(times[50:58].tolist()) == {2, 3}
    again = epoch(feed, step=4)
    assert torch.equal(again[0].images, batches[4].images)


def test_a_task_smaller_than_a_batch_is_shown_whole():
    feed = DeviceFeed([Source(numbered(5), 128)], PLAIN, CPU)
    (batch,) = epoch(feed)
    assert sorted(batch.labels.tolist()) == [0, 1, 2, 3, 4]


def test_epochs_differ_and_the_same_seed_repeats():
    feed = DeviceFeed([Source(numbered(40), 8)], PLAIN, CPU)
    first, again, other = (torch.cat([b.labels for b in epoch(feed, seed)]) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("kind", [DeviceFeed, StreamingFeed])
def test_an_epoch_that_was_expected_is_the_same_and_another_is_not_mistaken_for_it(kind, monkeypatch):
    feed = kind([Source(numbered(20), 5)], PLAIN, CPU)
    plain = [[b.labels.tolist() for b in epoch(feed, seed)] for seed in (7, 8)]
    planned = []
    monkeypatch.setattr(Source, "plan", lambda *args, plan=Source.plan: planned.append(args) or plan(*args))
    feed.expect(7)
    feed.expect(8)
    assert [b.labels.tolist() for b in epoch(feed, 8)] == plain[1]
    assert len(planned) == 2
    feed.expect(8)
    assert [b.labels.tolist() for b in epoch(feed, 7)] == plain[0]
    assert [b.labels.tolist() for b in epoch(feed, 8)] == plain[1]


@pytest.mark.parametrize("kind", [DeviceFeed, StreamingFeed])
def test_an_epoch_can_be_entered_at_any_step(kind):
    augment = Augmenter(AugmentConfig(crop=1, flip=True), Normaliser((0.0,), (1.0,)))
    feed = kind([Source(numbered(40), 8)], augment, CPU)
    whole, rest = epoch(feed, seed=3), epoch(feed, seed=3, step=2)
    for a, b in zip(whole[2:], rest, strict=True):
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.labels, b.labels)


def test_streaming_from_disk_and_from_memory_are_the_same(photos):
    augment = Augmenter(AugmentConfig(crop=2, flip=True, contrast=0.5), Normaliser((0.5,) * 3, (0.3,) * 3))
    on_disk = read_folder(photos, size=16, storage="stream").train
    in_memory = read_folder(photos, size=16, storage="memory").train
    a, b = (make_feed([Source(images, 7)], augment, CPU) for images in (on_disk, in_memory))
    assert isinstance(a, StreamingFeed)
    assert isinstance(b, DeviceFeed)
    for x, y in zip(epoch(a), epoch(b), strict=True):
        assert torch.equal(x.images, y.images)
        assert torch.equal(x.labels, y.labels)


@pytest.mark.parametrize("kind", [DeviceFeed, StreamingFeed])
def test_two_sources_share_each_batch_by_their_own_rules(kind):
    task, coreset = numbered(30), numbered(4, first=100)
    feed = kind([Source(task, 10), Source(coreset, 6, rule="replace")], PLAIN, CPU)
    batches = epoch(feed)
    assert len(batches) == 3
    new = torch.cat([b.labels[:10] for b in batches])
    old = torch.cat([b.labels[10:] for b in batches])
    assert sorted(new.tolist()) == list(range(30))
    assert len(old) == 18
    assert set(old.tolist()) <= {100, 101, 102, 103}
    assert len(old) > len(set(old.tolist()))  # with replacement


def test_the_image_of_an_epoch_is_augmented_the_same_wherever_it_stands():
    """A function of (epoch, image): another batch size moves images to other batches, and changes none of them."""
    augment = Augmenter(AugmentConfig(crop=2, flip=True), Normaliser((0.0,), (1.0,)))
    images = MemoryImages(torch.randint(0, 256, (24, 1, 6, 6)).to(torch.uint8), torch.arange(24))
    by_label = []
    for batch in (4, 12):
        batches = epoch(DeviceFeed([Source(images, batch)], augment, CPU), seed=9)
        rows = [(int(label), image) for b in batches for label, image in zip(b.labels, b.images, strict=True)]
        by_label.append(dict(rows))
    assert by_label[0].keys() == by_label[1].keys()
    assert all(torch.equal(by_label[0][k], by_label[1][k]) for k in by_label[0])


RESIZED = Augmenter(AugmentConfig(resized_crop=True, flip=True), Normaliser((0.0,) * 3, (1.0,) * 3))


def written(folder, count=12, width=20, height=20):
    """Files of smooth colours, without loss; the label is the number."""
    rows, columns = np.mgrid[0:height, 0:width]
    files = []
    for number in range(count):
        values = np.stack([rows * 12, columns * 12, (rows + columns) * (number % 5)], axis=-1) % 256
        files.append(folder / f"{number}.png")
        Image.fromarray(values.astype(np.uint8)).save(files[-1])
    return DiskImages(tuple(files), torch.arange(count), 20)


def by_label(batches):
    return {int(label): image for b in batches for label, image in zip(b.labels, b.images, strict=True)}


def test_the_resized_crop_of_an_image_is_the_same_in_any_batch_with_any_number_of_threads(tmp_path, monkeypatch):
    images = written(tmp_path, width=50, height=30)
    once = by_label(epoch(make_feed([Source(images, 4)], RESIZED, CPU)))
    alone = ThreadPoolExecutor(1)
    monkeypatch.setattr("reverie.data.decode._threads", lambda: alone)
    again = by_label(epoch(make_feed([Source(images, 6)], RESIZED, CPU)))
    other = by_label(epoch(make_feed([Source(images, 6)], RESIZED, CPU), seed=2))
    assert once.keys() == again.keys() == other.keys()
    for label in once:
        assert torch.equal(once[label], again[label])
        assert not torch.equal(once[label], other[label])


def test_a_resized_crop_from_disk_and_from_memory_are_the_same_but_for_rounding(tmp_path):
    """Pillow rounds twice. Only files that have the size already: of others, memory holds no more than the middle."""
    on_disk = written(tmp_path)
    in_memory = MemoryImages(on_disk.read(torch.arange(12)), on_disk.labels)
    streamed, held = (make_feed([Source(images, 4)], RESIZED, CPU) for images in (on_disk, in_memory))
    assert isinstance(streamed, StreamingFeed)
    assert isinstance(held, DeviceFeed)
    for a, b in zip(epoch(streamed), epoch(held), strict=True):
        assert torch.equal(a.labels, b.labels)
        assert (a.images - b.images).abs().max() <= 2.1 / 255
    for a, b in zip(epoch(StreamingFeed([Source(in_memory, 4)], RESIZED, CPU)), epoch(held), strict=True):
        assert torch.equal(a.images, b.images)


@pytest.mark.parametrize("kind", [DeviceFeed, StreamingFeed])
def test_an_epoch_of_resized_crops_can_be_entered_at_any_step(kind, tmp_path):
    feed = kind([Source(written(tmp_path, width=24), 4)], RESIZED, CPU)
    whole, rest = epoch(feed, seed=3), epoch(feed, seed=3, step=2)
    assert torch.equal(whole[2].images, rest[0].images)


def test_whoever_collects_a_feed_that_was_left_in_the_middle_waits_for_no_thread(tmp_path, monkeypatch):
    """It may happen anywhere, and did: in a thread that held the very lock that the end of another one needs."""
    feed = StreamingFeed([Source(written(tmp_path), 2)], RESIZED, CPU)
    feed.begin(1, 0)
    feed.advance()
    feed.itself = feed  # nobody but the garbage collector finds it
    gone, waits, running = weakref.ref(feed), [], [future for *_, future in feed._reading]
    del feed
    wait(running)
    monkeypatch.setattr(threading.Thread, "join", lambda self, timeout=None: waits.append(self))
    while running and gone() is not None:  # the last of the threads lets go of it a moment after its work
        gc.collect()
    assert running
    assert waits == []


def test_without_a_feed_images_are_read_whole(tmp_path):
    images = written(tmp_path)
    assert torch.equal(images.read(torch.tensor([3]))[0, 0, :, 0], torch.arange(20, dtype=torch.uint8) * 12)


def test_the_dreamers_feed_gives_nothing_but_random_numbers():
    batch = NoData(CPU).draw()
    assert batch.images.numel() == 0

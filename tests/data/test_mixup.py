"""Mixed images: which are mixed, by how much, and that a feed does the same whatever it reads from."""

import pytest
import torch

from reverie.config.schema import AugmentConfig
from reverie.data.augment import Augmenter
from reverie.data.feed import DeviceFeed, Source, StreamingFeed
from reverie.data.images import MemoryImages
from reverie.data.mixup import Mixer
from reverie.data.preprocessing import Normaliser

CPU = torch.device("cpu")


def feed(mixup: float, kind: type = DeviceFeed, count: int = 30, batch: int = 5):
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    augment = Augmenter(AugmentConfig(crop=1), Normaliser((0.5,), (0.3,)))
    return kind([Source(MemoryImages(pixels, torch.arange(count)), batch)], augment, CPU, mixup)


def epoch(made, seed: int = 3, step: int = 0):
    made.begin(seed, step)
    batches = []
    for _ in range(step, made.steps_per_epoch):
        made.advance()
        batches.append(made.draw())
    return batches


def test_each_image_shows_another_of_its_batch_by_the_share_and_never_itself():
    shares = set()
    for plain, mixed in zip(epoch(feed(0)), epoch(feed(0.4)), strict=True):
        assert plain.others is None and plain.share is None
        assert torch.equal(plain.labels, mixed.labels)
        assert not (mixed.labels == mixed.others).any()
        assert sorted(mixed.others.tolist()) == sorted(mixed.labels.tolist())
        partner = torch.stack([plain.images[plain.labels == other][0] for other in mixed.others])
        expected = mixed.share * plain.images + (1 - mixed.share) * partner
        torch.testing.assert_close(mixed.images, expected)
        shares.add(float(mixed.share))
    assert len(shares) == 6


@pytest.mark.parametrize("kind", [DeviceFeed, StreamingFeed])
def test_an_epoch_is_the_same_again_from_any_step_and_from_any_feed(kind):
    whole = epoch(feed(0.4))
    for step in (0, 2, 5):
        for a, b in zip(whole[step:], epoch(feed(0.4, kind), step=step), strict=True):
            assert all(torch.equal(x, y) for x, y in zip(vars(a).values(), vars(b).values(), strict=True))
    assert not torch.equal(whole[0].images, epoch(feed(0.4), seed=4)[0].images)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_shares_are_those_of_the_beta_distribution(alpha):
    mixer = Mixer(alpha, 20_000, 4, CPU)
    mixer.begin(0)
    beta = torch.distributions.Beta(torch.tensor(alpha), torch.tensor(alpha))
    assert float(mixer._shares.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(mixer._shares.var()) == pytest.approx(float(beta.variance), rel=0.05)
    assert sorted(mixer._distances.unique().tolist()) == [1, 2, 3]

"""Moving averages of weights are torch's own, and can be put back and gone on with."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from reverie.engine.average import MovingAverage


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))


def disturb(model: nn.Module, seed: int) -> None:
    """What a step of training would do."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn(parameter.shape, generator=rng)
        model.train()(torch.randn(8, 1, 4, 4, generator=rng))


@pytest.mark.parametrize("decay", [0.1, 0.9, 0.999])
def test_it_is_torchs_exponential_average_of_weights_and_statistics(decay):
    model = net()
    ours = MovingAverage({"net": model}, {"net": decay})
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
    for step in range(7):
        disturb(model, step)
        ours.update()
        theirs.update_parameters(model)
    ours.settle()
    expected = theirs.module.state_dict()
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-7)
    assert model[1].num_batches_tracked == 7  # a count is no average


def test_after_one_step_it_is_the_weights_themselves():
    model = net()
    average = MovingAverage({"net": model}, {"net": 0.999})
    disturb(model, 0)
    expected = copy.deepcopy(model.state_dict())
    average.update()
    average.settle()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


def test_it_goes_on_from_its_state_and_is_put_back_in_place():
    model = net()
    average = MovingAverage({"net": model}, {"net": 0.9})
    for step in range(3):
        disturb(model, step)
        average.update()
    held, put_back = average.averages["net"]["3.weight"], average.rewind()
    other = MovingAverage({"net": model}, {"net": 0.9})
    other.load_state_dict(copy.deepcopy(average.state_dict()))
    before = copy.deepcopy(average.state_dict())
    disturb(model, 3)
    average.update()
    other.update()
    assert torch.equal(held, other.averages["net"]["3.weight"])
    assert not torch.equal(held, before["averages"]["net"]["3.weight"])
    put_back()
    assert torch.equal(held, before["averages"]["net"]["3.weight"])
    assert average.steps == 3

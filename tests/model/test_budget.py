"""A budget of time: a schedule that fits it, and a warning where it is far too small."""

import pytest
import torch

from reverie.data.inputs import as_inputs
from reverie.model.budget import MOST, within_budget
from reverie.model.folder import load_model
from reverie.model.request import LearnRequest
from reverie.model.step import plan_step
from tests.support.models import QUICK_STEP


@pytest.fixture
def step(world):
    """With the usual schedule."""
    return plan_step(load_model(world / "old"), as_inputs(world / "second"), LearnRequest(settings=QUICK_STEP[2:]))


def test_a_budget_becomes_a_schedule_that_fits(step):
    cpu = torch.device("cpu")
    short, long = (within_budget(seconds, step, cpu).config for seconds in (0.5, 1e6))
    assert short.train.epochs < step.config.train.epochs and short.dream.steps < step.config.dream.steps
    assert long.train.epochs == MOST * step.config.train.epochs  # more would not help


@pytest.mark.parametrize(("seconds", "said"), [(1e6, ""), (0.001, "0.0 % of the usual schedule, and even the least")])
def test_a_budget_that_is_far_too_small_is_said_to_be(step, caplog, seconds, said):
    within_budget(seconds, step, torch.device("cpu"))
    assert said in caplog.text and bool(said) == ("budget" in caplog.text)


def test_measuring_leaves_the_model_before_the_step_as_it_was(step):
    before = {name: value.clone() for name, value in step.before.classifier.state_dict().items()}
    made = within_budget(0.5, step, torch.device("cpu"))
    assert made.before is step.before and step.before.classifier.class_names == ("0", "1", "2")
    assert all(torch.equal(value, before[name]) for name, value in step.before.classifier.state_dict().items())


def test_where_nothing_is_trained_any_budget_is_kept(world, tmp_path):
    from torchvision.models import resnet18

    torch.save(resnet18(num_classes=7).state_dict(), tmp_path / "weights.pth")
    settings = ("net.name=torchvision/resnet18", "data.size=32")
    request = LearnRequest(method="ranpac", settings=settings, weights=tmp_path / "weights.pth")
    step = plan_step(None, as_inputs(world / "first"), request)
    assert within_budget(0.001, step, torch.device("cpu")) is step

"""R-DFCIL: the losses of both stages, what each of them moves, and the weights of the classes."""

import math

import pytest
import torch

from reverie.engine.loop import Engine
from reverie.engine.phase import SGD, StepSchedule
from reverie.errors import UserError
from reverie.learner.task_learner import TaskLearner
from reverie.methods.rdfcil import ClassWeights
from tests.support import by_hand

SIZES = [(3, 2), (1, 2), (2, 1), (1, 1)]
TWO_STAGES = "method.refinement=0.5"


def scales(old, new):
    """As published: alpha and beta, from the numbers of classes."""
    alpha, beta = math.log2(new / 2 + 1), math.sqrt(old / new)
    return (1 + 1 / alpha) / beta, alpha * beta


@pytest.mark.parametrize(("old", "new"), SIZES)
def test_the_first_stage_is_three_losses_in_two_passes(scene, old, new):
    s = scene("r-dfcil", old, new, TWO_STAGES, phase_name="represent")
    losses, dreams = s.losses(), s.dreams()
    maps = s.phase.moves["relations"]
    with torch.no_grad():
        taught_features = s.method.teacher.features(s.images)
        taught = s.method.teacher(dreams)
    features = s.classifier.features(s.images)  # each pass in train mode, on its own
    logits, dreamed = s.classifier.head(features), s.classifier(dreams)
    learn, keep = scales(old, new)
    seen_by_student = features @ maps.student.weight.T + maps.student.bias
    seen_by_teacher = taught_features @ maps.teacher.weight.T + maps.teacher.bias
    expected = {
        "local_cross_entropy": 0.5 * learn * by_hand.cross_entropy(logits[:, old:], s.labels - old),
        "distillation": 0.15 * keep * by_hand.absolute_difference(dreamed[:, :old], taught),
        "relations": 0.5 * keep * by_hand.relations(seen_by_student, seen_by_teacher),
    }
    s.assert_same(losses, expected)
    for loss in (losses, expected):
        loss["maps"] = torch.autograd.grad(loss["relations"], list(maps.parameters()))
    for ours, theirs in zip(losses["maps"], expected["maps"], strict=True):
        assert ours.abs().sum() > 0 or ours.ndim == 1  # a bias cancels in every difference
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-9)


def test_each_term_moves_what_it_should(scene):
    s = scene("r-dfcil", 3, 2, TWO_STAGES, phase_name="represent")
    losses = s.losses()
    assert s.moved_by(losses["local_cross_entropy"]) == {"backbone", "head row 3", "head row 4"}
    assert s.moved_by(losses["distillation"]) == {"backbone", "head row 0", "head row 1", "head row 2"}
    assert s.moved_by(losses["relations"]) == {"backbone"}


@pytest.mark.parametrize("recipe", ["paper", "released"])
@pytest.mark.parametrize(("old", "new"), SIZES)
def test_the_second_stage_balances_all_classes_with_the_backbone_at_rest(scene, old, new, recipe):
    s = scene("r-dfcil", old, new, TWO_STAGES, recipe=recipe)
    assert s.phase.name == "refine"
    assert not s.classifier.backbone.training
    values = torch.rand(old + new) + 0.5
    s.method.weights.values.copy_(values)
    losses, dreams = s.losses(), s.dreams()
    with torch.no_grad():
        taught = s.method.teacher(dreams)
        features = s.classifier.features(torch.cat([s.images, dreams]))
    labels = torch.cat([s.labels, taught.argmax(1)])
    logits = features @ s.classifier.head.weight.T + s.classifier.head.bias
    seen = logits[:, : old + new]
    keep = scales(old, new)[1]
    expected = {
        "balanced_cross_entropy": 0.5 * by_hand.balanced_cross_entropy(seen, labels, values.tolist()),
        "distillation": 0.15 * keep * by_hand.absolute_difference(logits[len(s.images) :, :old], taught),
    }
    s.assert_same(losses, expected)
    assert s.moved_by(losses["balanced_cross_entropy"]) == {f"head row {i}" for i in range(old + new)}
    assert s.moved_by(losses["distillation"]) == {f"head row {i}" for i in range(old)}


def test_scales_are_the_published_ones(scene):
    """alpha is 2.585, 3.459 and 1.807 for tasks of ten, twenty and five; beta goes from 1 to 3 over ten tasks."""
    method = scene("r-dfcil").method
    for old, new, alpha, beta in [(10, 10, 2.585, 1), (90, 10, 2.585, 3), (20, 20, 3.459, 1), (5, 5, 1.807, 1)]:
        method.old, method.total = old, old + new
        assert method.scales == pytest.approx(((1 + 1 / alpha) / beta, alpha * beta), rel=1e-3)


def test_weights_are_inverse_to_how_often_a_class_was_met():
    weights = ClassWeights(4)
    weights.meet(torch.tensor([0, 0, 1, 0]))
    assert weights.values.tolist() == [1, 1, 1, 1]  # until they are renewed, at the end of an epoch
    weights.meet(torch.tensor([0, 2, 2]))
    weights.renew()
    assert weights.met.tolist() == [4, 1, 2, 0]
    assert weights.values.tolist() == [1, 4, 2, 7 / (7 / 4)]  # a class that was never met counts as met once


def test_every_label_of_the_task_is_counted_in_both_stages(tiny, tiny_stream):
    learner = TaskLearner.fresh(tiny("r-dfcil", TWO_STAGES), tiny_stream.preprocessing())
    learner.learn(tiny_stream[0])
    task = tiny_stream[1]
    learner.method.begin(task)
    learner.classifier.grow(task.names)
    engine, met = Engine(torch.device("cpu")), []
    for phase in learner.method.phases(task):
        engine.run(phase, seed=0)
        met.append(learner.method.weights.met.clone())
        assert (phase.after_epoch is None) == (phase.name == "dream")
    rows = 16 * phase.feed.steps_per_epoch
    assert [counts.sum().item() for counts in met] == [0, 2 * rows, 4 * rows]
    assert [counts[2:].sum().item() for counts in met] == [0, rows, 2 * rows]  # the other half is dreamed
    counts = met[-1].double()
    torch.testing.assert_close(learner.method.weights.values.double(), counts.max() / counts.clamp_min(1))


def test_refinement_takes_the_last_share_of_the_epochs(tiny, tiny_stream):
    def stages(*settings):
        learner = TaskLearner.fresh(tiny("r-dfcil", *settings), tiny_stream.preprocessing())
        learner.classifier.grow(tiny_stream[0].names)
        learner.method.begin(tiny_stream[1])
        learner.classifier.grow(tiny_stream[1].names)
        return learner, list(learner.method.phases(tiny_stream[1]))

    published = ["train.epochs=200", "train.milestones=[80, 120]", "train.weight_decay=5e-4"]
    learner, (_, represent, refine) = stages(*published)
    assert (represent.epochs, refine.epochs) == (160, 40)
    assert represent.optimizer == SGD(0.1, 0.9, 5e-4, StepSchedule((80, 120), 0.1))
    assert refine.optimizer == SGD(0.005, 0.9, 5e-4)
    assert refine.trainable() == list(learner.classifier.head.parameters())
    assert len(represent.trainable()) == len(list(learner.classifier.parameters())) + 4
    assert "relations" not in refine.moves
    assert (represent.full_precision, refine.full_precision) == (False, True)
    assert [phase.name for phase in stages("method.refinement=0")[1]] == ["dream", "represent"]
    assert [phase.epochs for phase in stages("train.epochs=1", "method.refinement=0.9")[1]] == [None, 1]
    with pytest.raises(UserError, match=r"method\.refinement must be"):
        tiny("r-dfcil", "method.refinement=1")


def test_the_first_task_is_plain_cross_entropy_for_all_epochs(tiny, tiny_stream):
    learner = TaskLearner.fresh(tiny("r-dfcil", TWO_STAGES), tiny_stream.preprocessing())
    learner.method.begin(tiny_stream[0])
    learner.classifier.grow(tiny_stream[0].names)
    (phase,) = learner.method.phases(tiny_stream[0])
    assert phase.epochs == 2
    assert list(phase.losses(_first_batch(phase))) == ["cross_entropy"]


def _first_batch(phase):
    phase.feed.begin(0, 0)
    return phase.feed.draw()

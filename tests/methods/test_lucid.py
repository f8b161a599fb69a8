"""Lucid, and the option of ABD and R-DFCIL: statistics that are moved along, measured, and answer."""

import pytest
import torch

from reverie.learner.task_learner import TaskLearner
from reverie.methods.dream_replay import Replay
from reverie.methods.keeps import Keeps
from reverie.methods.statistics_replay import SAMPLES, Moving
from reverie.nets.class_statistics import ClassStatistics
from reverie.nets.heads import FixedLinearAnswer, GaussianAnswer, LinearAnswer, PrototypeAnswer
from reverie.nets.transport import SeenByBoth, Transport


def learner_of(tiny, stream, method, *settings):
    return TaskLearner.fresh(tiny(method, *settings), stream.preprocessing())


def learn(learner, stream, count):
    for task in list(stream)[learner.classifier.seen // 2 :][:count]:
        learner.learn(task)
    return learner


def test_statistics_of_old_classes_are_moved_and_those_of_new_ones_measured(tiny, tiny_stream):
    learner = learn(learner_of(tiny, tiny_stream, "lucid", "method.map=images", "method.fixed=false"), tiny_stream, 1)
    before, teacher = learner.method.statistics, learner.classifier.frozen_copy()
    task = tiny_stream[1]
    images = task.images.select(torch.arange(task.size))
    learner.learn(task)
    method, after = learner.method, learner.method.statistics
    features = method.features_of(images)
    transport = Transport.fit([SeenByBoth(method.features_of(images, teacher), features)], 1e-3)
    expected = transport.take(before).joined(ClassStatistics.measure(features, images.labels - 2, 2))
    torch.testing.assert_close(after.means, expected.means, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(after.covariances, expected.covariances, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "head"), [("linear", FixedLinearAnswer), ("gaussian", GaussianAnswer), ("prototype", PrototypeAnswer)]
)
def test_a_head_that_is_made_of_the_statistics_answers(tiny, tiny_stream, kind, head):
    learner = learn(learner_of(tiny, tiny_stream, "lucid", f"method.head={kind}"), tiny_stream, 2)
    found, statistics = learner.classifier.answering_head, learner.method.statistics
    assert isinstance(found, head)
    samples, labels = statistics.sample(SAMPLES, torch.Generator().manual_seed(5))
    assert (found.by_features(samples).argmax(dim=1) == labels).double().mean() > 0.5
    assert 0 < float(found.temperature) < 1e4


@pytest.mark.parametrize("which", ["none", "images", "dreams", "both"])
def test_every_map_ends_in_statistics_of_its_own(tiny, tiny_stream, which):
    learner = learn(learner_of(tiny, tiny_stream, "lucid", f"method.map={which}"), tiny_stream, 1)
    before = learner.method.statistics
    after = learn(learner, tiny_stream, 1).method.statistics
    assert torch.equal(after.means[:2], before.means) == (which == "none")
    assert len(after) == 4 and after.form == "own"


def test_without_the_residual_covariances_are_smaller(tiny, tiny_stream):
    spreads = []
    for residual in ("true", "false"):
        made = learn(learner_of(tiny, tiny_stream, "lucid", f"method.residual={residual}"), tiny_stream, 2)
        spreads.append(made.method.statistics.covariances[:2].diagonal(dim1=1, dim2=2).sum())
    assert spreads[0] > spreads[1]


@pytest.mark.parametrize("method", ["abd", "r-dfcil"])
def test_others_keep_statistics_on_wish_and_train_as_without(tiny, tiny_stream, method):
    plain, keeping = (
        learn(learner_of(tiny, tiny_stream, method, f"method.statistics={wish}"), tiny_stream, 2)
        for wish in ("false", "true")
    )
    assert plain.classifier.answering_head is None and plain.ledger[-1].keeps == "nothing"
    assert plain.method.statistics is None
    assert isinstance(keeping.classifier.answering_head, LinearAnswer)
    assert keeping.ledger[-1].keeps == "class statistics" and keeping.ledger[-1].images_kept == 0
    keeping.classifier.answer_by(None)
    ours, theirs = keeping.classifier.state_dict(), plain.classifier.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs) and {*ours} == {*theirs}


def test_at_most_nine_kilobytes_a_class_are_kept(tiny, tiny_stream):
    entry = learn(learner_of(tiny, tiny_stream, "lucid"), tiny_stream, 2).ledger[-1]
    assert entry.kept_bytes == entry.kept["class statistics"] == 4 * (8 + 4 * 64 + 4 * 64 + 4032 + 4096)
    assert entry.kept_bytes / 4 < 9000


def test_without_statistics_it_keeps_nothing_and_its_training_head_answers(tiny, tiny_stream):
    learner = learn(learner_of(tiny, tiny_stream, "lucid", "method.statistics=false"), tiny_stream, 1)
    assert learner.method.keeps == Keeps.NOTHING and learner.classifier.answering_head is None


def test_turned_images_are_classes_in_its_first_task(tiny):
    assert tiny("lucid").train.rotations == "first"
    assert tiny("lucid", "train.rotations=none").train.rotations == "none"
    assert tiny("r-dfcil").train.rotations == "none"


def test_mirror_images_count_where_images_are_mirrored(tiny, tiny_stream):
    learner = learn(learner_of(tiny, tiny_stream, "lucid", "augment.flip=true"), tiny_stream, 1)
    assert learner.method.statistics.counts.sum() == 2 * tiny_stream[0].size
    features = learner.method.features_of(tiny_stream[0].images, mirrored=True)
    assert len(features) == 2 * tiny_stream[0].size
    assert torch.equal(features[: tiny_stream[0].size], learner.method.features_of(tiny_stream[0].images))


def test_one_new_class_and_few_images(tiny, tiny_stream):
    learner = learn(learner_of(tiny, tiny_stream, "lucid"), tiny_stream, 1)
    task = tiny_stream[1]
    rows = (task.images.labels == 2).nonzero().flatten()[:5]
    few = type(task)(1, task.names[:1], 2, task.images.select(rows))
    learner.learn(few)
    assert len(learner.method.statistics) == 3
    assert bool(torch.cat(list(learner.logits(tiny_stream[0].images))).isfinite().all())


def test_a_map_needs_what_it_is_fitted_on():
    statistics = ClassStatistics.measure(torch.randn(6, 3), torch.arange(6) % 2, 2)
    same, left = Moving(map="none").move(statistics, None, None)
    assert same is statistics and left == 1.0


def test_stillness_keeps_features_where_they_were(tiny, tiny_stream):
    drift = {}
    for weight in (0, 1):
        learner = learn(learner_of(tiny, tiny_stream, "lucid", f"method.stillness={weight}"), tiny_stream, 1)
        images, metric = tiny_stream[0].images, learner.method.statistics.metric()
        before = learner.method.features_of(images)
        learn(learner, tiny_stream, 1)
        drift[weight] = float(((learner.method.features_of(images) - before) @ metric).square().mean())
    assert drift[1] < 0.5 * drift[0]


def test_stillness_is_measured_in_deviations_inside_old_classes(tiny, tiny_stream):
    learner = learn(learner_of(tiny, tiny_stream, "lucid", "method.stillness=0.5"), tiny_stream, 1)
    method, task = learner.method, tiny_stream[1]
    method.begin(task)
    method.classifier.grow(task.names)
    before, moved = torch.randn(6, 64), torch.randn(6, 64)
    replay = Replay(torch.zeros(6, 1), torch.zeros(6).long(), before, torch.zeros(6, 2), 3)
    pooled = method.statistics.pooled()
    pooled = pooled + 4e-3 * pooled.diagonal().mean() * torch.eye(64)
    expected = ((moved.double() @ torch.linalg.inv(pooled)) * moved.double()).sum() / moved.numel()
    found = method.retention(replay, before + moved)["stillness"]
    torch.testing.assert_close(found.double(), 0.5 * method.scales[1] * expected, rtol=1e-3, atol=0)


def test_a_step_that_does_not_ask_for_fixed_features_loses_none_of_their_means(tiny, tiny_stream):
    begun = learn(learner_of(tiny, tiny_stream, "lucid"), tiny_stream, 1)
    other = learner_of(tiny, tiny_stream, "lucid", "method.fixed=false")
    other.load_state_dict(begun.state_dict())
    statistics = learn(other, tiny_stream, 1).method.statistics
    assert torch.equal(statistics.fixed[:2], begun.method.statistics.fixed) and len(statistics.fixed) == 4
    assert isinstance(other.classifier.answering_head, LinearAnswer)

"""ABD: each of its three losses, what each of them moves, both recipes, and the parts that can be left out."""

import pytest
import torch

from reverie.methods.losses import cross_entropy, local_cross_entropy, task_weights, weighted_feature_distillation
from reverie.nets.statistics import batchnorm_layers
from tests.support import by_hand

SIZES = [(3, 2), (1, 2), (2, 1), (1, 1)]


def expected_losses(s, rows, weighted=True, standard=False, distilled=slice(None)):
    """r = old/total; local CE times 1-r; fine-tuning over `rows` head rows with weights r and 1-r; MSE times 0.1.

    Ablations: no weights, cross-entropy over all classes, distillation on some rows only.
    """
    old, total, real = s.old, s.old + s.new, len(s.images)
    images = torch.cat([s.images, s.dreams()])
    with torch.no_grad():
        taught_features = s.method.teacher.features(images)
        taught = s.method.teacher.head(taught_features)[:, :old]
    labels = torch.cat([s.labels, taught[real:].argmax(1)])
    features = s.classifier.features(images)
    weight, bias = s.classifier.head.weight, s.classifier.head.bias
    logits = features @ weight.T + bias
    tuned = features.detach() @ weight.T + bias
    teacher_head = s.method.teacher.head
    weights = by_hand.abd_weights(labels, old, total) if weighted else None
    kept = features[distilled], taught_features[distilled], teacher_head.weight[:old], teacher_head.bias[:old]
    if standard:
        first = {"cross_entropy": by_hand.cross_entropy(logits[:real, :total], s.labels)}
    else:
        new = s.labels >= old  # all but further images of old classes
        local = by_hand.cross_entropy(logits[:real][new, old:total], s.labels[new] - old)
        first = {"local_cross_entropy": local * new.sum() / real}
    return {
        **{name: (1 - old / total if weighted else 1) * value for name, value in first.items()},
        "fine_tuning": by_hand.cross_entropy(tuned[:, :rows], labels, weights),
        "distillation": 0.1 * by_hand.weighted_features(*kept),
    }


@pytest.mark.parametrize("recipe", ["paper", "released"])
@pytest.mark.parametrize(("old", "new"), SIZES)
def test_abd_is_its_three_losses(scene, old, new, recipe):
    s = scene("abd", old, new, recipe=recipe)
    s.assert_same(s.losses(), expected_losses(s, rows=9 if recipe == "released" else old + new))


def test_each_term_moves_what_it_should(scene):
    s = scene("abd", 3, 2)
    losses = s.losses()
    assert s.moved_by(losses["local_cross_entropy"]) == {"backbone", "head row 3", "head row 4"}
    assert s.moved_by(losses["fine_tuning"]) == {f"head row {i}" for i in range(5)}
    assert s.moved_by(losses["distillation"]) == {"backbone"}


def test_in_the_released_recipe_fine_tuning_pushes_future_rows_too(scene):
    s = scene("abd", 3, 2, recipe="released")
    losses = s.losses()
    assert s.moved_by(losses["fine_tuning"]) == {f"head row {i}" for i in range(9)}
    first = s.method.first_losses_of_every_row(s.batch())
    assert s.moved_by(first["cross_entropy"]) == {"backbone", *(f"head row {i}" for i in range(9))}


def test_with_one_new_class_the_backbone_learns_from_distillation_only(scene):
    s = scene("abd", 3, 1)
    losses = s.losses()
    assert losses["local_cross_entropy"].item() == 0
    assert s.moved_by(losses["local_cross_entropy"]) == set()
    assert s.moved_by(losses["distillation"]) == {"backbone"}


def test_one_pass_with_momentum_019_is_the_released_codes_two_updates(scene):
    """The released code passes the batch twice in train mode; running statistics move twice towards the same values."""
    s = scene("abd", 3, 2, recipe="released")
    layers = batchnorm_layers(s.classifier)
    before = [layer.running_mean.clone() for layer in layers]
    images = torch.cat([s.images, s.dreams()])
    s.losses()
    once = [layer.running_mean.clone() for layer in layers]
    for layer, mean in zip(layers, before, strict=True):
        layer.running_mean.copy_(mean)
        layer.momentum = 0.1
    s.classifier.features(images)
    s.classifier.features(images)
    for layer, mean in zip(layers, once, strict=True):
        torch.testing.assert_close(layer.running_mean, mean, rtol=1e-9, atol=1e-12)


def test_the_paper_recipe_updates_statistics_once(scene):
    assert {layer.momentum for layer in batchnorm_layers(scene("abd", 3, 2).classifier)} == {0.1}
    first = scene("abd", 0, 2, recipe="released")  # which changes it from the second task on
    assert {layer.momentum for layer in batchnorm_layers(first.classifier)} == {0.1}


def test_a_network_that_came_with_another_momentum_keeps_it(scene):
    def slow(method):
        for layer in batchnorm_layers(method.classifier):
            layer.momentum = 0.01

    kept = scene("abd", 3, 2, before=slow)
    assert {layer.momentum for layer in batchnorm_layers(kept.classifier)} == {0.01}
    asked = scene("abd", 3, 2, "method.bn_momentum=0.3", before=slow)
    assert {layer.momentum for layer in batchnorm_layers(asked.classifier)} == {0.3}


def test_the_lambdas_scale_their_terms(scene):
    plain, scaled = scene("abd", 3, 2), scene("abd", 3, 2, "method.distillation=0.3", "method.fine_tuning=2")
    a, b = plain.losses(), scaled.losses()
    torch.testing.assert_close(3 * a["distillation"], b["distillation"])
    torch.testing.assert_close(2 * a["fine_tuning"], b["fine_tuning"])
    torch.testing.assert_close(a["local_cross_entropy"], b["local_cross_entropy"])


# --- the paper's ablations

REAL, DREAMS = slice(0, 6), slice(6, 12)


@pytest.mark.parametrize(
    ("setting", "changed"),
    [
        ("method.task_weights=false", {"weighted": False}),
        ("method.cross_entropy=standard", {"standard": True}),
        ("method.distil_real=false", {"distilled": DREAMS}),
        ("method.distil_dreams=false", {"distilled": REAL}),
    ],
)
@pytest.mark.parametrize(("old", "new"), [(3, 2), (1, 1)])
def test_an_ablation_changes_its_own_term_as_stated(scene, old, new, setting, changed):
    s = scene("abd", old, new, setting)
    s.assert_same(s.losses(), expected_losses(s, rows=old + new, **changed))


def test_standard_cross_entropy_moves_every_row_of_classes_seen(scene):
    s = scene("abd", 3, 2, "method.cross_entropy=standard", recipe="released")
    assert s.moved_by(s.losses()["cross_entropy"]) == {"backbone", *(f"head row {i}" for i in range(5))}


def test_without_fine_tuning_the_term_is_gone_and_old_rows_rest(scene):
    s = scene("abd", 3, 2, "method.fine_tuning=0")
    losses, expected = s.losses(), expected_losses(s, rows=5)
    del expected["fine_tuning"]
    s.assert_same(losses, expected)
    assert s.moved_by(sum(losses.values())) == {"backbone", "head row 3", "head row 4"}


def test_without_any_distillation_the_term_is_gone(scene):
    s = scene("abd", 3, 2, "method.distil_real=false", "method.distil_dreams=false")
    assert list(s.losses()) == ["local_cross_entropy", "fine_tuning"]


def test_with_nothing_left_out_abd_is_bit_for_bit_what_it_was_before_there_were_ablations(scene):
    s = scene("abd", 3, 2)
    replay, losses = s.prepared(), s.losses()
    features = s.classifier.features(replay.images)
    local = s.classifier.head(features[: replay.real])[:, :5]
    weights = task_weights(replay.labels, 3, 5)
    kd = weighted_feature_distillation(features, replay.taught_features, s.method.teacher.head.weight[:3])
    before = {
        "local_cross_entropy": (1 - 3 / 5) * local_cross_entropy(local, replay.labels[: replay.real], 3),
        "fine_tuning": 1.0 * cross_entropy(s.classifier.head(features.detach()), replay.labels, weights),
        "distillation": 0.1 * kd,
    }
    assert list(losses) == list(before)
    assert all(torch.equal(losses[name], before[name]) for name in before)
    ours, theirs = (s.gradients(torch.stack([*terms.values()]).sum()) for terms in (losses, before))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_further_images_of_old_classes_are_tuned_and_distilled_but_not_in_the_local_cross_entropy(scene):
    s = scene("abd", 3, 2)
    s.labels = torch.tensor([3, 0, 4, 2, 2, 3])
    s.method.refining = True
    s.assert_same(s.losses(), expected_losses(s, rows=5))


def test_without_new_classes_only_the_head_is_tuned_and_features_are_kept(scene):
    s = scene("abd", 3, 2)
    s.labels, s.method.refining, s.method.total = torch.tensor([0, 1, 2, 2, 1, 0]), True, 3
    losses = s.losses()
    assert losses.keys() == {"fine_tuning", "distillation"}
    assert s.moved_by(losses["fine_tuning"]) == {f"head row {i}" for i in range(5)}

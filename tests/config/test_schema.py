"""What is part of a run's identity, and what is not."""

from reverie.config.schema import Config
from reverie.runs.configure import configure


def test_how_images_are_stored_matters_to_resized_crops_alone():
    for crop, same in (("false", True), ("true", False)):
        settings = [f"augment.resized_crop={crop}", "augment.crop=0"]
        memory, stream = (
            configure("digits-5", "abd", settings=[*settings, f"data.storage={storage}"])
            for storage in ("memory", "stream")
        )
        assert (memory.identity() == stream.identity()) is same


def test_identity_ignores_what_cannot_change_a_figure():
    plain = configure("digits-5", "abd")
    same = configure("digits-5", "abd", settings=["keep=[models]", "data.storage=stream", "evaluate.batch_size=7"])
    other = configure("digits-5", "abd", settings=["train.lr=0.05"])
    assert plain.identity() == same.identity() != other.identity()


def test_the_coresets_size_is_the_presets_and_counts_only_where_one_is_kept():
    assert configure("cifar100-10", "bic").coreset.size == 2000
    assert configure("digits-5", "bic").coreset.size == 100
    bic, larger = (configure("digits-5", "bic", settings=[f"coreset.size={size}"]) for size in (100, 200))
    assert bic.differences(larger) == {"coreset.size": (100, 200)}
    assert bic.reference == larger.reference
    assert configure("cifar100-10", "bic").options["correction_lr"] == 0.001
    assert configure("cifar100-10", "e2e").options["balancing_lr"] == 0.001
    abd, same = (configure("digits-5", "abd", settings=[f"coreset.size={size}"]) for size in (100, 200))
    assert abd.identity() == same.identity()


def test_a_configuration_from_before_there_were_coresets_is_the_same_run():
    new = configure("digits-5", "abd")
    old = new.as_dict()
    del old["coreset"]
    assert not new.differences(Config.from_dict(old))


def test_runs_share_an_upper_bound_only_when_it_would_be_trained_alike():
    abd, lwf, joint = (configure("digits-5", m).reference for m in ("abd", "lwf", "joint"))
    assert abd == lwf == joint
    assert configure("digits-5", "abd", settings=["method.distillation=3", "dream.steps=9"]).reference == abd
    assert configure("digits-5", "abd", settings=["train.epochs=3"]).reference != abd

"""A model in memory: it is used anywhere, whatever it was trained with."""

from dataclasses import replace

import torch

from reverie.config.schema import EngineConfig

PIXELS = torch.randint(0, 256, (4, 3, 16, 16), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def test_a_model_trained_as_only_a_gpu_can_is_used_on_a_cpu(photo_model):
    trained = replace(photo_model, config=replace(photo_model.config, engine=EngineConfig(capture=True, compile=True)))
    learner = trained.task_learner("cpu")
    assert (learner.engine.capture, learner.engine.compile) == (False, False)
    expected = photo_model.task_learner().predict(PIXELS, top=3)
    assert torch.equal(learner.predict(PIXELS, top=3).probabilities, expected.probabilities)


def test_a_model_of_a_method_that_is_not_here_or_is_another_by_now_predicts_all_the_same(photo_model):
    expected = photo_model.task_learner().predict(PIXELS, top=3)
    for method, options in (("theirs", {"strength": 2}), ("abd", {"strength": 2})):
        strange = replace(photo_model, config=replace(photo_model.config, method=method, options=options))
        learner = strange.task_learner()
        assert torch.equal(learner.predict(PIXELS, top=3).probabilities, expected.probabilities)
        assert strange.config.method == method  # as it was trained, for the card


def test_what_a_learner_writes_into_its_ledger_is_not_in_the_models(photo_model):
    learner = photo_model.task_learner()
    assert learner.ledger == photo_model.ledger
    learner.ledger.pop()
    assert len(photo_model.ledger) == 2

"""A model, however a person gives it: its folder, what was loaded from one, or a learner that holds it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from reverie.errors import UserError
from reverie.learner.task_learner import TaskLearner
from reverie.model.folder import load_model
from reverie.model.saved import SavedModel
from reverie.text import shortened


class HasModel(Protocol):
    """A `Learner`."""

    @property
    def saved(self) -> SavedModel: ...


AnyModel = Path | str | SavedModel | TaskLearner | HasModel


def open_model(model: AnyModel) -> SavedModel:
    """Raises UserError for what is none of these, for a folder that is no model, and for a learner that has none."""
    if isinstance(model, str | Path):
        return load_model(model)
    if isinstance(model, SavedModel):
        return model
    if isinstance(model, TaskLearner):
        return SavedModel(model.classifier, model.config, model.ledger)
    if isinstance(saved := getattr(model, "saved", None), SavedModel):
        return saved
    raise UserError(f"`model` is a model folder, a Learner or what load_model gives, not {shortened(model)}.")


def model_folder(model: object, instead: str) -> Path:
    """The folder that a person gave; what is in memory has none, and `instead` says what to call for it."""
    if isinstance(model, str | Path):
        return Path(model)
    raise UserError(f"`model` is a model folder here, not a {type(model).__name__}. {instead}")

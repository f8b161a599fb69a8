"""What a model folder holds, in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from reverie.config.schema import Config
from reverie.errors import UserError
from reverie.learner.ledger import Ledger
from reverie.learner.task_learner import TaskLearner
from reverie.methods import find_method
from reverie.methods.keeps import Keeps
from reverie.model.acceptance import Acceptance
from reverie.nets import OWN_BACKBONES
from reverie.nets.class_statistics import ClassStatistics
from reverie.nets.classifier import Classifier
from reverie.nets.heads import OWN_HEADS
from reverie.system.plugins import BACKBONES, HEADS, KINDS, plugin_package
from reverie.system.records import build
from reverie.text import listing, plural


@dataclass
class SavedModel:
    """A classifier, how it was trained last, and its history."""

    classifier: Classifier
    config: Config  # how it was trained last
    ledger: Ledger  # an entry a step
    lineage: tuple[str, ...] = ()  # digests of the models it was extended from, oldest first
    rejection: float | None = None  # the confidence below which `predict` with `reject` names none of the classes
    acceptance: Acceptance | None = None  # the report of the last step
    statistics: ClassStatistics | None = None  # that its method keeps, of all classes

    @classmethod
    def of(cls, learner: TaskLearner) -> SavedModel:
        """What a learner has learned."""
        return cls(learner.classifier, learner.config, learner.ledger, statistics=learner.method.statistics)

    def __repr__(self) -> str:
        names = self.classifier.class_names
        steps = plural(len(self.ledger), "step")
        return f"SavedModel({self.config.net.name}, {steps}, {plural(len(names), 'class')}: {listing(names)})"

    def plain_learner(self, device: torch.device | str = "cpu") -> TaskLearner:
        """The classifier alone, to predict: no code of its method has touched it."""
        engine = replace(self.config.engine, capture=None, compile=None)
        return TaskLearner(replace(self.config, method="base", options={}, engine=engine), self.classifier, device)

    def task_learner(self, device: torch.device | str = "cpu") -> TaskLearner:
        """On any device: how a step was run where the model was trained is of no account here."""
        config = replace(self.config, engine=replace(self.config.engine, capture=None, compile=None))
        try:
            build(find_method(config.method).Options, config.options, "method.")
        except UserError:  # of a package that is not here, or is another by now: the model predicts all the same
            config = replace(config, method="base", options={})
        learner = TaskLearner(config, self.classifier, device)
        learner.ledger = list(self.ledger)
        if Keeps.STATISTICS in learner.method.keeps:
            learner.method.statistics = self.statistics
        return learner


def needed_packages(classifier: Classifier) -> dict[str, str]:
    """Of other people, without which the classifier cannot be built: "head NAME", "backbone NAME", and the package."""
    head, architecture = classifier.answering_head, classifier.backbone.architecture
    needed = [(HEADS, head.name)] if head is not None and head.name not in OWN_HEADS else []
    if architecture.family == "reverie" and architecture.name not in OWN_BACKBONES:
        needed.append((BACKBONES, architecture.name))
    return {f"{KINDS[group]} {name}": plugin_package(group, name) or "" for group, name in needed}

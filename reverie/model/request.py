"""What a person asks of a step: a method, settings, a budget; refused where a model folder cannot carry it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from reverie.config.choices import KnownClass
from reverie.config.layers import Settings, setting_keys, setting_texts, settings_by_section
from reverie.config.schema import DataConfig
from reverie.data.folder import Progress
from reverie.errors import UserError
from reverie.methods import find_method, methods_that_load
from reverie.methods.keeps import Keeps
from reverie.model import defaults
from reverie.model.saved import SavedModel
from reverie.nets.backbone import LIBRARIES
from reverie.nets.external import find_network
from reverie.nets.pretrained import PRETRAINED_NET, pretrained_file
from reverie.system.records import build

log = logging.getLogger("reverie")
ABD = "abd"  # what new classes are learned with, unless somebody says otherwise
RANPAC = "ranpac"  # the same for a network that begins with weights of other images: trained, it would forget them
SCHEDULE = ("train.epochs", "train.milestones", "dream.steps")
OF_RUNS = (
    "stream.",
    "coreset.",
    "evaluate.",
    "keep",
    "data.source",
    "net.head",
    "net.weights",
)  # settings that mean nothing here


def needs_a_model_alone(method: str) -> bool:
    """Is a model folder all that the method needs? It holds the classifier and class statistics."""
    return not find_method(method).keeps & ~Keeps.STATISTICS


def method_to_go_on_with(before: SavedModel) -> str:
    """Where nobody names one: the model's own, or ABD where that one is not here, or needs more than a model."""
    made_by = before.config.method
    try:
        return made_by if needs_a_model_alone(made_by) else ABD
    except UserError as error:
        log.warning("The method that this model was made by is not here, so %r goes on from it: %s", ABD, error)
        return ABD


def method_to_begin_with(starts_pretrained: bool) -> str:
    """Where nobody names one."""
    return RANPAC if starts_pretrained else ABD


def starting_weights(
    settings: tuple[str, ...], weights: Path | str | None, pretrained: bool, progress: Progress | None = None
) -> tuple[tuple[str, ...], Path | None]:
    """The settings with the network that a first model begins with, and the file of its weights, if it has any.

    Those that `pretrained` asks for are downloaded where they are not here yet.
    """
    if not pretrained:
        return settings, Path(weights) if weights else None
    if weights:
        raise UserError("`pretrained` finds the library's own weights, and `weights` names a file. Leave one out.")
    net = named_net(settings) or PRETRAINED_NET
    wanted = find_network(net)
    if wanted.family not in LIBRARIES:
        raise UserError(f"There are no pretrained weights of {net}; there are for networks of torchvision and timm.")
    return (*settings, f"net.name={wanted}"), pretrained_file(wanted, progress)


@dataclass(frozen=True)
class LearnRequest:
    """What a person asks for; everything else is chosen by the rules of `defaults`."""

    method: str = ABD
    seed: int = 0
    settings: tuple[str, ...] = ()
    weights: Path | None = None  # of the backbone of a first step
    budget: float | None = None  # seconds
    on_known_class: KnownClass = "error"

    @classmethod
    def of(
        cls,
        method: str,
        seed: int,
        settings: Settings,
        weights: Path | str | None,
        budget: str | float | None,
        on_known_class: KnownClass,
    ) -> LearnRequest:
        """From a person's words: settings by key, and a budget such as 10min."""
        seconds = defaults.parse_duration(budget) if budget is not None else None
        place = Path(weights) if weights else None
        return cls(method, seed, setting_texts(settings), place, seconds, on_known_class)

    def __post_init__(self) -> None:
        if not needs_a_model_alone(self.method):
            keeps, fitting = find_method(self.method).keeps, filter(needs_a_model_alone, methods_that_load())
            raise UserError(
                f"The method {self.method!r} keeps {keeps} from one step to the next, and a model folder holds nothing "
                f"but the classifier and class statistics. Choose another `method`, one of {', '.join(fitting)}."
            )
        if self.on_known_class not in get_args(KnownClass):
            choices = ", ".join(get_args(KnownClass))
            raise UserError(f"`on_known_class` is one of {choices}, not {self.on_known_class!r}.")
        for text in self.settings:
            if any(key.startswith(OF_RUNS) for key in (text.strip(), *setting_keys([text]))):
                raise UserError(f"{text} is for experiments (`run`), and decides nothing here. Leave it out.")
        if self.budget and self.schedule:
            raise UserError(f"A budget sets the schedule, and so does {self.schedule[0]}. Leave one of them out.")

    @property
    def schedule(self) -> list[str]:
        """The settings that say how long to learn."""
        return [setting for setting in self.settings if setting_keys([setting]) & {*SCHEDULE}]

    @property
    def data(self) -> DataConfig:
        return build(DataConfig, settings_by_section(self.settings).get("data", {}), "data.")

    @property
    def net(self) -> str | None:
        """The network that was asked for."""
        return named_net(self.settings)


def named_net(settings: Sequence[str]) -> str | None:
    """By net.name."""
    name = settings_by_section(settings).get("net", {}).get("name")
    return None if name is None else str(name)

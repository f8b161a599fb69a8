"""What a run is before it begins: its configuration, its name, and the stream that it will learn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from reverie.config import layers as layering
from reverie.config.layers import setting_keys
from reverie.config.schema import Config, CoresetConfig, Recipe
from reverie.data.images import Dataset, pixel_statistics
from reverie.data.stream import Stream, class_order, task_sizes
from reverie.errors import UserError
from reverie.methods import UPPER_BOUND, find_method
from reverie.methods.base import Keeps
from reverie.nets.classifier import Preprocessing


def configure(
    preset: str,
    method: str = "abd",
    *,
    seed: int = 0,
    recipe: Recipe = "paper",
    settings: Sequence[str] = (),
) -> Config:
    """The configuration of a run: a preset's name or a YAML file, and `section.key=value` settings on top."""

    def load(name: str, with_options: bool) -> Config:
        return layering.load(
            preset,
            method=name,
            find=find_method,
            seed=seed,
            recipe=recipe,
            settings=settings,
            with_options=with_options,
        )

    said = any(key.startswith("method.") for key in setting_keys(settings))
    chosen = load(method, method != UPPER_BOUND or said)  # a preset's options are for the others
    upper_bound = load(UPPER_BOUND, False)
    if find_method(method).keeps != Keeps.CORESET:  # decides nothing there, so it is no part of what is run
        chosen = replace(chosen, coreset=CoresetConfig())
    return replace(chosen, reference=upper_bound.training_digest())


def folder_name(config: Config, settings: Sequence[str]) -> str:
    """PRESET-METHOD-RECIPE[-changes]-seedK."""
    method, changes = (re.sub(r"[^\w.,=+-]", "_", text) for text in (config.method, ",".join(settings)))
    if len(changes) > 80:
        changes = f"{changes[:60]}~{blake2b(','.join(settings).encode(), digest_size=4).hexdigest()}"
    return "-".join([config.preset, method, config.recipe, *([changes] if changes else []), f"seed{config.seed}"])


def default_folder(config: Config, settings: Sequence[str] = ()) -> Path:
    """With what a person set, so that a quick look does not stand in the way of the real run."""
    return Path("runs") / folder_name(config, settings)


def choose_classes(config: Config, count: int) -> list[int]:
    """The classes of the stream in their order, out of `count` that there are."""
    order = class_order(config.stream.order, count, config.seed)
    if config.stream.classes:
        if config.stream.classes > len(order):
            raise UserError(f"stream.classes is {config.stream.classes}, but there are only {len(order)} classes.")
        order = order[: config.stream.classes]
    return order


def make_stream(config: Config, dataset: Dataset) -> Stream:
    order = choose_classes(config, len(dataset.class_names))
    stream = Stream(dataset, order, task_sizes(config.stream.split, len(order)))
    if config.stream.take and config.stream.take > len(stream):
        raise UserError(f"stream.take asks for {config.stream.take} tasks; there are {len(stream)}.")
    return stream[: config.stream.take] if config.stream.take else stream


def preprocessing(stream: Stream) -> Preprocessing:
    """As published, or from the first task alone: later images are not known when the first are learned."""
    mean, deviation = stream.dataset.normalisation or pixel_statistics(stream[0].images)
    return Preprocessing(stream.dataset.train.shape[1], mean, deviation)

"""What a run is before it begins: its configuration, its name, its data set, and the stream that it will learn."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path

from reverie.config.choices import UPPER_BOUND, Recipe
from reverie.config.layers import (
    Settings,
    load_preset,
    setting_keys,
    setting_texts,
    values_of_its_own,
)
from reverie.config.schema import Config, CoresetConfig, check_config
from reverie.data.images import Dataset
from reverie.data.sources import read_dataset
from reverie.data.stream import Stream, class_order, task_sizes
from reverie.errors import UserError
from reverie.methods import find_method, methods_that_load
from reverie.methods.keeps import Keeps
from reverie.text import plural

log = logging.getLogger("reverie")


def configure(
    preset: str | Path,
    method: str = "abd",
    *,
    seed: int = 0,
    recipe: Recipe = "paper",
    settings: Settings = (),
) -> Config:
    """The configuration of a run: a preset's name or a YAML file, a method, and settings on top.

        configure("cifar100-10", "abd", seed=1, settings={"train.epochs": 100, "train.milestones": [50, 80]})

    Settings may also be written as on the command line: `["train.lr=0.05"]`. Raises UserError for a preset, a
    method, a key or a value that cannot be.
    """

    def load(name: str, with_options: bool) -> Config:
        return load_preset(
            preset,
            method=name,
            find=find_method,
            seed=seed,
            recipe=recipe,
            settings=settings,
            with_options=with_options,
        )

    has_options = any(key.startswith("method.") for key in setting_keys(settings))
    chosen = load(method, method != UPPER_BOUND or has_options)  # a preset's options are for the others
    own_values = values_of_its_own(chosen, load(UPPER_BOUND, False))
    if Keeps.CORESET not in find_method(method).keeps:  # decides nothing there, so it is no part of what is run
        chosen = replace(chosen, coreset=CoresetConfig())
    train = chosen.train
    in_steps = train.schedule == "steps" and "train.milestones" not in setting_keys(settings)
    if in_steps and train.milestones and min(train.milestones) >= train.epochs:
        warn_of_a_constant_rate(tuple(train.milestones), train.epochs)
    return replace(chosen, own_values=own_values)


@functools.cache  # once a process: a table configures each of its runs
def warn_of_a_constant_rate(milestones: tuple[int, ...], epochs: int) -> None:
    log.warning(
        "No milestone of %s lies within %s, so the learning rate never falls; set train.milestones, too.",
        list(milestones),
        plural(epochs, "epoch"),
    )


@dataclass(frozen=True)
class MethodInfo:
    name: str
    title: str  # as in the paper's tables
    keeps: str  # from one task to the next, besides the classifier
    about: str


def list_methods() -> list[MethodInfo]:
    """The methods, those of other packages included, and what each keeps from one task to the next."""
    found = []
    for name in methods_that_load():
        cls = find_method(name)
        about = (cls.__doc__ or cls.title).strip().partition("\n")[0]
        found.append(MethodInfo(name, cls.title or name, str(cls.keeps), about))
    return found


def folder_name(config: Config, settings: Settings) -> str:
    """PRESET-METHOD-RECIPE[-changes]-seedK."""
    texts = setting_texts(settings)
    method, changes = (re.sub(r"[^\w.,=+-]", "_", text) for text in (config.method, ",".join(texts)))
    if len(changes) > 80:
        changes = f"{changes[:60]}~{blake2b(','.join(texts).encode(), digest_size=4).hexdigest()}"
    return "-".join([config.preset, method, config.recipe, *([changes] if changes else []), f"seed{config.seed}"])


def default_folder(config: Config, settings: Settings = ()) -> Path:
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


def load_dataset(
    config: Config, data: Path | str = "data", reading: Callable[[int, int], None] | None = None
) -> Dataset:
    """The data set that a configuration names, from under the folder `data`. `reading(done, total)` is progress.

    Raises UserError where it is not there, or is damaged.
    """
    check_config(config)
    return read_dataset(config.data, Path(data), reading, partial(choose_classes, config))


def make_stream(config: Config, dataset: Dataset) -> Stream:
    """The data set cut into tasks, as the configuration says: `for task in stream`, `stream[:2].test()`."""
    check_config(config)
    order = choose_classes(config, len(dataset.class_names))
    stream = Stream(dataset, order, task_sizes(config.stream.split, len(order)))
    if config.stream.take and config.stream.take > len(stream):
        raise UserError(f"stream.take asks for {config.stream.take} tasks; there are {len(stream)}.")
    return stream[: config.stream.take] if config.stream.take else stream

"""One step of a model's life: from a person's images to a bigger, judged model.

`plan` looks at the images and decides how to learn them, `learn` does it; `job.py` does both in a folder.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import get_args

import torch
from torch import Tensor

from reverie.config.choices import KnownClass
from reverie.config.layers import setting_keys
from reverie.config.schema import ADOPTED, AugmentConfig, Config, DataConfig
from reverie.config.typed import build
from reverie.data.class_names import brief
from reverie.data.folder import Progress, class_folders, files_below, folders_in, readable
from reverie.data.images import Dataset, Images, pixel_statistics
from reverie.data.inputs import Material, in_channels, sort_names
from reverie.data.stream import Task
from reverie.engine.loop import Observer, Snapshot, synchronise
from reverie.engine.phase import Phase
from reverie.errors import UserError, counted, explaining
from reverie.learner.task_learner import Checkpoint, LearnerObserver, Several, TaskLearner
from reverie.methods import find_method, methods_that_load
from reverie.methods.base import Keeps
from reverie.methods.dreamer import Dreamer
from reverie.model import defaults
from reverie.model.acceptance import Acceptance, judge, on_dreams
from reverie.model.folder import SavedModel
from reverie.nets import Architecture, check_network
from reverie.nets import external as library
from reverie.nets.classifier import ImageStatistics, Preprocessing
from reverie.nets.weights import fingerprint, load_backbone
from reverie.system import provenance

log = logging.getLogger("reverie")
DREAMS = 500  # that the old and the new model are compared on, at least
PASSING = 0.95  # of the held-out images, and of the dreams: the share that is not to be rejected
MEASURED = 20  # steps of each phase, to know how long it will take
MOST = 2.0  # times the usual schedule, however large the budget
LITTLE = 0.1  # of the usual schedule: worth a warning
SCHEDULE = ("train.epochs", "train.milestones", "dream.steps")
OF_RUNS = ("stream.", "coreset.", "evaluate.", "keep", "data.source", "net.head")  # settings that mean nothing here


def _fits(method: str) -> bool:
    """Is a model folder all it needs?"""
    return find_method(method).keeps == Keeps.NOTHING


def _is_of_runs(key: str) -> bool:
    return key.startswith(OF_RUNS)


@dataclass(frozen=True)
class Wish:
    """What a person asks for; everything else is chosen by the rules of `defaults`."""

    method: str = "abd"
    seed: int = 0
    settings: tuple[str, ...] = ()
    weights: Path | None = None  # of the backbone of a first step
    budget: float | None = None  # seconds
    on_known_class: KnownClass = "error"

    def __post_init__(self) -> None:
        if not _fits(self.method):
            keeps, fitting = find_method(self.method).keeps, filter(_fits, methods_that_load())
            raise UserError(
                f"The method {self.method!r} keeps {keeps} from one step to the next, and a model folder keeps nothing "
                f"but the classifier. Use one of {', '.join(fitting)}."
            )
        if self.on_known_class not in get_args(KnownClass):
            raise UserError(f"on_known_class is one of {', '.join(get_args(KnownClass))}, not {self.on_known_class!r}.")
        if idle := [text for text in self.settings if any(map(_is_of_runs, (text.strip(), *setting_keys([text]))))]:
            raise UserError(f"{idle[0]} is for experiments (`reverie run`), and decides nothing here. Leave it out.")
        if self.budget and self.schedule:
            raise UserError(f"A budget sets the schedule, and so does {self.schedule[0]}. Leave one of them out.")

    @property
    def schedule(self) -> list[str]:
        """The settings that say how long to learn."""
        return [setting for setting in self.settings if setting_keys([setting]) & {*SCHEDULE}]

    @property
    def data(self) -> DataConfig:
        data: DataConfig = build(DataConfig, defaults.settings_as_dict(self.settings).get("data", {}), "data.")
        return data


@dataclass(frozen=True)
class Step:
    """What is to be learned onto which model, and how. Labels are in the order of the model that is to come."""

    before: SavedModel | None
    config: Config
    preprocessing: Preprocessing
    train: Images
    held_out: Images
    new: tuple[str, ...]  # classes, in the order in which they are learned
    refined: tuple[str, ...]  # known classes of which there are further images
    source: str
    fingerprint: str
    weights: Path | None = None

    @property
    def known(self) -> tuple[str, ...]:
        return self.before.classifier.class_names if self.before else ()

    @property
    def number(self) -> int:
        return len(self.before.ledger) if self.before else 0

    def task(self) -> Task:
        return Task(self.number, self.new, len(self.known), self.train)

    def learner(self, device: torch.device) -> TaskLearner:
        """Before the step, with a classifier of its own."""
        if self.before is not None:
            learner = TaskLearner(self.config, copy.deepcopy(self.before.classifier), device)
            learner.ledger = list(self.before.ledger)
            return learner
        learner = TaskLearner.fresh(self.config, self.preprocessing, device=device)
        if self.weights is not None:
            load_backbone(learner.classifier.backbone, self.weights)
        return learner

    def counts(self, images: Images) -> dict[str, int]:
        """Images by class."""
        names = (*self.known, *self.new)
        counts = torch.bincount(images.labels, minlength=len(names)).tolist()
        return {name: count for name, count in zip(names, counts, strict=True) if count}

    def lines(self) -> list[str]:
        """What was decided, for the person to see."""
        config, train = self.config, self.config.train
        learned = f"{counted(len(self.new), 'new class')}: {brief(self.new)}" if self.new else "no new classes"
        refined = f"; further images of {brief(self.refined)}" if self.refined else ""
        beside = f", beside {len(self.known)} known" if self.known else ""
        augment = config.augment
        ways = [
            *(["random crops"] if augment.crop or augment.resized_crop else []),
            *(["mirrored"] if augment.flip else []),
            *(["brightness and contrast"] if augment.brightness or augment.contrast else []),
        ]
        dreaming = f"{counted(config.dream.steps, 'step')} of dreaming, then " if _dreams(config) and self.known else ""
        return [
            f"{learned}{refined}{beside}; {counted(len(self.train), 'image')} to learn from, "
            f"{len(self.held_out)} held out",
            f"{self.preprocessing.size}×{self.preprocessing.size} pixels, {config.net.name}, augmented by "
            f"{', '.join(ways) or 'nothing'}" + ("; classes are drawn equally often" if train.even else ""),
            f"method {config.method}: {dreaming}{counted(train.epochs, 'epoch')} in batches of {train.batch_size}, "
            f"learning rate {train.lr:g}",
        ]


# --- deciding


def plan(before: SavedModel | None, material: Material, wish: Wish, progress: Progress | None = None) -> Step:
    """Read the images, and choose by the rules whatever was not asked for."""
    known = before.classifier.class_names if before else ()
    new, old = sort_names(material.names, known)
    if old and wish.on_known_class == "error":
        raise UserError(
            f"The model knows {brief(old)} already. Say --on-known-class refine (on_known_class='refine' in Python) to "
            "learn from these images as further examples, skip to leave them out, or rename what is another class."
        )
    refined = old if wish.on_known_class == "refine" else []
    if refined and not find_method(wish.method).refines:
        able = [name for name in methods_that_load() if find_method(name).refines and _fits(name)]
        raise UserError(
            f"The method {wish.method!r} cannot learn further images of a known class. Use one of {', '.join(able)}."
        )
    if not new and not refined:
        raise UserError("There is nothing to learn: the model knows all these classes already.")
    if before is None and len(new) == 1:
        log.warning("%r is the only class: with nothing to tell it from, the network learns nothing yet.", new[0])
    side, colourful = material.look()
    said_net = defaults.settings_as_dict(wish.settings).get("net", {}).get("name")
    if wish.weights and (before or "/" not in str(said_net)):
        raise UserError(
            "Weights are for the network of a first model, named by --backbone (backbone= in Python): torchvision/… or "
            "timm/…."
        )
    if before is None:
        size, net, augment = wish.data.size or defaults.choose_size(side, said_net), said_net, AugmentConfig()
    else:
        size, net, augment = before.classifier.preprocessing.size, before.config.net.name, before.config.augment
        if (wish.data.size or size, said_net or net) != (size, net):
            raise UserError(f"The model is a {net} for {size}×{size} pixels, and stays one. Leave size and net out.")
    if before is None or before.config.preset == ADOPTED:  # of which nobody knows how it was trained
        augment = defaults.choose_augmentation(size, colourful)
    choose = partial(
        defaults.choose,
        size,
        method=wish.method,
        seed=wish.seed,
        settings=wish.settings,
        augment=augment,
        net=net,
        alone=bool(known) and len(new) == 1,
    )
    check_network(choose(1).net.name)  # mistakes in the settings are told before any image is read
    dataset = material.read(wish.data, size, {*new, *refined}, progress)
    config = choose(len(dataset.train))
    if _dreams(config) and config.dream.life == "carried":
        raise UserError("A carried dreamer is kept from one step to the next, and a model folder keeps none.")
    shape = before.classifier.preprocessing if before else _preprocessing(dataset, config, wish.weights)
    names = [*known, *new]
    train, held_out = (_in_order(part, dataset, names, shape.channels) for part in (dataset.train, dataset.test))
    return Step(
        before,
        config,
        shape,
        train,
        held_out,
        tuple(new),
        tuple(refined),
        material.source,
        dataset.fingerprint(),
        wish.weights,
    )


def within(budget: float, step: Step, device: torch.device) -> Step:
    """The same with a schedule for so many seconds, from the time that a few steps of each phase take."""
    began, setup, training = time.monotonic(), 0.0, 0.0
    learner, task = step.learner(device), step.task()
    learner.method.begin(task)
    learner.classifier.grow(task.names)
    for phase in learner.method.phases(task):
        watch = _Stopwatch(device, most=budget / 20)
        with suppress(_Enough):
            learner.engine.run(replace(phase, epochs=None, steps=MEASURED + 1), seed=0, observer=watch)
        setup += watch.setup
        training += watch.step * phase.total_steps
    left = 0.9 * (budget - (time.monotonic() - began)) - setup
    share = max(0.0, left) / training
    config = defaults.scaled(step.config, min(MOST, share))
    if share < LITTLE:
        longer = ", and even the least that can be done takes longer" if share * step.config.train.epochs < 2 else ""
        log.warning("The budget is enough for %.1f %% of the usual schedule%s: expect little.", 100 * share, longer)
    return replace(step, config=config)


class _Enough(Exception):
    """No more steps need to be seen."""


class _Stopwatch(Observer):
    """Takes the time of a few steps, or of fewer if they last longer than `most` seconds."""

    def __init__(self, device: torch.device, most: float) -> None:
        self.device, self.most = device, most
        self.times = [time.monotonic()]

    def step_ends(self, done: int, snapshot: Callable[[], Snapshot]) -> None:
        synchronise(self.device)
        self.times.append(time.monotonic())
        if done >= MEASURED or (done >= 3 and self.times[-1] - self.times[0] > self.most):
            raise _Enough

    @property
    def step(self) -> float:
        """Seconds; the first is left out, which may have to set up things."""
        return median(after - before for before, after in pairwise(self.times[1:]))

    @property
    def setup(self) -> float:
        return max(0.0, self.times[1] - self.times[0] - self.step)


def _preprocessing(dataset: Dataset, config: Config, weights: Path | None) -> Preprocessing:
    """Normalised by the images to learn, or as the weights want it."""
    size, statistics = dataset.train.shape[1], pixel_statistics(dataset.train)
    if weights is None:
        return Preprocessing(size, *statistics)
    _, mean, deviation = library.usual_preprocessing(Architecture.parse(config.net.name))
    return Preprocessing(size, mean, deviation, ImageStatistics(*statistics))


def _in_order(images: Images, dataset: Dataset, names: Sequence[str], channels: int) -> Images:
    label = torch.tensor([names.index(name) for name in dataset.class_names])
    return in_channels(images.relabel(label[images.labels]), channels)


def _dreams(config: Config) -> bool:
    from reverie.methods.dream_replay import DreamReplay

    return issubclass(find_method(config.method), DreamReplay)


# --- learning


class _Dreams:
    """Dreams of the old classes, the same each time, part by part."""

    def __init__(self, dreamer: Dreamer) -> None:
        self.dreamer = dreamer

    def __iter__(self) -> Iterator[Tensor]:
        return (images for images, *_ in self.dreamer.gallery(max(DREAMS, 20 * self.dreamer.teacher.seen)))


class _DreamTaker(LearnerObserver):
    """Takes the dreams along before the method lets go of the dreamer."""

    def __init__(self, learner: TaskLearner) -> None:
        self.learner = learner
        self.dreams: _Dreams | None = None

    def phase_begins(self, phase: Phase, done: int) -> None:
        if self.learner.method.dreamer is not None:
            self.dreams = _Dreams(self.learner.method.dreamer)


def learn(
    step: Step,
    device: torch.device,
    observer: LearnerObserver | None = None,
    check: Images | None = None,
    lineage: tuple[str, ...] = (),
    checkpoint: Checkpoint | None = None,
) -> tuple[SavedModel, Acceptance]:
    """The model after the step, and the report on it. The model before is left as it is."""
    weights = {"weights": step.weights.name, "weights_sha256": fingerprint(step.weights)} if step.weights else {}
    learner = step.learner(device)
    if checkpoint is not None:
        learner.prepare(checkpoint.state, known=len(step.known))
    taker = _DreamTaker(learner)
    learner.learn(step.task(), Several(observer or LearnerObserver(), taker), checkpoint)
    before = None
    if step.before is not None:
        before = TaskLearner.of(replace(step.before, classifier=copy.deepcopy(step.before.classifier)), device)
    previous = step.before.acceptance if step.before else None
    report = judge(before, learner, step.held_out, taker.dreams, check, previous=previous)
    learner.ledger[-1] |= {
        "date": provenance.now(),
        "source": step.source,
        "images": step.counts(step.train),
        "held_out": step.counts(step.held_out),
        "refined": list(step.refined),
        "fingerprint": step.fingerprint,
        **weights,
    }
    threshold = rejection_threshold(learner, step.held_out, taker.dreams)
    classifier = learner.classifier.cpu()
    return SavedModel(classifier, step.config, learner.ledger, lineage, threshold, report.as_dict()), report


def rejection_threshold(learner: TaskLearner, held_out: Images, dreams: Iterable[Tensor] | None) -> float:
    """The largest confidence that at least 95 % of the held-out images reach, and at least 95 % of the dreams.

    Rounded down, since it is one image's own, and another batch size moves its last digits.
    """
    answers = [learner.logits(held_out)] + ([on_dreams(learner, dreams)] if dreams is not None else [])
    sure = [torch.cat([logits.softmax(dim=1).amax(dim=1) for logits in parts]) for parts in answers]
    least = min(float(part.sort().values[len(part) - math.ceil(PASSING * len(part))]) for part in sure)
    return math.floor(10_000 * (least - 1e-6)) / 10_000


@explaining("read", "Change its permissions, or choose another folder.")
def read_check(folder: Path, step: Step, progress: Progress | None = None) -> Images:
    """Images to compare the models on: in class folders, or anyhow, without labels (-1).

    Files that cannot be read, and folders of classes that the model will not know, are named and left aside.
    """
    names, shape = [*step.known, *step.new], step.preprocessing
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder} to check the model on.")
    classes = [inner.name for inner in folders_in(folder)]
    known = [name for name in classes if name in names]
    strange = [name for name in classes if name not in names]
    if not known and (parts := [name for name in ("test", "val") if name in strange]):
        raise UserError(f"No folder in {folder} bears the name of a class. Did you mean {folder / parts[0]}?")
    if known:
        files = [
            (file, names.index(inner.name))
            for inner in class_folders(folder)
            if inner.name in known
            for file in files_below(inner)
        ]
    else:
        files = [(file, -1) for file in files_below(folder)]
        if step.before is None:
            log.warning("A first model has none before it to be compared with; images without classes tell nothing.")
    if known and strange:
        log.warning("The model will not know %s of %s; they are left aside.", brief(strange), folder)
    elif strange:
        log.warning("No folder in %s bears the name of a class, so its images count as unlabelled.", folder)
    images = readable(files, shape.size, progress)
    if not len(images):
        raise UserError(f"There are no images in {folder} that the model could be checked on.")
    return in_channels(images, shape.channels)

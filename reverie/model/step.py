"""One step of a model's life: from a person's images to a bigger, judged model.

`plan_step` looks at the images and decides how to learn them, `learn_step` does it; `job.py` does both in a folder.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from reverie.config.choices import ADOPTED
from reverie.config.schema import AugmentConfig, Config
from reverie.data.augment import refuse_blank_images
from reverie.data.class_names import sort_names
from reverie.data.folder import Progress, class_folders, files_below, folders_in, readable
from reverie.data.images import Dataset, Images
from reverie.data.inputs import Inputs, in_channels
from reverie.data.preprocessing import ImageStatistics, Preprocessing, pixel_statistics
from reverie.data.stream import Task
from reverie.engine.observer import Observer, Observers
from reverie.engine.phase import Phase
from reverie.errors import UserError, explaining
from reverie.learner.checkpoint import Checkpoint
from reverie.learner.task_learner import TaskLearner
from reverie.methods import find_method, methods_that_load
from reverie.methods.base import Method
from reverie.methods.dream_replay import DreamReplay
from reverie.methods.dreamer import DreamMaker
from reverie.methods.keeps import Keeps
from reverie.model import defaults
from reverie.model.acceptance import Acceptance
from reverie.model.judging import judge_model, logits_of_dreams
from reverie.model.request import LearnRequest, needs_a_model_alone
from reverie.model.saved import SavedModel
from reverie.nets import Architecture, check_network
from reverie.nets.class_statistics import describe, form_for
from reverie.nets.external import usual_preprocessing
from reverie.nets.weights import fingerprint, load_backbone
from reverie.system import provenance
from reverie.text import listing, plural

log = logging.getLogger("reverie")
DREAMS = 500  # that the old and the new model are compared on, at least
PASSING = 0.95  # of the held-out images, and of the dreams: the share that is not to be rejected


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

    @property
    def trains(self) -> bool:
        """Is anything trained by steps, or all computed in closed form?"""
        method = find_method(self.config.method)
        return method.trains_network and (method.trains_head or not self.known)

    def task(self) -> Task:
        return Task(self.number, self.new, len(self.known), self.train)

    def learner(self, device: torch.device) -> TaskLearner:
        """Before the step, with a classifier of its own."""
        if self.before is not None:
            learner = TaskLearner(self.config, copy.deepcopy(self.before.classifier), device)
            learner.ledger = list(self.before.ledger)
            if Keeps.STATISTICS in learner.method.keeps:
                learner.method.statistics = self.before.statistics
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
        learned = f"{plural(len(self.new), 'new class')}: {listing(self.new)}" if self.new else "no new classes"
        refined = f"; further images of {listing(self.refined)}" if self.refined else ""
        besides = f", beside {len(self.known)} known" if self.known else ""
        even = "; classes are drawn equally often" if train.even else ""
        shown = f", augmented by {_augmentation(config.augment)}{even}" if self.trains else ""
        size = self.preprocessing.size
        return [
            f"{learned}{refined}{besides}; {plural(len(self.train), 'image')} to learn from, "
            f"{len(self.held_out)} held out",
            f"{size}×{size} pixels, {config.net.name}{shown}",
            f"method {config.method}: {self._schedule()}",
        ]

    def _schedule(self) -> str:
        config, train = self.config, self.config.train
        if not self.trains:
            return "nothing is trained; the network rests, and a head is computed from its features"
        dreaming = ""
        if _dreams(config) and self.known:
            drawn = config.dream.source == "images"
            dreaming = (
                "new images drawn towards old classes" if drawn else f"{plural(config.dream.steps, 'step')} of dreaming"
            )
            dreaming += ", then "
        parts = [f"{plural(train.epochs, 'epoch')} in batches of {train.batch_size}", f"learning rate {train.lr:g}"]
        if train.schedule == "cosine":
            parts.append("falling along a cosine")
        if train.optimizer != "sgd":
            parts.append(train.optimizer)
        if train.rotations in ("one", "all") or (train.rotations == "first" and not self.known):
            parts.append("turned images as further classes")
        if train.mixup:
            parts.append("mixup")
        return dreaming + ", ".join(parts)


def _augmentation(augment: AugmentConfig) -> str:
    ways = []
    if augment.crop or augment.resized_crop:
        ways.append("random crops")
    if augment.flip:
        ways.append("mirrored")
    if augment.brightness or augment.contrast:
        ways.append("brightness and contrast")
    if augment.cutout:
        ways.append("cutout")
    if augment.trivial:
        ways.append("TrivialAugment")
    return ", ".join(ways) or "nothing"


# --- deciding


def plan_step(
    before: SavedModel | None, inputs: Inputs, request: LearnRequest, progress: Progress | None = None
) -> Step:
    """Read the images, and choose by the rules whatever was not asked for."""
    known = before.classifier.class_names if before else ()
    new, refined = _sort_classes(inputs.names, known, request)
    if before is None and len(new) == 1:
        log.warning("%r is the only class: with nothing to tell it from, the network learns nothing yet.", new[0])
    side, colourful = inputs.look()
    if request.weights and (before or "/" not in str(request.net)):
        raise UserError("`weights` are for the network of a first model, named by `backbone`: torchvision/… or timm/….")
    if before is None and not request.weights and not find_method(request.method).trains_network:
        raise UserError(
            f"The method {request.method!r} leaves the network as it is, so a first model needs one that was trained "
            "before: say `pretrained=True`, or give a file of `weights`."
        )
    size, net, augment = _shape(before, request, side, colourful)
    choose = partial(
        defaults.choose,
        size,
        method=request.method,
        seed=request.seed,
        settings=request.settings,
        augment=augment,
        net=net,
        alone=bool(known) and len(new) == 1,
    )
    early = choose(1)  # mistakes in the settings are told before any image is read
    check_network(early.net.name)
    refuse_blank_images(early.augment, size)
    if before is not None:
        _look_at_heads(before, early)
    dataset = inputs.read(request.data, size, {*new, *refined}, progress)
    config = choose(len(dataset.train))
    if _dreams(config) and config.dream.life == "carried":
        raise UserError("A carried dreamer is kept from one step to the next, and a model folder keeps none.")
    shape = before.classifier.preprocessing if before else _preprocessing(dataset, config, request.weights)
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
        inputs.source,
        dataset.fingerprint(),
        request.weights,
    )


def _look_at_heads(before: SavedModel, config: Config) -> None:
    """Can the method go on from what the model has? What it will not take along is said."""
    method, made_by = config.method, before.config.method
    goes_on = find_method(method)(before.classifier, config, torch.device("cpu"))  # with its options it may keep more
    if Keeps.STATISTICS in goes_on.keeps:
        _look_at_statistics(before, goes_on)
    if method != made_by and made_by in methods_that_load() and not find_method(made_by).trains_head:
        raise UserError(
            f"This model cannot be extended with {method!r}: its network has learned its first classes alone. Only the "
            f'method that made it goes on from that: `method="{made_by}"`.'
        )
    if before.classifier.answering_head is not None and not goes_on.answers:
        log.warning(
            "The head that answered until now, and the class statistics, are not for %r: they are left behind, and the "
            "network's own last layer answers.",
            method,
        )


def _look_at_statistics(before: SavedModel, goes_on: Method) -> None:
    """A method that keeps class statistics goes on from some of its own kind."""
    method, made_by, found = goes_on.config.method, before.config.method, before.statistics
    if found is None:
        raise UserError(
            f"The method {method!r} goes on from class statistics, and this model holds none: it was not made by a "
            "method that keeps them. Begin a model with it, or choose another `method` to extend this one."
        )
    form, size = goes_on.statistics_form, goes_on.statistics_size
    instead = f'Begin a model with it, or extend this one by the method that made it: `method="{made_by}"`.'
    if form is None and method != made_by:
        raise UserError(
            f"The method {method!r} does not say what class statistics it keeps, so it cannot go on from those of "
            f"another method. {instead}"
        )
    if form is not None and (wanted := form_for(form, size), size) != (found.form, found.means.shape[1]):
        raise UserError(
            f"The class statistics of this model are not those that {method!r} goes on from. It holds "
            f"{found.described()}; wanted: {describe(wanted, size)}. "
            f"{instead if method != made_by else 'Learn with the options that the model was made with.'}"
        )


def _sort_classes(names: Sequence[str], known: Sequence[str], request: LearnRequest) -> tuple[list[str], list[str]]:
    """The classes to learn, and the known ones to learn more of."""
    new, old = sort_names(names, known)
    if old and request.on_known_class == "error":
        raise UserError(
            f'The model knows {listing(old)} already. Say `on_known_class="refine"` to learn from these images as '
            'further examples, `on_known_class="skip"` to leave them out, or rename what is another class.'
        )
    refined = old if request.on_known_class == "refine" else []
    if refined and not find_method(request.method).refines:
        able = [name for name in methods_that_load() if find_method(name).refines and needs_a_model_alone(name)]
        raise UserError(
            f"The method {request.method!r} cannot learn further images of a known class. Choose another `method`, one "
            f"of {', '.join(able)}."
        )
    if not new and not refined:
        raise UserError("There is nothing to learn: the model knows all these classes already.")
    return new, refined


def _shape(
    before: SavedModel | None, request: LearnRequest, side: int, colourful: bool
) -> tuple[int, str | None, AugmentConfig]:
    """Size, network and augmentation: the model's own, or chosen for a first one by its images."""
    asked_size, asked_net = request.data.size, request.net
    if before is None:
        size = asked_size or _first_size(request, side)
        return size, asked_net, defaults.choose_augmentation(size, colourful)
    size, net = before.classifier.preprocessing.size, before.config.net.name
    if (asked_size or size, asked_net or net) != (size, net):
        other = "data.size" if (asked_net or net) == net else "`backbone` (net.name)"
        raise UserError(f"The model is a {net} for {size}×{size} pixels, and stays one. Leave {other} out.")
    if before.config.preset == ADOPTED:  # of which nobody knows how it was trained
        return size, net, defaults.choose_augmentation(size, colourful)
    return size, net, before.config.augment


def _first_size(request: LearnRequest, side: int) -> int:
    if request.weights is None or request.net is None:
        return defaults.choose_size(side, request.net)
    usual, *_ = usual_preprocessing(Architecture.parse(request.net))
    return defaults.choose_size_for_weights(side, usual)


def _preprocessing(dataset: Dataset, config: Config, weights: Path | None) -> Preprocessing:
    """Normalised by the images to learn, or as the weights want it."""
    size, statistics = dataset.train.shape[1], pixel_statistics(dataset.train)
    if weights is None:
        return Preprocessing(size, *statistics)
    _, mean, deviation = usual_preprocessing(Architecture.parse(config.net.name))
    return Preprocessing(size, mean, deviation, ImageStatistics(*statistics))


def _in_order(images: Images, dataset: Dataset, names: Sequence[str], channels: int) -> Images:
    label = torch.tensor([names.index(name) for name in dataset.class_names])
    return in_channels(images.relabel(label[images.labels]), channels)


def _dreams(config: Config) -> bool:
    return issubclass(find_method(config.method), DreamReplay)


# --- learning


class _Dreams:
    """Dreams of the old classes, the same each time, part by part."""

    def __init__(self, dreamer: DreamMaker) -> None:
        self.dreamer = dreamer

    def __iter__(self) -> Iterator[Tensor]:
        return (images for images, *_ in self.dreamer.gallery(max(DREAMS, 20 * self.dreamer.teacher.seen)))


class _DreamTaker(Observer):
    """Takes the dreams along before the method lets go of the dreamer."""

    def __init__(self, learner: TaskLearner) -> None:
        self.learner = learner
        self.dreams: _Dreams | None = None

    def phase_begins(self, phase: Phase, done: int) -> None:
        if self.learner.method.dreamer is not None:
            self.dreams = _Dreams(self.learner.method.dreamer)


def learn_step(
    step: Step,
    device: torch.device,
    observer: Observer | None = None,
    check: Images | None = None,
    lineage: tuple[str, ...] = (),
    checkpoint: Checkpoint | None = None,
) -> tuple[SavedModel, Acceptance]:
    """The model after the step, and the report on it. The model before is left as it is."""
    weights_digest = fingerprint(step.weights) if step.weights else None
    learner = step.learner(device)
    if others := learner.method.keeps & ~Keeps.STATISTICS:  # with its options it may keep more than it says at first
        raise UserError(_cannot_hold(step.config.method, str(others)))
    if checkpoint is not None:
        learner.prepare(checkpoint.state, known=len(step.known))
    taker = _DreamTaker(learner)
    learner.learn(step.task(), Observers(observer, taker), checkpoint)
    if lost := sorted({*learner.method.state_dict()} - {"statistics"}):
        raise UserError(_cannot_hold(step.config.method, ", ".join(lost)))
    before = None
    if step.before is not None:
        before = replace(step.before, classifier=copy.deepcopy(step.before.classifier)).task_learner(device)
    previous = step.before.acceptance if step.before else None
    report = judge_model(before, learner, step.held_out, taker.dreams, check, previous=previous)
    learner.ledger[-1] = learner.ledger[-1].replace(
        date=provenance.now(),
        source=step.source,
        images=step.counts(step.train),
        held_out=step.counts(step.held_out),
        refined=list(step.refined),
        fingerprint=step.fingerprint,
        weights=step.weights.name if step.weights else None,
        weights_sha256=weights_digest,
    )
    threshold = rejection_threshold(learner, step.held_out, taker.dreams)
    made = SavedModel.of(learner)
    made = replace(made, classifier=made.classifier.cpu(), config=step.config, lineage=lineage)
    return replace(made, rejection=threshold, acceptance=report), report


def _cannot_hold(method: str, what: str) -> str:
    return (
        f"The method {method!r} keeps {what} from one step to the next, and a model folder cannot hold more than the "
        "classifier and class statistics."
    )


def rejection_threshold(learner: TaskLearner, held_out: Images, dreams: Iterable[Tensor] | None) -> float:
    """The largest confidence that at least 95 % of the held-out images reach, and at least 95 % of the dreams.

    Rounded down, since it is one image's own, and another batch size moves its last digits.
    """
    logits = [learner.logits(held_out)]
    if dreams is not None:
        logits.append(logits_of_dreams(learner, dreams))
    confidence = [torch.cat([part.softmax(dim=1).amax(dim=1) for part in parts]) for parts in logits]
    least = min(float(part.sort().values[len(part) - math.ceil(PASSING * len(part))]) for part in confidence)
    return math.floor(10_000 * (least - 1e-6)) / 10_000


@explaining("read", "Change its permissions, or choose another folder.")
def read_check_images(folder: Path, step: Step, progress: Progress | None = None) -> Images:
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
        log.warning("The model will not know %s of %s; they are left aside.", listing(strange), folder)
    elif strange:
        log.warning("No folder in %s bears the name of a class, so its images count as unlabelled.", folder)
    images = readable(files, shape.size, progress)
    if not len(images):
        raise UserError(f"There are no images in {folder} that the model could be checked on.")
    return in_channels(images, shape.channels)

"""The learner: a classifier and a method. Tasks in, a bigger classifier out."""

from __future__ import annotations

import copy
import logging
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reverie import seeding
from reverie.config.schema import Config, check_config
from reverie.data.augment import refuse_blank_images
from reverie.data.images import Images, MemoryImages, images_at_once
from reverie.data.preprocessing import Normaliser, Preprocessing
from reverie.data.stream import Stream, Task
from reverie.engine.device import find_device, synchronise
from reverie.engine.loop import Engine
from reverie.engine.observer import Observer, as_observer
from reverie.engine.phase import Stage
from reverie.errors import Diverged, UserError
from reverie.learner.checkpoint import Checkpoint, LearnerState, fits
from reverie.learner.ledger import Ledger, LedgerEntry, plain_ledger, read_ledger
from reverie.methods import find_method
from reverie.methods.base import Keeps, count_bytes
from reverie.nets import make_backbone
from reverie.nets.classifier import Classifier
from reverie.nets.statistics import noting, noting_layers
from reverie.nets.weights import start_backbone
from reverie.system.records import as_record
from reverie.system.states import first_difference
from reverie.text import first_line, plural, shortened

BEGIN_ANEW = "Delete it to begin anew."
log = logging.getLogger("reverie")


@dataclass(frozen=True)
class TopClasses:
    """The classes an image most likely shows, best first, as labels in learned order, and the probability of each."""

    labels: Tensor
    probabilities: Tensor

    def __repr__(self) -> str:
        return f"TopClasses({plural(len(self.labels), 'image')}, the likeliest {self.labels.shape[-1]} of each)"


class TaskLearner:
    """`learn(task)` one after the other; `predict(images)` and `score(images)` at any time.

    stream = reverie.make_stream(config, reverie.load_dataset(config))
    learner = reverie.TaskLearner.for_stream(config, stream)
    for task in stream:
        learner.learn(task)
        print(learner.score(stream[: task.index + 1].test()))
    """

    def __init__(self, config: Config, classifier: Classifier, device: torch.device | str = "auto") -> None:
        check_config(config)
        self.config = config
        self.device = find_device(device)
        self.classifier = classifier.to(self.device)
        self.method = find_method(config.method)(self.classifier, config, self.device)
        self.engine = Engine(self.device, config.engine.precision, config.engine.capture, config.engine.compile)
        self.ledger: Ledger = []  # what was learned from, and what was kept of it

    def __repr__(self) -> str:
        known = plural(self.classifier.seen, "class")
        return f"TaskLearner({self.config.method!r}, {known} known, on {self.device})"

    @classmethod
    def fresh(
        cls, config: Config, preprocessing: Preprocessing, classes: int = 0, device: torch.device | str = "auto"
    ) -> TaskLearner:
        """A learner that knows nothing yet. `classes` (in all) only matters to a head with all rows from the start."""
        check_config(config)
        refuse_blank_images(config.augment, preprocessing.size)
        if not find_method(config.method).normalised:
            preprocessing = preprocessing.without_normalisation()
        with seeding.initialising(config.seed, "backbone"):
            backbone = make_backbone(config.net.name, preprocessing.channels, preprocessing.size)
        if config.net.weights is not None:
            start_backbone(backbone, Path(config.net.weights), config.net.weights_sha256)
        rows = classes if config.net.head == "all" else 0
        return cls(config, Classifier(backbone, preprocessing, config.seed, rows), device)

    @classmethod
    def for_stream(cls, config: Config, stream: Stream, device: torch.device | str = "auto") -> TaskLearner:
        """A learner that knows nothing yet, for the images of a stream."""
        learner = cls.fresh(config, stream.preprocessing(), stream.classes_in_all, device)
        learner.engine.repeats = len(stream)
        return learner

    def learn(self, task: Task, observer: Observer | None = None, checkpoint: Checkpoint | None = None) -> None:
        """Learn the task's classes beside those already known. Afterwards the task is closed.

        With `checkpoint`, go on where an earlier call was interrupted; `prepare` must have been called before.
        """
        if task.first_label != self.classifier.seen:
            raise UserError(
                f"The task begins at class {task.first_label}, but {self.classifier.seen} are known. Learn the tasks "
                "of a stream in their order, each of them once."
            )
        self._check_shape(task.images)
        observer = as_observer(observer)
        with self._memory_explained():
            self._learn(task, observer, checkpoint)
            began = time.monotonic()
            self._note_statistics(task)
            self.method.end(task)
        self._write_ledger(task)
        task.close()
        self._begin_anew()
        synchronise(self.device)
        observer.time_spent("end", time.monotonic() - began)

    def _begin_anew(self) -> None:
        """Classifier and method made of their own states alone: whatever else hangs on either is gone with the task."""
        state = {"classifier": self.classifier.state_dict(), "method": self.method.state_dict()}
        classifier = self.classifier.made_anew().to(self.device)
        method = find_method(self.config.method)(classifier, self.config, self.device)
        try:
            classifier.load_state_dict(state["classifier"])
            method.load_state_dict(copy.deepcopy(state["method"]))
            again = {"classifier": classifier.state_dict(), "method": method.state_dict()}
            difference = first_difference(state, again)
        except Exception as error:  # of a network or a method of somebody else's
            difference = " ".join(str(error).split()) or type(error).__name__
        if difference:
            raise RuntimeError(
                f"What {self.config.method!r} takes to the next task is not what its state_dict() gives back to "
                f"load_state_dict(): {difference}"
            )
        self.classifier, self.method = classifier.eval(), method

    def _learn(self, task: Task, observer: Observer, checkpoint: Checkpoint | None) -> None:
        self.method.begin(task)
        self.classifier.grow(task.names)
        reached = None if checkpoint is None else checkpoint.phase
        number, names = -1, set[str]()
        for number, phase in enumerate(self.method.phases(task)):
            snapshot = None
            if phase.name in names:
                raise RuntimeError(
                    f"{self.config.method!r} has two phases or stages called {phase.name!r} in one task: their random "
                    "numbers and times would be the same"
                )
            names.add(phase.name)
            seed = seeding.derive(self.config.seed, "task", task.index, phase.name)
            if reached is not None and number < reached:
                continue  # trained before the interruption; what it made is in `checkpoint.state`
            if checkpoint is not None and number == reached:
                self._load(checkpoint.state)
                snapshot = checkpoint.snapshot
                if snapshot is not None and not fits(snapshot, phase):
                    log.warning(
                        "The checkpoint inside the phase %s is not of this phase, which begins anew.", phase.name
                    )
                    snapshot = None
            else:
                observer.phase_ready(number, self.state_dict)
            if isinstance(phase, Stage):
                self.engine.compute(phase, seed, observer)
                continue
            if snapshot is None:
                snapshot = observer.snapshot_for(number, phase)
            self.engine.run(phase, seed, observer, snapshot)
        if reached is not None and number < reached:
            raise UserError(f"The checkpoint is of phase {reached + 1}; there are {number + 1}. {BEGIN_ANEW}")
        if self.classifier.answering_head is not None and not self.method.answers:
            raise RuntimeError(
                f"{self.config.method!r} gives the classifier an answering head and does not declare it, so the next "
                "task would be without it: set `answers = True` in the method"
            )

    def _note_statistics(self, task: Task) -> None:
        """For dreams of these classes, where the network has no BatchNorm, which notes them of its own accord."""
        if noting_layers(self.classifier):
            with noting(self.classifier):
                for _ in self.logits(task.images, self.config.train.batch_size):
                    pass

    @contextmanager
    def _memory_explained(self) -> Iterator[None]:
        train, dream = self.config.train.batch_size, self.config.dream.batch_size or self.config.train.batch_size
        advice = f"Lower train.batch_size (now {train}) or dream.batch_size (now {dream})"
        try:
            yield
        except torch.OutOfMemoryError:
            raise UserError(
                f"The GPU's memory is full. {advice}, keep the images on disk (data.storage=stream), or see what else "
                "is using the GPU."
            ) from None
        except MemoryError:
            raise UserError(f"There is not enough memory. {advice}, or the size of the network.") from None
        except RuntimeError as error:
            if "DefaultCPUAllocator" not in str(error):
                raise
            raise UserError(f"There is not enough memory. {advice}, or the size of the network.") from None

    def logits(self, images: Images | Tensor, batch_size: int | None = None) -> Iterator[Tensor]:
        """Logits of all classes seen, batch by batch, for images or uint8 pixels [n, channels, side, side]."""
        shown: Images = _unlabelled(images) if isinstance(images, Tensor) else images
        self._check_shape(shown)
        shape = self.classifier.preprocessing
        normalise = Normaliser.of(shape, self.device)
        self.classifier.eval()
        for index in torch.arange(len(shown)).split(batch_size or images_at_once(shape.size)):
            with torch.inference_mode(), self.engine.arithmetic():
                logits = self.classifier.answer(normalise(shown.read(index).to(self.device))).float().cpu()
            if not bool(logits.isfinite().all()):  # weights may be large beyond use, and numbers still
                raise Diverged(
                    "The network's logits are no longer numbers. If it has just been trained, a lower learning rate "
                    "may help: train.lr."
                )
            yield logits

    def predict(self, images: Images | Tensor, top: int = 1) -> TopClasses:
        """The `top` likeliest classes of each image."""
        parts = [logits.softmax(dim=1).topk(min(top, self.classifier.seen)) for logits in self.logits(images)]
        return TopClasses(
            torch.cat([part.indices for part in parts]),
            torch.cat([part.values for part in parts]),
        )

    def score(self, images: Images) -> float:
        """The share of labelled images that is named rightly, among all classes seen."""
        if not hasattr(images, "labels"):
            raise UserError(
                f"`images` are labelled, such as stream[:1].test(), not {shortened(images)}. `evaluate` takes a folder."
            )
        guesses = torch.cat([logits.argmax(dim=1) for logits in self.logits(images)])
        return float((guesses == images.labels).double().mean())

    def save(self, folder: Path | str, overwrite: bool = False) -> None:
        """Deprecated: use `reverie.save_model(learner, folder)`."""
        from reverie import save_model

        warnings.warn("use reverie.save_model(learner, folder)", DeprecationWarning, stacklevel=2)
        save_model(self, folder, overwrite=overwrite)

    # --- state

    def state_dict(self) -> dict[str, Any]:
        return {
            "classes": list(self.classifier.class_names),
            "classifier": self.classifier.state_dict(),
            "method": self.method.state_dict(),
            "ledger": plain_ledger(self.ledger),
        }

    def load_state_dict(self, state: LearnerState | Mapping[str, Any]) -> None:
        """A state from between two tasks."""
        known = _checked(state)
        self.prepare(known, len(known.classes))
        self._load(known)

    def prepare(self, state: LearnerState | Mapping[str, Any], known: int) -> None:
        """Take the shape of a state in which `known` classes were known; `learn` then brings the values."""
        state = _checked(state)
        if len(state.classes) < known:
            raise UserError(f"The checkpoint knows {plural(len(state.classes), 'class')}, not {known}. {BEGIN_ANEW}")
        with _misfits_explained():
            self.classifier.grow(state.classes[self.classifier.seen : known])
            self.method.load_state_dict(state.method)

    def _load(self, state: LearnerState) -> None:
        with _misfits_explained():
            self.classifier.load_state_dict(state.classifier)
            self.method.load_state_dict(state.method)
            self.ledger = read_ledger(state.ledger)

    # --- the ledger

    def _write_ledger(self, task: Task) -> None:
        self._refuse_undeclared()
        carries, images_kept = Keeps.NETWORKS in self.method.keeps, self.method.kept_images()
        gone = {"images": not images_kept, "file names": True, "dreams": True, "dreamer": not carries, "teacher": True}
        self.ledger.append(
            LedgerEntry(
                task=task.index + 1,
                classes=list(task.names),
                images_seen=task.size,
                method=self.config.method,
                keeps=str(self.method.keeps),
                kept_bytes=self.method.kept_bytes(),
                classifier_bytes=count_bytes(self.classifier.state_dict()),
                kept=self._kept(),
                images_kept=images_kept,
                not_kept=[what for what, is_gone in gone.items() if is_gone],
            )
        )

    def _refuse_undeclared(self) -> None:
        keeps, state, statistics = self.method.keeps, self.method.state_dict(), self.method.statistics
        declares = f"{self.config.method!r} declares that it keeps {keeps}"
        others = {*state} - {"statistics"} if Keeps.STATISTICS in keeps else {*state}
        if others and not keeps & ~Keeps.STATISTICS:
            raise RuntimeError(f"{declares}, but keeps {sorted(others)}")
        head = self.classifier.answering_head
        if head is not None and not keeps & (Keeps.STATISTICS | Keeps.EVERYTHING):
            raise RuntimeError(f"{declares}, but keeps what the head {head.name!r} knows of classes (Keeps.STATISTICS)")
        if "statistics" in state and statistics is not None and len(statistics) != self.classifier.seen:
            known = plural(self.classifier.seen, "class")
            raise RuntimeError(f"{self.config.method!r} keeps statistics of {len(statistics)} of {known}")

    def _kept(self) -> dict[str, int]:
        """Bytes by kind."""
        learned = {name for name, _ in self.classifier.named_parameters()}
        kept = {"weights": 0, "statistics": 0}  # of BatchNorm, those
        for name, value in self.classifier.state_dict().items():
            answering = "answering head" if name.startswith("answering.") else "statistics"
            kind = "weights" if name in learned else answering
            kept[kind] = kept.get(kind, 0) + count_bytes(value)
        rest = self.method.kept_bytes()
        if Keeps.STATISTICS in self.method.keeps and self.method.statistics is not None:
            kept[str(Keeps.STATISTICS)] = count_bytes(self.method.statistics.state_dict())
            rest -= kept[str(Keeps.STATISTICS)]
        others = self.method.keeps & ~Keeps.STATISTICS
        return kept | {str(others): rest} if others else kept

    def _check_shape(self, images: Images) -> None:
        shape = self.classifier.preprocessing
        wanted = (shape.channels, shape.size, shape.size)
        if tuple(images.shape) != wanted:
            raise UserError(f"The classifier takes images of shape {wanted}, not {tuple(images.shape)}.")


@contextmanager
def _misfits_explained() -> Iterator[None]:
    """Inside, a state is loaded; one of another network or method, or one that somebody changed, fails in any way."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        why = first_line(error).rstrip(":.")
        raise UserError(f"The checkpoint is not of this network and method ({why}). {BEGIN_ANEW}") from None


def _checked(state: LearnerState | Mapping[str, Any]) -> LearnerState:
    return state if isinstance(state, LearnerState) else as_record(LearnerState, dict(state))


def _unlabelled(pixels: Tensor) -> MemoryImages:
    return MemoryImages(pixels, torch.zeros(len(pixels), dtype=torch.long))

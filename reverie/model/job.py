"""A step of a model's life as a job on disk: it can be killed at any moment, and the same call goes on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from reverie.config.choices import KnownClass
from reverie.config.layers import Settings, setting_texts
from reverie.config.schema import Config
from reverie.data.images import Images
from reverie.data.inputs import as_inputs
from reverie.engine.device import find_device
from reverie.engine.observer import Observer, Observers
from reverie.errors import Diverged, UserError, explaining
from reverie.learner.checkpoint import Recorder
from reverie.learner.folder import RunFolder
from reverie.learner.progress import showing_progress, where_it_goes_on
from reverie.model import defaults
from reverie.model.acceptance import Acceptance
from reverie.model.budget import within_budget
from reverie.model.folder import load_model, model_digest, read_model, write_model
from reverie.model.judging import disagreement
from reverie.model.request import (
    LearnRequest,
    method_to_begin_with,
    method_to_go_on_with,
    starting_weights,
)
from reverie.model.saved import SavedModel
from reverie.model.step import Step, learn_step, plan_step, read_check_images
from reverie.nets.weights import fingerprint
from reverie.system.arguments import check_number
from reverie.system.files import SCRATCH, check_writable, sync_folder, write_json
from reverie.system.locks import LOCK, locked_folder
from reverie.system.records import Record, read_record
from reverie.system.signals import on_stop_signal

WRITABLE = "Make room, or choose a `to` where you may write."


def learn_folder(
    folder: Path | str,
    to: Path | str,
    *,
    old: Path | str | None = None,
    method: str | None = None,
    backbone: str | None = None,
    weights: Path | str | None = None,
    pretrained: bool = False,
    seed: int = 0,
    budget: str | float | None = None,
    on_known_class: KnownClass = "error",
    check: Path | str | None = None,
    settings: Settings = (),
    device: str = "auto",
    progress: bool | Console = False,
    observer: Observer | None = None,
    checkpoint_seconds: float = 30.0,
) -> Acceptance:
    """Learn the classes of an image folder, and write a model folder: a first one, or one that extends `old`.

        report = reverie.learn_folder("photos/2025", "flowers-2", old="flowers", budget="10min", progress=True)
        print(report)

    - `folder`: images, one sub-folder a class, or a CSV file with the columns path and label.
    - `to`: the model folder to write. `old` is left as it is.
    - `method`, `settings`: how to learn; left out, the method that made `old`, or ABD where there is none, or a model
      folder is not enough for it; for a first model that begins with weights, RanPAC. `budget`: about how long it may
      take (90s, 10min, 1h).
    - `backbone`, `weights`: the network of a first model, such as "torchvision/resnet18", and a file of its weights.
      `pretrained`: its library's own weights, found in the usual caches or downloaded; left out, the network is
      torchvision's EfficientNet-B0.
    - `on_known_class`: what to do with images of a class that the model knows: "error", "skip" or "refine".
    - `check`: more images to compare the old and the new model on, in class folders or not.

    Killed or stopped at any moment, the same call goes on from the last checkpoint. Raises UserError for what a person
    can mend, `Interrupted` after Ctrl-C, and `Diverged` where a loss is no longer a number.
    """
    checkpoint_seconds = check_number("checkpoint_seconds", checkpoint_seconds, least=0)
    if old and pretrained:
        raise UserError(f"`pretrained` is for the network of a first model; {old} has its own.")
    if method is None:
        method = method_to_go_on_with(load_model(old)) if old else method_to_begin_with(bool(weights or pretrained))
    with showing_progress(progress, Path(to).name) as display:
        observers = Observers(observer, display)
        asked = ((f"net.name={backbone}",) if backbone else ()) + setting_texts(settings)
        chosen, file = starting_weights(asked, weights, pretrained, observers.downloading)
        request = LearnRequest.of(method, seed, chosen, file, budget, on_known_class)
        job = _Job(Path(to), request, find_device(device), checkpoint_seconds)
        return job.run(Path(folder), Path(old) if old else None, Path(check) if check else None, observers)


class JobFile(Record):
    """`job.json`: what was asked for, what was decided, and, in the end, the digest of the model that was made."""

    asked: dict[str, Any]  # in a person's words, by what it is
    config: dict[str, Any]  # as `Config.from_dict` reads it
    made: str | None = None


class _Job:
    """A model being made, in a hidden folder beside the target. There is never a pixel in it."""

    def __init__(self, to: Path, request: LearnRequest, device: Any, checkpoint_seconds: float) -> None:
        self.to, self.request, self.device, self.checkpoint_seconds = to, request, device, checkpoint_seconds
        self.folder = RunFolder(to.parent / f".{to.name}.learning")
        self.file = self.folder.path / "job.json"

    def run(self, images: Path, old: Path | None, check: Path | None, observer: Observer) -> Acceptance:
        request = self.request
        with explaining("written", WRITABLE, self.to):  # before images are read for long
            self.refuse_finished()
            check_writable(self.to.parent)
        before, digest = read_model(old) if old else (None, None)
        step = plan_step(before, as_inputs(images, holdout=request.data.holdout), request, observer.reading)
        to_check = read_check_images(check, step, observer.reading) if check else None
        with self.at_work():
            asked = self._asked(step, digest)
            stored = self.claimed(asked)
            if self.is_done():
                report = self._finished_before(check, observer)
            else:
                if stored is not None:
                    step = replace(step, config=stored)
                elif request.budget:
                    step = within_budget(request.budget, step, self.device)
                if stored is None:
                    self.claim(asked, step.config)
                self._announce(step, observer)
                lineage = (*before.lineage, digest) if before and digest else ()
                model, report = self._learn(step, to_check, lineage, observer)
                self.finish(model, step.held_out)
        return report

    def _announce(self, step: Step, observer: Observer) -> None:
        for line in step.lines():
            observer.decided(line)
        if (
            step.before is None
            and step.weights is None
            and defaults.may_be_photographs(step.preprocessing.size, step.preprocessing.channels)
        ):
            observer.decided(
                "are these photographs? A network with ImageNet weights knows far more of them than these images can "
                "teach it, and takes seconds: `pretrained=True`"
            )
        unlimited = step.trains and not (self.request.budget or self.request.schedule)
        if self.device.type == "cpu" and step.preprocessing.size > defaults.SMALL and unlimited:
            observer.decided("without a GPU this may take hours; a budget of 30min would make it fit")

    def _learn(
        self, step: Step, check: Any, lineage: tuple[str, ...], observer: Observer
    ) -> tuple[SavedModel, Acceptance]:
        recorder = Recorder(self.folder, self.checkpoint_seconds, self.device)
        checkpoint = recorder.recover()
        if checkpoint is not None:
            observer.decided(where_it_goes_on(checkpoint))
        recorder.tasks = 1
        recorder.begin_task(0)
        with on_stop_signal(recorder.request_stop):
            return learn_step(step, self.device, Observers(recorder, observer), check, lineage, checkpoint)

    def _finished_before(self, check: Path | None, observer: Observer) -> Acceptance:
        """The model was whole when the process was killed, and only the clearing up was not done."""
        report = load_model(self.to).acceptance
        assert report is not None
        self.file.unlink()
        observer.decided(f"{self.to} was whole when the command was killed; what that left behind is removed now")
        if check and not (report.check or report.check_accuracy):
            observer.decided(f"{check} was not asked for then, and not looked at; `evaluate` does")
        return report

    # --- whose job it is

    def _asked(self, step: Step, old: str | None) -> dict[str, Any]:
        """What makes a job this one and no other, in a person's words."""
        request = self.request
        return {
            "the images": step.fingerprint,
            "the model to extend": old,
            "the method": request.method,
            "the seed": request.seed,
            "the settings": list(request.settings),
            "the weights": fingerprint(request.weights) if request.weights else None,
            "the budget": request.budget,
            "the rule for known classes": request.on_known_class,
        }

    def refuse_finished(self) -> None:
        if self.to.is_symlink() and not self.to.exists():
            raise UserError(f"{self.to} is a link that leads nowhere. Remove it, or choose another `to`.")
        if not self.to.exists() or self.is_done():
            return
        if not self._can_go_on() and not self.folder.in_use():  # left by one that was killed while it cleared up
            self._clear()
        raise self._exists()

    def _exists(self) -> UserError:
        begun = ""
        if self._can_go_on():
            begun = f" {self.folder.path} is of a job that has not ended; delete it to give that up."
        return UserError(f"{self.to} exists already, and stays as it is. Choose another `to`.{begun}")

    def _clear(self) -> None:
        """Of what a job leaves; in a folder of that name that is somebody else's, nothing is touched."""
        ours = {LOCK, "job.json", "events.jsonl", "checkpoint", "model"}
        with suppress(OSError):
            if all(entry.name in ours or entry.name.startswith(SCRATCH) for entry in self.folder.path.iterdir()):
                shutil.rmtree(self.folder.path, ignore_errors=True)

    def is_done(self) -> bool:
        """Is the model there, and made by this job, which was killed before it cleared up?"""
        with suppress(UserError, OSError):  # damaged, or somebody else's model
            return self._can_go_on() and self._stored().made == model_digest(self.to)
        return False

    def _stored(self) -> JobFile:
        return read_record(JobFile, self.file, f"Delete {self.folder.path} to begin anew.")

    @contextmanager
    def at_work(self) -> Iterator[None]:
        with locked_folder(self.folder.path, WRITABLE, self.to):
            try:
                self.refuse_finished()  # by another process, while this one was reading the images
                yield
            except Diverged:  # as it would again: whoever lowers the rate begins anew
                self.file.unlink(missing_ok=True)
                raise
            except OSError as error:
                then = "goes on from the last checkpoint" if self._can_go_on() else "begins anew"
                raise UserError(
                    f"{self.to} cannot be made: {error.strerror or error}. Make room, or choose a place where you may "
                    f"write; the same command {then}."
                ) from None
            finally:
                if not self._can_go_on():
                    self._clear()

    def _can_go_on(self) -> bool:
        return self.file.exists() and self.folder.resting.exists()

    def claimed(self, asked: dict[str, Any]) -> Config | None:
        """The configuration of the same job, begun before. Another job is refused."""
        if not self._can_go_on():
            return None
        stored = self._stored()
        try:
            config = Config.from_dict(stored.config)
        except UserError as error:
            raise UserError(f"{self.file} is damaged: {error} Delete {self.folder.path} to begin anew.") from None
        differences = [key for key in asked if asked[key] != stored.asked.get(key)]
        if differences and self.is_done():
            self.file.unlink()
            raise self._exists()
        if differences:
            raise UserError(
                f"A job for {self.to} was begun and not ended, with other values of: {', '.join(differences)}. "
                f"Repeat that command, delete {self.folder.path} to give it up, or choose another `to`."
            )
        return config

    def claim(self, asked: dict[str, Any], config: Config) -> None:
        shutil.rmtree(self.folder.resting.parent, ignore_errors=True)  # of another job, killed while it cleared up
        self.folder.events.file.unlink(missing_ok=True)
        write_json(self.file, JobFile(asked=asked, config=config.as_dict()).as_dict())

    def finish(self, model: SavedModel, held_out: Images) -> None:
        made = self.folder.path / "model"
        digest = write_model(made, model)
        try:
            self._refuse_another_model(made, model, held_out)
        except UserError:  # as it would be again
            self.file.unlink()
            raise
        write_json(self.file, self._stored().replace(made=digest).as_dict())  # by which it is known, see `is_done`
        made.rename(self.to)
        sync_folder(self.to.parent)
        self.file.unlink()  # so that the folder goes

    def _refuse_another_model(self, made: Path, judged: SavedModel, held_out: Images) -> None:
        """What is saved must be what was judged."""
        try:
            saved = load_model(made)
        except UserError as error:
            raise UserError(f"{self.to} was not written, since it could not be read: {error}") from None
        answers = torch.cat([logits.argmax(dim=1) for logits in judged.plain_learner(self.device).logits(held_out)])
        wrong, asked = disagreement(saved.plain_learner(self.device), held_out, answers)
        if wrong:
            raise UserError(
                f"{self.to} was not written: read back, the model is not the one that was judged. It answers otherwise "
                f"for {wrong} of {asked} held-out images. The method {judged.config.method!r} and the network "
                f"{judged.config.net.name!r} must leave all that answers in the classifier's state."
            )

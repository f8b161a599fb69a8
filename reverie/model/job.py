"""A step of a model's life as a job on disk: it can be killed at any moment, and the same call goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from reverie.config.schema import Config
from reverie.data.folder import Progress
from reverie.data.inputs import as_material
from reverie.engine.loop import find_device
from reverie.errors import Diverged, UserError, explaining
from reverie.learner.checkpoint import LOCK, Journal, RunFolder, locked, stopping_gently
from reverie.learner.task_learner import Checkpoint, LearnerObserver, Several
from reverie.model import defaults
from reverie.model import folder as model_io
from reverie.model import step as extend
from reverie.model.acceptance import Acceptance
from reverie.model.folder import SavedModel
from reverie.model.step import Step, Wish
from reverie.nets.weights import fingerprint
from reverie.system import files as disk

WRITABLE = "Make room, or choose a --to where you may write."


def learn_folder(
    folder: Path,
    to: Path,
    old: Path | None = None,
    wish: Wish | None = None,
    *,
    device: str = "auto",
    check: Path | None = None,
    observer: LearnerObserver | None = None,
    reading: Progress | None = None,
    say: Callable[[str], None] = lambda line: None,
    checkpoint_seconds: float = 30.0,
) -> tuple[SavedModel, Acceptance]:
    """Learn the classes of `folder` onto the model `old`, and write the model `to`."""
    wish, where = wish or Wish(), find_device(device)
    job = _Job(to)
    with explaining("written", WRITABLE, to):  # before images are read for long
        job.refuse_finished()
        disk.check_writable(to.parent)
    before, digest = model_io.read(old) if old else (None, None)
    step = extend.plan(before, as_material(folder, holdout=wish.data.holdout), wish, reading)
    to_check = extend.read_check(check, step, reading) if check else None
    with job.at_work():
        asked = _asked(step, wish, digest)
        stored = job.claimed(asked)
        if job.is_done():
            model, report = job.made()
            say(f"{to} was whole when the command was killed; what that left behind is removed now")
            if check and not (report.check or report.check_accuracy):
                say(f"{check} was not asked for then, and not looked at; see `reverie evaluate`")
            return model, report
        if stored is None:
            if wish.budget:
                step = extend.within(wish.budget, step, where)
            job.claim(asked, step.config)
        else:
            step = replace(step, config=stored)
        for line in step.lines():
            say(line)
        if where.type == "cpu" and step.preprocessing.size > defaults.SMALL and not (wish.budget or wish.schedule):
            say("without a GPU this may take hours; --budget 30min would make it fit")
        journal = Journal(job.folder, checkpoint_seconds, where)
        resting, snapshot = journal.recover()
        journal.tasks = 1
        journal.begin_task(0)
        checkpoint = Checkpoint(resting["phase"], resting["learner"], snapshot) if resting else None
        lineage = (*before.lineage, digest) if before and digest else ()
        with stopping_gently(journal):
            followed = Several(journal, observer or LearnerObserver())
            model, report = extend.learn(step, where, followed, to_check, lineage, checkpoint)
        job.finish(model)
    return model, report


class _Job:
    """The hidden folder beside the target in which a model is made. There is never a pixel in it."""

    def __init__(self, to: Path) -> None:
        self.to = to
        self.folder = RunFolder(to.parent / f".{to.name}.learning")
        self.file = self.folder.path / "job.json"

    def refuse_finished(self) -> None:
        if self.to.is_symlink() and not self.to.exists():
            raise UserError(f"{self.to} is a link that leads nowhere. Remove it, or choose another --to.")
        if not self.to.exists() or self.is_done():
            return
        if not self._can_go_on() and not self.folder.in_use():  # left by one that was killed while it cleared up
            self._clear()
        raise self._exists()

    def _exists(self) -> UserError:
        begun = f" {self.folder.path} is of a job that has not ended; delete it to give that up." * self._can_go_on()
        return UserError(f"{self.to} exists already, and stays as it is. Choose another --to.{begun}")

    def _clear(self) -> None:
        """Of what a job leaves; in a folder of that name that is somebody else's, nothing is touched."""
        ours = {LOCK, "job.json", "events.jsonl", "checkpoint", "model"}
        with suppress(OSError):
            if all(entry.name in ours or entry.name.startswith(disk.SCRATCH) for entry in self.folder.path.iterdir()):
                shutil.rmtree(self.folder.path, ignore_errors=True)

    def is_done(self) -> bool:
        """Is the model there, and made by this job, which was killed before it cleared up?"""
        with suppress(ValueError, LookupError, TypeError, UserError, OSError):  # damaged, or somebody else's model
            return self._can_go_on() and disk.read_json(self.file)["made"] == model_io.digest(self.to)
        return False

    @contextmanager
    def at_work(self) -> Iterator[None]:
        with locked(self.folder.path, WRITABLE, self.to):
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

    def claimed(self, asked: Mapping[str, Any]) -> Config | None:
        """The configuration of the same job, begun before. Another job is refused."""
        if not self._can_go_on():
            return None
        try:
            stored = disk.read_json(self.file)
            config, theirs = Config.from_dict(stored["config"]), dict(stored["asked"])
        except (ValueError, LookupError, TypeError, UserError):
            raise UserError(f"{self.file} is damaged. Delete {self.folder.path} to begin anew.") from None
        differences = [key for key in asked if asked[key] != theirs.get(key)]
        if differences and self.is_done():
            self.file.unlink()
            raise self._exists()
        if differences:
            raise UserError(
                f"A job for {self.to} was begun and not ended, with other values of: {', '.join(differences)}. "
                f"Repeat that command, delete {self.folder.path} to give it up, or choose another --to."
            )
        return config

    def claim(self, asked: Mapping[str, Any], config: Config) -> None:
        shutil.rmtree(self.folder.resting.parent, ignore_errors=True)  # of another job, killed while it cleared up
        self.folder.events.unlink(missing_ok=True)
        disk.write_json(self.file, {"asked": dict(asked), "config": config.as_dict()})

    def finish(self, model: SavedModel) -> None:
        made = self.folder.path / "model"
        digest = model_io.write(made, model)
        disk.write_json(self.file, {**disk.read_json(self.file), "made": digest})  # by which it is known, see `is_done`
        made.rename(self.to)
        disk.sync_folder(self.to.parent)
        self.file.unlink()  # so that the folder goes

    def made(self) -> tuple[SavedModel, Acceptance]:
        """What `finish` wrote."""
        model = model_io.load(self.to)
        self.file.unlink()
        return model, Acceptance.from_dict(model.acceptance or {})


def _asked(step: Step, wish: Wish, old: str | None) -> dict[str, Any]:
    """What makes a job this one and no other, in a person's words."""
    return {
        "the images": step.fingerprint,
        "the model to extend": old,
        "the method": wish.method,
        "the seed": wish.seed,
        "the settings": list(wish.settings),
        "the weights": fingerprint(wish.weights) if wish.weights else None,
        "the budget": wish.budget,
        "the rule for known classes": wish.on_known_class,
    }

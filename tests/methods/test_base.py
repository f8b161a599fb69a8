"""What every method promises: old images are out of reach, and what is kept is declared."""

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from reverie.data.images import MemoryImages
from reverie.data.stream import PastTask
from reverie.errors import UserError
from reverie.learner.task_learner import TaskLearner
from reverie.methods import BUILT_IN, find_method, method_names
from reverie.methods.base import Keeps, Method, count_bytes
from reverie.runs.configure import preprocessing

DATA_FREE = [name for name in method_names() if find_method(name).keeps == Keeps.NOTHING]
WITH_CORESET = [name for name in method_names() if find_method(name).keeps == Keeps.CORESET]


def reachable(root: Any) -> Iterator[Any]:
    """Everything that can be got at from an object, by any way through the interpreter's memory, save modules."""
    seen, waiting = set(), [root]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, type(gc)):
            continue
        seen.add(id(thing))
        yield thing
        inner = gc.get_referents(thing)
        if callable(thing) and hasattr(thing, "__globals__"):  # a function's own variables, not its module's
            inner = [cell.cell_contents for cell in thing.__closure__ or ()] + list(thing.__defaults__ or ())
        waiting.extend(item for item in inner if not isinstance(item, type))


def image_tensors(learner: TaskLearner, images: Tensor) -> list[Tensor]:
    """Tensors within reach of the learner that hold one of `images`, as bytes, between 0 and 1, or normalised."""
    pixels = images.float() / 255
    normalised = (pixels - 0.305) / 0.376
    found = []
    for thing in reachable(learner):
        if isinstance(thing, Tensor) and thing.ndim >= 3 and thing.shape[-2:] == images.shape[-2:]:
            rows = thing.detach().reshape(-1, *images.shape[-2:]).float()
            for known in (images, pixels, normalised):
                known = known.reshape(-1, *images.shape[-2:]).float()
                if len(rows) and (torch.cdist(rows.flatten(1), known.flatten(1)).min() < 1e-3):
                    found.append(thing)
    return found


class Hoarder(Method):
    """A method that keeps images behind everybody's back."""

    def end(self, task):
        self.stash = task.images.read(torch.arange(3)).clone()


class Confessor(Method):
    """One that keeps images in its state and does not declare it."""

    def end(self, task):
        self.stash = task.images.read(torch.arange(3))

    def state_dict(self):
        return {"coreset": self.stash} if hasattr(self, "stash") else {}


class Collector(Confessor):
    """The same, declared."""

    keeps = Keeps.CORESET


@pytest.fixture
def learner(tiny, tiny_stream, monkeypatch):
    def make(method: str | type[Method], *settings: str) -> TaskLearner:
        if isinstance(method, type):
            monkeypatch.setitem(BUILT_IN, "mine", f"{method.__module__}:{method.__name__}")
            method = "mine"
        return TaskLearner.fresh(tiny(method, *settings), preprocessing(tiny_stream))

    return make


@pytest.mark.parametrize("name", DATA_FREE)
def test_after_a_task_no_image_of_it_is_within_reach_of_a_data_free_method(learner, tiny_stream, name):
    made = learner(name)
    for task in list(tiny_stream)[:2]:
        images = task.images.read(torch.arange(task.size))
        made.learn(task)
        assert image_tensors(made, images) == []
        with pytest.raises(PastTask):
            _ = task.images
        assert made.method.state_dict() == {}
        assert made.ledger[-1]["keeps"] == "nothing"
        assert made.ledger[-1]["kept_bytes"] == 0


@pytest.mark.parametrize("name", WITH_CORESET)
def test_a_method_with_a_coreset_reaches_exactly_the_images_it_declares(learner, tiny_stream, name):
    made, shown = learner(name, "coreset.size=12"), []
    for task in list(tiny_stream)[:3]:
        shown.append(task.images.read(torch.arange(task.size)))
        made.learn(task)
        stored = made.method.state_dict()["coreset"]
        coreset = {tuple(image) for image in stored["pixels"].flatten(1).tolist()}
        others = [image for image in torch.cat(shown) if tuple(image.flatten().tolist()) not in coreset]
        assert len(coreset) == 12
        assert image_tensors(made, torch.stack(others)) == []
        assert {id(found) for found in image_tensors(made, stored["pixels"])} == {id(stored["pixels"])}
        with pytest.raises(PastTask):
            _ = task.images
        assert made.ledger[-1]["keeps"] == "a coreset"
        assert made.ledger[-1]["kept_bytes"] == count_bytes(made.method.state_dict()) == 12 * (8 * 8 + 8)


def test_the_search_for_images_finds_them_where_they_are_kept(learner, tiny_stream):
    """So that the test above can fail."""
    made = learner(Hoarder)
    images = tiny_stream[0].images.read(torch.arange(10))
    made.learn(tiny_stream[0])
    assert image_tensors(made, images)


def test_a_method_is_handed_the_task_and_nothing_that_leads_to_the_stream(learner, tiny_stream):
    from reverie.data.images import Dataset
    from reverie.data.stream import Stream

    made, task = learner("abd"), tiny_stream[0]
    made.method.begin(task)
    made.classifier.grow(task.names)
    phases = list(made.method.phases(task))
    things = [*reachable(made), *reachable(task), *reachable(phases)]
    assert not any(isinstance(thing, Stream | Dataset) for thing in things)
    sizes = {len(thing) for thing in things if isinstance(thing, MemoryImages)}
    assert sizes == {task.size}


def test_keeping_without_declaring_is_an_error(learner, tiny_stream):
    with pytest.raises(RuntimeError, match=r"declares that it keeps nothing, but keeps \['coreset'\]"):
        learner(Confessor).learn(tiny_stream[0])


def test_what_is_declared_is_counted(learner, tiny_stream):
    made = learner(Collector)
    made.learn(tiny_stream[0])
    assert made.ledger[-1]["keeps"] == "a coreset"
    assert made.ledger[-1]["kept_bytes"] == 3 * 8 * 8


def test_a_carried_generator_is_declared_and_counted(tiny, tiny_stream):
    made = TaskLearner.fresh(tiny("abd", recipe="released"), preprocessing(tiny_stream), classes=10)
    for task in list(tiny_stream)[:2]:
        made.learn(task)
    state = made.method.state_dict()
    assert made.ledger[-1]["keeps"] == "networks"
    assert made.ledger[-1]["kept_bytes"] == count_bytes(state) > count_bytes(made.method.dreamer.generator.state_dict())
    assert set(state) == {"dreamer"}
    assert "dreamer" not in made.ledger[-1]["not_kept"]


def test_a_carried_dreamer_gets_every_new_teacher(tiny, tiny_stream):
    made = TaskLearner.fresh(tiny("abd", "dream.life=carried", seed=5), preprocessing(tiny_stream), classes=10)
    first, second, third = list(tiny_stream)[:3]
    made.learn(first)
    made.learn(second)
    assert made.method.dreamer.teacher is made.classifier
    made.method.begin(third)
    dreamer = made.method.dreamer
    assert dreamer.teacher is made.method.teacher is not made.classifier
    assert dreamer.watched.head.weight is dreamer.teacher.head.weight
    assert dreamer.seed == 5


@pytest.mark.parametrize(
    ("method", "loss"),
    [
        ("lwf", "distillation"),
        ("lwf-synthetic", "distillation"),
        ("lwf-coreset", "distillation"),
        ("deepinversion", "distillation_real"),
        ("deepinversion", "distillation_dreamed"),
        ("dgr", "distillation"),
        ("abd", "distillation"),
        ("e2e", "distillation"),
    ],
)
def test_weights_and_temperatures_of_distillation_are_heeded(scene, method, loss):
    def value(*settings):
        return float(scene(method, 3, 2, *settings, phase_name="learn").losses()[loss].detach())

    usual, options = value(), vars(find_method(method).Options())
    if "distillation" in options:
        assert value("method.distillation=0.5") == pytest.approx(0.5 / options["distillation"] * usual)
    if "temperature" in options:
        assert value("method.temperature=5") != pytest.approx(usual)


@pytest.mark.parametrize("name", method_names())
def test_every_method_has_a_title_and_says_what_it_does(name):
    cls = find_method(name)
    assert cls.title
    assert cls.__doc__.strip().splitlines()[0].endswith((".", ")", "head", "old ones,"))


def test_entry_points_add_methods(monkeypatch):
    from importlib.metadata import EntryPoint

    from reverie import methods

    entry = EntryPoint("theirs", "tests.methods.test_base:Collector", "reverie.methods")
    monkeypatch.setattr(methods, "entry_points", lambda group: [entry] if group == "reverie.methods" else [])
    assert "theirs" in methods.method_names()
    assert methods.find_method("theirs") is Collector


def test_a_broken_method_of_another_package_hides_none_of_the_others(monkeypatch, caplog):
    from importlib.metadata import EntryPoint

    from reverie import methods
    from reverie.tables import plan as grid

    gone = EntryPoint("gone", "nowhere.to_be:Found", "reverie.methods")
    monkeypatch.setattr(methods, "entry_points", lambda group: [gone])
    assert methods.methods_that_load() == [*BUILT_IN]
    assert (
        "The method 'gone' of another package (nowhere.to_be:Found) cannot be loaded: ModuleNotFoundError"
        in caplog.text
    )
    assert {entry.method for entry in grid.entries_for("digits-5", ["all"])} == {*BUILT_IN}
    with pytest.raises(UserError, match="cannot be loaded"):
        methods.find_method("gone")


class NamesItself(Method):
    @dataclass(frozen=True)
    class Options:
        name: str = "x"


class Demands(Method):
    @dataclass(frozen=True)
    class Options:
        share: float


@pytest.mark.parametrize(
    ("what", "message"),
    [("NamesItself", "an option cannot be called 'name'"), ("Demands", "the option 'share' has no default")],
)
def test_options_that_no_run_could_have_are_refused(monkeypatch, what, message):
    from importlib.metadata import EntryPoint

    from reverie import methods

    entry = EntryPoint("odd", f"{__name__}:{what}", "reverie.methods")
    monkeypatch.setattr(methods, "entry_points", lambda group: [entry])
    assert methods.methods_that_load() == [*BUILT_IN]
    with pytest.raises(UserError, match=f"'odd' .* cannot be loaded: TypeError: {message}"):
        methods.find_method("odd")


@pytest.mark.parametrize("what", ["json", "json:loads", "pathlib:Path"])
def test_an_entry_point_that_leads_to_no_method_is_a_broken_one(monkeypatch, what):
    """A module, a function, a class of another kind."""
    from importlib.metadata import EntryPoint

    from reverie import methods

    monkeypatch.setattr(methods, "entry_points", lambda group: [EntryPoint("odd", what, "reverie.methods")])
    assert methods.methods_that_load() == [*BUILT_IN]
    with pytest.raises(UserError, match=r"'odd' .* cannot be loaded: TypeError: .* is no subclass of"):
        methods.find_method("odd")

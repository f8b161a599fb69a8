"""A head, a stage, a backbone and a method with class statistics, as another package would bring them."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import onnxruntime
import pytest
import torch

import reverie
from reverie.errors import Interrupted
from reverie.learner.events import PhaseBegins, StageBegins, StageEnds
from reverie.learner.folder import RunFolder
from reverie.model import folder
from reverie.model.folder import load_model
from reverie.nets.classifier import Classifier
from reverie.nets.heads import find_head
from reverie.runs.configure import load_dataset, make_stream
from reverie.runs.run import run
from reverie.system import plugins
from tests.support.experiments import TINY, StopAt, assert_same_run, few_digits

PACKAGE = '''
"""Nearest medians by the sum of differences, on a network of two layers."""

import os
import signal

import torch
from torch import nn

import reverie


class Thin(reverie.Backbone):
    feature_dim = 24

    def __init__(self, channels):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(channels, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.ReLU())

    def forward(self, images):
        return self.layers(images).mean(dim=(2, 3))


class Nearby(reverie.AnsweringHead):
    name = "nearby"
    by_class = ("places",)
    shared = ("scale",)

    def scores(self, features):
        return -((features[:, None] - self.places) / self.scale).abs().sum(dim=2)


class Places(reverie.Distiller):
    """Keeps statistics, and beside them a network that does nothing."""

    title = "Places"
    keeps = reverie.Keeps.STATISTICS | reverie.Keeps.NETWORKS
    answers = True

    def __init__(self, *given):
        super().__init__(*given)
        self.spare = nn.Linear(2, 2)
        nn.init.ones_(self.spare.weight), nn.init.zeros_(self.spare.bias)

    def phases(self, task):
        yield from super().phases(task)
        yield reverie.Stage("collect", lambda rng: self._collect(task, rng))
        yield reverie.Stage("fit head", lambda rng: self._fit(task))

    def losses(self, batch):
        logits = self.classifier(batch.images)
        return {"cross_entropy": reverie.losses.cross_entropy(logits, batch.labels),
                "kept": (logits[:, : self.old] - batch.taught_logits).square().mean()}

    def _collect(self, task, rng):
        measured = reverie.ClassStatistics.measure(
            self.features_of(task.images), task.images.labels - self.old, self.total - self.old
        )
        self.statistics = measured if self.statistics is None else self.statistics.joined(measured)
        with torch.no_grad():
            self.spare.weight.add_(torch.rand(2, 2, generator=rng))
        if os.environ.get("KILLED_IN") == f"collect {task.index}":
            os.kill(os.getpid(), signal.SIGKILL)
        return {"classes": len(self.statistics)}

    def _fit(self, task):
        means = self.statistics.means
        head = Nearby(places=means, scale=self.statistics.pooled().diagonal().sqrt().float() + 0.1)
        head.calibrate(self.features_of(task.images), task.images.labels)
        self.classifier.answer_by(head)
        if os.environ.get("KILLED_IN") == f"fit {task.index}":
            os.kill(os.getpid(), signal.SIGKILL)

    def state_dict(self):
        return super().state_dict() | {"spare": self.spare.state_dict()}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.spare.load_state_dict(state["spare"])
'''
ENTRIES = """
[reverie.methods]
places = places_by_others:Places
guided = as_the_guide_says:Guided

[reverie.heads]
nearby = places_by_others:Nearby
nearest = as_the_guide_says:Nearest

[reverie.backbones]
thin = places_by_others:Thin
my-net = as_the_guide_says:MyNet
"""
GUIDE = Path(__file__).parents[2] / "CONTRIBUTING.md"


def as_the_guide_says():
    """A module of the guide's very snippets: those of whole classes, and those that belong into a method."""
    section = GUIDE.read_text("utf-8").partition("## How to add a head")[2]
    snippets = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    classes = [snippet for snippet in snippets if snippet.startswith("class ")]
    inside = [textwrap.indent(snippet, "    ") for snippet in snippets if snippet not in classes]
    assert (len(classes), len(inside)) == (2, 3)
    head = "import torch\nfrom torch import nn\n\nimport reverie\n"
    return "\n\n".join([head, *classes, "class Guided(reverie.Method):", *inside])


SETTINGS = [*TINY, "stream.take=3", "net.name=thin"]
STAGES = [(task, stage) for task in (1, 2, 3) for stage in ("collect", "fit head")]


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """An installed distribution, for this process and for those that it starts."""
    folder = tmp_path_factory.mktemp("site")
    facts = folder / "places_by_others-1.5.dist-info"
    facts.mkdir()
    (folder / "places_by_others.py").write_text(PACKAGE)
    (folder / "as_the_guide_says.py").write_text(as_the_guide_says())
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: places-by-others\nVersion: 1.5\n")
    (facts / "entry_points.txt").write_text(ENTRIES)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        before = os.environ.get("PYTHONPATH")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *([before] if before else [])]))
        importlib.invalidate_caches()
        yield "places_by_others"
    for module in ("places_by_others", "as_the_guide_says"):
        sys.modules.pop(module, None)


def places(package):
    return reverie.configure("digits-5", "places", settings=SETTINGS)


@pytest.fixture(scope="module")
def finished(package, tmp_path_factory):
    """A run that nobody stopped. Not to be changed."""
    folder = tmp_path_factory.mktemp("places") / "run"
    run(places(package), folder, dataset=few_digits(), device="cpu")
    return folder


class StopInStage(reverie.Observer):
    """Stops a run when a stage begins, or when its work is done and nobody has written it down."""

    def __init__(self, task, stage, when):
        self.where, self.when, self.task = (task, stage), when, 0

    def task_begins(self, index, count):
        self.task = index + 1

    def stage_begins(self, stage):
        self._stop(stage, "begins")

    def stage_ends(self, stage, figures):
        self._stop(stage, "ends")

    def _stop(self, stage, when):
        if (self.task, stage.name, when) == (*self.where, self.when):
            raise Interrupted


def test_stopped_in_every_phase_and_stage_it_ends_the_same(package, finished, tmp_path):
    stops = [StopInStage(*place, when) for place in STAGES for when in ("begins", "ends")]
    stops += [StopAt(task, "learn", 3) for task in (1, 2, 3)]
    for stop in sorted(
        stops, key=lambda stop: (stop.where[0], {"learn": 0, "collect": 1, "fit head": 2}[stop.where[1]])
    ):
        with pytest.raises(Interrupted):
            run(places(package), tmp_path, dataset=few_digits(), device="cpu", observer=stop, checkpoint_seconds=0)
    run(places(package), tmp_path, dataset=few_digits(), device="cpu")
    assert_same_run(finished, tmp_path)


def test_a_run_that_goes_on_with_another_version_of_the_package_says_so(package, tmp_path, monkeypatch, caplog):
    with pytest.raises(Interrupted):
        run(places(package), tmp_path, dataset=few_digits(), device="cpu", observer=StopAt(2, "learn", 1))
    monkeypatch.setattr("reverie.system.provenance.plugin_packages", lambda: {"places-by-others": "1.6", "more": "2"})
    run(places(package), tmp_path, dataset=few_digits(), device="cpu")
    assert caplog.messages.count("The run was begun with places-by-others 1.5, and goes on with 1.6.") == 1
    assert "more" not in caplog.text


def test_killed_in_a_stage_the_same_command_goes_on(package, tmp_path):
    words = [sys.executable, "-m", "reverie", "run", "digits-5", "--method", "places", "--device", "cpu"]
    words += [word for setting in SETTINGS for word in ("--set", setting)]

    def start(out: str, killed_in: str = "") -> int:
        environment = {**os.environ, "KILLED_IN": killed_in}
        done = subprocess.run([*words, "--out", str(tmp_path / out)], env=environment, capture_output=True, timeout=200)
        return done.returncode

    assert start("once") == 0
    assert start("often", "collect 1") == -signal.SIGKILL
    assert start("often", "fit 2") == -signal.SIGKILL
    assert start("often") == 0
    assert_same_run(tmp_path / "once", tmp_path / "often")


def test_what_happened_is_told(finished):
    events, result = RunFolder(finished).events.read(), json.loads((finished / "result.json").read_text())
    order = [
        getattr(event, "phase", None) or event.stage for event in events if isinstance(event, PhaseBegins | StageBegins)
    ]
    assert order == ["learn", "collect", "fit head"] * 3
    assert [event.figures for event in events if isinstance(event, StageEnds)][::2] == [
        {"classes": n} for n in (2, 4, 6)
    ]
    for parts in result["seconds"]["by_task"]:
        assert parts.keys() == {"learn", "collect", "fit head", "end", "evaluate"}
        assert min(parts.values()) > 0
    assert result["sessions"][0]["environment"]["plugins"] == {"places-by-others": "1.5"}
    entry = result["ledger"][-1]
    assert entry["keeps"] == "class statistics, networks"
    assert entry["kept"]["class statistics"] == 6 * (8 + 24 * 4 + 24 * 4 + 24 * 23 // 2 * 2)
    assert entry["kept"]["networks"] == 6 * 4
    assert entry["kept_bytes"] == entry["kept"]["class statistics"] + entry["kept"]["networks"]
    page = reverie.write_report(finished, finished.parent / "page.html").read_text("utf-8")
    assert "fit head" in page and "classes 6" in page and "places-by-others 1.5" in page
    card = (finished / "model" / "README.md").read_text("utf-8")
    assert "A head of the kind `nearby`, computed from the network's features, answers." in card
    assert "Needed besides reverie: the package places-by-others 1.5 (head nearby, backbone thin)." in card


def test_what_the_guide_says_works_from_a_run_to_an_exported_model(package, tmp_path):
    settings = [*TINY, "stream.take=2", "net.name=my-net"]
    result = run(reverie.configure("digits-5", "guided", settings=settings), tmp_path, dataset=few_digits())
    assert [entry.keeps for entry in result.ledger] == ["class statistics"] * 2
    model = load_model(tmp_path / "model")
    assert (model.classifier.answering_head.name, model.statistics.form) == ("nearest", "own")
    for to in ("onnx", "torch"):
        assert reverie.export_model(tmp_path / "model", to, tmp_path / f"served-{to}").difference < 1e-4


def test_the_saved_model_is_the_judged_one_and_is_served_by_others(finished, tmp_path):
    result = json.loads((finished / "result.json").read_text())
    test = make_stream(places(None), few_digits()).test()
    learner = load_model(finished / "model").task_learner()
    assert learner.classifier.answering_head.name == "nearby"
    assert learner.score(test) == result["metrics"]["final_accuracy"]
    pixels = test.read(torch.arange(len(test)))
    ours = torch.cat([*learner.logits(test)]).softmax(dim=1)
    for to, file in (("onnx", "model.onnx"), ("torch", "model.pt2")):
        reverie.export_model(finished / "model", to, tmp_path / file)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (answers,) = session.run(None, {"pixels": pixels.permute(0, 2, 3, 1).numpy()})
    torch.testing.assert_close(torch.from_numpy(answers), ours, rtol=0, atol=1e-4)
    program = torch.export.load(tmp_path / "model.pt2").module()
    torch.testing.assert_close(program(pixels.permute(0, 2, 3, 1)), ours, rtol=0, atol=1e-4)


def test_classes_are_renamed_and_removed_in_head_and_statistics(finished, tmp_path):
    before = load_model(finished / "model")
    names = before.classifier.class_names
    reverie.change_classes(finished / "model", rename={names[0]: "first"}, remove=[names[1]], to=tmp_path / "changed")
    after = load_model(tmp_path / "changed")
    assert after.classifier.class_names == ("first", *names[2:])
    kept = [0, 2, 3, 4, 5]
    assert torch.equal(after.statistics.means, before.statistics.means[kept])
    assert torch.equal(after.classifier.answering_head.places, before.classifier.answering_head.places[kept])
    images = few_digits().test
    ours, theirs = (torch.cat([*model.task_learner().logits(images)]) for model in (after, before))
    torch.testing.assert_close(ours, theirs[:, kept])


def test_without_the_package_a_model_says_which_one_is_missing(finished, monkeypatch):
    monkeypatch.setattr(plugins, "entry_points", lambda group: [])
    with pytest.raises(reverie.UserError, match=r"needs the head 'nearby' of the package places-by-others 1\.5"):
        load_model(finished / "model")


def test_a_broken_backbone_or_head_is_named_with_its_package(package, monkeypatch):
    module = importlib.import_module(package)
    monkeypatch.setattr(module, "Thin", torch.nn.Linear)
    with pytest.raises(Exception, match=r"Linear"):
        reverie.TaskLearner.for_stream(places(package), make_stream(places(package), load_dataset(places(package))))
    monkeypatch.setattr(module, "Nearby", Path)
    with pytest.raises(reverie.UserError, match=r"head 'nearby' of places-by-others .* is no subclass of"):
        find_head("nearby")


def test_a_model_that_does_not_answer_as_it_was_judged_is_an_error(tmp_path, monkeypatch):
    """As where a method changes what a class does, which is in no file."""
    right, load = Classifier.answer, folder.load_model

    def load_honestly(path):
        monkeypatch.setattr(Classifier, "answer", right)
        return load(path)

    monkeypatch.setattr(Classifier, "answer", lambda self, images: right(self, images).roll(1, dims=1))
    monkeypatch.setattr("reverie.runs.run.load_model", load_honestly)
    config = reverie.configure("digits-5", "base", settings=[*TINY, "stream.take=2"])
    with pytest.raises(reverie.UserError, match=r"is not the one that was judged: it answers otherwise for \d+ of 48"):
        run(config, tmp_path, dataset=few_digits(), device="cpu")

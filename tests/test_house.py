"""The house as a whole: its rooms, who may import whom, what is public, and what still goes by its old name."""

import enum
import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
import tomllib
import types
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import reverie
from reverie import methods
from reverie.deprecated import MOVED
from reverie.engine.phase import StepSchedule
from reverie.model.folder import write_model
from reverie.model.preflight import run_preflight

HOUSE = Path(reverie.__file__).parent
HEAVY = ("torch", "torchvision", "numpy", "pydantic", "PIL", "yaml", "sklearn", "matplotlib")


def loaded_by(statement: str, *words: str) -> set[str]:
    """What a new process has loaded after a statement; `words` are what follows the command's name."""
    script = f"import sys\nsys.argv = ['reverie', *{words!r}]\ntry:\n    {statement}\nexcept SystemExit as end:\n"
    script += "    assert not end.code, end\nprint('loaded:', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {*done.stdout.partition("loaded:")[2].split()}


# --- rooms


def test_at_most_ten_modules_stand_at_the_root():
    assert len([*HOUSE.glob("*.py")]) <= 10


def test_every_room_is_on_the_map_of_the_house_from_the_highest_to_the_lowest():
    text = (HOUSE.parent / "CONTRIBUTING.md").read_text()
    rows = text[text.index("## Where things are") : text.index("## How to add")].splitlines()
    mapped = [
        name for row in rows if row.startswith("| `") for name in re.findall(r"`(\w+)(?:/|\.py)`", row.split("|")[1])
    ]
    assert {*mapped} == {module.name for module in pkgutil.iter_modules([str(HOUSE)])} - {"__main__"}
    project = tomllib.loads((HOUSE.parent / "pyproject.toml").read_text())
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    packages = [name for name in mapped if (HOUSE / name).is_dir()]
    assert packages == layers[: len(packages)]


def test_every_package_and_module_says_what_it_is_for():
    names = {module.name for module in pkgutil.walk_packages([str(HOUSE)], "reverie.")} - {"reverie.__main__"}
    assert len(names) > 100
    assert not [name for name in sorted(names) if not importlib.import_module(name).__doc__]


def test_the_oldest_versions_that_are_tried_are_the_oldest_that_are_allowed():
    project = tomllib.loads((HOUSE.parent / "pyproject.toml").read_text())["project"]
    extras = [project["optional-dependencies"][name] for name in ("timm", "tensorboard", "export", "heic")]
    needed = [line.split(">=") for lines in (project["dependencies"], *extras) for line in lines]
    pins = re.findall(r"^(\S+)==(\S+)$", (HOUSE.parent / "constraints-oldest.txt").read_text(), re.MULTILINE)
    tried = {name: tuple(map(int, number.split("."))) for name, number in pins}
    allowed: dict[str, tuple[int, ...]] = {}
    for name, number in needed:
        allowed[name] = max(allowed.get(name, ()), tuple(map(int, number.split("."))))
    allowed["torchvision"] = (0, 22)  # the one that belongs to this torch
    assert {name: number[: len(allowed[name])] for name, number in tried.items()} == allowed
    assert {"pydantic", "jinja2", "filelock"} <= allowed.keys()


# --- what is loaded


def test_importing_reverie_and_asking_for_help_load_nothing_heavy():
    assert not loaded_by("import reverie").intersection(HEAVY)
    assert not loaded_by("from reverie.cli.app import main; main()", "--help").intersection(HEAVY)
    assert "yaml" in loaded_by("import reverie.config.layers")  # so that it can fail


def test_a_page_is_made_without_the_engine():
    loaded = loaded_by("import reverie.report.page")
    assert "reverie.report.page" in loaded
    assert not {name for name in loaded if name.startswith("reverie.engine")}


# --- what is public


@pytest.mark.parametrize("name", [name for name in reverie.__all__ if name != "__version__"])
def test_every_public_name_is_there_and_says_what_it_is(name):
    found = getattr(reverie, name)
    assert name in dir(reverie)
    if not isinstance(found, enum.Enum):
        text = inspect.getdoc(found) or ""
        assert text and not text.startswith(f"{name}(")  # which is all that a dataclass says of itself
    if inspect.isfunction(found):
        assert found.__annotations__.get("return") is not None, "types on every public name"


def test_a_name_that_is_not_public_is_an_error_as_of_any_module():
    with pytest.raises(AttributeError, match="module 'reverie' has no attribute 'nothing'"):
        _ = reverie.nothing


def test_no_public_function_has_the_name_of_a_package_or_of_a_module_at_the_root():
    """Whichever was asked for first would hide the other."""
    rooms = {module.name for module in pkgutil.iter_modules([str(HOUSE)])}
    assert {"data", "model", "runs", "errors"} <= rooms
    assert not rooms.intersection(reverie.__all__)


# --- names of version 0.1


@pytest.fixture
def not_yet_asked():
    """Nobody has asked for an old name so far, nor will the next test find one."""

    def forget():
        for old in MOVED:
            sys.modules.pop(old, None)
            vars(reverie).pop(old.removeprefix("reverie."), None)

    forget()
    yield
    forget()


@pytest.mark.parametrize("old", MOVED)
def test_a_module_is_found_under_its_old_name_with_a_warning_that_says_where_it_is(old, not_yet_asked):
    new, renamed = MOVED[old]
    with pytest.warns(DeprecationWarning, match=rf"^{old} is now {new}$"):
        found = importlib.import_module(old)
    there = importlib.import_module(new)
    public = [name for name, value in vars(there).items() if isinstance(value, types.FunctionType | type)]
    assert all(getattr(found, name) is getattr(there, name) for name in public)
    assert all(getattr(found, before) is getattr(there, after) for before, after in renamed.items())


def test_lines_that_documents_of_version_0_1_show_still_work(not_yet_asked):
    with pytest.warns(DeprecationWarning) as told:
        from reverie.export import export
        from reverie.losses import cross_entropy, distillation
        from reverie.phase import SGD, Adam, Phase, Steps

        from reverie import model_io, preflight
    assert {str(one.message).partition(" ")[0] for one in told} == {*MOVED}
    assert {one.filename for one in told} == {__file__}  # where it is to be changed
    assert (model_io.load, model_io.write) == (reverie.load_model, write_model)
    assert preflight.check is run_preflight
    assert list(inspect.signature(export).parameters) == ["model", "to", "file"]
    assert (cross_entropy, distillation) == (methods.losses.cross_entropy, methods.losses.distillation)
    assert (SGD, Adam, Phase, Steps) == (reverie.SGD, reverie.Adam, reverie.Phase, StepSchedule)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_models_are_saved_exported_and_looked_at_as_in_version_0_1(tmp_path, not_yet_asked):
    from reverie.export import export
    from reverie.preflight import check

    from reverie import model_io

    facts = {"classes": ["ant", "bee"], "mean": (0.5,), "std": (0.25,), "size": 8}
    saved = reverie.adopt(small_net(), **facts).saved
    digest = model_io.save(tmp_path / "model", saved)
    with pytest.raises(reverie.UserError, match="exists already"):
        model_io.save(tmp_path / "model", saved)
    assert model_io.save(tmp_path / "model", saved, True) == model_io.digest(tmp_path / "model") == digest
    assert model_io.write(tmp_path / "other", saved) == digest
    assert model_io.load(tmp_path / "model", small_net).classifier.class_names == ("ant", "bee")
    for _ in range(2):
        assert export(saved, "torch", tmp_path / "model.pt2").difference < 1e-3
    assert check(saved.classifier, steps=2).classes == 2


def test_a_module_that_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"reverie\.nothing"):
        importlib.import_module("reverie.nothing")


def small_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))


def test_arguments_of_adopt_by_their_place_still_work_with_a_warning():
    facts = {"classes": ["ant", "bee"], "mean": (0.5,), "std": (0.25,), "size": 8}
    with pytest.warns(DeprecationWarning, match="adopt takes classes=…, mean=…, std=…, size=… by name"):
        by_place = reverie.adopt(small_net(), *facts.values())
    assert by_place.classes == ("ant", "bee")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reverie.adopt(small_net(), **facts).classes == ("ant", "bee")
        assert reverie.adopt(module=small_net(), **facts).classes == ("ant", "bee")
    with pytest.warns(DeprecationWarning), pytest.raises(TypeError, match="multiple values"):
        reverie.adopt(small_net(), ["ant", "bee"], **facts)
    with pytest.warns(DeprecationWarning), pytest.raises(TypeError, match="positional argument"):
        reverie.adopt(small_net(), *facts.values(), None, "cpu", "abd")


def test_figures_of_a_result_can_be_asked_for_as_of_a_dictionary():
    result = reverie.load_results(HOUSE.parent / "results" / "digits-5")[0]
    with pytest.warns(DeprecationWarning, match=r"\['metrics'\] is deprecated: use \.metrics"):
        metrics = result["metrics"]
    assert metrics["final_accuracy"] == result.metrics.final_accuracy
    with pytest.warns(DeprecationWarning):
        assert result["schema"] == result.schema_version
        assert {**result} == json.loads(json.dumps(result.as_dict()))
        assert result["ledger"][0]["classes"] == result.ledger[0].classes


def test_a_learner_of_tasks_still_saves_itself(tmp_path, tiny, tiny_stream):
    learner = reverie.TaskLearner.for_stream(tiny("base", "train.epochs=1"), tiny_stream)
    learner.learn(tiny_stream[0])
    with pytest.warns(DeprecationWarning, match=r"use reverie\.save_model\(learner, folder\)"):
        learner.save(tmp_path / "model")
    again = reverie.load_model(tmp_path / "model")
    assert torch.equal(again.classifier.head.weight, learner.classifier.head.weight)

"""Layers of a configuration: presets, recipes, files of one's own and settings, and which of them wins."""

import json
import os
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from reverie.config.choices import RECIPES
from reverie.config.layers import RELEASED, describe_preset, load_preset, parse_setting, preset_names, setting_texts
from reverie.config.schema import Config
from reverie.data.stream import task_sizes
from reverie.errors import UserError
from reverie.methods import find_method, method_names
from reverie.runs.configure import configure, default_folder, load_dataset, make_stream
from reverie.system.records import build


@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_is_valid_for_every_method_and_recipe(preset):
    assert describe_preset(preset)
    for recipe in RECIPES:
        for method in method_names():
            made = configure(preset, method, recipe=recipe)
            assert (made.preset, made.method, made.recipe) == (preset, method, recipe)
            assert Config.from_dict(json.loads(json.dumps(made.as_dict()))) == made
        made = configure(preset, "dgr", recipe=recipe, settings={"stream.split": [3, 2], "train.lr": 1e-5})
        assert Config.from_dict(yaml.safe_load(yaml.safe_dump(made.as_dict()))) == made


def test_cifar100_is_trained_as_in_the_paper():
    made = configure("cifar100-10", "abd")
    train, dream = made.train, made.dream
    assert (train.epochs, train.milestones, train.lr, train.momentum) == (250, (100, 150, 200), 0.1, 0.9)
    assert (train.weight_decay, train.batch_size, made.net.name) == (2e-4, 128, "resnet32")
    assert (dream.steps, dream.lr, dream.temperature, dream.noise) == (5000, 1e-3, 1000, 1000)
    assert (dream.content, dream.diversity, dream.statistics, dream.prior) == (1, 1, 50, 1e-3)
    whole = {"task_weights": True, "cross_entropy": "local", "distil_real": True, "distil_dreams": True}
    whole["statistics"] = False
    assert made.options == {"distillation": 0.1, "fine_tuning": 1.0, "bn_momentum": 0.1, **whole}
    assert (made.augment.crop, made.augment.flip, made.augment.contrast) == (4, True, 0.8)
    assert made.augment.brightness == pytest.approx(63 / 255, abs=1e-6)


def test_r_dfcil_has_its_own_network_schedule_and_augmentation():
    made = configure("cifar100-10-rdfcil", "r-dfcil")
    train, augment = made.train, made.augment
    assert (train.epochs, train.milestones, train.weight_decay, train.batch_size) == (200, (80, 120), 5e-4, 128)
    assert (augment.crop, augment.flip, augment.brightness, augment.contrast) == (4, True, 0, 0)
    assert (made.net.name, made.dream.steps, made.stream.split) == ("resnet32-signed", 5000, 10)
    weights = {"cross_entropy": 0.5, "distillation": 0.15, "relations": 0.5}
    assert made.options == {**weights, "refinement": 0.2, "refinement_lr": 0.005, "statistics": False}


def test_the_released_recipe_differs_where_the_code_does():
    paper, released = (configure("cifar100-10", "abd", recipe=recipe) for recipe in RECIPES)
    assert (paper.net.head, released.net.head) == ("grow", "all")
    assert (paper.dream.life, released.dream.life) == ("fresh", "carried")
    assert (paper.dream.steps, released.dream.steps) == (5000, 10000)
    assert (paper.options["bn_momentum"], released.options["bn_momentum"]) == (0.1, 0.19)
    assert configure("cifar100-10", "deepinversion").options["on_real"] == "padded"
    assert configure("cifar100-10", "deepinversion", recipe="released").options["on_real"] == "old"


def test_tiny_imagenet_is_trained_as_cifar_is():
    tiny, cifar = (configure(preset, "abd") for preset in ("tinyimagenet-20", "cifar100-10"))
    assert (tiny.data.source, tiny.stream.split, tiny.stream.order) == ("tinyimagenet", 20, "seed")
    for section in ("augment", "net", "train", "dream"):
        assert getattr(tiny, section) == getattr(cifar, section)


def test_imagenet50_is_trained_as_in_the_paper():
    paper, released = (configure("imagenet50-5", "abd", recipe=recipe) for recipe in RECIPES)
    train = paper.train
    assert (train.epochs, train.milestones, train.lr, train.momentum) == (100, (30, 60, 80, 90), 0.1, 0.9)
    assert (train.weight_decay, paper.net.name, paper.evaluate.top) == (1e-4, "resnet18", 5)
    assert (paper.stream.order, paper.stream.classes, paper.stream.split) == ("icarl-1993", 50, 5)
    assert (paper.train.batch_size, released.train.batch_size) == (128, 256)
    assert (paper.dream.steps, released.dream.steps) == (10_000, 50_000)
    for made in (paper, released):
        assert (made.augment.resized_crop, made.augment.flip, made.augment.crop) == (True, True, 0)
        assert (made.augment.brightness, made.augment.contrast) == (0, 0)


@pytest.mark.parametrize(("preset", "later"), [("50+5x10", [10] * 5), ("50+10x5", [5] * 10), ("50+25x2", [2] * 25)])
def test_half_of_the_classes_may_come_first(preset, later):
    assert task_sizes(configure(f"cifar100-{preset}", "abd").stream.split, 100) == [50, *later]


@pytest.mark.parametrize("preset", preset_names())
def test_presets_leave_to_the_recipe_what_is_the_recipes(preset):
    text = yaml.safe_load(resources.files("reverie.config").joinpath("presets", f"{preset}.yaml").read_text())
    for section, keys in RELEASED.items():
        assert not set(keys) & set(text.get(section, {}))


def test_settings_win_over_the_preset_and_keep_their_type():
    made = configure("digits-5", "abd", settings=["train.lr=1e-2", "train.epochs=3", "train.milestones=[1, 2]"])
    assert (made.train.lr, made.train.epochs, made.train.milestones) == (0.01, 3, (1, 2))
    assert configure("digits-5", "abd", settings=["stream.split=2+8x1"]).stream.split == "2+8x1"
    assert configure("digits-5", "abd", settings=["stream.order=[3, 1]"]).stream.order == (3, 1)
    assert configure("digits-5", "abd", settings=["keep=[models]"]).keep == ("models",)


def endless_list() -> list:
    made: list = []
    made.append(made)
    return made


EPOCHS = "train.epochs must be a whole number from 1 to 1,000,000, not"
DEEPEST = "[" * 5000
WRONG_SETTINGS = {
    "train.epoch=3": "Unknown key 'train.epoch' in the settings. Did you mean 'train.epochs'?",
    "trian.epochs=3": "Unknown section 'trian' in the settings. Did you mean 'train'?",
    "epochs=3": "Unknown section 'epochs' in the settings. Did you mean 'train.epochs'?",
    "train.steps=3": "Unknown key 'train.steps' in the settings. Did you mean 'dream.steps'?",
    "train.zzz=3": "Unknown key 'train.zzz' in the settings. There are epochs, milestones, gamma, lr, ",
    "method.distilation=1": "Unknown key 'method.distilation' in the settings. The method 'abd' has no such option. "
    "Did you mean 'method.distillation'?",
    "method.mu=1": "Unknown key 'method.mu' in the settings. The method 'abd' has no such option.",
    "train.epochs=many": f"{EPOCHS} 'many'.",
    "train.epochs=2.5": f"{EPOCHS} 2.5.",
    "train.epochs=2.0": f"{EPOCHS} 2.0.",
    "train.epochs=true": f"{EPOCHS} True.",
    "train.epochs=0": f"{EPOCHS} 0.",
    "train.epochs=": f"{EPOCHS} None.",
    "train.epochs.x=5": f"{EPOCHS} {{'x': 5}}.",
    "train.epochs=1000001": f"{EPOCHS} 1000001.",
    "train.batch_size=99999999999999999999": "train.batch_size must be a whole number from 2 to 65,536, not "
    "99999999999999999999.",
    "augment.flip=3": "augment.flip must be true or false, not 3.",
    "dream.life=forever": "dream.life must be one of fresh, carried, not 'forever'.",
    "engine.precision=fp16": "engine.precision must be one of fp32, tf32, bf16 or null, not 'fp16'.",
    "evaluate.top=3": "evaluate.top must be one of 1, 5, not 3.",
    "train.milestones=5": "train.milestones must be a list of whole numbers from 1 to 1,000,000, not 5.",
    "train.milestones=[9, -5]": "train.milestones must be a list of whole numbers from 1 to 1,000,000, not [9, -5].",
    "train=5": "'train' in the settings is a section: set one of its keys, such as train.KEY=VALUE.",
    "train.epochs": "A setting is section.key=value, for example train.epochs=5, not 'train.epochs'.",
    "=5": "A setting is section.key=value, for example train.epochs=5, not '=5'.",
    "data.size=1": "data.size must be a whole number from 4 to 4,096 or null, not 1.",
    "data.size=100000": "data.size must be a whole number from 4 to 4,096 or null, not 100000.",
    "data.holdout=1": "data.holdout must be a number above 0 and below 1, not 1.",
    "augment.resized_crop=true": "augment.crop must be 0 beside augment.resized_crop, not 1.",
    "augment.contrast=1.5": "augment.contrast must be a number from 0 to 1, not 1.5.",
    "coreset.size=0": "coreset.size must be a whole number from 1 to 10,000,000, not 0.",
    "keep=[everything]": "keep must be a list of one of models, dreamers, features, not ['everything'].",
    "train.momentum=1": "train.momentum must be a number of at least 0 and below 1, not 1.",
    "train.momentum=-0.1": "train.momentum must be a number of at least 0 and below 1, not -0.1.",
    "train.gamma=0": "train.gamma must be a number above 0 and at most 1,000, not 0.",
    "dream.lr=0": "dream.lr must be a number above 0 and at most 1,000, not 0.",
    "dream.statistics=-50": "dream.statistics must be a number from 0 to 1,000,000,000, not -50.",
    "dream.noise=1000000000": "dream.noise must be a whole number from 1 to 16,384, not 1000000000.",
    "train.lr=nan": "train.lr must be a number above 0 and at most 1,000, not 'nan'.",
    "train.weight_decay=.inf": "train.weight_decay must be a finite number, not inf.",
    "method.distillation=1e400": "method.distillation must be a finite number, not inf.",
    f"train.lr={10**400}": "train.lr must be a number above 0 and at most 1,000, not 1000",
    "train.lr=2020-13-45": "train.lr must be a number above 0 and at most 1,000, not '2020-13-45'.",
    "train.lr=2020-01-01": "train.lr must be a number above 0 and at most 1,000, not datetime.date(2020, 1, 1).",
    f"train.epochs={DEEPEST}": "A setting's value cannot be read: it is nested too deeply.",
    f"train.epochs={DEEPEST[:200]}{']' * 200}": "train.epochs is nested too deeply.",
    f"train.epochs={'9' * 4000}": f"{EPOCHS} 9999",
    f"train.epochs={'9' * 5000}": f"{EPOCHS} '9999",
    f"train.epochs=0x{'f' * 9000}": "train.epochs must be a smaller number.",
    f"method.distillation={'9' * 4000}": "method.distillation must be a number from 0 to 1,000,000,000, not 9999",
    "train.epochs=!!bool x": f"{EPOCHS} '!!bool x'.",
    "data.source=caf\udce9": "data.source holds bytes that are no text: 'caf\\udce9'.",
}


@pytest.mark.parametrize(
    ("setting", "message"), WRONG_SETTINGS.items(), ids=[ascii(setting)[:40] for setting in WRONG_SETTINGS]
)
def test_a_wrong_setting_is_refused_with_what_to_do(setting, message):
    with pytest.raises(UserError) as told:
        configure("digits-5", "abd", settings=[setting])
    assert str(told.value).startswith(message)
    assert len(str(told.value)) < 300
    assert len(str(told.value).splitlines()) == 1


@pytest.mark.parametrize("split", ["9999999x1", "9" * 5000, "9999999x9999999"])
def test_a_split_that_nothing_could_be_cut_into_is_refused_before_it_is_made(split):
    config = configure("digits-5", "abd", settings=[f"stream.split={split}"])
    with pytest.raises(UserError, match=r"^stream\.split .*(asks for .* classes; there are 10|is not understood)"):
        make_stream(config, load_dataset(config))


@pytest.mark.parametrize(
    "method",
    [name for name in method_names() if "temperature" in {field.name for field in fields(find_method(name).Options)}],
)
def test_a_temperature_is_above_0_whichever_method_it_is_of(method):
    for wrong in ("0", "-2"):
        with pytest.raises(UserError, match=r"method.temperature must be a number above 0 and at most .*, not "):
            configure("digits-5", method, settings=[f"method.temperature={wrong}"])
    assert configure("digits-5", method, settings=["method.temperature=0.5"]).options["temperature"] == 0.5


@pytest.mark.parametrize(
    ("method", "name"),
    [("lwf", "distillation"), ("abd", "fine_tuning"), ("r-dfcil", "cross_entropy"), ("r-dfcil", "relations")],
)
def test_the_weight_of_a_loss_may_be_0_but_not_less(method, name):
    assert configure("digits-5", method, settings=[f"method.{name}=0"]).options[name] == 0
    with pytest.raises(UserError, match=f"method.{name} must be a number from 0 to 1,000,000,000, not -1"):
        configure("digits-5", method, settings=[f"method.{name}=-1"])


# --- settings as a mapping


def test_settings_may_be_a_mapping_or_texts():
    by_key = {"train.lr": 0.05, "train.milestones": (1, 2), "data.source": "5", "train.even": True, "data.size": None}
    texts = ["train.lr=0.05", "train.milestones=[1, 2]", "data.source='5'", "train.even=true", "data.size=null"]
    made = configure("digits-5", "abd", settings=by_key)
    assert made == configure("digits-5", "abd", settings=texts)
    assert (made.train.lr, made.train.milestones, made.data.source, made.train.even) == (0.05, (1, 2), "5", True)
    assert configure("digits-5", "abd", settings="train.epochs=3").train.epochs == 3  # one alone


plain = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
words = st.text(st.characters(codec="utf-8", exclude_categories=("C",)), max_size=8)


@hypothesis.settings(deadline=None)
@given(plain | words | st.lists(plain | words, max_size=3))
def test_a_value_of_a_mapping_is_what_its_text_says(value):
    (text,) = setting_texts({"train.lr": value})
    assert parse_setting(text) == {"train": {"lr": value}}


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, b"x", 10**5000, endless_list()], ids=["object", "set", "bytes", "digits", "endless"]
)
def test_a_value_that_no_setting_has_is_refused(value):
    with pytest.raises(UserError, match=r"cannot be .*: a setting is a number, text, true, false, null or a list\.$"):
        configure("digits-5", "abd", settings={"train.epochs": value})


@pytest.mark.parametrize("settings", [None, 5, [5], {5: 1}, (text for text in ["train.lr=1"])])
def test_what_are_no_settings_are_refused(settings):
    with pytest.raises(UserError, match=r"^(`settings` are keys and values|The key of a setting is text) such as "):
        configure("digits-5", "abd", settings=settings)


def test_a_preset_may_be_a_path_and_what_is_no_name_is_refused():
    assert configure(Path("digits-5")) == configure("digits-5")
    for strange in (None, 5, "x" * 300_000, "x" * 300_000 + ".yaml"):
        with pytest.raises(UserError, match=r"^`preset` is a preset's name or a YAML file, not .{1,61}\.$"):
            configure(strange)
    for long in ("x" * 300, "x" * 300 + ".yaml"):
        with pytest.raises(UserError, match=r"^There is no (preset|file)"):
            configure(long)


# --- files


def test_an_own_file_extends_a_preset(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("extends: cifar100-10\nstream: {split: 50+5x10}\ndream: {steps: 70}\n")
    for recipe in RECIPES:
        made = configure(str(file), "abd", recipe=recipe)
        assert (made.preset, made.stream.split, made.dream.steps, made.train.epochs) == ("mine", "50+5x10", 70, 250)


def test_a_preset_may_say_more_for_a_recipe_and_for_a_method(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "extends: digits-5\n"
        "recipes: {released: {dream: {steps: 99}}}\n"
        "methods: {lwf: {train: {weight_decay: 0}, method: {temperature: 3}}}\n"
    )
    assert configure(str(file), "abd", recipe="released").dream.steps == 99
    lwf = configure(str(file), "lwf")
    assert (lwf.train.weight_decay, lwf.options["temperature"]) == (0, 3.0)
    assert configure(str(file), "abd").train.weight_decay > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: {epochs: [}", "not valid YAML at line 1"),
        ("methods: {}\ntrain: {epochs: 2}\nmethods: {}", "not valid YAML at line 3: 'methods' is given twice"),
        ("just words", "must hold sections"),
        ("extends: digits-6", "Did you mean 'digits-5'"),
        ("trains: {epochs: 3}", r"Unknown section 'trains' in .*mine.yaml. Did you mean 'train'"),
        ("train: {lrr: 3}", r"Unknown key 'train.lrr' in .*mine.yaml"),
        ("train: {epochs: 2020-13-45}", "mine.yaml is not valid YAML: month must be"),
        ("extends: 5", "'extends' in .*mine.yaml must be one preset's name"),
        ("extends: [digits-5]", "'extends' in .*mine.yaml must be one preset's name"),
        ("1: 2", "Unknown section '1' in .*mine.yaml"),
        ("recipes:", "'recipes' in .*mine.yaml must hold sections by name"),
        ("recipes: 5", "'recipes' in .*mine.yaml must hold sections by name"),
        ("recipes: {paper: 5}", "recipes.paper of .*mine.yaml must hold sections"),
        ("recipes: {realeased: {dream: {steps: 3}}}", "Unknown recipe 'realeased' in .*mine.yaml. .*'released'"),
        ("recipes: {released: {dream: {step: 3}}}", "'dream.step' in recipes.released of .*mine.yaml. .*'dream.steps'"),
        ("methods: [abd]", "'methods' in .*mine.yaml must hold sections by name"),
        ("methods: {abd: 5}", "methods.abd of .*mine.yaml must hold sections"),
        ("methods: {lfw: {train: {epochs: 3}}}", "'methods' in .*mine.yaml: There is no method 'lfw'. .*'lwf'"),
        ("methods: {1: {train: {epochs: 3}}}", "'methods' in .*mine.yaml: There is no method '1'"),
        ("methods: {lwf: {train: {epoch: 3}}}", "'train.epoch' in methods.lwf of .*mine.yaml. .*'train.epochs'"),
        ("methods: {lwf: {method: {heat: 3}}}", "The method 'lwf' has no such option"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name(tmp_path, text, message):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=message) as refusal:
        configure(str(file), "abd")
    assert len(str(refusal.value).splitlines()) <= 2


@pytest.mark.parametrize("content", [b"train: \xff\xfe", b"\x89PNG\r\n\x1a\n\0"])
def test_a_file_that_is_no_text_is_refused(tmp_path, content):
    (tmp_path / "mine.yaml").write_bytes(content)
    with pytest.raises(UserError, match=r"mine.yaml is not valid YAML: .*\.$") as refusal:
        configure(str(tmp_path / "mine.yaml"), "abd")
    assert len(str(refusal.value).splitlines()) == 1


def test_a_file_that_may_not_be_read_is_refused(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "mine.yaml").write_text("extends: digits-5")
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UserError, match=r"mine.yaml cannot be read: Permission denied\. Change its permissions"):
        configure(str(tmp_path / "mine.yaml"), "abd")


@pytest.mark.parametrize("name", ["mine", "mine.yaml", "mine.txt"])
def test_a_file_gives_its_name_to_the_run_wherever_it_lies(tmp_path, name):
    (tmp_path / name).write_text("extends: digits-5")
    made = configure(str(tmp_path / name), "abd")
    assert default_folder(made) == Path("runs/mine-abd-paper-seed0")
    assert default_folder(made, ["train.epochs=2"]) == Path("runs/mine-abd-paper-train.epochs=2-seed0")


def test_a_file_may_set_the_methods_options_and_shares_the_upper_bound(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "extends: digits-5\nmethod: {distillation: 0.5}\nrecipes: {released: {method: {fine_tuning: 2}}}\n"
        "methods: {abd: {method: {fine_tuning: 3}}}\n"
    )
    plain = tmp_path / "plain.yaml"
    plain.write_text("extends: digits-5")
    for recipe in RECIPES:
        made = configure(str(file), "abd", recipe=recipe, settings=["method.bn_momentum=0.2"])
        assert (made.options["distillation"], made.options["fine_tuning"], made.options["bn_momentum"]) == (0.5, 3, 0.2)
        bound = configure(str(plain), "joint", recipe=recipe)
        assert made.upper_bound_digest() == bound.upper_bound_digest() == bound.training_digest()


def test_a_file_extends_one_beside_it_wherever_one_stands(tmp_path, monkeypatch):
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "base.yaml").write_text("extends: digits-5\ntrain: {epochs: 7}")
    (tmp_path / "presets" / "child.yaml").write_text("extends: base.yaml")
    (tmp_path / "base.yaml").write_text("extends: digits-5\ntrain: {epochs: 9}")
    monkeypatch.chdir(tmp_path)
    for file in ("presets/child.yaml", str(tmp_path / "presets" / "child.yaml")):
        assert configure(file, "abd").train.epochs == 7


def test_what_a_file_says_for_a_method_holds_in_those_that_extend_it(tmp_path):
    """Weight decay is 0 in DGR, unless somebody says otherwise for DGR itself."""
    (tmp_path / "base.yaml").write_text("extends: digits-5\nmethods: {dgr: {train: {weight_decay: 0.001}}}")
    (tmp_path / "child.yaml").write_text("extends: base.yaml\ntrain: {epochs: 3}")
    (tmp_path / "other.yaml").write_text("extends: digits-5\ntrain: {weight_decay: 0.5}")
    decays = [
        configure(str(tmp_path / f"{name}.yaml"), "dgr").train.weight_decay for name in ("base", "child", "other")
    ]
    assert decays == [0.001, 0.001, 0]


def test_a_preset_may_set_options_that_the_upper_bound_has_not(tmp_path):
    (tmp_path / "mine.yaml").write_text("extends: digits-5\nmethod: {distillation: 0.2}")
    assert configure(str(tmp_path / "mine.yaml"), "abd").options["distillation"] == 0.2
    assert configure(str(tmp_path / "mine.yaml"), "joint").options == {}
    with pytest.raises(UserError, match="'joint' has no such option"):
        configure("digits-5", "joint", settings=["method.distillation=1"])


def test_a_file_that_extends_itself_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("extends: b.yaml")
    (tmp_path / "b.yaml").write_text("extends: a.yaml")
    with pytest.raises(UserError, match="extends itself"):
        configure("a.yaml", "abd")


def test_a_file_whose_name_is_no_text_can_be_run(tmp_path):
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.yaml"))
    file.write_text("extends: digits-5")
    made = configure(str(file), "abd")
    assert made.preset == r"caf\udce9"
    assert Config.from_dict(json.loads(json.dumps(made.as_dict()))) == made


def test_an_unknown_preset_method_or_file_is_refused():
    with pytest.raises(UserError, match="Did you mean 'digits-5'"):
        configure("digit-5", "abd")
    with pytest.raises(UserError, match="Did you mean 'abd'"):
        configure("digits-5", "adb")
    with pytest.raises(UserError, match="There is no file"):
        configure("nowhere.yaml", "abd")


def test_a_methods_own_options_are_typed():
    @dataclass(frozen=True)
    class Options:
        sizes: tuple[int, ...] = (1, 2)
        name: str | None = None

    def find(name):
        return SimpleNamespace(Options=Options, released={}, usual={}) if name == "x" else find_method(name)

    made = load_preset("digits-5", method="x", find=find, settings=["method.sizes=[3]"])
    assert made.options == {"sizes": (3,), "name": None}
    assert build(Options, made.options).sizes == (3,)
    assert {field.name for field in fields(Options)} == set(made.options)
    for setting, message in {
        "method.sizes=[3, a]": "method.sizes must be a list of whole numbers, not [3, 'a'].",
        "method.name=5": "method.name must be text or null, not 5.",
        "method.size=[3]": "Unknown key 'method.size' in the settings. The method 'x' has no such option. "
        "Did you mean 'method.sizes'?",
    }.items():
        with pytest.raises(UserError) as told:
            load_preset("digits-5", method="x", find=find, settings=[setting])
        assert str(told.value) == message


def test_numbers_of_numpy_and_torch_are_settings_like_others():
    values = {
        "train.epochs": np.int64(5),
        "train.milestones": [np.int32(2), torch.tensor(4)],
        "train.lr": np.float32(0.5),
        "train.momentum": torch.tensor(0.5),
        "stream.split": np.array([2, 3]),
        "augment.flip": np.bool_(False),
    }
    made = configure("digits-5", settings=values)
    assert (made.train.epochs, made.train.milestones, made.train.lr, made.train.momentum) == (5, (2, 4), 0.5, 0.5)
    assert (list(made.stream.split), made.augment.flip) == ([2, 3], False)
    assert configure("digits-5").with_settings(values).identity() == made.identity()
    with pytest.raises(UserError, match=r"^train\.lr cannot be <object"):
        configure("digits-5", settings={"train.lr": object()})

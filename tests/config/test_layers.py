"""Layers of a configuration: presets, recipes, files of one's own and settings, and which of them wins."""

from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from reverie.config import layers as layering
from reverie.config.layers import RELEASED, preset_names
from reverie.config.schema import RECIPES, Config
from reverie.config.typed import build
from reverie.data.stream import task_sizes
from reverie.errors import UserError
from reverie.methods import find_method, method_names
from reverie.runs.configure import configure, default_folder


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("method", method_names())
def test_every_preset_is_valid_for_every_method_and_recipe(preset, recipe, method):
    made = configure(preset, method, recipe=recipe)
    assert Config.from_dict(yaml.safe_load(yaml.safe_dump(made.as_dict()))) == made
    assert layering.describe_preset(preset)


def test_cifar100_is_trained_as_in_the_paper():
    made = configure("cifar100-10", "abd")
    train, dream = made.train, made.dream
    assert (train.epochs, train.milestones, train.lr, train.momentum) == (250, (100, 150, 200), 0.1, 0.9)
    assert (train.weight_decay, train.batch_size, made.net.name) == (2e-4, 128, "resnet32")
    assert (dream.steps, dream.lr, dream.temperature, dream.noise) == (5000, 1e-3, 1000, 1000)
    assert (dream.content, dream.diversity, dream.statistics, dream.prior) == (1, 1, 50, 1e-3)
    whole = {"task_weights": True, "cross_entropy": "local", "distil_real": True, "distil_dreams": True}
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
    assert made.options == {**weights, "refinement": 0.2, "refinement_lr": 0.005}


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
    text = yaml.safe_load(layering._preset_folder().joinpath(f"{preset}.yaml").read_text())
    for section, keys in RELEASED.items():
        assert not set(keys) & set(text.get(section, {}))


def test_settings_win_over_the_preset_and_keep_their_type():
    made = configure("digits-5", "abd", settings=["train.lr=1e-2", "train.epochs=3", "train.milestones=[1, 2]"])
    assert (made.train.lr, made.train.epochs, made.train.milestones) == (0.01, 3, (1, 2))
    assert configure("digits-5", "abd", settings=["stream.split=2+8x1"]).stream.split == "2+8x1"
    assert configure("digits-5", "abd", settings=["stream.order=[3, 1]"]).stream.order == (3, 1)
    assert configure("digits-5", "abd", settings=["keep=[models]"]).keep == ("models",)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.epoch=3", "Did you mean 'train.epochs'"),
        ("trian.epochs=3", "Did you mean 'train'"),
        ("epochs=3", "Did you mean 'train.epochs'"),
        ("method.distilation=1", "Did you mean 'method.distillation'"),
        ("method.mu=1", "'abd' has no such option"),
        ("train.epochs=many", r"train.epochs must be a whole number, not 'many'"),
        ("train.epochs=2.5", r"train.epochs must be a whole number"),
        ("train.epochs=true", r"train.epochs must be a whole number"),
        ("train.epochs=0", r"train.epochs must be at least 1"),
        ("augment.flip=3", r"augment.flip must be true or false"),
        ("dream.life=forever", "must be one of fresh, carried"),
        ("evaluate.top=3", "must be one of 1, 5"),
        ("train.milestones=5", "must be a list"),
        ("train=5", "is a section"),
        ("train.epochs", "section.key=value"),
        ("=5", "section.key=value"),
        ("data.size=1", "at least 4 pixels"),
        ("augment.resized_crop=true", "augment.crop must be 0 beside augment.resized_crop"),
        ("coreset.size=0", "coreset.size must be at least 1"),
        ("keep=[everything]", "one of models, dreamers"),
        ("train.epochs.x=5", "train.epochs must be a whole number"),
        ("train.momentum=1", "train.momentum must be at least 0 and below 1"),
        ("train.momentum=-0.1", "train.momentum must be at least 0 and below 1"),
        ("train.gamma=0", "train.gamma must be above 0"),
        ("dream.lr=0", "dream.lr must be above 0"),
        ("dream.statistics=-50", "dream.statistics must be 0 or more"),
        ("train.milestones=[100, -5]", "train.milestones must be 1 or more, each, not -5"),
        ("train.lr=nan", "train.lr must be a finite number"),
        ("train.weight_decay=.inf", "train.weight_decay must be a finite number"),
        ("method.distillation=1e400", "method.distillation must be a finite number"),
        (f"train.lr={10**400}", "train.lr must be a number"),
        ("train.lr=2020-13-45", "train.lr must be a number, not '2020-13-45'"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_to_do(setting, message):
    with pytest.raises(UserError, match=message):
        configure("digits-5", "abd", settings=[setting])


@pytest.mark.parametrize(
    "method", [name for name in method_names() if hasattr(find_method(name).Options, "temperature")]
)
def test_a_temperature_is_above_0_whichever_method_it_is_of(method):
    for wrong in ("0", "-2"):
        with pytest.raises(UserError, match=r"method.temperature must be above 0"):
            configure("digits-5", method, settings=[f"method.temperature={wrong}"])
    assert configure("digits-5", method, settings=["method.temperature=0.5"]).options["temperature"] == 0.5


@pytest.mark.parametrize(
    ("method", "name"),
    [("lwf", "distillation"), ("abd", "fine_tuning"), ("r-dfcil", "cross_entropy"), ("r-dfcil", "relations")],
)
def test_the_weight_of_a_loss_may_be_0_but_not_less(method, name):
    assert configure("digits-5", method, settings=[f"method.{name}=0"]).options[name] == 0
    with pytest.raises(UserError, match=f"method.{name} must be 0 or more"):
        configure("digits-5", method, settings=[f"method.{name}=-1"])


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
        ("1: 2", "Unknown section 1 in .*mine.yaml"),
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
        assert made.reference == configure(str(plain), "abd", recipe=recipe).reference


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

    made = layering.load("digits-5", method="x", find=find, settings=["method.sizes=[3]"])
    assert made.options == {"sizes": [3], "name": None}
    assert build(Options, made.options).sizes == (3,)
    assert {field.name for field in fields(Options)} == set(made.options)

"""The typed configuration: bounds on every number, what is part of a run's identity, and which upper bound it has."""

import copy
import dataclasses
import datetime
import hashlib
import json
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from reverie.config.schema import (
    SECTIONS,
    AugmentConfig,
    Config,
    DataConfig,
    NetConfig,
    StreamConfig,
    TrainConfig,
    as_plain,
    flat,
)
from reverie.data.preprocessing import Preprocessing
from reverie.errors import UserError
from reverie.learner.task_learner import TaskLearner
from reverie.methods import find_method, method_names
from reverie.runs.configure import configure
from reverie.system.records import schema_of


def endless_list() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


# By preset and recipe, computed by version 0.1: digests of how each method trains, and of their upper bound. Results
# and networks that were kept with it are found by them.
DIGESTS = json.loads(Path(__file__).with_name("digests_of_0_1.json").read_text())


# --- bounds


def numbers(schema: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every place in a JSON schema where a number may stand."""
    if isinstance(schema, Mapping):
        if schema.get("type") in ("integer", "number") and "enum" not in schema:
            yield path, schema
        for key, inner in schema.items():
            yield from numbers(inner, f"{path}.{key}")
    elif isinstance(schema, list):
        for inner in schema:
            yield from numbers(inner, path)


def unbounded(schema: Any) -> list[str]:
    low, high = {"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}
    return [path for path, number in numbers(schema) if not low & number.keys() or not high & number.keys()]


def test_every_number_has_a_lower_and_an_upper_bound():
    assert len([*numbers(schema_of(Config))]) >= 30
    assert unbounded(schema_of(Config)) == []
    for method in method_names():
        assert unbounded(schema_of(find_method(method).Options)) == [], method


def test_the_search_for_numbers_without_bounds_finds_them():
    """So that the test above can fail."""
    sizes = schema_of(Preprocessing)["properties"]["mean"]
    assert unbounded({"properties": {"mean": sizes}}) == [".properties.mean.items"]


def test_every_key_says_what_it_means():
    whole = schema_of(Config)
    sections = {name: whole["$defs"][whole["properties"][name]["$ref"].rpartition("/")[2]] for name in SECTIONS}
    sections |= {name: schema_of(find_method(name).Options) for name in method_names()}
    silent = [
        f"{name}.{key}"
        for name, section in sections.items()
        for key, schema in section.get("properties", {}).items()
        if not schema.get("description")
    ]
    assert not silent


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrainConfig(epochs=0), "train.epochs must be a whole number from 1 to 1,000,000, not 0."),
        (lambda: TrainConfig(0), "train.epochs must be a whole number from 1 to 1,000,000, not 0."),
        (lambda: TrainConfig(lr="0.1"), "train.lr must be a number above 0 and at most 1,000, not '0.1'."),
        (lambda: TrainConfig(epoch=1), "Unknown key 'train.epoch'. Did you mean 'train.epochs'?"),
        (
            lambda: TrainConfig(optimizer="adamm"),
            "train.optimizer must be one of sgd, nesterov, adam, adamw, not 'adamm'. Did you mean 'adam'?",
        ),
        (
            lambda: TrainConfig(optimizer="nesterov", momentum=0.0),
            "train.momentum must be above 0 beside train.optimizer=nesterov.",
        ),
        (lambda: TrainConfig(epochs=9, warmup=9), "train.warmup must be below train.epochs (9), not 9."),
        (
            lambda: TrainConfig(milestones=(9, 4), warmup=5),
            "train.milestones must not lie inside train.warmup (5 epochs), as 4 does.",
        ),
        (
            lambda: TrainConfig(rotations=True),
            "train.rotations must be one of none, first, one, all, not true (as yes and on are read, too).",
        ),
        (lambda: DataConfig(size=True), "data.size must be a whole number from 4 to 4,096 or null, not True."),
        (lambda: AugmentConfig(2, resized_crop=True), "augment.crop must be 0 beside augment.resized_crop, not 2."),
        (lambda: Config("p"), "'method' is missing."),
        (lambda: Config("p", "m", train=5), "train must be a TrainConfig, not 5."),
        (lambda: Config("p", "m", seed=2**63), f"seed must be a whole number from {-(2**63 - 1):,} to {2**63 - 1:,}, "),
        (lambda: TrainConfig(lr=10**5000), "train.lr must be a smaller number."),
        (lambda: TrainConfig(milestones=endless_list()), "train.milestones is nested too deeply."),
        (lambda: Config("p", "m", options={"a": endless_list()}), "options.a is nested too deeply."),
        (lambda: Config("p", "m", "papr"), "recipe must be one of paper, released, not 'papr'. Did you mean 'paper'?"),
    ],
)
def test_what_is_made_in_python_is_checked_too(make, message):
    with pytest.raises(UserError) as told:
        make()
    assert str(told.value).startswith(message)


def test_what_is_replaced_is_checked_too():
    config = configure("digits-5", "abd")
    changed = dataclasses.replace(config, train=dataclasses.replace(config.train, epochs=3))
    assert (changed.train.epochs, changed.train.lr) == (3, config.train.lr)
    for wrong, message in (
        (lambda: dataclasses.replace(config.train, epochs=0), "train.epochs must be a whole number from 1"),
        (lambda: dataclasses.replace(config.train, epoch=3), "Unknown key 'train.epoch'"),
        (lambda: dataclasses.replace(config, seed="1"), "seed must be a whole number from"),
        (lambda: dataclasses.replace(config, train={"epochs": 3}), "train must be a TrainConfig"),
    ):
        with pytest.raises(UserError, match=message):
            wrong()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.train.epochs = 3


def test_lists_will_do_for_tuples():
    assert TrainConfig(milestones=[1, 2]).milestones == (1, 2)
    assert StreamConfig(order=[2, 0, 1], split=[1, 2]) == StreamConfig(order=(2, 0, 1), split=(1, 2))
    assert Config("p", "m", keep=["models"]).keep == ("models",)


# --- other values by key


@pytest.mark.parametrize("method", ["abd", "dgr", "joint", "bic"])
def test_other_values_by_key_make_the_configuration_that_has_them_from_the_start(method):
    for settings in (
        {"train.epochs": 3},
        {"train.weight_decay": 0.5, "train.milestones": [1, 2]},
        {"keep": ["models"], "data.size": None, "stream.split": [4, 3, 3]},
        {},
    ):
        assert configure("digits-5", method).with_settings(settings) == configure("digits-5", method, settings=settings)
    if method == "abd":
        changed = configure("digits-5", method).with_settings({"method.distillation": 0.5})
        assert changed == configure("digits-5", method, settings={"method.distillation": 0.5})


def test_the_one_that_is_changed_stays_as_it_was():
    config = configure("digits-5", "dgr")
    before = config.as_dict()
    config.with_settings({"train.milestones": [1], "method.temperature": 9.0})
    assert config.as_dict() == before == configure("digits-5", "dgr").as_dict()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train.epoch": 1}, "Unknown key 'train.epoch'. Did you mean 'train.epochs'?"),
        ({"train.zzz": 1}, "Unknown key 'train.zzz'. There are epochs, milestones, gamma, lr, "),
        ({"trian.epochs": 1}, "Unknown section 'trian'. Did you mean 'train'?"),
        ({"epochs": 1}, "Unknown section 'epochs'. Did you mean 'train.epochs'?"),
        ({"train.temperature": 1}, "Unknown key 'train.temperature'. Did you mean 'dream.temperature'?"),
        ({"seed": 1}, "Unknown section 'seed'."),
        ({"own_values": {}}, "Unknown section 'own_values'."),
        ({"train": {"epochs": 1}}, "Unknown key 'train'."),
        ({"train.epochs.x": 1}, "Unknown key 'train.epochs.x'."),
        ({"method.name": "lwf"}, "Unknown key 'method.name'."),
        ({"method.distilation": 1}, "Unknown key 'method.distilation'. Did you mean 'method.distillation'?"),
        ({"train.epochs": 0}, "train.epochs must be a whole number from 1 to 1,000,000, not 0."),
        ({"train.epochs": "3"}, "train.epochs must be a whole number from 1 to 1,000,000, not '3'."),
        ({"train.lr": float("nan")}, "train.lr must be a finite number, not nan."),
        ({"keep": "models"}, "keep must be a list of one of models, dreamers, features, not 'models'."),
        ({5: 1}, "The key of a setting is text such as 'train.lr', not 5."),
        (
            None,
            "`settings` are keys and values such as {'train.lr': 0.05}, or texts such as ['train.lr=0.05'], not None.",
        ),
        ([5], "`settings` are keys and values such as"),
        (["train.lr"], "A setting is section.key=value, for example train.epochs=5, not 'train.lr'."),
        ({"net.name": Path("resnet8")}, "net.name cannot be PosixPath('resnet8'): a setting is a number, text, true"),
        (
            {"net.name": datetime.date(2026, 1, 2)},
            "net.name cannot be datetime.date(2026, 1, 2): a setting",
        ),
        ({"stream.split": endless_list()}, "stream.split cannot be "),
        ({"train.lr": 0.1, "dream.noise": 0}, "dream.noise must be a whole number from 1 to 16,384, not 0."),
    ],
)
def test_a_key_or_a_value_that_cannot_be_is_refused(settings, message):
    with pytest.raises(UserError) as told:
        configure("digits-5", "abd").with_settings(settings)
    assert str(told.value).startswith(message)


def test_other_values_may_be_texts_and_numbers_of_numpy_and_torch():
    config = configure("digits-5", "abd")
    wanted = config.with_settings({"train.lr": 0.5, "train.milestones": [1, 2], "train.epochs": 3})
    assert config.with_settings(["train.lr=0.5", "train.milestones=[1, 2]", "train.epochs=3"]) == wanted
    foreign = {"train.lr": np.float32(0.5), "train.milestones": [np.int64(1), 2], "train.epochs": torch.tensor(3)}
    assert config.with_settings(foreign) == configure("digits-5", "abd", settings=foreign) == wanted
    assert config.with_settings("train.even=true").train.even
    assert type(config.with_settings({"train.lr": np.float64(0.5)}).train.lr) is float


def test_an_option_out_of_bounds_is_refused_when_a_learner_is_made(tiny, tiny_stream):
    changed = tiny("abd").with_settings({"method.distillation": -5})
    with pytest.raises(UserError, match=r"^method\.distillation must be a number from 0 to "):
        TaskLearner.for_stream(changed, tiny_stream)


@pytest.mark.parametrize("key", ["train.nope", "train", "nope", "seed", "method.name", "train.lr.x"])
def test_values_of_ones_own_are_of_keys_that_there_are(key):
    plain = configure("digits-5", "dgr").as_dict()
    with pytest.raises(UserError, match=rf"^Unknown key '{key}' in own_values\.$"):
        Config.from_dict({**plain, "own_values": {key: [1, 2]}})


def test_options_cannot_be_changed_but_copied_and_pickled():
    config = configure("digits-5", "dgr", settings={"train.milestones": [1]})
    for mapping in (config.options, config.own_values):
        with pytest.raises(TypeError, match="item assignment"):
            mapping["temperature"] = 9.0
    listed = dataclasses.replace(config, options={"many": [1, {"more": [2]}]})
    assert listed.options == {"many": (1, {"more": (2,)})}
    assert listed.as_dict()["method"]["many"] == [1, {"more": [2]}]
    for made in (config, listed):
        assert copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == dataclasses.replace(made) == made
        assert (
            yaml.safe_load(yaml.safe_dump(made.as_dict())) == made.as_dict() == json.loads(json.dumps(made.as_dict()))
        )


def test_values_by_key_name_every_section_and_no_other():
    keys = flat(as_plain(Config("p", "m")))
    assert {key.partition(".")[0] for key in keys if "." in key} == {*SECTIONS}
    assert keys["train.milestones"] == [100, 150, 200]


# --- the upper bound


@pytest.mark.parametrize("kept", DIGESTS, ids=lambda kept: f"{kept['preset']} {kept['recipe']}")
def test_what_version_0_1_kept_is_found_again(kept):
    found, bounds = {}, set()
    for method in kept["training"]:
        config = configure(kept["preset"], method, recipe=kept["recipe"])
        found[method] = config.training_digest()
        bounds.add(config.upper_bound_digest())
    assert found == kept["training"]
    assert bounds == {kept["upper_bound"]}


def test_runs_share_an_upper_bound_only_when_it_would_be_trained_alike():
    abd, lwf, joint = (configure("digits-5", m).upper_bound_digest() for m in ("abd", "lwf", "joint"))
    assert abd == lwf == joint == configure("digits-5", "joint").training_digest()
    same = configure("digits-5", "abd", settings=["method.distillation=3", "dream.steps=9"])
    assert same.upper_bound_digest() == abd
    assert configure("digits-5", "abd", settings=["train.epochs=3"]).upper_bound_digest() != abd


def bound_with(*settings: str) -> str:
    """Of the upper bound that somebody trains with these settings."""
    return configure("digits-5", "joint", settings=settings).training_digest()


def test_the_upper_bound_of_a_method_with_values_of_its_own_is_trained_as_others_are():
    """DGR is defined without weight decay, the upper bound of its runs has the preset's."""
    dgr = configure("digits-5", "dgr")
    usual = configure("digits-5", "joint").train.weight_decay
    assert dgr.own_values == {"train.weight_decay": (0, usual)} and usual > 0
    assert dgr.upper_bound_digest() == bound_with()
    assert dgr.upper_bound_digest() != dataclasses.replace(dgr, own_values={}).upper_bound_digest()


def again(config: Config) -> Config:
    return Config.from_dict(json.loads(json.dumps(config.as_dict())))


def test_it_stays_the_right_one_when_other_values_are_set():
    dgr = configure("digits-5", "dgr")
    faster = dgr.with_settings({"train.epochs": 3})
    replaced = dataclasses.replace(dgr, train=dataclasses.replace(dgr.train, epochs=3))
    for config in (faster, replaced, again(faster), again(dgr).with_settings({"train.epochs": 3})):
        assert config.upper_bound_digest() == bound_with("train.epochs=3")
        assert config.train.weight_decay == 0


def test_a_value_that_a_person_sets_for_the_method_is_set_for_its_upper_bound():
    dgr = configure("digits-5", "dgr")
    decayed = dgr.with_settings({"train.weight_decay": 0.5})
    replaced = dataclasses.replace(dgr, train=dataclasses.replace(dgr.train, weight_decay=0.5))
    configured = configure("digits-5", "dgr", settings=["train.weight_decay=0.5"])
    for config in (
        decayed,
        replaced,
        configured,
        again(decayed),
        again(dgr).with_settings({"train.weight_decay": 0.5}),
    ):
        assert config.upper_bound_digest() == bound_with("train.weight_decay=0.5")
    even_so = dgr.with_settings({"train.weight_decay": 0.0})  # as it is, but now a person's wish
    assert even_so.upper_bound_digest() == bound_with("train.weight_decay=0")


def test_values_of_ones_own_come_back_from_plain_values_and_are_left_out_where_there_are_none():
    dgr = configure("digits-5", "dgr")
    assert again(dgr) == dgr
    assert dgr.as_dict()["own_values"] == {"train.weight_decay": [0, dgr.own_values["train.weight_decay"][1]]}
    assert "own_values" not in configure("digits-5", "abd").as_dict()
    assert "own_values" not in dgr.identity()


# --- identity


def test_how_images_are_stored_matters_to_resized_crops_alone():
    for crop, same in (("false", True), ("true", False)):
        settings = [f"augment.resized_crop={crop}", "augment.crop=0"]
        memory, stream = (
            configure("digits-5", "abd", settings=[*settings, f"data.storage={storage}"])
            for storage in ("memory", "stream")
        )
        assert (memory.identity() == stream.identity()) is same


def test_identity_ignores_what_cannot_change_a_figure():
    plain = configure("digits-5", "abd")
    same = configure("digits-5", "abd", settings=["keep=[models]", "data.storage=stream", "evaluate.batch_size=7"])
    other = configure("digits-5", "abd", settings=["train.lr=0.05"])
    assert plain.identity() == same.identity() != other.identity()


LATER_SETTINGS = [
    "train.even=true",
    "train.optimizer=adamw",
    "train.schedule=cosine",
    "train.warmup=2",
    "train.clip=1.0",
    "train.label_smoothing=0.1",
    "train.average=0.999",
    "train.mixup=0.2",
    "train.rotations=first",
    "augment.cutout=2",
    "augment.trivial=true",
    "method.statistics=true",
]


@pytest.mark.parametrize("setting", LATER_SETTINGS)
def test_a_key_that_0_1_did_not_have_is_part_of_the_identity_only_where_it_is_set(setting):
    key = setting.partition("=")[0]
    plain, other = configure("digits-5", "abd"), configure("digits-5", "abd", settings=[setting])
    assert key not in plain.flat_identity()
    assert [*plain.differences(other)] == [key]
    assert plain.training_digest() != other.training_digest()
    is_of_method = key.startswith("method.")  # and so not of the upper bound
    assert (plain.upper_bound_digest() != other.upper_bound_digest()) is not is_of_method
    back = other.with_settings({key: flat(plain.as_dict())[key]})
    assert back.identity() == plain.identity()


def test_every_key_that_0_1_did_not_have_is_tried_above():
    identity = configure("digits-5", "abd").flat_identity()
    dropped = {key for key in flat(configure("digits-5", "abd").as_dict()) if key not in identity}
    tried = {setting.partition("=")[0] for setting in LATER_SETTINGS}
    not_figures = {"data.storage", "evaluate.batch_size", "engine.capture", "engine.compile", "keep"}
    not_figures |= {"net.weights", "net.weights_sha256"}  # below
    assert {key for key in dropped if not key.startswith(("coreset.", "dream."))} - not_figures == tried


def test_a_file_of_weights_counts_by_what_is_in_it_wherever_it_lies(tmp_path):
    for name, content in (("one", b"1"), ("same", b"1"), ("other", b"2")):
        (tmp_path / name).write_bytes(content)
    plain = configure("digits-5", "abd")
    one, same, other = (plain.with_settings({"net.weights": str(tmp_path / name)}) for name in ("one", "same", "other"))
    assert one.identity() == same.identity() != other.identity()
    assert [*plain.differences(one)] == ["net.weights_sha256"]
    assert one.net.weights_sha256 == hashlib.sha256(b"1").hexdigest()
    assert one.with_settings({"net.weights": str(tmp_path / "other")}).identity() == other.identity()
    assert one.with_settings({"net.weights": None}) == plain
    assert one.upper_bound_digest() != plain.upper_bound_digest()
    (tmp_path / "one").unlink()
    assert Config.from_dict(one.as_dict()) == one  # what was written down is read without the file


def test_a_file_of_weights_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"net\.weights: .*none cannot be read: No such file or directory\."):
        configure("digits-5", "abd", settings={"net.weights": str(tmp_path / "none")})
    with pytest.raises(UserError, match=r"net\.weights_sha256 says which file net\.weights is\. Set that, too\."):
        NetConfig(weights_sha256="abc")


def test_the_coresets_size_is_the_presets_and_counts_only_where_one_is_kept():
    assert configure("cifar100-10", "bic").coreset.size == 2000
    assert configure("digits-5", "bic").coreset.size == 100
    bic, larger = (configure("digits-5", "bic", settings=[f"coreset.size={size}"]) for size in (100, 200))
    assert bic.differences(larger) == {"coreset.size": (100, 200)}
    assert bic.upper_bound_digest() == larger.upper_bound_digest()
    assert configure("cifar100-10", "bic").options["correction_lr"] == 0.001
    assert configure("cifar100-10", "e2e").options["balancing_lr"] == 0.001
    abd, same = (configure("digits-5", "abd", settings=[f"coreset.size={size}"]) for size in (100, 200))
    assert abd.identity() == same.identity()


# --- files of earlier versions


def test_a_configuration_from_before_there_were_coresets_is_the_same_run():
    new = configure("digits-5", "abd")
    old = new.as_dict()
    del old["coreset"]
    assert not new.differences(Config.from_dict(old))


def test_a_configuration_of_version_0_1_which_held_the_digest_of_its_upper_bound_is_read():
    new = configure("digits-5", "abd")
    assert Config.from_dict({**new.as_dict(), "reference": new.upper_bound_digest()}) == new


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": None}, "'method.name' is missing"),
        ({"method": {}}, "'method.name' is missing"),
        ({"method": {"name": 5}}, "'method.name' is missing"),
        ({"preset": 5}, "preset must be text, not 5"),
        ({"trian": {}}, "Unknown key 'trian'. Did you mean 'train'"),
        ({"train": {"epoch": 1}}, "Unknown key 'train.epoch'. Did you mean 'train.epochs'"),
        ({"own_values": {"train.lr": 1}}, "own_values.train.lr must be a list of 2, not 1"),
    ],
)
def test_what_is_no_configuration_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        Config.from_dict({**configure("digits-5", "abd").as_dict(), **changes})

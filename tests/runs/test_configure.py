"""What a run is before it begins: which presets and methods there are, its name, its data set and its stream."""

import re

import pytest
import torch

import reverie
from reverie.config.layers import list_presets, preset_names
from reverie.errors import UserError
from reverie.methods import find_method, method_names
from reverie.runs.configure import (
    choose_classes,
    configure,
    default_folder,
    folder_name,
    list_methods,
    load_dataset,
    make_stream,
    warn_of_a_constant_rate,
)
from tests.support.experiments import tiny_config
from tests.support.images import write_cifar100

WARN = warn_of_a_constant_rate  # before the tests' fixture takes its place


def test_every_preset_is_listed_with_what_it_is_about_and_can_be_configured():
    listed = list_presets()
    assert [info.name for info in listed] == preset_names()
    for info in listed:
        assert info.about
        assert configure(info.name, "base").preset == info.name


def test_every_method_is_listed_with_its_title_and_what_it_keeps():
    listed = {info.name: info for info in list_methods()}
    assert [*listed] == method_names()
    assert listed["abd"].keeps == "nothing"
    assert listed["bic"].keeps == "a coreset"
    assert listed["joint"].keeps == "everything"
    for name, info in listed.items():
        assert info.title == find_method(name).title
        assert info.about
        assert "\n" not in info.about


def test_what_is_listed_is_what_the_package_offers():
    assert reverie.list_presets() == list_presets()
    assert reverie.list_methods() == list_methods()


def test_settings_are_a_mapping_or_words_as_on_the_command_line():
    words = configure("digits-5", "abd", settings=["train.epochs=3", "train.milestones=[1, 2]"])
    assert configure("digits-5", "abd", settings={"train.epochs": 3, "train.milestones": [1, 2]}) == words
    assert words.train.milestones == (1, 2)


@pytest.mark.parametrize(
    ("preset", "method", "settings", "said"),
    [
        ("digit-5", "abd", [], "There is no preset 'digit-5'. Did you mean 'digits-5'?"),
        ("digits-5", "adb", [], "There is no method 'adb'. Did you mean 'abd'?"),
        (
            "digits-5",
            "abd",
            ["train.epoch=3"],
            "Unknown key 'train.epoch' in the settings. Did you mean 'train.epochs'?",
        ),
        ("digits-5", "abd", {"train.epochs": 0}, "train.epochs must be a whole number from 1 to 1,000,000, not 0."),
        ("digits-5", "lwf", {"method.fine_tuning": 1.0}, "method.fine_tuning"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(preset, method, settings, said):
    with pytest.raises(UserError, match=re.escape(said)):
        configure(preset, method, settings=settings)


def test_a_coreset_is_no_part_of_a_run_that_keeps_none():
    assert configure("digits-5", "abd", settings=["coreset.size=7"]) == configure("digits-5", "abd")
    assert configure("digits-5", "bic", settings=["coreset.size=7"]).coreset.size == 7


def test_a_run_is_named_after_what_it_is_and_what_a_person_set():
    config = configure("digits-5", "abd", seed=2, recipe="released")
    assert folder_name(config, []) == "digits-5-abd-released-seed2"
    assert folder_name(config, {"train.lr": 0.5}) == "digits-5-abd-released-train.lr=0.5-seed2"
    assert folder_name(config, ["keep=[models, dreamers]"]) == "digits-5-abd-released-keep=_models,_dreamers_-seed2"
    assert str(default_folder(config)) == "runs/digits-5-abd-released-seed2"


def test_a_long_name_is_shortened_and_stays_its_own():
    config = configure("digits-5", "abd")
    long = [f"dream.lr=0.{'0' * 80}1", f"dream.lr=0.{'0' * 80}2"]
    names = [folder_name(config, [setting]) for setting in long]
    assert names[0] != names[1]
    assert max(map(len, names)) < 120


def test_the_classes_of_a_stream_are_in_the_order_of_the_seed_or_as_named():
    assert choose_classes(tiny_config("base", "stream.order=natural", "stream.classes=3"), 10) == [0, 1, 2]
    assert choose_classes(tiny_config("base", "stream.order=[3, 1, 2]"), 10) == [3, 1, 2]
    one, again, other = (choose_classes(tiny_config("base", seed=seed), 10) for seed in (4, 4, 5))
    assert one == again != other
    assert sorted(one) == sorted(other) == list(range(10))
    with pytest.raises(UserError, match=r"stream\.classes is 12, but there are only 10 classes"):
        choose_classes(tiny_config("base", "stream.classes=12"), 10)


def test_a_data_set_is_loaded_from_under_a_folder_and_cut_into_tasks(tmp_path):
    write_cifar100(tmp_path, per_class=2)
    config = configure("cifar100-10", "base", settings={"stream.take": 3})
    dataset = load_dataset(config, tmp_path)
    stream = make_stream(config, dataset)
    assert len(dataset.class_names) == 100
    assert len(stream) == 3
    assert [len(task.names) for task in stream] == [10, 10, 10]
    assert [task.first_label for task in stream] == [0, 10, 20]
    assert torch.equal(stream[1].images.labels.unique(), torch.arange(10, 20))
    assert stream.class_names == tuple(dataset.class_names[label] for label in choose_classes(config, 100)[:30])


def test_a_data_set_that_is_not_there_is_named_with_the_way_to_get_it(tmp_path):
    with pytest.raises(UserError, match=r"CIFAR-100 is not under .*\n`download_dataset\('cifar100'"):
        load_dataset(configure("cifar100-10", "base"), tmp_path)


def test_how_far_reading_is_can_be_followed(photos):
    told = []
    config = configure("digits-5", "base", settings=["data.source=folder", "data.size=8"])
    load_dataset(config, photos, lambda *far: told.append(far))
    assert told[-1] == (36, 36)


def test_more_tasks_than_there_are_are_refused():
    config = tiny_config("base", "stream.take=6")
    with pytest.raises(UserError, match=r"stream\.take asks for 6 tasks; there are 5"):
        make_stream(config, load_dataset(config))


def test_a_name_in_the_place_of_a_configuration_is_a_mistake_that_says_what_to_call(tmp_path):
    for call in (load_dataset, reverie.run, lambda config: make_stream(config, None)):
        with pytest.raises(UserError, match=r"^`config` is what `configure\(...\)` gives, .*, not 'digits-5'\.$"):
            call("digits-5")


def test_a_schedule_without_a_milestone_is_warned_of_once_unless_it_was_asked_for(caplog, monkeypatch):
    monkeypatch.setattr("reverie.runs.configure.warn_of_a_constant_rate", WARN)
    WARN.cache_clear()
    configure("cifar100-10", settings={"train.epochs": 101})
    configure("cifar100-10", settings={"train.epochs": 100, "train.milestones": [150]})
    configure("cifar100-10", settings={"train.epochs": 100, "train.milestones": []})
    configure("cifar100-10", settings={"train.epochs": 100, "train.schedule": "cosine"})
    for preset in preset_names():
        configure(preset)
    assert caplog.messages == []
    for seed in (0, 1):
        configure("cifar100-10", seed=seed, settings={"train.epochs": 100})
    assert caplog.messages == [
        "No milestone of [100, 150, 200] lies within 100 epochs, so the learning rate never falls; "
        "set train.milestones, too."
    ]

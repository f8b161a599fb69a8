"""`reverie learn` with a method that keeps class statistics: steps on folders, and what becomes of them."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save

import reverie
from reverie.errors import Interrupted
from reverie.methods.ldc import LDC
from reverie.model.folder import STATISTICS, WEIGHTS, load_model
from reverie.model.request import method_to_go_on_with
from tests.support.images import write_digits
from tests.support.models import assert_same_weights, rewrite_config, rewrite_file

HEAD = "answering.cosine."
SETTINGS = ("train.epochs=6", "train.milestones=[4]", "train.batch_size=16", "data.size=8", "net.name=resnet8")
STEPS = {"first": (0, 1, 2), "second": (3,), "third": (4, 5)}  # one of them of a single class


class Mine(LDC):
    """A method of somebody else's, which says nothing of what it keeps."""

    statistics_form = None


class Lines(reverie.Observer):
    """What was decided."""

    def __init__(self, said):
        self.said = said

    def decided(self, line):
        self.said.append(line)


class Reading(reverie.Observer):
    """Nothing is to be read before a mistake is told."""

    def reading(self, done, total):
        raise AssertionError


def learn(place, folder, to, old=None, method="ldc", **given):
    return reverie.learn_folder(
        place / folder,
        place / to,
        old=place / old if old else None,
        method=method,
        settings=[setting for setting in SETTINGS if not old or not setting.startswith(("data.", "net."))],
        device="cpu",
        **given,
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Image folders, and the models of three steps in a row. Not to be changed."""
    place = tmp_path_factory.mktemp("steps")
    for name, digits in STEPS.items():
        write_digits(place / name, digits, 30)
    write_digits(place / "check", range(6), 10)
    learn(place, "first", "one")
    learn(place, "second", "two", old="one")
    learn(place, "third", "three", old="two", check=place / "check")
    return place


def test_each_step_knows_more_and_is_judged(place):
    model = load_model(place / "three")
    assert model.classifier.class_names == ("0", "1", "2", "3", "4", "5")
    assert len(model.statistics) == 6
    assert model.acceptance.statistics is None  # from means alone nothing can be drawn
    assert model.classifier.answering_head.rows == 6
    assert model.acceptance.new.images == 12
    assert model.acceptance.check.images == 40
    assert model.acceptance.new.accuracy > 0.5
    assert reverie.score(place / "one", place / "first", device="cpu") > 0.9


def test_the_ledger_and_the_card_say_what_is_kept_and_never_that_nothing_is(place):
    model, card = load_model(place / "three"), (place / "three" / "README.md").read_text("utf-8")
    for entry in model.ledger:
        assert entry.keeps == "class statistics"
        assert entry.images_kept == 0
        assert entry.kept["class statistics"] == entry.kept_bytes
    assert f"class statistics {model.ledger[-1].kept_bytes:,} bytes" in card
    assert "nothing" not in card.partition("## Ledger")[2].partition("##")[0]


def test_what_evaluate_says_is_what_the_report_said(place):
    said = load_model(place / "three").acceptance.check_accuracy
    found = reverie.evaluate(place / "three", place / "check", device="cpu")
    assert (found.accuracy, found.images) == (said.accuracy, said.images)


def test_the_report_names_the_bytes_of_the_statistics_beside_those_of_the_classifier(place):
    report = load_model(place / "three").acceptance
    assert (report.before.statistics_bytes, report.after.statistics_bytes) == (4 * (8 + 64 * 4), 6 * (8 + 64 * 4))
    assert "; class statistics beside it: 1,056 bytes → 1,584 bytes" in str(report)


def test_confidence_is_a_probability(place):
    probabilities = torch.from_numpy(reverie.predict_proba(place / "three", place / "check", device="cpu"))
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(60))
    assert probabilities.max() > 0.4


def test_stopped_in_a_stage_the_same_call_goes_on(place, tmp_path):
    class Stop(reverie.Observer):
        def stage_begins(self, stage):
            if stage.name == "measure":
                raise Interrupted

    for observer in (Stop(), None):
        stopped = observer is not None
        with pytest.raises(Interrupted) if stopped else torch.no_grad():
            reverie.learn_folder(
                place / "second",
                tmp_path / "two",
                old=place / "one",
                method="ldc",
                settings=SETTINGS[:3],
                device="cpu",
                observer=observer,
            )
    assert_same_weights(load_model(tmp_path / "two"), load_model(place / "two"))


def test_a_model_without_statistics_is_not_extended_by_a_method_that_needs_them(place, tmp_path):
    learn(place, "second", "plain", old="one", method="lwf")
    plain = load_model(place / "plain")
    assert plain.statistics is None
    assert plain.classifier.answering_head is None
    assert not (place / "plain" / STATISTICS).exists()
    with pytest.raises(reverie.UserError, match=r"'ldc' goes on from class statistics, and this model holds none"):
        learn(place, "third", "more", old="plain")


def test_what_another_method_leaves_behind_is_said(place, tmp_path, caplog):
    reverie.learn_folder(
        place / "third", tmp_path / "left", old=place / "one", method="lwf", settings=SETTINGS[:3], device="cpu"
    )
    assert "The head that answered until now, and the class statistics, are not for 'lwf'" in caplog.text


def test_a_learner_in_memory_takes_its_statistics_along(place):
    learner = reverie.load(place / "one", device="cpu", settings=SETTINGS[:3])
    assert learner.method == "ldc"
    learner.learn(place / "second")
    assert_same_weights(learner.saved, load_model(place / "two"))
    assert torch.equal(learner.saved.statistics.means, load_model(place / "two").statistics.means)


def test_ridge_regression_extends_a_model_too(place):
    method = "acil"
    learn(place, "first", f"{method}-1", method=method)
    report = learn(place, "third", f"{method}-2", old=f"{method}-1", method=method)
    assert report.new.accuracy > 0.6
    assert reverie.score(place / f"{method}-2", place / "first", device="cpu") > 0.7
    with pytest.raises(reverie.UserError, match=r"'abd': its network has learned its .* goes on .* `method=\"acil\"`"):
        learn(place, "second", "odd", old=f"{method}-2", method="abd")
    said = []
    reverie.Learner.of(load_model(place / f"{method}-2"), device="cpu").learn(place / "second", observer=Lines(said))
    assert said[-1] == ("method acil: nothing is trained; the network rests, and a head is computed from its features")
    settings = json.loads((place / f"{method}-2" / "config.json").read_text())
    assert settings["files"][STATISTICS]["bytes"] > 2048 * 2049 // 2 * 4


def test_dreams_of_a_network_that_rests_are_of_the_classes_it_was_trained_on(place, caplog):
    learner = reverie.Learner(method="acil", device="cpu", settings=(*SETTINGS, "dream.width=8"))
    learner.learn(place / "first")
    learner.learn(place / "third")
    learner.rename({"1": "one"})
    dreams = learner.dream(2, steps=2)
    assert dreams.class_names == ("0", "one", "2")
    assert "The network was trained on 0, one, 2 alone, so there are no dreams of 4, 5" in caplog.text
    learner.remove(["0", "one", "2"])
    with pytest.raises(reverie.UserError, match="nothing to dream of"):
        learner.dream(2, steps=2)


@pytest.mark.parametrize(
    ("method", "settings", "says"),
    [
        ("acil", (), "wanted: means and one covariance of all classes, of 2048 features"),
        ("lucid", (), "wanted: a mean and a covariance for each class, of 64 features"),
        ("abd", ("method.statistics=true",), "wanted: a mean and a covariance for each class, of 64 features"),
        ("mine", (), "'mine' does not say what class statistics it keeps"),
    ],
)
def test_statistics_of_another_kind_are_refused_before_an_image_is_read(
    place, tmp_path, monkeypatch, method, settings, says
):
    monkeypatch.setattr("reverie.methods._registered", {"mine": Mine})
    with pytest.raises(reverie.UserError, match=says) as refused:
        reverie.learn_folder(
            place / "second", tmp_path / "to", old=place / "one", method=method, settings=settings, observer=Reading()
        )
    assert "means alone, of 64 features" in str(refused.value) or method == "mine"
    assert 'the method that made it: `method="ldc"`.' in str(refused.value)


def test_statistics_of_another_size_are_refused_before_an_image_is_read(place, tmp_path):
    learner = reverie.Learner(method="acil", device="cpu", settings=(*SETTINGS, "method.expansion=40"))
    learner.learn(place / "first")
    learner.save(tmp_path / "small")
    again = reverie.load(tmp_path / "small", device="cpu", settings=SETTINGS[:3])
    with pytest.raises(
        reverie.UserError, match=r"of 40 features; wanted: .* of 2048 features\. Learn with the options that"
    ):
        again.learn(place / "second", observer=Reading())


def test_a_method_that_declares_nothing_goes_on_from_its_own_models(place, monkeypatch):
    monkeypatch.setattr("reverie.methods._registered", {"mine": Mine})
    learner = reverie.Learner(method="mine", device="cpu", settings=SETTINGS)
    learner.learn(place / "first")
    learner.learn(place / "second")
    assert len(learner.saved.statistics) == 4


def test_methods_of_one_kind_go_on_from_each_other(place):
    quick = (*SETTINGS, "train.epochs=1", "train.milestones=[]", "dream.steps=3", "dream.width=8")
    learner = reverie.Learner(method="lucid", device="cpu", settings=quick)
    learner.learn(place / "first")
    for method, folder, digits in (("abd", "second", 4), ("r-dfcil", "third", 6)):
        learner = reverie.Learner.of(
            learner.saved, device="cpu", method=method, settings=(*quick, "method.statistics=true")
        )
        learner.learn(place / folder)
        assert len(learner.saved.statistics) == digits


# --- the method to go on with, where nobody names one


def test_a_model_is_extended_by_its_own_method(place, tmp_path):
    learn(place, "second", "own", old="one", method=None)
    assert_same_weights(load_model(place / "own"), load_model(place / "two"))


def test_where_a_model_folder_is_not_enough_for_it_abd_goes_on(place, tmp_path):
    model = load_model(place / "one")
    for made_by, goes_on in (("bic", "abd"), ("joint", "abd"), ("lwf", "lwf"), ("acil", "acil")):
        assert method_to_go_on_with(replace(model, config=replace(model.config, method=made_by))) == goes_on


def test_where_it_is_not_here_that_is_said(place, tmp_path, caplog):
    model = load_model(place / "one")
    model.config = replace(model.config, method="mine", options={})
    reverie.save_model(model, tmp_path / "mine")
    reverie.predict(tmp_path / "mine", place / "check" / "0", device="cpu")
    assert not caplog.text  # nothing is to be learned
    assert reverie.load(tmp_path / "mine", device="cpu").method == "abd"
    assert "made by is not here, so 'abd' goes on from it: There is no method 'mine'" in caplog.text


def test_statistics_of_other_classes_are_refused(place, tmp_path):
    model = load_model(place / "two")
    model.statistics = model.statistics.select(torch.tensor([0, 1]))
    reverie.save_model(model, tmp_path / "odd")
    with pytest.raises(
        reverie.UserError, match=r"statistics\.safetensors is not what reverie writes \(statistics of 2"
    ):
        load_model(tmp_path / "odd")


@pytest.fixture(scope="module")
def dreaming(place):
    """The same with dreams: a class alone, and then one of five images."""
    write_digits(place / "few", (4,), 5)
    brief = {"settings": ("train.epochs=4", "train.batch_size=16", "dream.steps=40", "dream.width=8"), "device": "cpu"}
    shape = ("data.size=8", "net.name=resnet8")
    reverie.learn_folder(
        place / "first", place / "dream-1", method="lucid", settings=(*brief["settings"], *shape), device="cpu"
    )
    reverie.learn_folder(place / "second", place / "dream-2", old=place / "dream-1", method="lucid", **brief)
    report = reverie.learn_folder(place / "few", place / "dream-3", old=place / "dream-2", method="lucid", **brief)
    return place, report


def test_lucid_learns_a_class_alone_and_one_of_five_images(dreaming):
    place, report = dreaming
    model = load_model(place / "dream-3")
    assert len(model.statistics) == model.classifier.seen == 5
    assert model.statistics.form == "own" and model.statistics.counts[-1] == 4  # one image is held out
    assert report.dreams.images >= 500
    assert report.statistics.images == 400  # of the four classes that were known before
    assert [share.name for share in report.statistics.by_class] == ["0", "1", "2", "3"]
    assert "old classes, by their statistics: " in str(report) and "features drawn" in report.markdown()
    assert [entry.keeps for entry in model.ledger] == ["class statistics"] * 3
    assert model.ledger[-1].kept_bytes == 5 * (8 + 4 * 64 + 4 * 64 + 4032 + 4096)
    assert reverie.score(place / "dream-3", place / "first", device="cpu") > 0.5


@pytest.mark.parametrize("fixed", [torch.ones(4, 7), -torch.ones(4, 2048)])
def test_means_of_fixed_features_that_are_none_are_refused(dreaming, tmp_path, fixed):
    model = load_model(dreaming[0] / "dream-2")
    model.statistics = replace(model.statistics, fixed=fixed)
    reverie.save_model(model, tmp_path / "odd")
    with pytest.raises(reverie.UserError, match=r"the means of fixed features are not 2048 numbers of zero and more"):
        load_model(tmp_path / "odd")


def test_classes_of_two_images_are_learned_without_the_evidence_of_fixed_features(tmp_path):
    write_digits(tmp_path / "few", (0, 1, 2, 3), 2)  # of which one each is held out
    quick = ("train.epochs=2", "train.batch_size=4", "data.size=8", "net.name=resnet8", "augment.flip=true")
    reverie.learn_folder(tmp_path / "few", tmp_path / "model", method="lucid", settings=quick, device="cpu")
    model = load_model(tmp_path / "model")
    assert model.classifier.answering_head.name == "linear" and model.statistics.fixed.shape == (4, 2048)


def test_a_method_that_may_keep_statistics_goes_on_without_them(dreaming, tmp_path, caplog):
    place, _ = dreaming
    brief = ("train.epochs=1", "train.batch_size=16", "dream.steps=5", "dream.width=8")
    reverie.learn_folder(
        place / "second", tmp_path / "abd", old=place / "dream-1", method="abd", settings=brief, device="cpu"
    )
    assert load_model(tmp_path / "abd").statistics is None
    assert "are not for 'abd'" in caplog.text
    with pytest.raises(reverie.UserError, match=r"'abd' goes on from class statistics, and this model holds none"):
        reverie.learn_folder(
            place / "third",
            tmp_path / "more",
            old=tmp_path / "abd",
            method="abd",
            settings=(*brief, "method.statistics=true"),
            device="cpu",
        )


def rewritten(place, tmp_path, file, change):
    """The second model, with some tensors changed by somebody who knows of the digests."""
    folder = shutil.copytree(place / "two", tmp_path / "changed")
    rewrite_file(folder, file, save({**change(load_file(folder / file))}))
    return folder


@pytest.mark.parametrize(
    ("file", "change", "why"),
    [
        (
            STATISTICS,
            lambda s: {**s, "means": s["means"][:, :10].clone()},
            "'means' with 10 features instead of 'means' with 64",
        ),
        (
            STATISTICS,
            lambda s: {**s, "variances": s["means"] ** 2},
            "form 'diagonal' with 64 features instead of 'means'",
        ),
        (STATISTICS, lambda s: {**s, "means": s["means"].long()}, "means of class statistics are of the type"),
        (
            WEIGHTS,
            lambda s: {key: s[key] for key in s if "answering" not in key},
            "by 'training head' instead of 'cosine'",
        ),
        (WEIGHTS, lambda s: {**s, HEAD + "temperature": torch.tensor(-1.0)}, "temperature of the head 'cosine' is not"),
        (WEIGHTS, lambda s: {**s, HEAD + "directions": torch.ones(4, 9)}, "head 'cosine' are not for 64 features"),
        (WEIGHTS, lambda s: {key.replace("cosine", "cosi"): s[key] for key in s}, "There is no head 'cosi' here"),
        (
            WEIGHTS,
            lambda s: {**s, "answering.linear.bias": torch.ones(4)},
            "more than one head would answer: cosine, lin",
        ),
        (WEIGHTS, lambda s: {**s, "factor": torch.ones(4)}, "a factor and a shift for each of the 4 classes"),
        (WEIGHTS, lambda s: {**s, "factor": torch.ones(2), "shift": torch.ones(2)}, "for each of the 4 classes"),
        (WEIGHTS, lambda s: {**s, "factor": torch.ones(4) / 0, "shift": torch.ones(4)}, "for each of the 4 classes"),
    ],
)
def test_tensors_that_cannot_be_are_refused_by_the_name_of_their_file_in_one_sentence(
    place, tmp_path, file, change, why
):
    with pytest.raises(
        reverie.UserError, match=rf"/changed is damaged: {file} is not what reverie writes \(.*{why}"
    ) as told:
        load_model(rewritten(place, tmp_path, file, change))
    assert len(str(told.value).splitlines()) == 1


def test_a_folder_that_no_longer_lists_its_statistics_is_damaged(place, tmp_path):
    folder = shutil.copytree(place / "two", tmp_path / "changed")
    settings = json.loads((folder / "config.json").read_text())
    del settings["files"][STATISTICS]
    rewrite_config(folder, settings)
    with pytest.raises(reverie.UserError, match=r"config\.json does not list statistics\.safetensors"):
        load_model(folder)


def test_a_folder_of_a_version_that_did_not_say_what_answers_is_read(place, tmp_path):
    folder = shutil.copytree(place / "two", tmp_path / "old")
    settings = json.loads((folder / "config.json").read_text())
    assert settings.pop("answering") == "cosine"
    assert settings.pop("statistics") == {"form": "means", "features": 64}
    rewrite_config(folder, settings)
    assert_same_weights(load_model(folder), load_model(place / "two"))

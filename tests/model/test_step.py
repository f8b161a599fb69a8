"""A step of learning: what is decided, what is refused, and what comes out."""

import hashlib
import shutil

import pytest
import torch
from PIL import Image

from reverie.config.schema import AugmentConfig
from reverie.data.inputs import as_inputs
from reverie.data.preprocessing import Preprocessing
from reverie.engine.observer import Observer
from reverie.errors import UserError
from reverie.learner.task_learner import TaskLearner
from reverie.model.defaults import PRESET
from reverie.model.folder import load_model, model_digest, save_model
from reverie.model.job import learn_folder
from reverie.model.request import LearnRequest
from reverie.model.step import (
    DREAMS,
    PASSING,
    learn_step,
    plan_step,
    read_check_images,
    rejection_threshold,
)
from tests.support.images import write_digits
from tests.support.models import QUICK_STEP, extended, quick_request


@pytest.fixture(scope="session")
def old(world):
    """The old model of the `world`. Not to be changed."""
    return load_model(world / "old")


@pytest.fixture
def second_step(old, world):
    """The step that learns `second` onto it, before it is taken."""
    return plan_step(old, as_inputs(world / "second"), quick_request())


def test_a_first_model_knows_the_folders_by_name_and_is_judged(old):
    assert old.classifier.class_names == ("0", "1", "2")
    assert old.classifier.preprocessing.size == 8
    assert old.acceptance.new.images == 12
    assert old.acceptance.new.accuracy > 0.8
    assert 0 < old.rejection <= 1
    assert old.lineage == ()
    assert old.config.preset == PRESET


def test_the_ledger_says_what_was_learned_from(old):
    (entry,) = old.ledger
    assert entry.source == "first"
    assert entry.images == {"0": 16, "1": 16, "2": 16} and entry.held_out == {"0": 4, "1": 4, "2": 4}
    assert entry.images_seen == 48 and entry.kept_bytes == 0
    assert len(entry.fingerprint) == 32 and entry.date.endswith("+00:00")


def test_an_extension_leaves_the_old_folder_alone_and_names_it_in_its_lineage(world, tmp_path):
    before = {file.name: file.read_bytes() for file in (world / "old").iterdir()}
    saved, report = extended(world, "second", tmp_path / "new")
    assert {file.name: file.read_bytes() for file in (world / "old").iterdir()} == before
    assert saved.classifier.class_names == ("0", "1", "2", "3", "4")
    assert saved.lineage == (model_digest(world / "old"),)
    assert [entry.source for entry in saved.ledger] == ["first", "second"]
    assert report.dreams is not None and report.dreams.images >= DREAMS
    assert saved.acceptance == report
    assert [entry.name for entry in tmp_path.iterdir()] == ["new"]  # the work folder is gone


def test_a_step_leaves_the_model_before_it_as_it_is(old, second_step):
    before = {name: value.clone() for name, value in old.classifier.state_dict().items()}
    made, report = learn_step(second_step, torch.device("cpu"), lineage=("ab" * 32,))
    assert made.classifier.class_names == ("0", "1", "2", "3", "4") and made.lineage == ("ab" * 32,)
    assert made.acceptance is report
    assert old.classifier.class_names == ("0", "1", "2") and len(old.ledger) == 1
    assert all(torch.equal(value, before[name]) for name, value in old.classifier.state_dict().items())


def test_a_target_that_exists_is_refused_and_stays(world, tmp_path):
    (tmp_path / "new").mkdir()
    with pytest.raises(UserError, match="exists already, and stays as it is"):
        extended(world, "second", tmp_path / "new")
    assert [*tmp_path.iterdir()] == [tmp_path / "new"]


# --- known classes


def test_images_of_a_known_class_are_a_question(world, tmp_path):
    with pytest.raises(UserError, match=r"knows '2' already\. Say `on_known_class=\"refine\"` to learn from"):
        extended(world, "mixed", tmp_path / "new")
    assert not [*tmp_path.iterdir()]


def test_they_can_be_skipped(world, tmp_path):
    saved, _ = extended(world, "mixed", tmp_path / "new", on_known_class="skip")
    assert saved.classifier.class_names == ("0", "1", "2", "5")
    assert saved.ledger[-1].images == {"5": 16} and saved.ledger[-1].refined == []
    with pytest.raises(UserError, match="nothing to learn"):
        extended(world, "known", tmp_path / "other", on_known_class="skip")


@pytest.mark.parametrize("method", ["abd", "base", "lwf", "deepinversion", "lwf-synthetic"])
def test_they_can_refine_a_class_beside_a_new_one(world, tmp_path, method):
    saved, _ = extended(world, "mixed", tmp_path / "new", on_known_class="refine", method=method)
    assert saved.classifier.class_names == ("0", "1", "2", "5")
    assert saved.ledger[-1].images == {"2": 16, "5": 16}
    assert saved.ledger[-1].refined == ["2"] and saved.ledger[-1].classes == ["5"]
    assert all(torch.isfinite(value).all() for value in saved.classifier.state_dict().values())


@pytest.mark.parametrize("method", ["abd", "base"])
def test_they_can_refine_classes_without_any_new_one(world, tmp_path, method):
    saved, _ = extended(world, "known", tmp_path / "new", on_known_class="refine", method=method)
    assert saved.classifier.class_names == ("0", "1", "2")
    assert saved.ledger[-1].classes == [] and saved.ledger[-1].refined == ["0", "1"]


def test_refined_images_keep_their_class(old, world):
    step = plan_step(old, as_inputs(world / "known"), quick_request(on_known_class="refine"))
    assert {*step.counts(step.train)} == {*step.counts(step.held_out)} == {"0", "1"}


def test_refining_makes_the_model_better_at_what_it_is_shown(old, tmp_path):
    """Zeros drawn white on black become black on white: the old model fails, the refined one does not."""
    turned = tmp_path / "turned" / "0"
    turned.mkdir(parents=True)
    for file in (write_digits(tmp_path / "zeros", (0,), 60) / "0").iterdir():
        Image.eval(Image.open(file), lambda value: 255 - value).save(turned / file.name)
    settings = ("train.epochs=10", "dream.steps=100", "dream.width=16")
    step = plan_step(old, as_inputs(turned.parent), LearnRequest(settings=settings, on_known_class="refine"))
    before = old.task_learner().score(step.held_out)
    _, report = learn_step(step, torch.device("cpu"))
    assert report.new is None and "new classes" not in "\n".join(report.lines())
    assert report.refined.accuracy > before + 0.2


@pytest.mark.parametrize(
    "setting", ["data.source=cifar100", "stream.split=3", "net.head=all", "keep=[models]", " stream={split: 3}"]
)
def test_settings_that_decide_nothing_here_are_refused(setting):
    with pytest.raises(UserError, match="decides nothing here"):
        LearnRequest(settings=(setting,))


def test_a_rule_that_there_is_not_is_refused_and_drops_no_images():
    with pytest.raises(UserError, match="one of error, skip, refine, not 'refin'"):
        quick_request(on_known_class="refin")


def test_what_is_skipped_need_not_be_enough_to_learn_from(world, tmp_path):
    write_digits(tmp_path / "few", (5,), 20)
    write_digits(tmp_path / "few", (0,), 1)
    (tmp_path / "few" / "1").mkdir()
    given = {"old": world / "old", "settings": QUICK_STEP, "device": "cpu"}
    learn_folder(tmp_path / "few", tmp_path / "new", on_known_class="skip", method="base", **given)
    assert load_model(tmp_path / "new").classifier.class_names == ("0", "1", "2", "5")
    with pytest.raises(UserError, match=r"'0' in .*few has a single image"):
        learn_folder(tmp_path / "few", tmp_path / "x", on_known_class="refine", **given)


def test_a_method_that_cannot_refine_says_so(world, tmp_path):
    with pytest.raises(UserError, match=r"'r-dfcil' cannot learn further images .* one of .*lwf.*abd"):
        extended(world, "mixed", tmp_path / "new", on_known_class="refine", method="r-dfcil")


# --- what is refused


@pytest.mark.parametrize(
    ("method", "says"), [("rehearsal", "keeps a coreset"), ("joint", "keeps everything"), ("dgr", "keeps networks")]
)
def test_methods_that_keep_something_are_refused_with_the_reason(method, says):
    with pytest.raises(
        UserError, match=f"{says} from one step to the next.* Choose another `method`, one of base, lwf"
    ):
        LearnRequest(method)


def test_a_carried_dreamer_is_refused(world, tmp_path):
    with pytest.raises(UserError, match="carried dreamer"):
        extended(world, "second", tmp_path / "new", settings={"dream.life": "carried"})
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"settings": {"data.size": 16}}, "data.size"),
        ({"settings": {"net.name": "resnet20"}}, r"`backbone` \(net.name\)"),
        ({"backbone": "resnet20"}, r"`backbone` \(net.name\)"),
    ],
)
def test_a_model_keeps_its_size_and_its_network(world, tmp_path, how, named):
    with pytest.raises(UserError, match=rf"a resnet8 for 8×8 pixels, and stays one\. Leave {named} out"):
        extended(world, "second", tmp_path / "new", **how)


def test_weights_need_a_network_of_a_library(world, tmp_path):
    with pytest.raises(UserError, match=r"named by `backbone`: torchvision/… or timm/…"):
        learn_folder(world / "first", tmp_path / "new", weights=tmp_path / "weights.pth", device="cpu")


# --- what is decided


def test_what_was_decided_is_said(old, world, second_step):
    said = " ".join(second_step.lines())
    assert "2 new classes: '3', '4', beside 3 known; 32 images to learn from, 8 held out" in said
    assert "8×8 pixels, resnet8" in said and "mirrored" not in said
    assert "method abd: 6 steps of dreaming, then 2 epochs in batches of 16" in said
    assert "classes are drawn equally often" in said
    uneven = LearnRequest(settings=(*QUICK_STEP, "train.even=false"))
    uneven = plan_step(old, as_inputs(world / "second"), uneven)
    assert "equally often" not in " ".join(uneven.lines())
    brief = ("train.epochs=1", "dream.steps=1", "augment.cutout=4", "augment.trivial=true")
    step = plan_step(old, as_inputs(world / "second"), LearnRequest(settings=(*QUICK_STEP, *brief)))
    assert "cutout, TrivialAugment; classes" in " ".join(step.lines())
    assert "method abd: 1 step of dreaming, then 1 epoch in batches of 16" in " ".join(step.lines())


def test_a_square_that_leaves_nothing_of_the_images_is_refused(old, world):
    with pytest.raises(UserError, match=r"augment\.cutout .* 9 pixels leave hardly anything of images of 8×8"):
        plan_step(old, as_inputs(world / "second"), LearnRequest(settings=(*QUICK_STEP, "augment.cutout=9")))


def test_so_is_what_differs_from_the_usual_training(old, world):
    unusual = ("train.optimizer=adamw", "train.schedule=cosine", "train.rotations=first", "train.mixup=0.2")
    for before, folder, turned in ((None, "first", ", turned images as further classes"), (old, "second", "")):
        step = plan_step(before, as_inputs(world / folder), LearnRequest(settings=(*QUICK_STEP, *unusual)))
        assert step.lines()[-1].endswith(f"learning rate 0.1, falling along a cosine, adamw{turned}, mixup")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (("augment.flip=true", "augment.crop=2"), AugmentConfig(crop=2, flip=True, brightness=0.25, contrast=0.8)),
        (("augment.crop=0", "augment.brightness=0", "augment.contrast=0"), AugmentConfig()),
    ],
)
def test_a_model_keeps_the_augmentation_it_was_first_given(world, settings, expected):
    first = plan_step(None, as_inputs(world / "first"), LearnRequest(settings=(*QUICK_STEP, *settings)))
    saved, _ = learn_step(first, torch.device("cpu"))
    assert saved.config.augment == expected
    assert plan_step(saved, as_inputs(world / "second"), quick_request()).config.augment == expected


def test_a_folder_extends_a_model_of_one_channel(tiny, tiny_stream, world, tmp_path):
    learner = TaskLearner.fresh(tiny("abd"), Preprocessing(8, (0.3,), (0.4,)))
    learner.learn(tiny_stream[0])
    save_model(learner, tmp_path / "grey")
    names = set(learner.classifier.class_names)
    folder = next(f for f in ("second", "known", "mixed") if not names & {p.name for p in (world / f).iterdir()})
    learn_folder(world / folder, tmp_path / "new", old=tmp_path / "grey", settings=QUICK_STEP, device="cpu")
    saved = load_model(tmp_path / "new")
    assert saved.classifier.preprocessing.channels == 1 and saved.classifier.seen == 4


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.epoch=3", "Did you mean 'train.epochs'"),
        ("net.name=resnet50", "Did you mean 'torchvision/resnet50'"),
        ("net.name=torchvision/resnet19", "Did you mean 'resnet18'|Did you mean 'resnet1"),
    ],
)
def test_mistakes_in_settings_are_told_before_an_image_is_read(world, monkeypatch, setting, message):
    monkeypatch.setattr("reverie.data.inputs.decode_files", lambda *args, **words: pytest.fail("images were read"))
    with pytest.raises(UserError, match=message):
        plan_step(None, as_inputs(world / "first"), LearnRequest(settings=(setting,)))


def test_the_threshold_lets_most_held_out_images_and_most_dreams_pass(old, world):
    step = plan_step(old, as_inputs(world / "first"), quick_request(on_known_class="refine"))
    learner = step.learner(torch.device("cpu"))
    held_out = step.held_out
    sure = learner.predict(held_out).probabilities[:, 0]
    threshold = rejection_threshold(learner, held_out, None)
    assert (sure >= threshold).float().mean() >= PASSING
    assert (sure * (1 - 1e-6) >= threshold).float().mean() >= PASSING  # however many are asked together
    larger = sure[sure > threshold + 2e-4]
    assert not len(larger) or (sure >= larger.min()).float().mean() < PASSING  # the largest that will do
    noise = torch.randn(100, 3, 8, 8)
    with_dreams = rejection_threshold(learner, held_out, noise.split(60))
    assert (learner.classifier.eval()(noise).softmax(1).amax(1) >= with_dreams).float().mean() >= PASSING
    assert with_dreams <= threshold


# --- check images


def test_a_check_folder_may_have_labels_or_not(world, tmp_path):
    check = write_digits(tmp_path / "check", (0, 4), 5, "test")
    _, labelled = extended(world, "second", tmp_path / "a", method="base", check=check)
    assert labelled.check_accuracy.images == 10 and labelled.check.images == 5
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, file in enumerate(sorted(check.rglob("*.png"))):
        shutil.copy(file, flat / f"{number}.png")
    _, bare = extended(world, "second", tmp_path / "b", method="base", check=flat)
    assert bare.check_accuracy is None and bare.check.images == 10


def test_a_check_folders_strange_classes_are_named_and_left_aside(second_step, tmp_path, caplog):
    check = write_digits(tmp_path / "check", (0, 4, 9), 5, "test")
    assert set(read_check_images(check, second_step).labels.tolist()) == {0, 4}
    assert "will not know '9'" in caplog.text
    strange = write_digits(tmp_path / "strange", (9,), 5, "test")
    assert read_check_images(strange, second_step).labels.tolist() == [-1] * 5
    assert "so its images count as unlabelled" in caplog.text
    write_digits(strange / "test", (0,), 5, "test")
    with pytest.raises(UserError, match=r"Did you mean .*strange/test\?"):
        read_check_images(strange, second_step)


def test_images_beside_the_folders_of_classes_are_counted_and_left_aside(second_step, tmp_path, caplog):
    check = write_digits(tmp_path / "check", (0, 4), 5, "test")
    shutil.copy(next((check / "0").iterdir()), check / "loose.PNG")
    (check / "names.txt").write_text("0 4")
    assert len(read_check_images(check, second_step)) == 10
    as_inputs(check).read(quick_request().data, 8, {"0", "4"})
    assert caplog.text.count("holds 1 image beside the folders of its classes") >= 2


def test_a_first_model_has_nothing_to_be_compared_with(world, tmp_path, caplog):
    flat = write_digits(tmp_path / "check", (0,), 5, "test") / "0"
    read_check_images(flat, plan_step(None, as_inputs(world / "first"), quick_request()))
    assert "images without classes tell nothing" in caplog.text


def test_check_images_that_cannot_be_read_are_named_and_do_not_count(second_step, tmp_path, caplog):
    check = write_digits(tmp_path / "check", (0, 4), 5, "test")
    for file in sorted((check / "4").iterdir())[1:]:
        file.write_text("broken")
    told = []
    images = read_check_images(check, second_step, lambda done, total: told.append((done, total)))
    assert images.labels.tolist() == [0, 0, 0, 0, 0, 4]
    assert "4 files skipped, each of which is not an image that can be read: " in caplog.text
    assert told[-1] == (10, 10)
    for file in check.rglob("*.png"):
        file.write_text("broken")
    with pytest.raises(UserError, match=r"no images in .*check that the model could be checked on"):
        read_check_images(check, second_step)


# --- many steps


def test_one_class_at_a_time_and_ten_extensions_in_a_row(tmp_path, caplog):
    """Every digit alone, then two old ones again."""
    settings = ("train.epochs=1", "dream.steps=2", "dream.width=8")
    for number, digit in enumerate([*range(10), 3, 7]):
        folder = write_digits(tmp_path / str(number), (digit,), 6)
        before = tmp_path / f"model {number - 1}" if number else None
        to = tmp_path / f"model {number}"
        learn_folder(folder, to, old=before, settings=settings, on_known_class="refine", device="cpu")
        shutil.rmtree(folder)
    saved = load_model(to)
    assert saved.classifier.class_names == tuple("0123456789")
    assert len(saved.ledger) == 12 and len(saved.lineage) == 11
    assert caplog.text.count("'0' is the only class") == caplog.text.count("the only class") == 1


# --- networks of other libraries


def test_a_first_model_may_begin_with_weights_of_another(world, tmp_path):
    from torchvision.models import resnet18

    torch.save(resnet18(num_classes=7).state_dict(), tmp_path / "weights.pth")
    began = {}

    class Look(Observer):
        def phase_ready(self, number, state):
            began.update({name: value.clone() for name, value in state()["classifier"].items()})

    report = learn_folder(
        world / "first",
        tmp_path / "new",
        method="abd",
        backbone="torchvision/resnet18",
        weights=tmp_path / "weights.pth",
        settings={"data.size": 32, "train.epochs": 1, "train.batch_size": 48},
        device="cpu",
        observer=Look(),
    )
    saved = load_model(tmp_path / "new")
    theirs = torch.load(tmp_path / "weights.pth", weights_only=True)
    assert torch.equal(began["backbone.body.layer3.0.conv1.weight"], theirs["layer3.0.conv1.weight"])
    shape = saved.classifier.preprocessing
    assert shape.mean == (0.485, 0.456, 0.406) and shape.images is not None
    assert str(saved.classifier.backbone.architecture) == "torchvision/resnet18"
    made_from = hashlib.sha256((tmp_path / "weights.pth").read_bytes()).hexdigest()
    assert saved.ledger[-1].weights == "weights.pth" and saved.ledger[-1].weights_sha256 == made_from
    assert saved.acceptance == report
    assert "weights weights.pth" in (tmp_path / "new" / "README.md").read_text("utf-8")


def test_a_setting_of_experiments_is_told_in_the_words_of_python():
    with pytest.raises(UserError, match=r"^stream\.take=2 is for experiments \(`run`\), and decides nothing here"):
        LearnRequest(settings=("stream.take=2",))

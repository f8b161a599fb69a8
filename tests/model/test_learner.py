"""The learner a person holds in Python: folders, arrays and names in, reports and predictions out."""

import copy
import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch.utils.data import TensorDataset

import reverie
from reverie.engine.observer import Observer
from reverie.errors import Interrupted, UserError
from reverie.learner.task_learner import TaskLearner
from reverie.model import inference
from reverie.model.folder import load_model, model_digest, save_model
from tests.support.images import write_digits
from tests.support.models import QUICK_STEP, assert_same_weights

QUICK = {"train.epochs": 2, "dream.steps": 6, "dream.width": 8, "train.batch_size": 16}  # the same by key
PIXELS = torch.randint(0, 256, (12, 1, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("digits")
    write_digits(root / "first", (0, 1), 20)
    write_digits(root / "second", (2,), 20)
    return root


@pytest.fixture(scope="module")
def taught(root):
    """A learner of two digits. Not to be changed."""
    learner = reverie.Learner(settings=QUICK, device="cpu")
    learner.learn(root / "first")
    return learner


@pytest.fixture
def learner(taught):
    return copy.deepcopy(taught)


@pytest.fixture(scope="module")
def three(taught, root):
    """One of three digits, the last learned in a second step. Not to be changed."""
    learner = copy.deepcopy(taught)
    learner.learn(root / "second")
    return learner


# --- learning


def test_it_learns_folders_and_arrays_and_tells_how_well(learner, root):
    assert learner.classes == ("0", "1")
    assert learner.saved.ledger[0].source == "first"
    pixels = np.random.default_rng(0).random((10, 8, 8, 3), dtype=np.float32)
    report = learner.learn((pixels, ["noise"] * 10))
    assert learner.classes == ("0", "1", "noise")
    assert report.new.images == 2 and report.dreams is not None
    assert learner.saved.acceptance == report
    learner.learn(root / "second")
    assert learner.classes == ("0", "1", "noise", "2")


def test_before_the_first_step_it_knows_nothing_and_says_so(tmp_path):
    learner = reverie.Learner(device="cpu")
    assert learner.classes == ()
    with pytest.raises(UserError, match="not learned anything yet"):
        learner.save(tmp_path / "model")
    assert not [*tmp_path.iterdir()]


def test_saved_and_loaded_it_goes_on_to_the_very_same_model(learner, root, tmp_path):
    learner.save(tmp_path / "model")
    again = reverie.load(tmp_path / "model", device="cpu", settings=learner.settings)
    assert again.classes == learner.classes
    learner.learn(root / "second")
    again.learn(root / "second")
    assert_same_weights(learner.saved, again.saved)
    assert again.saved.lineage == learner.saved.lineage == (model_digest(tmp_path / "model"),)


def test_a_loaded_model_goes_on_with_the_method_one_names(learner, root, tmp_path):
    learner.save(tmp_path / "model")
    again = reverie.load(tmp_path / "model", device="cpu", method="lwf", settings=QUICK)
    again.learn(root / "second")
    assert again.saved.ledger[-1].method == "lwf"


def test_the_model_of_a_method_that_keeps_more_than_a_model_holds_goes_on_with_abd(tiny, tiny_stream, root, tmp_path):
    made = TaskLearner.for_stream(tiny("bic", "train.epochs=1"), tiny_stream)
    for task in tiny_stream[:2]:
        made.learn(task)
    save_model(made, tmp_path / "model")
    before = made.predict(tiny_stream[:2].test(), top=4)
    again = reverie.load(tmp_path / "model", device="cpu", settings=QUICK)
    assert torch.equal(again.task_learner.predict(tiny_stream[:2].test(), top=4).probabilities, before.probabilities)
    again.learn((torch.randint(0, 256, (12, 1, 8, 8)).to(torch.uint8), ["new"] * 12))
    assert again.saved.config.method == "abd"
    assert again.saved.classifier.factor is None  # worked into the head, so that nothing goes past it


def test_a_folder_on_disk_and_python_make_the_same_model(taught, root, tmp_path):
    reverie.learn_folder(root / "first", tmp_path / "model", settings=QUICK_STEP, device="cpu")
    assert_same_weights(load_model(tmp_path / "model"), taught.saved)


def test_size_and_backbone_are_chosen_once(root):
    brief = {**QUICK, "train.epochs": 1, "dream.steps": 1}
    learner = reverie.Learner("resnet14", size=12, settings=brief, device="cpu")
    learner.learn(root / "first")
    assert learner.saved.classifier.preprocessing.size == 12 and learner.saved.config.net.name == "resnet14"
    learner.learn(root / "second")  # which does not ask for them again
    assert learner.classes == ("0", "1", "2")


def test_an_interrupted_step_leaves_the_learner_as_it_was(learner, root):
    class Stop(Observer):
        def step_ends(self, done, snapshot):
            raise Interrupted

    before = {name: value.clone() for name, value in learner.saved.classifier.state_dict().items()}
    with pytest.raises(Interrupted):
        learner.learn(root / "second", observer=Stop())
    assert learner.classes == ("0", "1")
    for name, value in learner.saved.classifier.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_budget_in_words(root):
    learner = reverie.Learner(settings=("dream.width=8",), device="cpu")
    learner.learn(root / "second", budget="0.1s")
    assert 2 <= learner.saved.config.train.epochs < 100
    with pytest.raises(UserError, match="90s, 10min or 1h"):
        learner.learn(root / "first", budget="soon")


def test_a_budget_as_a_number_of_seconds(taught, root):
    learner = reverie.Learner.of(taught.saved, device="cpu", method="base", settings={"train.batch_size": 16})
    learner.learn(root / "second", budget=0.1)
    assert 2 <= learner.saved.config.train.epochs < 100
    with pytest.raises(UserError, match=r"`budget` is a time such as 90s, 10min or 1h, not -1"):
        learner.learn(root / "first", budget=-1)


def test_the_model_of_a_run_is_loaded_and_extended(tiny, tmp_path, root):
    reverie.run(tiny("abd", "stream.take=1"), tmp_path / "run", device="cpu")
    learner = reverie.load(tmp_path / "run" / "model", device="cpu")
    known = learner.classes
    learner.settings = QUICK
    name = next(digit for digit in range(10) if str(digit) not in known)
    learner.learn(write_digits(tmp_path / "more", (name,), 10))
    assert learner.classes == (*known, str(name))


def test_images_of_different_sizes_can_be_learned(learner):
    images = [np.full((8 + i, 12, 3), 10 * i, np.uint8) for i in range(12)]
    learner.learn((images, ["a", "b"] * 6))
    assert learner.classes == ("0", "1", "a", "b")


def test_names_that_no_image_has_do_not_matter(learner):
    learner.learn((PIXELS, [2, 3] * 6), names=np.array(["", "", "cat", "dog"]))
    assert learner.classes == ("0", "1", "cat", "dog")


def test_numbers_will_do_for_names(learner):
    learner.learn((PIXELS, [0, 1] * 6), names=[7, 8])
    assert learner.classes == ("0", "1", "7", "8")


def test_a_model_of_a_method_that_is_not_here_predicts_and_learns_on(learner, root, tmp_path):
    """It was made by another package's method, and serving it needs none."""
    theirs = replace(learner.saved.config, method="theirs", options={"strength": 2})
    save_model(replace(learner.saved, config=theirs), tmp_path / "model")
    image = Image.new("L", (8, 8), 200)
    again = reverie.load(tmp_path / "model", device="cpu", settings=QUICK)
    assert again.predict(image)[0].probabilities == learner.predict(image)[0].probabilities
    assert again.method == "abd"
    again.learn(root / "second")
    assert again.classes == ("0", "1", "2")
    reverie.learn_folder(root / "second", tmp_path / "more", old=tmp_path / "model", settings=QUICK_STEP, device="cpu")
    assert_same_weights(load_model(tmp_path / "more"), again.saved)


# --- settings


def test_one_setting_is_one_setting():
    assert reverie.Learner(settings="train.lr=0.1", device="cpu").settings == ("train.lr=0.1",)


def test_settings_by_key_are_those_of_the_command(taught, tmp_path):
    assert taught.settings == QUICK_STEP
    save_model(taught.saved, tmp_path / "model")
    assert reverie.load(tmp_path / "model", device="cpu", settings=QUICK).settings == QUICK_STEP
    adopted = reverie.adopt(**OWN, device="cpu", method="lwf", settings=QUICK)
    assert (adopted.settings, adopted.method) == (QUICK_STEP, "lwf")
    lists = reverie.Learner(settings={"train.milestones": (3, 4), "augment.flip": True}, device="cpu").settings
    assert lists == ("train.milestones=[3, 4]", "augment.flip=true")


def test_settings_by_key_decide_how_is_learned(taught, root):
    brief = {"train.epochs": 1, "train.lr": 0.03, "dream.steps": 2, "dream.width": 8}
    learner = reverie.Learner.of(taught.saved, device="cpu", settings={**brief, "train.epoch": 1})
    with pytest.raises(UserError, match=r"'train\.epoch'.* Did you mean 'train\.epochs'"):
        learner.learn(root / "second")
    learner.settings = brief
    learner.learn(root / "second")
    config = learner.saved.config
    assert (config.train.epochs, config.train.lr, config.dream.steps) == (1, 0.03, 2)


# --- following it


@pytest.mark.usefixtures("no_command_yet")
def test_progress_is_shown_on_stderr_and_nothing_on_stdout(learner, root, capsys):
    learner.learn(root / "second", progress=True)
    out, err = capsys.readouterr()
    assert out == "" and "old classes" in err
    learner.learn((PIXELS, ["noise"] * 12))
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("no_command_yet")
def test_progress_is_shown_on_a_console_of_ones_own(learner, root, capsys):
    shown = io.StringIO()
    terminal = Console(file=shown, force_terminal=True, width=200)
    learner.learn(root / "second", progress=terminal)
    assert "reading images" in shown.getvalue() and "learn epoch 2/2" in shown.getvalue()
    for ask in (learner.predict, learner.evaluate):
        shown.truncate(0)
        ask(root / "first", progress=terminal)
        assert "reading images" in shown.getvalue() and "100 %" in shown.getvalue()
    shown.truncate(0)
    learner.dream(1, steps=2, progress=terminal)
    assert "dream epoch" in shown.getvalue()
    assert capsys.readouterr() == ("", "")


def test_an_observer_follows_what_is_done(learner, root):
    class Log(Observer):
        def __init__(self):
            self.phases, self.read = [], []

        def reading(self, done, total):
            self.read.append((done, total))

        def phase_begins(self, phase, done):
            self.phases.append(phase.name)

    log = Log()
    learner.learn(root / "second", observer=log)
    assert log.phases == ["dream", "learn"] and log.read[-1] == (20, 20)
    learner.dream(1, steps=2, observer=log)
    assert log.phases == ["dream", "learn", "dream"]


# --- predicting


def test_it_answers_about_files_folders_and_images_in_memory(learner, root):
    files = sorted((root / "first" / "0").iterdir())
    by_file = learner.predict(files, top=2)
    pictures = [Image.open(file) for file in files]
    arrays = np.stack([np.asarray(picture.convert("RGB")) for picture in pictures])
    for images in (root / "first" / "0", pictures, arrays, torch.from_numpy(arrays) / 255, arrays[..., :1]):
        answers = learner.predict(images, top=2)
        assert [answer.names for answer in answers] == [answer.names for answer in by_file]
        assert [answer.probabilities for answer in answers] == [answer.probabilities for answer in by_file]
    assert len(learner.predict(arrays[0])) == 1
    assert len(learner.predict(np.repeat(arrays, 3, axis=1))) == len(files)  # of any size


def test_it_rejects_by_its_own_threshold_or_by_another(learner):
    noise = torch.rand(20, 3, 8, 8)
    sure = [answer.probabilities[0] for answer in learner.predict(noise)]
    threshold = learner.saved.rejection
    assert [answer.rejected for answer in learner.predict(noise, reject=True)] == [p < threshold for p in sure]
    assert learner.predict(noise, reject=np.True_) == learner.predict(noise, reject=True)
    assert learner.predict(noise, reject=np.False_) == learner.predict(noise)
    assert all(answer.rejected for answer in learner.predict(noise, reject=1.1))
    learner.saved.rejection = None
    with pytest.raises(UserError, match="no threshold of its own"):
        learner.predict(noise, reject=True)


def test_a_set_of_images_is_predicted_as_it_is_judged(learner):
    images = reverie.MemoryImages(PIXELS.expand(-1, 3, -1, -1), torch.arange(12) % 2)
    answers = learner.predict(images)
    right = [answer.names[0] == str(i % 2) for i, answer in enumerate(answers)]
    assert learner.evaluate(images).accuracy == pytest.approx(sum(right) / 12)


def test_probabilities_of_all_classes_agree_with_the_predictions(three, root):
    files = sorted(root.rglob("*.png"))
    found = three.predict_proba(files)
    assert found.shape == (60, 3) and found.dtype == np.float32
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    for row, one in zip(found, three.predict(files, top=3), strict=True):
        order = [three.classes.index(name) for name in one.names]
        assert row[order].tolist() == list(one.probabilities)
        assert row.argmax() == order[0]


def test_probabilities_are_those_of_the_images_in_memory_too_and_in_their_order(three, root, monkeypatch):
    folder = root / "first"
    whole = three.predict_proba(folder)
    pictures = [Image.open(file) for file in sorted(folder.rglob("*.png"))]
    arrays = np.stack([np.asarray(picture.convert("RGB")) for picture in pictures])
    as_set = reverie.MemoryImages(torch.from_numpy(arrays).movedim(-1, 1), torch.zeros(40, dtype=torch.long))
    for images in (pictures, arrays, as_set):
        assert np.array_equal(three.predict_proba(images), whole)
    monkeypatch.setattr(inference, "images_at_once", lambda size: 7)
    np.testing.assert_allclose(three.predict_proba(folder), whole, atol=1e-6)
    assert three.predict_proba(arrays[0]).shape == (1, 3)
    assert three.predict_proba([]).shape == (0, 3)


def test_a_file_without_probabilities_is_named_since_every_image_has_its_row(three, root, tmp_path):
    (tmp_path / "notes.txt").write_text("no image")
    files = [next((root / "first" / "0").iterdir()), tmp_path / "notes.txt"]
    with pytest.raises(UserError, match=r"notes\.txt is not an image that can be read\. Leave it out\.$"):
        three.predict_proba(files)
    with pytest.raises(UserError, match="There is no file or folder nowhere"):
        three.predict_proba("nowhere")


# --- judging


def test_it_is_evaluated_on_a_folder_and_on_images_in_memory(three, root):
    on_folder = three.evaluate(root / "first")
    files = sorted((root / "first").rglob("*.png"))
    names = [file.parent.name for file in files]
    in_memory = three.evaluate(([Image.open(file) for file in files], names))
    assert torch.equal(on_folder.confusion, in_memory.confusion)
    numbers = [(Image.open(file), {"0": 1, "1": 0}[file.parent.name]) for file in files]  # speaks as a Dataset does
    assert torch.equal(on_folder.confusion, three.evaluate(numbers, names=["1", "0"]).confusion)
    assert on_folder.new == {"2"}
    with pytest.raises(UserError, match="does not know 'zebra'"):
        three.evaluate((torch.rand(1, 3, 8, 8), ["zebra"]))


def test_the_score_is_the_share_that_is_named_rightly_however_the_images_come(three, root):
    files = sorted((root / "first").rglob("*.png"))
    names = [file.parent.name for file in files]
    right = [one.names[0] == name for one, name in zip(three.predict(files), names, strict=True)]
    assert 0 < sum(right) < 40  # or there would be nothing to tell apart
    share = pytest.approx(sum(right) / 40)
    pixels = torch.from_numpy(np.stack([np.asarray(Image.open(file)) for file in files]))[:, None]
    labels = torch.tensor([int(name) for name in names])
    assert three.score(root / "first") == share
    assert three.score([Image.open(file) for file in files], names) == share
    assert three.score(pixels, names) == three.score(pixels.numpy(), labels.numpy()) == share
    assert three.score(TensorDataset(pixels, labels)) == share
    assert three.score(pixels, 1 - labels, names=["1", "0"]) == share
    assert three.score(pixels, ["2"] * 40) <= 1 - sum(right) / 40


def test_what_cannot_be_scored_is_said(three, root):
    for given, says in (
        ((PIXELS, ["0"] * 3), "12 images, but 3 labels"),
        ((PIXELS, ["zebra"] * 12), "does not know 'zebra'"),
        ((root / "nowhere",), "There is no folder"),
        ((PIXELS,), "a torch Dataset of such pairs, not Tensor"),
    ):
        with pytest.raises(UserError, match=says):
            three.score(*given)


# --- what it knows


def test_classes_are_renamed_and_removed_and_the_lineage_tells(learner, tmp_path):
    first, *others = learner.classes
    learner.save(tmp_path / "before")
    learner.rename({first: first})
    assert learner.saved.lineage == ()  # nothing has changed
    learner.rename({first: "something else"})
    assert learner.classes == ("something else", *others)
    learner.remove("something else")
    assert learner.classes == tuple(others)
    assert learner.saved.lineage == (model_digest(tmp_path / "before"),)
    assert [entry.action for entry in learner.saved.ledger[-2:]] == ["renamed", "removed"]
    learner.save(tmp_path / "after")
    assert reverie.load(tmp_path / "after").classes == tuple(others)
    with pytest.raises(UserError, match="knows no class 'something else'"):
        learner.remove(["something else"])


def test_it_dreams_of_what_it_knows(learner):
    dreams = learner.dream(2, steps=3)
    assert dreams.class_names == ("0", "1")


# --- a network of one's own


class Own(torch.nn.Module):
    """Somebody's small network."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten()
        )
        self.out = torch.nn.Linear(8 * 64, 2)

    def forward(self, images):
        return self.out(self.body(images))


OWN = {"module": Own(), "classes": ["x", "y"], "mean": [0.5] * 3, "std": [0.5] * 3, "size": 8}


def test_a_module_of_ones_own_is_adopted_extended_saved_and_loaded(root, tmp_path):
    learner = reverie.adopt(**OWN, device="cpu", settings=QUICK)
    learner.learn(root / "second")
    assert learner.classes == ("x", "y", "2")
    learner.save(tmp_path / "model")
    again = reverie.load(tmp_path / "model", device="cpu", build=Own)
    images = torch.rand(4, 3, 8, 8)
    assert again.predict(images, top=3) == learner.predict(images, top=3)


def test_what_used_to_be_given_by_its_place_still_may_be_and_a_warning_says_how_to_give_it():
    with pytest.warns(DeprecationWarning, match=r"adopt takes classes=…, mean=…, std=…, size=… by name") as told:
        learner = reverie.adopt(OWN["module"], ["x", "y"], [0.5] * 3, [0.5] * 3, 8, device="cpu")
    assert told[0].filename == __file__
    assert learner.classes == ("x", "y") and learner.saved.classifier.preprocessing.size == 8
    with pytest.raises(TypeError), pytest.warns(DeprecationWarning):
        reverie.adopt(OWN["module"], ["x", "y"], [0.5] * 3, [0.5] * 3, 8, None, "cpu", "abd")


@pytest.mark.parametrize("change", [lambda net: net.half(), lambda net: net.body.requires_grad_(False)])
def test_a_module_of_ones_own_comes_back_as_it_was_adopted(root, tmp_path, change):
    """Halved or frozen as it may be: what is adopted is neither, and so is what is loaded."""
    module = Own()
    change(module)
    learner = reverie.adopt(**{**OWN, "module": module}, device="cpu", settings=QUICK)
    learner.save(tmp_path / "model")
    loaded = [reverie.load(tmp_path / "model", device="cpu", build=lambda: module, settings=QUICK) for _ in range(2)]
    assert isinstance(module.out, torch.nn.Linear)
    for again in (learner, *loaded):
        again.learn(root / "second")
    for again in loaded:
        assert_same_weights(learner.saved, again.saved)


class Other(Own):
    def __init__(self):
        super().__init__()
        self.body[0] = torch.nn.Conv2d(3, 8, 5, padding=2)


def failing():
    raise RuntimeError("no such device")


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (Other, r"does not build the network that was saved: body\.0\.weight was \[8, 3, 3, 3\] and is \[8, 3, 5, 5\]"),
        (failing, "The function that builds Own failed: no such device"),
        (lambda size: Own(), "The function that builds Own failed"),
        (lambda: 5, "gave int"),
    ],
)
def test_a_mistake_in_the_function_is_not_taken_for_damage(tmp_path, build, says):
    learner = reverie.adopt(**OWN, device="cpu")
    learner.save(tmp_path / "model")
    with pytest.raises(UserError, match=says):
        reverie.load(tmp_path / "model", device="cpu", build=build)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mean": 0.3}, "A number for each channel"),
        ({"mean": [float("nan")]}, "A number for each channel"),
        ({"std": [float("inf")]}, "A number for each channel"),
        ({"size": "8"}, "a number of pixels, not '8'"),
        ({"module": None}, "torch.nn.Module, not NoneType"),
        ({"classes": ["Apple", "Apple"]}, "'Apple' is there 2 times"),
        ({"classes": ["a", " b"]}, "begins or ends with a space"),
    ],
)
def test_what_cannot_be_adopted_is_said_in_words(learner, change, says):
    given = {"module": torch.nn.Linear(1, 2), "classes": ["a", "b"], "mean": [0.5], "std": [0.5], "size": 8} | change
    with pytest.raises(UserError, match=says):
        reverie.adopt(**given, device="cpu")


# --- what cannot be done


def test_what_is_asked_for_wrongly_is_said(learner, root):
    for call, says in (
        (lambda: learner.predict(np.zeros((0, 3, 8, 8), np.uint8)), "no images"),
        (lambda: learner.predict(PIXELS, top=0), "`top` must be a whole number from 1"),
        (
            lambda: learner.learn(root / "second", check=(PIXELS, ["0"] * 12)),
            "`check` is a folder of images, not tuple",
        ),
        (lambda: learner.evaluate(root / "first", new=["9"]), "does not know '9'"),
    ):
        with pytest.raises(UserError, match=says):
            call()
    assert learner.evaluate(root / "first", new="1").new == {"1"}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda it: it.learn((PIXELS, torch.eye(12))), "A label is a name or a whole number"),
        (lambda it: it.learn((PIXELS, [0.7] * 12)), "A label is a name or a whole number"),
        (lambda it: it.learn((PIXELS, [0, 1] * 6), names=["a", "a"]), "must differ, but 'a' is there 2 times"),
        (lambda it: it.learn((PIXELS, ["a", "b"] * 6), names=["a", "c"]), "'b' is none of `names`"),
        (lambda it: it.learn({"a": 1}), "a folder, .*, or a torch Dataset of such pairs, not dict"),
        (lambda it: it.learn(["ab", "c"]), "a folder, .*, or a torch Dataset of such pairs, not list"),
        (lambda it: it.learn(None), "not NoneType"),
        (lambda it: it.learn((PIXELS, ["a"] * 12), budget="10"), "`budget` is a time such as"),
        (lambda it: it.predict(None), "not NoneType"),
        (lambda it: it.evaluate((PIXELS, ["0"] * 3)), "12 images, but 3 labels"),
        (lambda it: it.learn(([PIXELS, PIXELS], [0, 1])), "not batches in a list"),
        (lambda it: it.learn((PIXELS, 3)), "Labels are a list or an array"),
        (lambda it: it.learn((PIXELS, ["a", 1] * 6)), "some of both"),
        (lambda it: it.evaluate((["a.jpg"], ["0"])), "An image is an array"),
        (lambda it: it.evaluate([PIXELS[0], 0]), "a folder, .*, or a torch Dataset of such pairs, not list"),
    ],
)
def test_what_cannot_be_understood_is_said_in_words(learner, call, says):
    with pytest.raises(UserError, match=says):
        call(learner)

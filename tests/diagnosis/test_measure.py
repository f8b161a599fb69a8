"""The diagnosis of real small runs: numbers as written out by hand, and a reason wherever something is missing."""

import json
import shutil

import numpy as np
import pytest
import torch

from reverie import diagnose, diagnose_paper
from reverie.data.preprocessing import Normaliser
from reverie.diagnosis import measure
from reverie.diagnosis.measure import KEEP, read_kept
from reverie.diagnosis.records import KINDS, Diagnosis
from reverie.errors import Interrupted, UserError
from reverie.learner.folder import RunFolder
from reverie.model.folder import load_model
from reverie.runs.configure import configure, load_dataset, make_stream
from reverie.runs.predictions import Predictions
from reverie.runs.result import read_result
from reverie.runs.run import run
from reverie.system.records import read_record
from tests.support.distances_by_hand import mid_by_hand, mmd_by_hand
from tests.support.experiments import TINY, StopAt

METHODS = ("deepinversion", "abd")
QUICK = [*TINY, "train.epochs=1", "stream.take=3"]


def make(folder, method, *settings, seed=0, **options):
    config = configure("digits-5", method, seed=seed, settings=[*QUICK, *settings])
    run(config, folder / method, share_first_task=True, **options)
    return folder / method


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Runs of DeepInversion and ABD that share task 1 and its dreams."""
    folder = tmp_path_factory.mktemp("pair")
    return [make(folder, method, KEEP) for method in METHODS]


@pytest.fixture(scope="module")
def both(pair, tmp_path_factory):
    """Their diagnosis."""
    return diagnose(pair, tmp_path_factory.mktemp("out"), command="a command")


@pytest.fixture(scope="module")
def stream(pair):
    config = RunFolder(pair[1]).stored().config
    return make_stream(config, load_dataset(config))


@torch.no_grad()
def features(classifier, images):
    return classifier.eval().features(images).double().numpy()


def shown(run, stream, task):
    """Features of old, dreamed and new images after a task, and the class that the teacher sees in each dream."""
    kept = read_kept(run, task, torch.device("cpu"))
    model = load_model(run / "tasks" / f"{task:02d}" / "model").classifier
    shape = model.preprocessing
    real = stream[: task - 1].test(), stream[task - 1 : task].test()
    old, new = (Normaliser(shape.mean, shape.deviation)(images.read(torch.arange(len(images)))) for images in real)
    dreams, labels, _ = (torch.cat(part) for part in zip(*kept.dreamer.gallery(1000), strict=True))
    return *(features(model, images) for images in (old, dreams, new)), labels.numpy()


@pytest.mark.parametrize("number", [0, 1])
def test_distances_of_all_images_are_their_formulas(pair, both, stream, number):
    old, dreamed, new, _ = shown(pair[number], stream, task=2)
    facts = both.runs[number]
    assert facts.images.as_dict() == {"old": len(old), "dreamed": 1000, "new": len(new)}
    assert facts.mid.features == old.shape[1]
    assert facts.mid.dead_features == (old.std(axis=0) == 0).sum()
    alive = old.std(axis=0) > 0
    for kind, other in (("dreamed", dreamed), ("new", new)):
        assert getattr(facts.mid, kind) == pytest.approx(mid_by_hand(old[:, alive], other[:, alive]), rel=1e-6)
    pooled = np.concatenate([old, dreamed, new])
    gaps = [np.sqrt(((pooled[:i] - pooled[i]) ** 2).sum(axis=1)) for i in range(len(pooled))]
    bandwidth = np.median(np.concatenate(gaps))
    assert facts.mmd.bandwidth == pytest.approx(bandwidth, rel=1e-9)
    assert facts.mmd.new == pytest.approx(mmd_by_hand(old, new, bandwidth), rel=1e-6)


def test_sub_batches_spread_around_the_whole_and_old_images_are_as_far_from_each_other_as_chance_has_it(both):
    for facts in both.runs:
        assert facts.batches.as_dict() == {"count": 100, "size": facts.images.old // 2}
        for distances in (facts.mid, facts.mmd):
            batches = distances.batches
            assert [len(values) for values in batches.values()] == [100, 100, 100]
            assert np.std(batches["new"]) > 0
        mmd = facts.mmd
        assert abs(np.mean(mmd.batches["old"])) < 0.3 * abs(mmd.new)
        assert np.mean(mmd.batches["new"]) == pytest.approx(mmd.new, abs=3 * np.std(mmd.batches["new"]))


def test_it_can_be_any_task_and_any_run_that_dreams(pair, stream, tmp_path):
    facts = diagnose(pair[1], tmp_path, task=3).runs[0]
    old, dreamed, _, labels = shown(pair[1], stream, task=3)
    assert facts.task == 3
    assert facts.images.old == len(old) == len(stream[:2].test())
    assert facts.dreams.classes == 4
    assert set(facts.tsne.label) <= set(range(6))
    alive = old.std(axis=0) > 0
    assert facts.mid.dreamed == pytest.approx(mid_by_hand(old[:, alive], dreamed[:, alive]), rel=1e-6)
    assert facts.dreams.named_alike == pytest.approx(
        (classes_named(pair[1], dreamed, task=3) == labels).mean(), abs=1e-6
    )


def classes_named(run, features, task):
    model = load_model(run / "tasks" / f"{task:02d}" / "model").classifier
    return model.logits(torch.from_numpy(features).float()).argmax(dim=1).numpy()


def test_mistakes_are_counted_from_the_predictions(pair, both):
    for folder, facts in zip(pair, both.runs, strict=True):
        found = Predictions.from_bytes((folder / "tasks" / "02" / "predictions.npz").read_bytes())
        counts = [[0] * 4 for _ in range(4)]
        for label, top in zip(found.label, found.top, strict=True):
            counts[label][top[0]] += 1
        confusion = facts.confusion
        assert confusion.counts == counts
        old = sum(map(sum, counts[:2]))
        assert confusion.old.right == pytest.approx((counts[0][0] + counts[1][1]) / old)
        assert confusion.old.wrong_among_themselves == pytest.approx((counts[0][1] + counts[1][0]) / old)
        assert confusion.old.taken_for_the_others == pytest.approx(sum(sum(row[2:]) for row in counts[:2]) / old)
        for part in (confusion.old, confusion.new):
            assert sum(part.as_dict().values()) == pytest.approx(1)
        named_new = sum(sum(row[2:]) for row in counts) / found.label.size
        assert facts.bias.towards_new == pytest.approx(named_new - (1 - old / found.label.size))


def test_dreams_are_counted_as_the_teacher_sees_them(both):
    for facts in both.runs:
        dreams = facts.dreams
        assert dreams.classes == len(dreams.shares) == len(dreams.class_names) == 2
        assert sum(dreams.shares) == pytest.approx(1, abs=1e-3)
        assert len(dreams.teacher_confidence) == 1000
        assert 0.5 <= min(dreams.teacher_confidence) <= max(dreams.teacher_confidence) <= 1


def test_every_kind_has_as_many_points_in_the_picture(both):
    for facts in both.runs:
        kinds, each = facts.tsne.kind, min(facts.images.as_dict().values())
        assert [kinds.count(kind) for kind in KINDS] == [each] * 3
        assert len(facts.tsne.x) == len(facts.tsne.y) == len(facts.tsne.label) == 3 * each
        assert np.std(facts.tsne.x) > 0


def test_runs_that_are_compared_share_the_classifier_and_its_dreams(both):
    first, second = (one.shared for one in both.runs)
    assert first == second
    assert len(first.teacher) == len(first.generator) == 32
    assert first.teacher in both.lines()[0]


def test_the_figures_and_what_was_found_are_written_and_read_back(both):
    assert [file.name for file in both.files] == [
        "mid.png", "mmd.png", "tsne.png", "confusion.png", "dreams.png", "diagnosis.json"
    ]  # fmt: skip
    assert all(file.is_file() for file in both.files)
    assert json.loads(both.files[-1].read_text()) == both.as_dict()
    assert read_record(Diagnosis, both.files[-1], "") == both.replace(files=[])
    assert (both.command, both.environment.device) == ("a command", "cpu")


@pytest.mark.parametrize(
    ("settings", "seed", "what"),
    [
        (["dream.steps=5"], 0, "the dreams of old classes"),
        (["train.lr=0.05"], 0, "the classifier after task 1"),
        (["stream.order=seed:0"], 1, "the seed"),
        ([], 1, "the classes"),
        (["data.size=9"], 0, "the data"),
    ],
)
def test_runs_that_do_not_share_them_are_refused(pair, tmp_path, settings, seed, what):
    stranger = make(tmp_path, "abd", KEEP, "stream.take=2", *settings, seed=seed)
    with pytest.raises(UserError, match=f"do not share {what}( [(].*[)])?, so they cannot be compared") as refused:
        diagnose([pair[0], stranger], tmp_path / "out")
    assert "with `share_first_task=True`, or let `diagnose_paper()` make them" in str(refused.value)
    assert not (tmp_path / "out").exists()


# --- what can be missing


def complaint(folder, **options):
    with pytest.raises(UserError) as refused:
        diagnose(folder, **options)
    assert not (folder / "diagnosis").exists()
    return str(refused.value)


@pytest.mark.parametrize("keep", ["keep=[]", "keep=[models]", "keep=[dreamers]"])
def test_a_run_that_did_not_keep_enough_says_how_to_make_one_that_does(tmp_path, keep):
    command = "reverie run mine.yaml --method abd --set stream.take=2 --out here"
    said = complaint(make(tmp_path, "abd", keep, "stream.take=2", command=command))
    assert ("tasks/01/model" in said) == ("models" not in keep)
    assert ("tasks/02/dreamer.pt" in said) == ("dreamers" not in keep)
    assert f"{command} --set 'keep=[models, dreamers]' --out FOLDER" in said


@pytest.mark.parametrize("where", [(1, "learn", 2), (2, "dream", 2), (2, "learn", 2)])
def test_a_run_that_has_not_come_so_far_says_so(tmp_path, where):
    with pytest.raises(Interrupted):
        make(tmp_path, "abd", KEEP, observer=StopAt(*where))
    said = complaint(tmp_path / "abd")
    assert "tasks/02/model" in said
    assert ("tasks/01/model" in said) == (where[0] == 1)
    assert ("tasks/02/dreamer.pt" in said) == (where[1:] != ("learn", 2) or where[0] == 1)
    assert "has not come so far" in said


def test_an_unfinished_run_is_diagnosed_as_far_as_it_has_come_with_the_same_numbers(pair, both, tmp_path):
    folder = shutil.copytree(pair[1], tmp_path / "abd")
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "tasks" / "03")
    shutil.rmtree(folder / "model")
    assert diagnose([folder], tmp_path / "out").runs[0] == both.runs[1]


def test_what_else_can_be_wrong(pair, tmp_path):
    assert "not a run folder" in complaint(tmp_path)
    assert "2 or more" in complaint(pair[0], task=1)
    assert "fewer tasks" in complaint(pair[0], task=4)
    for name in ("dreamer.pt", "predictions.npz", "model/model.safetensors"):
        folder = shutil.copytree(pair[0], tmp_path / name.replace("/", "-"))
        (folder / "tasks" / "02" / name).write_bytes(b"half of it")
        assert "damaged" in complaint(folder)
    lwf = make(tmp_path, "lwf", "keep=[models]", "stream.take=2")
    assert "does not dream; these methods do: lwf-synthetic, deepinversion, abd, r-dfcil" in complaint(lwf)


def test_other_data_than_the_run_learned_from_are_refused(pair, tmp_path, monkeypatch):
    monkeypatch.setattr("reverie.data.images.Dataset.fingerprint", lambda self: "another")
    folder = shutil.copytree(pair[0], tmp_path / "run")
    assert "not those that" in complaint(folder)


def test_runs_of_one_method_are_told_apart_by_their_folders(pair, both, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "measure_run", lambda kept, stream: both.runs[1].replace(run=kept.name))
    monkeypatch.setattr(measure, "draw_figures", lambda made: {})
    folders = [pair[1], shutil.copytree(pair[1], tmp_path / "stronger")]
    diagnosis = diagnose(folders, tmp_path / "out")
    assert [one.title for one in diagnosis.runs] == ["ABD (abd)", "ABD (stronger)"]
    assert diagnosis.paper is None


# --- the paper's own runs

FAST = {key: int(value) for key, value in (text.split("=") for text in TINY)} | {"train.epochs": 1}


@pytest.mark.parametrize("where", [(1, "learn", 3), (2, "dream", 3), (2, "learn", 3)])
def test_the_papers_runs_go_on_after_an_interruption_and_still_share(tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Interrupted):
        diagnose_paper("digits-5", seed=1, settings=FAST, device="cpu", observer=StopAt(*where))
    monkeypatch.setattr(measure, "diagnose", lambda folders, *args, **how: folders)  # the runs are what matters here
    folders = diagnose_paper("digits-5", seed=1, settings=FAST, device="cpu")
    assert [str(folder) for folder in folders] == [f"runs/diagnosis-digits-5-seed1/{name}" for name in METHODS]
    first, second = (read_kept(folder, 2, torch.device("cpu")).shared() for folder in folders)
    assert first == second
    assert read_result(folders[1] / "result.json").first_task is not None


def test_of_drawn_dreams_no_dreamer_can_be_kept(tmp_path):
    make(tmp_path, "lucid", KEEP, "dream.source=images")
    assert "drawn from new images (dream.source=images)" in complaint(tmp_path / "lucid")

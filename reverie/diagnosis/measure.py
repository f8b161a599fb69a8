"""Why it works, or does not: where old images, their dreams and new images lie in the features of a learned task.

The paper compares real images of task 1 with dreams of task 1 and with real images of task 2, on the classifier after
task 2. Here that is done for any task of a run that kept its models and dreamers: `old` is all that was learned before
the task, `dreamed` what its dreamer made of that, `new` the task itself. docs/diagnosis.md says what is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reverie import seeding
from reverie.config.schema import Config
from reverie.data import sources
from reverie.data.augment import Normaliser
from reverie.data.images import Images, images_at_once
from reverie.data.stream import Stream
from reverie.diagnosis import distances
from reverie.diagnosis import figures as diagnosis_figures
from reverie.diagnosis.distances import Sample
from reverie.engine.loop import Engine, find_device
from reverie.errors import UserError, explaining, first_line
from reverie.learner.checkpoint import RunFolder, read_events
from reverie.methods import find_method, methods_that_load
from reverie.methods.dream_replay import DreamReplay
from reverie.methods.dreamer import Dreamer
from reverie.model import folder as model_io
from reverie.nets.classifier import Classifier
from reverie.runs import configure as experiment
from reverie.runs import run as runs
from reverie.runs.predictions import Predictions
from reverie.system import files as disk
from reverie.system import provenance
from reverie.tables import rows as tables

SCHEMA = 1
IMAGES = 1000  # of each kind, at most
BATCHES, BATCH_SIZE = 100, 128  # random sub-batches, over which distances are distributed
POINTS = 300  # of each kind, in a t-SNE
KINDS = ("old", "dreamed", "new")
PAPER_FINDING = {"deepinversion": "farther", "abd": "nearer"}  # dreams, compared with the new task
MEASURES = ("mid", "mmd")
KEEP = "keep=[models, dreamers]"

Facts = dict[str, Any]


@dataclass(frozen=True)
class Kept:
    """What a run kept of one task."""

    run: RunFolder
    config: Config
    fingerprint: str | None  # of the data
    task: int  # its index
    teacher: Classifier  # as it was before the task
    model: Classifier  # and after it
    dreamer: Dreamer
    predictions: Predictions

    @property
    def name(self) -> str:
        return self.run.path.resolve().name

    def identity(self) -> dict[str, Any]:
        """What two runs must have in common to be compared, from the most general on."""
        return {
            "data": self.fingerprint,
            "classes": list(self.model.class_names),
            "seed": self.config.seed,
            "teacher": provenance.digest(self.teacher.state_dict()),
            "generator": provenance.digest(self.dreamer.generator.state_dict()),
        }


# --- what is on disk


@explaining("read", "Change its permissions, or choose another run.")
def look(folder: Path, task: int, device: torch.device) -> Kept:
    """What the run in `folder` kept of a task, counted from 1; or what is missing."""
    run = RunFolder(folder)
    if not run.config.is_file():
        raise UserError(f"{folder} is not a run folder: it has no config.yaml.")
    config, fingerprint = run.stored()
    if not issubclass(find_method(config.method), DreamReplay):
        dreaming = ", ".join(name for name in methods_that_load() if issubclass(find_method(name), DreamReplay))
        raise UserError(f"{folder} is a run of {config.method}, which does not dream; these methods do: {dreaming}.")
    if task < 2:
        raise UserError("--task must be 2 or more: nothing is dreamed of before the second task.")
    before, now = run.task(task - 2), run.task(task - 1)
    _refuse_incomplete(
        run, config, task, [before / "model", now / "dreamer.pt", now / "model", now / "predictions.npz"]
    )
    teacher, model = (_classifier(part / "model").to(device) for part in (before, now))
    dreamer = Dreamer(teacher, config.dream, config.train.batch_size, config.seed, task - 1)
    try:
        dreamer.load_state_dict(disk.read_state(now / "dreamer.pt"))
        predictions = Predictions.from_bytes((now / "predictions.npz").read_bytes())
    except OSError:
        raise
    except Exception as error:  # a damaged file can fail in any way
        why = first_line(error)
        raise UserError(f"A file in {now} is damaged ({why}). Make the run anew in another folder.") from None
    return Kept(run, config, fingerprint, task - 1, teacher, model, dreamer, predictions)


def _classifier(folder: Path) -> Classifier:
    return model_io.load(folder).classifier.requires_grad_(False)


def _refuse_incomplete(run: RunFolder, config: Config, task: int, needed: Sequence[Path]) -> None:
    missing = [str(file.relative_to(run.path)) for file in needed if not file.exists()]
    if not missing:
        return
    what = f"{run.path} cannot be diagnosed at task {task}: {', '.join(missing)} missing."
    if not {"models", "dreamers"} <= {*config.keep}:
        began = next((event["command"] for event in read_events(run.events) if event.get("command")), "reverie run …")
        raise UserError(f"{what}\nIt was not asked to keep them. Make one that is: {began} --set '{KEEP}' --out FOLDER")
    if run.finished:
        raise UserError(f"{what}\nThe run is finished, so it has fewer tasks, or somebody has deleted them.")
    raise UserError(f"{what}\nThe run has not come so far: the command that began it goes on from where it stopped.")


def _stream(kept: Kept, data: Path, progress: Callable[[int, int], None] | None) -> Stream:
    config = kept.config
    dataset = sources.read(config.data, data, progress, partial(experiment.choose_classes, config))
    if kept.fingerprint and dataset.fingerprint() != kept.fingerprint:
        raise UserError(
            f"The data under {data} are not those that {kept.run.path} learned from. Choose another --data."
        )
    return experiment.make_stream(config, dataset)


# --- features


@dataclass(frozen=True)
class Shown:
    """Images of one kind as the classifier after the task sees them."""

    features: Sample
    labels: NDArray[np.int64]  # of a dream: the class that the teacher sees in it


@torch.no_grad()
def _real(kept: Kept, images: Images, kind: str) -> Shown:
    """Some test images, the same each time."""
    index = torch.randperm(len(images), generator=_random(kept, kind))[:IMAGES]
    shape, device = kept.model.preprocessing, kept.dreamer.device
    normalise = Normaliser(shape.mean, shape.deviation, device)
    parts = [
        kept.model.features(normalise(images.read(part).to(device))).double().cpu()
        for part in index.split(images_at_once(shape.size))
    ]
    return Shown(torch.cat(parts).numpy(), images.labels[index].numpy())


@torch.no_grad()
def _dreamed(kept: Kept) -> tuple[Shown, Facts]:
    """Dreams, and how the teacher and the classifier after the task take them."""
    parts = [(kept.model.features(images), *seen) for images, *seen in kept.dreamer.gallery(IMAGES)]
    features, labels, confidence = (torch.cat(part) for part in zip(*parts, strict=True))
    named, old = kept.model.logits(features).argmax(dim=1), kept.teacher.seen
    facts = {
        **kept.dreamer.coverage(),
        "class_names": list(kept.teacher.class_names),
        "teacher_confidence": _rounded(confidence.tolist()),
        "named_alike": float((named == labels).float().mean()),  # by the classifier after the task
        "named_new": float((named >= old).float().mean()),
    }
    return Shown(features.double().cpu().numpy(), labels.cpu().numpy()), facts


def _random(kept: Kept, *names: str | int) -> torch.Generator:
    return seeding.generator(kept.config.seed, "diagnosis", kept.task, *names)


# --- what is measured


def measure(kept: Kept, stream: Stream) -> Facts:
    """Everything about one run, as plain values."""
    with Engine(kept.dreamer.device, "fp32", capture=False, compile=False).arithmetic():
        dreamed, dreams = _dreamed(kept)
        shown = {
            "old": _real(kept, stream[: kept.task].test(), "old"),
            "dreamed": dreamed,
            "new": _real(kept, stream[kept.task : kept.task + 1].test(), "new"),
        }
    fewest = min(len(part.labels) for part in shown.values())
    if fewest < 4:
        raise UserError(f"{kept.run.path} has but {fewest} test images of a kind; distances need four at the least.")
    config = kept.config
    return {
        "run": kept.name,
        "title": tables.method_title(config.method),
        **{name: getattr(config, name) for name in ("preset", "method", "recipe", "seed")},
        "task": kept.task + 1,
        "shared": kept.identity(),
        "images": {kind: len(part.labels) for kind, part in shown.items()},
        **_distances(kept, {kind: part.features for kind, part in shown.items()}, min(BATCH_SIZE, fewest // 2)),
        "dreams": dreams,
        **_mistakes(kept.predictions, kept.teacher.seen, kept.model.class_names),
        "tsne": _tsne(kept, shown),
    }


def _distances(kept: Kept, features: Mapping[str, Sample], size: int) -> Facts:
    """MID and MMD of dreams and of new images from old ones: of all, and over random sub-batches.

    One kernel serves all comparisons, so that they can be held against each other. For each sub-batch of old images
    there is another one of them, too: as far apart as these two, things are by chance.
    """
    place = np.cumsum([0, *(len(features[kind]) for kind in KINDS)])
    rows = {kind: np.arange(first, last) for kind, first, last in zip(KINDS, place, place[1:], strict=False)}
    pooled = np.concatenate([features[kind] for kind in KINDS])
    squares = distances.squared_distances(pooled, pooled)
    bandwidth = distances.median_distance(squares)
    kernel = distances.gaussian_kernel(squares, bandwidth)

    def mid(a: NDArray[np.int64], b: NDArray[np.int64]) -> float:
        return distances.mean_image_distance(pooled[a], pooled[b])

    def mmd(a: NDArray[np.int64], b: NDArray[np.int64]) -> float:
        return distances.unbiased_squared_mmd(*(kernel[np.ix_(x, y)] for x, y in ((a, a), (b, b), (a, b))))

    rng = _random(kept, "batches")
    batches: dict[str, dict[str, list[float]]] = {m: {kind: [] for kind in KINDS} for m in MEASURES}
    for _ in range(BATCHES):
        drawn = {kind: rows[kind][torch.randperm(len(rows[kind]), generator=rng).numpy()] for kind in KINDS}
        reference, others = drawn["old"][:size], {**drawn, "old": drawn["old"][size:]}
        for measured, of in (("mid", mid), ("mmd", mmd)):
            for kind in KINDS:
                batches[measured][kind].append(of(reference, others[kind][:size]))
    return {
        "batches": {"count": BATCHES, "size": size},
        "mid": {
            **{kind: mid(rows["old"], rows[kind]) for kind in ("dreamed", "new")},
            "features": pooled.shape[1],
            "dead_features": distances.dead_features(features["old"]),
            "batches": {kind: _rounded(values) for kind, values in batches["mid"].items()},
        },
        "mmd": {
            **{kind: mmd(rows["old"], rows[kind]) for kind in ("dreamed", "new")},
            "kernel": "exp(-|a - b|^2 / (2 bandwidth^2))",
            "bandwidth": bandwidth,
            "batches": {kind: _rounded(values) for kind, values in batches["mmd"].items()},
        },
    }


def _mistakes(predictions: Predictions, old: int, names: Sequence[str]) -> Facts:
    """How test images of old and of new classes are named after the task, and the bias towards the new."""
    label, named, classes = predictions.label, predictions.top[:, 0], len(names)
    counts = np.bincount(label * classes + named, minlength=classes**2).reshape(classes, classes)

    def shares(of: NDArray[np.bool_], among: NDArray[np.bool_]) -> Facts:
        return {
            "right": float((named == label)[of].mean()),
            "wrong_among_themselves": float(((named != label) & among)[of].mean()),
            "taken_for_the_others": float((~among)[of].mean()),
        }

    is_new, named_new = label >= old, named >= old
    return {
        "confusion": {
            "old": shares(~is_new, ~named_new),
            "new": shares(is_new, named_new),
            "old_classes": old,
            "class_names": list(names),
            "counts": counts.tolist(),  # a row a true class, a column a named one
        },
        "bias": {
            "are_new": float(is_new.mean()),
            "named_new": float(named_new.mean()),
            "towards_new": float(named_new.mean() - is_new.mean()),
        },
    }


def _tsne(kept: Kept, shown: Mapping[str, Shown]) -> Facts:
    from sklearn.manifold import TSNE

    each = min(POINTS, *(len(part.labels) for part in shown.values()))
    points = np.concatenate([shown[kind].features[:each] for kind in KINDS])
    perplexity = min(30.0, (len(points) - 1) / 3)
    seed = seeding.derive(kept.config.seed, "t-SNE", kept.task) % 2**32
    placed = TSNE(perplexity=perplexity, init="random", random_state=seed).fit_transform(points)
    return {
        "perplexity": perplexity,
        "kind": [kind for kind in KINDS for _ in range(each)],
        "label": [int(label) for kind in KINDS for label in shown[kind].labels[:each]],
        "x": _rounded(placed[:, 0].tolist()),
        "y": _rounded(placed[:, 1].tolist()),
    }


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


# --- what it says


def verdict(facts: Facts) -> dict[str, str]:
    """Are dreams of old classes nearer to real images of them than those of the new classes are, or farther?"""
    return {m: "nearer" if facts[m]["dreamed"] < facts[m]["new"] else "farther" for m in MEASURES}


def agreeing_batches(facts: Facts, measured: str) -> float:
    """The share of sub-batches that say the same as all images together."""
    batches, nearer = facts[measured]["batches"], verdict(facts)[measured] == "nearer"
    return float(np.mean([(a < b) == nearer for a, b in zip(batches["dreamed"], batches["new"], strict=True)]))


def finding(made: Sequence[Facts]) -> Facts | None:
    """Does the paper's finding hold? It is about DeepInversion and ABD, after task 2."""
    found = {facts["method"]: verdict(facts) for facts in made if facts["task"] == 2}
    if found.keys() != PAPER_FINDING.keys():
        return None
    by = {m: all(found[method][m] == expected for method, expected in PAPER_FINDING.items()) for m in MEASURES}
    return {"expected": PAPER_FINDING, "found": found, "holds": all(by.values()), "holds_by": by}


def lines(made: Sequence[Facts]) -> list[str]:
    """What was found, in words."""
    shared, before = made[0]["shared"], made[0]["task"] - 1
    begin = "Both begin with" if len(made) > 1 else "It begins with"
    said = [f"{begin} classifier {shared['teacher']} after task {before}, and its dreams {shared['generator']}."]
    for facts in made:
        for measured in MEASURES:
            far, new = (facts[measured][kind] for kind in ("dreamed", "new"))
            agree = 100 * agreeing_batches(facts, measured)
            said.append(
                f"{facts['title']}: seen from real old images, dreams lie {verdict(facts)[measured]} than the new task "
                f"by {measured.upper()} ({far:.3g} and {new:.3g}; {agree:.0f} % of sub-batches say the same)."
            )
    held = finding(made)
    if held is not None:
        by = [m.upper() for m in MEASURES if held["holds_by"][m]]
        how = "holds" if held["holds"] else f"holds by {by[0]} alone" if by else "does not hold"
        said.append(f"The paper's finding (DeepInversion: dreams farther than the new task; ABD: nearer) {how}.")
    return said


Table = tuple[list[str], list[list[str]]]  # header and rows


def as_tables(made: Sequence[Facts]) -> tuple[Table, Table]:
    """For people: how far from real old images everything is; and what is mistaken for what, what is dreamed of."""
    far: Table = (["Method", "MID dreamed", "MID new", "MMD dreamed", "MMD new"], [])
    named: Table = (["Method", "old as new", "new as old", "bias to new", "dreamed", "confidence"], [])
    for facts in made:
        far[1].append([facts["title"], *(f"{facts[m][kind]:.3g}" for m in MEASURES for kind in ("dreamed", "new"))])
        crossed = [facts["confusion"][part]["taken_for_the_others"] for part in ("old", "new")]
        shares = [f"{100 * share:.1f} %" for share in (*crossed, facts["bias"]["towards_new"])]
        dreams = facts["dreams"]
        covered = [f"{dreams['covered']} of {dreams['classes']}", f"{dreams['confidence']:.2f}"]
        named[1].append([facts["title"], *shares, *covered])
    return far, named


# --- the whole


def diagnose(
    folders: Sequence[Path],
    out: Path,
    *,
    task: int = 2,
    data: Path = Path("data"),
    device: str = "auto",
    command: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Facts, list[Path]]:
    """Measure one run, or several that share what came before the task; write figures and JSON into `out`."""
    where = find_device(device)
    kept = [look(folder, task, where) for folder in folders]
    for other in kept[1:]:
        _refuse_strangers(kept[0], other)
    stream = _stream(kept[0], data, progress)
    made = [measure(one, stream) for one in kept]
    if len({facts["title"] for facts in made}) < len(made):  # one method with other options, say
        for facts in made:
            facts["title"] += f" ({facts['run']})"
    whole: Facts = {
        "schema": SCHEMA,
        "command": command,
        "environment": provenance.environment(where),
        "runs": made,
        "verdicts": [verdict(one) for one in made],
        "paper": finding(made),
    }
    files = []
    with explaining("written", "Choose another --out."):
        for name, content in diagnosis_figures.draw(made).items():
            files.append(out / f"{name}.png")
            disk.write_bytes(files[-1], content)
        files.append(out / "diagnosis.json")
        disk.write_json(files[-1], whole)
    return whole, files


def _refuse_strangers(one: Kept, other: Kept) -> None:
    words = {"teacher": f"the classifier after task {one.task}", "generator": "the dreams of old classes"}
    theirs = other.identity()
    for what, value in one.identity().items():
        if value != theirs[what]:
            both = f" ({value} and {theirs[what]})" if what != "classes" else ""  # of which there may be very many
            raise UserError(
                f"{one.run.path} and {other.run.path} do not share {words.get(what, f'the {what}')}{both}, "
                "so they cannot be compared.\n"
                "Make both in one folder with --share-first-task, or let `reverie diagnose --paper` make them."
            )


def paper_runs(
    preset: str,
    out: Path,
    follow: Callable[[str], AbstractContextManager[runs.RunObserver]],
    *,
    seed: int = 0,
    settings: Sequence[str] = (),
    data: Path = Path("data"),
    device: str = "auto",
    command: str = "",
) -> list[Path]:
    """Two tasks of the preset with each method of the paper's figures, sharing task 1 and the dreams of it."""
    folders = []
    configs = {
        method: experiment.configure(preset, method, seed=seed, settings=["stream.take=2", KEEP, *settings])
        for method in PAPER_FINDING
    }
    for method, config in configs.items():
        folders.append(out / method)
        with follow(method) as observer:
            runs.execute(
                config,
                folders[-1],
                data=data,
                device=device,
                observer=observer,
                command=command,
                share_first_task=True,
            )
    return folders

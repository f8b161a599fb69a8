"""Why it works, or does not: where old images, their dreams and new images lie in the features of a learned task.

The paper compares real images of task 1 with dreams of task 1 and with real images of task 2, on the classifier after
task 2. Here that is done for any task of a run that kept its models and dreamers: `old` is all that was learned before
the task, `dreamed` what its dreamer made of that, `new` the task itself. docs/diagnosis.md says what is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from reverie import seeding
from reverie.config.layers import Settings, setting_texts
from reverie.config.schema import Config
from reverie.data.images import Images, images_at_once
from reverie.data.preprocessing import Normaliser
from reverie.data.stream import Stream
from reverie.diagnosis import distances
from reverie.diagnosis.distances import Sample
from reverie.diagnosis.figures import draw_figures
from reverie.diagnosis.records import (
    KINDS,
    PAPER_FINDING,
    Batches,
    Bias,
    Confusion,
    Diagnosis,
    DreamFacts,
    Embedding,
    ImageCounts,
    MaximumMeanDiscrepancies,
    MeanImageDistances,
    NamedShares,
    RunDiagnosis,
    Shared,
    paper_finding,
)
from reverie.engine.device import find_device
from reverie.engine.loop import Engine
from reverie.engine.observer import Observer
from reverie.errors import UserError, explaining
from reverie.learner.events import RunBegins
from reverie.learner.folder import RunFolder
from reverie.learner.progress import counting
from reverie.methods import find_method, methods_that_load
from reverie.methods.dream_replay import DreamReplay
from reverie.methods.dreamer import Dreamer
from reverie.model.folder import load_model
from reverie.nets.classifier import Classifier
from reverie.runs.configure import configure, load_dataset, make_stream
from reverie.runs.predictions import Predictions
from reverie.runs.run import run as run_config
from reverie.system import provenance
from reverie.system.arguments import renaming_argument
from reverie.system.files import read_state, write_bytes, write_json
from reverie.tables.rows import method_title
from reverie.text import first_line

IMAGES = 1000  # of each kind, at most
BATCHES, BATCH_SIZE = 100, 128  # random sub-batches, over which distances are distributed
POINTS = 300  # of each kind, in a t-SNE
KEEP = "keep=[models, dreamers]"


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

    def shared(self) -> Shared:
        """What two runs must have in common to be compared."""
        return Shared(
            data=self.fingerprint,
            classes=list(self.model.class_names),
            seed=self.config.seed,
            teacher=provenance.digest(self.teacher.state_dict()),
            generator=provenance.digest(self.dreamer.generator.state_dict()),
        )


# --- what is on disk


@explaining("read", "Change its permissions, or choose another run.")
def read_kept(folder: Path, task: int, device: torch.device) -> Kept:
    """What the run in `folder` kept of a task, counted from 1; or what is missing."""
    run = RunFolder(folder)
    if not run.config.is_file():
        raise UserError(f"{folder} is not a run folder: it has no config.yaml.")
    stored = run.stored()
    config = stored.config
    if not issubclass(find_method(config.method), DreamReplay):
        dreaming = ", ".join(name for name in methods_that_load() if issubclass(find_method(name), DreamReplay))
        raise UserError(f"{folder} is a run of {config.method}, which does not dream; these methods do: {dreaming}.")
    if task < 2:
        raise UserError("`task` must be 2 or more: nothing is dreamed of before the second task.")
    before, now = run.task(task - 2), run.task(task - 1)
    _refuse_incomplete(
        run, config, task, [before / "model", now / "dreamer.pt", now / "model", now / "predictions.npz"]
    )
    teacher, model = (_classifier(part / "model").to(device) for part in (before, now))
    dreamer = Dreamer(teacher, config.dream, config.train.batch_size, config.seed, task - 1)
    try:
        dreamer.load_state_dict(read_state(now / "dreamer.pt"))
        predictions = Predictions.from_bytes((now / "predictions.npz").read_bytes())
    except OSError:
        raise
    except Exception as error:  # a damaged file can fail in any way
        why = first_line(error)
        raise UserError(f"A file in {now} is damaged ({why}). Make the run anew in another folder.") from None
    return Kept(run, config, stored.fingerprint, task - 1, teacher, model, dreamer, predictions)


def _classifier(folder: Path) -> Classifier:
    return load_model(folder).classifier.requires_grad_(False)


def _refuse_incomplete(run: RunFolder, config: Config, task: int, needed: Sequence[Path]) -> None:
    missing = [str(file.relative_to(run.path)) for file in needed if not file.exists()]
    if not missing:
        return
    what = f"{run.path} cannot be diagnosed at task {task}: {', '.join(missing)} missing."
    if not {"models", "dreamers"} <= {*config.keep}:
        begun = [event.command for event in run.events.read(broken=[]) if isinstance(event, RunBegins)]
        again = next((f": {command} --set '{KEEP}' --out FOLDER" for command in begun if command), "")
        raise UserError(f"{what}\nIt was not asked to keep them. Make another with the setting {KEEP}{again}.")
    if config.dream.source == "images":
        raise UserError(f"{what}\nIts dreams were drawn from new images (dream.source=images): no dreamer can be kept.")
    if run.finished:
        raise UserError(f"{what}\nThe run is finished, so it has fewer tasks, or somebody has deleted them.")
    raise UserError(f"{what}\nThe run has not come so far: the command that began it goes on from where it stopped.")


def _stream(kept: Kept, data: Path, progress: Callable[[int, int], None] | None) -> Stream:
    config = kept.config
    dataset = load_dataset(config, data, progress)
    if kept.fingerprint and dataset.fingerprint() != kept.fingerprint:
        raise UserError(
            f"The data under {data} are not those that {kept.run.path} learned from. Choose another `data`."
        )
    return make_stream(config, dataset)


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
    normalise = Normaliser.of(shape, device)
    parts = [
        kept.model.features(normalise(images.read(part).to(device))).double().cpu()
        for part in index.split(images_at_once(shape.size))
    ]
    return Shown(torch.cat(parts).numpy(), images.labels[index].numpy())


@torch.no_grad()
def _dreamed(kept: Kept) -> tuple[Shown, DreamFacts]:
    """Dreams, and how the teacher and the classifier after the task take them."""
    parts = [(kept.model.features(images), *seen) for images, *seen in kept.dreamer.gallery(IMAGES)]
    features, labels, confidence = (torch.cat(part) for part in zip(*parts, strict=True))
    named, old = kept.model.logits(features).argmax(dim=1), kept.teacher.seen
    facts = DreamFacts(
        **kept.dreamer.coverage(),
        class_names=list(kept.teacher.class_names),
        teacher_confidence=_rounded(confidence.tolist()),
        named_alike=float((named == labels).float().mean()),
        named_new=float((named >= old).float().mean()),
    )
    return Shown(features.double().cpu().numpy(), labels.cpu().numpy()), facts


def _random(kept: Kept, *names: str | int) -> torch.Generator:
    return seeding.generator(kept.config.seed, "diagnosis", kept.task, *names)


# --- what is measured


def measure_run(kept: Kept, stream: Stream) -> RunDiagnosis:
    """Everything about one run."""
    with Engine(kept.dreamer.device, "fp32", capture=False, compile=False).arithmetic():
        dreamed, dreams = _dreamed(kept)
        shown = {
            "old": _real(kept, stream[: kept.task].test(), "old"),
            "dreamed": dreamed,
            "new": _real(kept, stream[kept.task : kept.task + 1].test(), "new"),
        }
    counts = {kind: len(part.labels) for kind, part in shown.items()}
    if (fewest := min(counts.values())) < 4:
        raise UserError(f"{kept.run.path} has but {fewest} test images of a kind; distances need four at the least.")
    config, size = kept.config, min(BATCH_SIZE, fewest // 2)
    mid, mmd = _distances(kept, {kind: part.features for kind, part in shown.items()}, size)
    confusion, bias = _mistakes(kept.predictions, kept.teacher.seen, kept.model.class_names)
    return RunDiagnosis(
        run=kept.name,
        title=method_title(config.method),
        preset=config.preset,
        method=config.method,
        recipe=config.recipe,
        seed=config.seed,
        task=kept.task + 1,
        shared=kept.shared(),
        images=ImageCounts(**counts),
        batches=Batches(count=BATCHES, size=size),
        mid=mid,
        mmd=mmd,
        dreams=dreams,
        confusion=confusion,
        bias=bias,
        tsne=_tsne(kept, shown),
    )


def _distances(
    kept: Kept, features: Mapping[str, Sample], size: int
) -> tuple[MeanImageDistances, MaximumMeanDiscrepancies]:
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
    mid_batches: dict[str, list[float]] = {kind: [] for kind in KINDS}
    mmd_batches: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(BATCHES):
        drawn = {kind: rows[kind][torch.randperm(len(rows[kind]), generator=rng).numpy()] for kind in KINDS}
        reference, others = drawn["old"][:size], {**drawn, "old": drawn["old"][size:]}
        for kind in KINDS:
            mid_batches[kind].append(mid(reference, others[kind][:size]))
            mmd_batches[kind].append(mmd(reference, others[kind][:size]))
    return (
        MeanImageDistances(
            dreamed=mid(rows["old"], rows["dreamed"]),
            new=mid(rows["old"], rows["new"]),
            features=pooled.shape[1],
            dead_features=distances.dead_features(features["old"]),
            batches={kind: _rounded(values) for kind, values in mid_batches.items()},
        ),
        MaximumMeanDiscrepancies(
            dreamed=mmd(rows["old"], rows["dreamed"]),
            new=mmd(rows["old"], rows["new"]),
            kernel="exp(-|a - b|^2 / (2 bandwidth^2))",
            bandwidth=bandwidth,
            batches={kind: _rounded(values) for kind, values in mmd_batches.items()},
        ),
    )


def _mistakes(predictions: Predictions, old: int, names: Sequence[str]) -> tuple[Confusion, Bias]:
    """How test images of old and of new classes are named after the task, and the bias towards the new."""
    label, named, classes = predictions.label, predictions.top[:, 0], len(names)
    counts = np.bincount(label * classes + named, minlength=classes**2).reshape(classes, classes)

    def shares(of: NDArray[np.bool_], among: NDArray[np.bool_]) -> NamedShares:
        return NamedShares(
            right=float((named == label)[of].mean()),
            wrong_among_themselves=float(((named != label) & among)[of].mean()),
            taken_for_the_others=float((~among)[of].mean()),
        )

    is_new, named_new = label >= old, named >= old
    confusion = Confusion(
        old=shares(~is_new, ~named_new),
        new=shares(is_new, named_new),
        old_classes=old,
        class_names=list(names),
        counts=counts.tolist(),
    )
    bias = Bias(
        are_new=float(is_new.mean()),
        named_new=float(named_new.mean()),
        towards_new=float(named_new.mean() - is_new.mean()),
    )
    return confusion, bias


def _tsne(kept: Kept, shown: Mapping[str, Shown]) -> Embedding:
    from sklearn.manifold import TSNE

    each = min(POINTS, *(len(part.labels) for part in shown.values()))
    points = np.concatenate([shown[kind].features[:each] for kind in KINDS])
    perplexity = min(30.0, (len(points) - 1) / 3)
    seed = seeding.derive(kept.config.seed, "t-SNE", kept.task) % 2**32
    placed = TSNE(perplexity=perplexity, init="random", random_state=seed).fit_transform(points)
    return Embedding(
        perplexity=perplexity,
        kind=[kind for kind in KINDS for _ in range(each)],
        label=[int(label) for kind in KINDS for label in shown[kind].labels[:each]],
        x=_rounded(placed[:, 0].tolist()),
        y=_rounded(placed[:, 1].tolist()),
    )


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


# --- the whole


def diagnose(
    runs: Sequence[Path | str] | Path | str,
    out: Path | str | None = None,
    *,
    task: int = 2,
    data: Path | str = "data",
    device: str = "auto",
    progress: bool | Console = False,
    command: str = "",
) -> Diagnosis:
    """See why it works: old images, dreams of them and new images in the features of a learned task.

        print(reverie.diagnose(["runs/deepinversion", "runs/abd"], "runs/diagnosis"))

    `runs` is one run's folder, or several that share what came before the task. They must have kept their models and
    dreamers (`keep=[models, dreamers]`). Writes figures and diagnosis.json into `out`; left out, it is `diagnosis` in
    the run's folder, or beside several. Raises UserError for runs that cannot be diagnosed or compared.
    """
    folders = [Path(path) for path in ([runs] if isinstance(runs, str | Path) else runs)]
    usual = folders[0] if len(folders) == 1 else folders[0].parent
    target, where = Path(out) if out is not None else usual / "diagnosis", find_device(device)
    kept = [read_kept(folder, task, where) for folder in folders]
    for other in kept[1:]:
        _refuse_strangers(kept[0], other)
    with counting(progress, "reading images") as reading:
        stream = _stream(kept[0], Path(data), reading)
    made = [measure_run(one, stream) for one in kept]
    if len({run.title for run in made}) < len(made):  # one method with other options, say
        made = [run.replace(title=f"{run.title} ({run.run})") for run in made]
    figures = draw_figures(made)
    files = [*(target / f"{name}.png" for name in figures), target / "diagnosis.json"]
    whole = Diagnosis(
        command=command,
        environment=provenance.environment(where),
        runs=made,
        verdicts=[run.verdict() for run in made],
        paper=paper_finding(made),
        files=files,
    )
    with explaining("written", "Choose another `out`."):
        for name, content in figures.items():
            write_bytes(target / f"{name}.png", content)
        write_json(target / "diagnosis.json", whole.as_dict())
    return whole


@renaming_argument("folder", "out")
def diagnose_paper(
    preset: str = "cifar100-10",
    out: Path | str | None = None,
    *,
    seed: int = 0,
    settings: Settings = (),
    task: int = 2,
    data: Path | str = "data",
    device: str = "auto",
    progress: bool | Console = False,
    observer: Observer | None = None,
    command: str = "",
) -> Diagnosis:
    """The paper's figures: two tasks with DeepInversion and with ABD, which share task 1 and its dreams, diagnosed.

    The runs are made in `out` first; stopped at any moment, the same call goes on.
    """
    where = Path(out) if out is not None else Path("runs") / f"diagnosis-{Path(preset).stem}-seed{seed}"
    chosen = ["stream.take=2", KEEP, *setting_texts(settings)]
    configs = {method: configure(preset, method, seed=seed, settings=chosen) for method in PAPER_FINDING}
    tasks = configs["abd"].stream.take or task
    if not 2 <= task <= tasks:
        raise UserError(f"`task` must be from 2 to {tasks}, the tasks that are learned, not {task}.")
    for method, config in configs.items():
        run_config(
            config,
            where / method,
            data=data,
            device=device,
            progress=progress,
            observer=observer,
            command=command,
            share_first_task=True,
        )
    folders = [where / method for method in configs]
    return diagnose(folders, where, task=task, data=data, device=device, progress=progress, command=command)


def _refuse_strangers(one: Kept, other: Kept) -> None:
    words = {"teacher": f"the classifier after task {one.task}", "generator": "the dreams of old classes"}
    ours, theirs = one.shared(), other.shared()
    for what in type(ours).model_fields:
        value, its = getattr(ours, what), getattr(theirs, what)
        if value != its:
            both = f" ({value} and {its})" if what != "classes" else ""  # of which there may be very many
            raise UserError(
                f"{one.run.path} and {other.run.path} do not share {words.get(what, f'the {what}')}{both}, "
                "so they cannot be compared.\n"
                "Make both in one folder with `share_first_task=True`, or let `diagnose_paper()` make them."
            )

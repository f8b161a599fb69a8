"""The verbs that make and use model folders, one small function each. Parse, call, print; help loads no torch."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reverie.cli.app import (
    MODELS,
    AsJson,
    CheckpointEvery,
    DeviceName,
    Overwrite,
    Settings,
    app,
    aside,
    beside,
    check_target,
    console,
    log_to,
    print_json,
    print_table,
)
from reverie.config.choices import ExportFormat, KnownClass, Library
from reverie.data.class_names import DASH, brief
from reverie.errors import UserError, counted

if TYPE_CHECKING:
    from reverie.learner.task_learner import TaskLearner
    from reverie.model.folder import SavedModel
    from reverie.model.inference import Answer, Evaluation


# --- learning from folders


@app.command(
    rich_help_panel=MODELS, epilog="Example: reverie learn photos/2025 --from flowers --to flowers-2 --budget 10min"
)
def learn(
    folder: Annotated[Path, typer.Argument(help="Images, one sub-folder a class.", show_default=False)],
    to: Annotated[Path, typer.Option("--to", help="The model folder to write.", show_default=False)],
    old: Annotated[
        Path | None, typer.Option("--from", help="The model folder to extend; it is left as it is.", show_default=False)
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="About how long it may take: 90s, 10min, 1h.", show_default="as the images need")
    ] = None,
    on_known_class: Annotated[
        KnownClass, typer.Option(help="What to do with images of a class that the model knows already.")
    ] = "error",
    check: Annotated[
        Path | None,
        typer.Option(help="More images to compare the old and the new model on, in class folders or not."),
    ] = None,
    method: Annotated[str, typer.Option("--method", "-m", help="How new classes are learned beside old ones.")] = "abd",
    backbone: Annotated[
        str | None,
        typer.Option(
            help="The network of a first model, such as torchvision/resnet18.", show_default="by the images' size"
        ),
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="A file of weights for it to begin with.")] = None,
    seed: Annotated[int, typer.Option("--seed", "-s", help="Of all random numbers.")] = 0,
    settings: Settings = None,
    device: DeviceName = "auto",
    checkpoint_every: CheckpointEvery = 30.0,
    as_json: AsJson = False,
) -> None:
    """Learn the classes of an image folder: the first ones, or new ones beside those a model knows.

    The images of earlier steps are not needed. Size, network, augmentation and schedule are chosen from the images and
    printed; docs/practice.md has the rules. Stop it at any moment with Ctrl-C: the same command goes on.
    Ends with a report on held-out images, by which you can decide whether to use the model.
    """
    from reverie.cli.progress import following
    from reverie.model import job
    from reverie.model import step as extend
    from reverie.model.defaults import parse_duration

    chosen = (*((f"net.name={backbone}",) if backbone else ()), *(settings or ()))
    seconds = parse_duration(budget) if budget else None
    wish, said = extend.Wish(method, seed, chosen, weights, seconds, on_known_class), beside(as_json)
    with following(said, to.name) as progress:
        _, report = job.learn_folder(
            folder,
            to,
            old,
            wish,
            device=device,
            check=check,
            observer=progress,
            reading=progress.reading,
            say=lambda line: said.print(line, soft_wrap=True),
            checkpoint_seconds=checkpoint_every,
        )
    if as_json:
        print_json({"folder": str(to), **report.as_dict()})
        return
    for line in report.lines():
        console.print(line, soft_wrap=True)
    console.print(f"{to}", soft_wrap=True)


# --- taking in somebody's own model


@app.command(
    rich_help_panel=MODELS, epilog="Example: reverie adopt resnet18 weights.pth --classes names.txt --to mine --size 64"
)
def adopt(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The network: resnet18, or timm/resnet10t.", show_default=False)
    ],
    weights: Annotated[
        Path, typer.Argument(help="Its weights: .safetensors, or what torch.save made of a state dict.")
    ],
    classes: Annotated[
        Path, typer.Option(help="A file of class names in order, one a line or a list in JSON.", show_default=False)
    ],
    to: Annotated[Path, typer.Option("--to", help="The model folder to write.", show_default=False)],
    family: Annotated[
        Library | None, typer.Option(help="Whose network it is.", show_default="torchvision's if it has one, or timm's")
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=8, help="Pixels a side.", show_default="as for the library's own weights")
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(help="Such as 0.5,0.5,0.5, of pixels between 0 and 1.", show_default="the library's own"),
    ] = None,
    std: Annotated[
        str | None, typer.Option(help="Such as 0.5,0.5,0.5; a number a channel.", show_default="the library's own")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Dream for a short while, to see whether it can be done.")
    ] = True,
    device: DeviceName = "auto",
) -> None:
    """Take in a torchvision or timm model that somebody else trained, so that it can learn new classes.

    The weights are read without running code. For a network of your own, use reverie.adopt in Python; its model folder
    is loaded with reverie.load(folder, build=function), since loading runs no code.
    """
    from reverie.cli.progress import following
    from reverie.engine.loop import find_device
    from reverie.model import adoption, preflight
    from reverie.nets import count_parameters

    if to.exists():
        raise UserError(f"{to} exists already. Choose another folder, so that nothing is lost.")
    learner = adoption.adopt_file(
        name,
        weights,
        adoption.read_names(classes),
        family,
        size,
        _numbers(mean, "--mean"),
        _numbers(std, "--std"),
        find_device(device),
    )
    classifier, shape = learner.classifier, learner.classifier.preprocessing
    console.print(
        f"{classifier.backbone.architecture}: {count_parameters(classifier):,} parameters, "
        f"{counted(classifier.seen, 'class')}. "
        f"It takes images of {shape.size}×{shape.size} pixels, less {_listed(shape.mean)}, divided by "
        f"{_listed(shape.deviation)}; if that is not how it was trained, say --size, --mean and --std.",
        soft_wrap=True,
    )
    if check:
        with following(console, to.name) as progress:
            found = preflight.check(classifier, learner.device, observer=progress)
        learner.ledger[-1]["preflight"] = found.as_dict()
        for line in found.lines():
            console.print(line, soft_wrap=True)
    learner.save(to)
    console.print(f"{to}", soft_wrap=True)


def _numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    try:
        return tuple(float(part) for part in text.split(",")) if text is not None else None
    except ValueError:
        raise UserError(f"{option} wants a number a channel, such as 0.5,0.5,0.5, not {text!r}.") from None


def _listed(numbers: tuple[float, ...]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


# --- using a model

ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder.", show_default=False)]
MISTAKES = 10  # that the terminal shows; JSON has all


@app.command(rich_help_panel=MODELS, epilog="Example: reverie predict flowers a.jpg b.jpg some_folder/ --top 3")
def predict(
    model: ModelFolder,
    images: Annotated[
        list[Path], typer.Argument(help="Image files of any kind, and folders, of which all files are read.")
    ],
    top: Annotated[int, typer.Option(min=1, help="How many classes to name for each image.")] = 1,
    reject: Annotated[
        bool, typer.Option("--reject", help="Answer 'none of these' where the model is too unsure.")
    ] = False,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Reject below this confidence.", show_default="the model's own, if --reject"),
    ] = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, and nothing else.")] = False,
    device: DeviceName = "auto",
) -> None:
    """Name what is on images, and how sure the model is of it.

    A file that cannot be read is named and passed over; the exit code then is 1.
    """
    from reverie.cli.progress import counting
    from reverie.model import inference as answer

    log_to(aside)
    if as_json and as_csv:
        raise UserError("--json and --csv exclude each other.")
    saved, learner = _opened(model, device)
    if reject and threshold is None:
        if saved.rejection is None:
            raise UserError(f"{model} has no threshold of its own. Choose one: --threshold 0.7")
        threshold = saved.rejection
    with counting(aside, "reading images") as progress:
        answers = answer.predict(learner, images, top=top, reject=threshold, progress=progress)
    if as_json:
        print_json([one.as_dict() for one in answers])
    elif as_csv:
        _print_csv(answers)
    else:
        _print_answers(answers)
    _name_unreadable({one.source: one.problem for one in answers if one.problem})


@app.command(rich_help_panel=MODELS, epilog="Example: reverie evaluate flowers photos/check")
def evaluate(
    model: ModelFolder,
    folder: Annotated[Path, typer.Argument(help="A folder with one folder of images a class.", show_default=False)],
    as_json: AsJson = False,
    device: DeviceName = "auto",
) -> None:
    """Count how often a model is right: over all images, by class, for old and new classes; what it mistakes for what.

    New are the classes of the last step that taught any. Folders that bear no name of a class are named and left
    aside. A file that cannot be read is named and passed over; the exit code then is 1.
    """
    from reverie.cli.progress import counting
    from reverie.model import inference as answer

    log_to(aside)
    _, learner = _opened(model, device)
    with counting(aside, "reading images") as progress:
        made = answer.evaluate(learner, folder, progress=progress)
    if as_json:
        print_json(made.as_dict())
    else:
        _print_evaluation(made)
    if made.unknown:
        files = counted(sum(made.unknown.values()), "file")
        aside.print(
            f"No class of the model, so left aside with the {files} inside: {brief([*made.unknown])}.",
            soft_wrap=True,
        )
    _name_unreadable(made.unreadable)


@app.command(rich_help_panel=MODELS, epilog="Example: reverie dream flowers --out dreams.png")
def dream(
    model: ModelFolder,
    out: Annotated[Path, typer.Option(help="The picture to write, as PNG.")] = Path("dreams.png"),
    overwrite: Overwrite = False,
    per_class: Annotated[int, typer.Option(min=1, help="Dreams of each class, at most.")] = 8,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of the dreamer.", show_default="as in the model's training")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", "-s", help="Other dreams of the same model.")] = 0,
    device: DeviceName = "auto",
) -> None:
    """See what a model remembers: images of each class, made from its weights alone, and how sure it is of them."""
    from reverie.cli.progress import following
    from reverie.learner import gallery as dreams
    from reverie.learner.dream_sheet import SHEET_ROWS
    from reverie.system import files as disk

    if out.suffix.lower() != ".png" and not out.is_dir():
        raise UserError(f"The picture is a PNG, so {out} should end in .png.")
    check_target(out, overwrite, model)
    _, learner = _opened(model, device)
    with following(console, model.name) as progress:
        made = dreams.dream(learner, per_class, steps=steps, seed=seed, observer=progress)
    disk.write_bytes(out, made.sheet())
    if made.missing:
        console.print(f"Nothing was dreamed of {', '.join(made.missing)}.", soft_wrap=True)
    if len(made.class_names) > SHEET_ROWS:
        console.print(f"The sheet shows the first {SHEET_ROWS} of {len(made.class_names)} classes.")
    console.print(f"{out}", soft_wrap=True)


@app.command(
    rich_help_panel=MODELS, epilog="Example: reverie classes flowers --rename tulp=tulip --remove weeds --to flowers-3"
)
def classes(
    model: ModelFolder,
    rename: Annotated[
        list[str] | None, typer.Option(help="OLD=NEW. May be given several times.", show_default=False)
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(help="Delete this class from the last layer. May be given several times.", show_default=False),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="A new model folder for the result.", show_default="changes MODEL itself")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List what a model knows and since when; rename or remove classes.

    A removed class is never answered again and its weights in the last layer are deleted. The other layers are not
    trained anew: what they learned from its images stays in them (docs/serving.md).
    """
    from dataclasses import asdict

    from reverie.model import classes as knowing
    from reverie.model import folder as model_io

    def wanted(saved: SavedModel) -> SavedModel:
        made = knowing.remove(saved, remove) if remove else saved
        return knowing.rename(made, knowing.parse_renames(rename, made.classifier.class_names)) if rename else made

    saved, is_changed = knowing.change(model, wanted, to) if remove or rename else (model_io.load(model), False)
    if to is not None and not is_changed:
        raise UserError("There is nothing to write to --to: no class gets another name, and none is removed.")
    known = knowing.known(saved.classifier.class_names, saved.ledger)
    if as_json:
        print_json([asdict(one) for one in known])
        return
    rows = [
        [one.name, _shown(one.step or None), _shown(one.since and one.since[:10]), _shown(one.images)] for one in known
    ]
    print_table(["class", "step", "since", "images"], rows)
    if is_changed:
        console.print(f"{to or model}", soft_wrap=True)


@app.command(rich_help_panel=MODELS, epilog="Example: reverie export flowers --to onnx")
def export(
    model: ModelFolder,
    to: Annotated[ExportFormat, typer.Option(help="For onnxruntime and others, or for PyTorch (.pt2).")],
    out: Annotated[Path | None, typer.Option(help="The file to write.", show_default="MODEL.onnx or MODEL.pt2")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a model as one file that is served without reverie.

    It takes uint8 pixels [images, size, size, channels], any number of images, and gives probabilities. Normalisation
    is inside; class names and size are in its metadata. Its answers are compared with PyTorch's at once.
    """
    from reverie.model import export as exporting
    from reverie.model import folder as model_io

    saved = model_io.load(model)
    suffixes = {"onnx": ".onnx", "torch": ".pt2"}
    file = out or Path(f"{model.resolve().name}{suffixes[to]}")
    if file.suffix.lower() in {*suffixes.values()} - {suffixes[to]}:
        raise UserError(f"With --to {to}, {file} should end in {suffixes[to]}.")
    check_target(file, overwrite, model)
    with aside.status(f"exporting to {file}"):
        made = exporting.export(saved, to, file)
    if made.difference is None:
        checked = "not compared with PyTorch, since onnxruntime is not installed"
    else:
        checked = f"probabilities differ from PyTorch's by {made.difference:.1g} at most"
    console.print(f"takes {exporting.facts(saved)['input']}; {checked}", soft_wrap=True)
    console.print(f"{file}", soft_wrap=True)


def _opened(folder: Path, device: str) -> tuple[SavedModel, TaskLearner]:
    from reverie.engine.loop import find_device
    from reverie.learner.task_learner import TaskLearner
    from reverie.model import folder as model_io

    saved = model_io.load(folder)
    return saved, TaskLearner.of(saved, find_device(device))


def _print_answers(answers: Sequence[Answer]) -> None:
    rows = []
    for one in answers:
        names = [f"none of these ({one.names[0]}?)", *one.names[1:]] if one.rejected else one.names
        for rank, (name, share) in enumerate(zip(names, one.probabilities, strict=True)):
            rows.append(["" if rank else one.source, name, _percent(share)])
    if rows:
        print_table(["image", "class", "confidence"], rows)


def _print_csv(answers: Sequence[Answer]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["image", "rank", "class", "confidence", "rejected"])
    for one in answers:
        for rank, (name, value) in enumerate(zip(one.names, one.probabilities, strict=True), start=1):
            writer.writerow([one.source, rank, name, f"{value:.6f}", str(one.rejected).lower()])


def _print_evaluation(made: Evaluation) -> None:
    from reverie.metrics import CALIBRATION_BINS

    console.print(f"{_percent(made.accuracy)} of {made.images} images are named rightly")
    if made.new:
        old, new = _percent(made.old_accuracy), _percent(made.new_accuracy)
        console.print(f"old classes {old}, new classes (of the last step) {new}")
    console.print(f"expected calibration error {_percent(made.calibration_error)} ({CALIBRATION_BINS} bins)\n")
    rows = [
        [name, "new" if name in made.new else "", str(images), _percent(share)]
        for name, (images, share) in made.by_class().items()
    ]
    print_table(["class", "", "images", "right"], rows)
    mistakes = made.mistakes()
    if mistakes:
        console.print()
        print_table(["class", "taken for", "images"], [[*pair, str(count)] for *pair, count in mistakes[:MISTAKES]])
    if len(mistakes) > MISTAKES:
        console.print(f"… and {len(mistakes) - MISTAKES} more pairs; --json has all")


def _name_unreadable(problems: Mapping[str, str]) -> None:
    for file, problem in problems.items():
        aside.print(f"{file} {problem}; passed over.", soft_wrap=True)
    if problems:
        raise typer.Exit(1)


def _percent(share: float | None) -> str:
    return DASH if share is None else f"{100 * share:.1f} %"


def _shown(value: Any) -> str:
    return DASH if value is None else str(value)

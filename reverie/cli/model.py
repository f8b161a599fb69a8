"""The verbs that make and use model folders, one small function each. Parse, call, print; help loads no torch."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reverie.cli.output import (
    console,
    errors,
    log_to,
    print_json,
    print_line,
    print_lines,
    print_table,
    progress_console,
)
from reverie.cli.verbs import (
    MODELS,
    AsJson,
    CheckpointEvery,
    DeviceName,
    ModelFolder,
    Overwrite,
    SettingTexts,
    in_flags,
    parse_numbers,
    verb,
)
from reverie.config.choices import ExportFormat, KnownClass, Library
from reverie.engine.observer import Observers
from reverie.errors import UserError
from reverie.text import or_dash, percent

if TYPE_CHECKING:
    from reverie.model.evaluation import Evaluation
    from reverie.model.inference import Prediction

DECISIONS = {"a budget of 30min would": "--budget 30min would", "`pretrained=True`": "--pretrained"}
MISTAKES = 10  # that the terminal shows; JSON has all

# --- learning from folders


class _InFlags(Observers):
    """What was decided, in the words of the command line."""

    def decided(self, line: str) -> None:
        super().decided(in_flags(line, words=DECISIONS))


@verb(MODELS, example="reverie learn photos/2025 --from flowers --to flowers-2 --budget 10min")
def learn(
    folder: Annotated[
        Path, typer.Argument(help="Images, one sub-folder a class; or a CSV file: path,label.", show_default=False)
    ],
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
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            help="How new classes are learned beside old ones.",
            show_default="abd; with --pretrained or --weights ranpac; with --from the model's own, where a model "
            "folder is enough for it",
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="The network of a first model: torchvision/resnet18, or one of another package.",
            show_default="by the images' size",
        ),
    ] = None,
    pretrained: Annotated[
        bool,
        typer.Option(
            "--pretrained",
            help="Begin with weights that were learned from ImageNet, for photographs: of --backbone, or of "
            "torchvision's EfficientNet-B0. They are downloaded once.",
        ),
    ] = False,
    weights: Annotated[
        Path | None, typer.Option(help="A file of weights for it to begin with, where there is no network.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", "-s", help="Of all random numbers.")] = 0,
    settings: SettingTexts = None,
    device: DeviceName = "auto",
    checkpoint_every: CheckpointEvery = 30.0,
    as_json: AsJson = False,
) -> None:
    """Learn the classes of an image folder: the first ones, or new ones beside those a model knows.

    The images of earlier steps are not needed. Size, network, augmentation and schedule are chosen from the images and
    printed; docs/practice.md has the rules. Stop it at any moment with Ctrl-C: the same command goes on.
    Ends with a report on held-out images, by which you can decide whether to use the model.
    """
    from reverie.learner.progress import showing_progress
    from reverie.model.job import learn_folder

    with showing_progress(progress_console(as_json), to.name) as display:
        report = learn_folder(
            folder,
            to,
            old=old,
            method=method,
            backbone=backbone,
            weights=weights,
            pretrained=pretrained,
            seed=seed,
            budget=budget,
            on_known_class=on_known_class,
            check=check,
            settings=settings or (),
            device=device,
            observer=_InFlags(display),
            checkpoint_seconds=checkpoint_every,
        )
    if as_json:
        print_json({"folder": str(to), **report.as_dict()})
        return
    print_lines([*(in_flags(line, words={"`check`": "--check"}) for line in report.lines()), to])


# --- taking in somebody's own model


@verb(MODELS, example="reverie adopt resnet18 weights.pth --classes names.txt --to mine --size 64")
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
    from reverie.model.adoption import adopt_weights

    adopted = adopt_weights(
        name,
        weights,
        to,
        classes=classes,
        family=family,
        size=size,
        mean=parse_numbers(mean, "--mean"),
        std=parse_numbers(std, "--std"),
        check=check,
        device=device,
        progress=console,
    )
    flags = {"`size`": "--size", "`mean`": "--mean", "`std`": "--std", "give --size": "say --size"}
    print_lines(in_flags(line, words=flags) for line in adopted.lines())
    print_line(to)


# --- using a model


@verb(
    MODELS,
    example="reverie predict flowers a.jpg b.jpg some_folder/ --top 3",
    words={"`reject=0.7`": "--threshold 0.7"},
)
def predict(
    model: ModelFolder,
    images: Annotated[
        list[Path],
        typer.Argument(help="Image files, folders, CSV files with a column path; - reads paths from the input."),
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
    from reverie.model.functions import predict as predict_images
    from reverie.model.inference import unreadable_lines

    log_to(errors)
    if as_json and as_csv:
        raise UserError("--json and --csv exclude each other.")
    rule = reject if threshold is None else threshold
    if Path("-") in images:
        named = [Path(line) for line in sys.stdin.read().splitlines() if line.strip()]
        images = [*(path for path in images if path != Path("-")), *named]
        if not images:
            raise UserError("No paths came in; - reads one a line from the input.")
    found = predict_images(model, images, top=top, reject=rule, device=device, progress=errors)
    if as_json:
        print_json([one.as_dict() for one in found])
    elif as_csv:
        _print_csv(found)
    else:
        _print_predictions(found)
    _name_left_aside(unreadable_lines(found), failed=any(one.problem for one in found))


@verb(MODELS, example="reverie evaluate flowers photos/check")
def evaluate(
    model: ModelFolder,
    folder: Annotated[Path, typer.Argument(help="One folder of images a class, or a CSV file.", show_default=False)],
    as_json: AsJson = False,
    device: DeviceName = "auto",
) -> None:
    """Count how often a model is right: over all images, by class, for old and new classes; what it mistakes for what.

    New are the classes of the last step that taught any. Folders that bear no name of a class are named and left
    aside. A file that cannot be read is named and passed over; the exit code then is 1.
    """
    from reverie.model.functions import evaluate as evaluate_images

    log_to(errors)
    made = evaluate_images(model, folder, device=device, progress=errors)
    if as_json:
        print_json(made.as_dict())
    else:
        _print_evaluation(made)
    _name_left_aside(made.left_aside(), failed=bool(made.unreadable))


@verb(MODELS, example="reverie dream flowers --out dreams.png")
def dream(
    model: ModelFolder,
    out: Annotated[Path, typer.Option(help="The picture to write, as PNG.")] = Path("dreams.png"),
    overwrite: Overwrite = False,
    per_class: Annotated[int, typer.Option(min=1, max=1000, help="Dreams of each class, at most.")] = 8,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of the dreamer.", show_default="as in the model's training")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", "-s", help="Other dreams of the same model.")] = 0,
    device: DeviceName = "auto",
) -> None:
    """See what a model remembers: images of each class, made from its weights alone, and how sure it is of them."""
    from reverie.learner.dream_sheet import ROWS
    from reverie.model.functions import dream as dream_images

    made = dream_images(
        model,
        out,
        per_class=per_class,
        steps=steps,
        seed=seed,
        overwrite=overwrite,
        device=device,
        progress=console,
    )
    if made.missing:
        print_line(f"Nothing was dreamed of {', '.join(made.missing)}.")
    if len(made.class_names) > ROWS:
        print_line(f"The sheet shows the first {ROWS} of {len(made.class_names)} classes.")
    print_line(out)


@verb(MODELS, example="reverie classes flowers --rename tulp=tulip --remove weeds --to flowers-3")
def classes(
    model: ModelFolder,
    rename: Annotated[
        list[str] | None, typer.Option(help="OLD=NEW. May be given several times.", show_default=False)
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(help="Delete this class from the model's heads. May be given several times.", show_default=False),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="A new model folder for the result.", show_default="changes MODEL itself")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List what a model knows and since when; rename or remove classes.

    A removed class is never answered again. Its weights in the last layer are deleted, its row of the answering head,
    and its mean and covariance, where the model keeps them; a covariance shared by all classes (acil) stays as it is.
    The other layers are not trained anew: what they learned from its images stays in them (docs/serving.md).
    """
    from dataclasses import asdict

    from reverie.model.classes import change_classes, list_classes

    changes = bool(rename or remove or to)
    known = change_classes(model, rename=rename or (), remove=remove or (), to=to) if changes else list_classes(model)
    if as_json:
        print_json([asdict(one) for one in known])
        return
    rows = [
        [one.name, or_dash(one.step or None), or_dash(one.since and one.since[:10]), or_dash(one.images)]
        for one in known
    ]
    print_table(["class", "step", "since", "images"], rows)
    if changes:
        print_line(to or model)


@verb(MODELS, example="reverie export flowers --to onnx")
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
    from reverie.model.export import export_model

    with errors.status(f"exporting to {to}"):
        made = export_model(model, to, out, overwrite=overwrite)
    print_lines([made.about(), made.file])


def _print_predictions(found: Sequence[Prediction]) -> None:
    rows = []
    for one in found:
        names = [f"none of these ({one.names[0]}?)", *one.names[1:]] if one.rejected else one.names
        for rank, (name, share) in enumerate(zip(names, one.probabilities, strict=True)):
            rows.append(["" if rank else one.source, name, percent(share)])
    if rows:
        print_table(["image", "class", "confidence"], rows)


def _print_csv(found: Sequence[Prediction]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["image", "rank", "class", "confidence", "rejected"])
    for one in found:
        for rank, (name, value) in enumerate(zip(one.names, one.probabilities, strict=True), start=1):
            writer.writerow([one.source, rank, name, f"{value:.6f}", str(one.rejected).lower()])


def _print_evaluation(made: Evaluation) -> None:
    print_lines([*made.lines(), ""])
    rows = [
        [name, "new" if name in made.new else "", str(images), percent(share)]
        for name, (images, share) in made.by_class().items()
    ]
    print_table(["class", "", "images", "right"], rows)
    mistakes = made.mistakes()
    if mistakes:
        print_line("")
        print_table(["class", "taken for", "images"], [[*pair, str(count)] for *pair, count in mistakes[:MISTAKES]])
    if len(mistakes) > MISTAKES:
        print_line(f"… and {len(mistakes) - MISTAKES} more pairs; --json has all")


def _name_left_aside(lines: Sequence[str], failed: bool) -> None:
    for line in lines:
        errors.print(line, soft_wrap=True)
    if failed:
        raise typer.Exit(1)

"""The saved model: safetensors and JSON, a card for people, and the ledger of what was seen and what was kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from reverie import disk
from reverie.config import Config
from reverie.errors import UserError
from reverie.nets import count_parameters, make_backbone
from reverie.nets.classifier import Classifier, Preprocessing
from reverie.version import __version__

SCHEMA = 1
WEIGHTS, SETTINGS, CARD, LEDGER = "model.safetensors", "config.json", "README.md", "ledger.json"


def save(folder: Path, classifier: Classifier, config: Config, ledger: list[dict[str, Any]], overwrite: bool) -> None:
    if folder.exists() and not overwrite:
        raise UserError(f"{folder} exists already. Choose another folder, so that nothing is lost.")
    shape = classifier.preprocessing
    settings = {
        "schema": SCHEMA,
        "reverie": __version__,
        "net": config.net.name,
        "head_rows": classifier.head.rows,
        "classes": list(classifier.class_names),
        "preprocessing": {"size": shape.size, "mean": list(shape.mean), "deviation": list(shape.deviation)},
        "run": config.as_dict(),
    }
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in classifier.state_dict().items()}

    def fill(scratch: Path) -> None:
        save_file(weights, scratch / WEIGHTS)
        disk.write_json(scratch / SETTINGS, settings)
        disk.write_json(scratch / LEDGER, ledger)
        disk.write_text(scratch / CARD, _card(classifier, config, ledger))

    disk.write_folder(folder, fill)


def load(folder: Path) -> tuple[Classifier, Config, list[dict[str, Any]]]:
    if not (folder / SETTINGS).is_file():
        raise UserError(f"{folder} is not a model folder: it has no {SETTINGS}.")
    try:
        settings = disk.read_json(folder / SETTINGS)
        if settings["schema"] > SCHEMA:
            raise UserError(f"{folder} was written by a newer reverie ({settings['reverie']}); please upgrade.")
        shape = settings["preprocessing"]
        preprocessing = Preprocessing(shape["size"], tuple(shape["mean"]), tuple(shape["deviation"]))
        config = Config.from_dict(settings["run"])
        backbone = make_backbone(settings["net"], preprocessing.channels)
        classifier = Classifier(backbone, preprocessing, config.seed, settings["head_rows"])
        classifier.grow(settings["classes"])
        classifier.load_state_dict(load_file(folder / WEIGHTS))
        ledger = disk.read_json(folder / LEDGER)
    except (KeyError, TypeError, json.JSONDecodeError, OSError, SafetensorError, RuntimeError) as error:
        raise UserError(f"The model in {folder} is damaged: {str(error).splitlines()[0]}.") from None
    return classifier.eval(), config, ledger


def _card(classifier: Classifier, config: Config, ledger: list[dict[str, Any]]) -> str:
    shape = classifier.preprocessing
    rows = [
        f"| {entry['task']} | {', '.join(entry['classes'])} | {entry['images_seen']} | {entry['keeps']} "
        f"({entry['kept_bytes']:,} bytes) |"
        for entry in ledger
    ]
    return "\n".join(
        [
            f"# A classifier of {classifier.seen} classes, made with reverie {__version__}",
            "",
            f"{config.net.name}, {count_parameters(classifier):,} parameters; method `{config.method}`, recipe "
            f"`{config.recipe}`, preset `{config.preset}`, seed {config.seed}.",
            f"Input: {shape.size}×{shape.size} pixels, {shape.channels} channel(s), scaled to 0..1, then (x - mean) / "
            f"deviation with mean {list(shape.mean)} and deviation {list(shape.deviation)}.",
            "",
            "| task | classes | images seen | kept besides the classifier |",
            "|---|---|---|---|",
            *rows,
            "",
            "```python",
            "import reverie",
            "",
            'learner = reverie.load("this folder")',
            "prediction = learner.predict(pixels)  # uint8 [n, channels, size, size]",
            "names = [learner.classifier.class_names[label] for label in prediction.labels[:, 0]]",
            "```",
            "",
        ]
    )

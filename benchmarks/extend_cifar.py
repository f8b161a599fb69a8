"""A classifier of 50 classes of CIFAR-100, extended by ten classes five times: image folders and commands alone.

python benchmarks/extend_cifar.py --data data --work work --out results/extend/cifar100/seed0.json

Each step's images are written as PNG files, learned with `reverie learn`, and deleted before the next; after each step
`reverie evaluate` judges the model on the test images of all classes so far. Plain fine-tuning (`--method base`) starts
from the same first model. Models that are there already are not made again, so that it can be interrupted; each step
notes the commit that made it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from reverie.config.schema import DataConfig
from reverie.data.images import Images
from reverie.data.sources import read_dataset
from reverie.data.stream import class_order
from reverie.engine.device import find_device
from reverie.system import provenance
from reverie.system.files import read_json, write_json

SIZES = (50, 10, 10, 10, 10, 10)
METHODS = ("abd", "base")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="where CIFAR-100 lies")
    parser.add_argument("--work", type=Path, default=Path("work"), help="for image folders and models")
    parser.add_argument("--out", type=Path, help="usually results/extend/cifar100/seed0.json, by the seed")
    parser.add_argument("--seed", type=int, default=0, help="of the class order and of learning")
    parser.add_argument("--images", type=int, help="of each class at most, for a quick look")
    parser.add_argument("--set", action="append", default=[], help="as in `reverie learn`, for a quick look")
    asked = parser.parse_args()
    dataset = read_dataset(DataConfig(source="cifar100"), asked.data)
    order = class_order(f"seed:{asked.seed}", 100, 0)
    names, begins = dataset.class_names, [sum(SIZES[:step]) for step in range(len(SIZES))]
    steps = [order[first : first + size] for first, size in zip(begins, SIZES, strict=True)]
    write(dataset.test, order, names, asked.work / "test", asked.images)
    made: list[dict[str, Any]] = []
    for method in METHODS:
        for step, classes in enumerate(steps):
            model = asked.work / (f"{method}-{step + 1}" if step else "first")
            old = asked.work / (f"{method}-{step}" if step > 1 else "first") if step else None
            learned = None
            if not model.exists():
                folder = asked.work / "photos"
                shutil.rmtree(folder, ignore_errors=True)
                write(dataset.train, classes, names, folder, asked.images)
                learned = learn(folder, model, old, method if step else "abd", asked.seed, asked.set)
                shutil.rmtree(folder)
                write_json(model.with_suffix(".json"), learned)
            judged = reverie("evaluate", model, asked.work / "test", "--json")
            made.append(
                {
                    "method": method,
                    "classes": begins[step] + len(classes),
                    **{name: judged[name] for name in ("images", "accuracy", "old_accuracy", "new_accuracy")},
                    **(learned or read_json(model.with_suffix(".json"))),
                }
            )
            print(f"{method:5} {made[-1]['classes']:3} classes: {100 * made[-1]['accuracy']:.1f} %", flush=True)
    facts = {
        "schema": 1,
        "what": " ".join((__doc__ or "").split("\n\n")[0].split()),
        "command": f"python benchmarks/extend_cifar.py --seed {asked.seed}",
        "settings": asked.set,
        "images_of_each_class": asked.images,
        "environment": provenance.environment(find_device("auto")).as_dict(),
        "steps": made,
    }
    write_json(asked.out or Path(f"results/extend/cifar100/seed{asked.seed}.json"), facts)


def write(images: Images, classes: list[int], names: tuple[str, ...], folder: Path, most: int | None) -> None:
    """A folder of PNG files for each class, unless it is there."""
    for c in classes:
        inner = folder / names[c]
        if inner.exists():
            continue
        inner.mkdir(parents=True)
        index = (images.labels == c).nonzero().flatten()[:most]
        for number, pixels in zip(index.tolist(), images.read(index), strict=True):
            Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(inner / f"{number}.png", compress_level=1)


def learn(folder: Path, to: Path, old: Path | None, method: str, seed: int, settings: list[str]) -> dict[str, Any]:
    began = time.monotonic()
    words: list[object] = ["learn", folder, "--to", to, "--method", method, "--seed", seed, "--json"]
    words += ["--from", old] if old else []
    report = reverie(*words, *(word for setting in settings for word in ("--set", setting)))
    seconds = round(time.monotonic() - began, 1)
    return {"seconds": seconds, "verdict": report["verdict"], "commit": provenance.commit()}


def reverie(*words: object) -> Any:
    done = subprocess.run([sys.executable, "-m", "reverie", *map(str, words)], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

"""Variants of lucid on held-out training images: how its constants are chosen, without a look at a test image.

    python benchmarks/lucid_trials.py --data DIR --out trials base "still: method.stillness=0.1" …

As `reverie tune` has it: the first half of the tasks of order 0, a fold of their training images held out and judged
on. The first task is learned once; each variant (a name, and settings behind a colon) goes on from it in a process of
its own, all at once. Each leaves a folder that `reverie heads` compares maps and heads on, and an entry in trials.json.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import torch

import reverie
from reverie.learner.folder import RunFolder
from reverie.learner.progress import showing_progress
from reverie.runs.kept_features import FEATURES, FeatureKeeper
from reverie.system import provenance
from reverie.system.files import read_state, write_bytes, write_json, write_state
from reverie.tables.tune import first_half, fold_of

PRESET, FOLDS = "cifar100-10-rdfcil", 10
SHORT = ["train.epochs=70", "train.milestones=[28,42]", "dream.steps=1000", "engine.compile=true"]


def learn(asked: argparse.Namespace, variant: str) -> None:
    name, _, settings = (part.strip() for part in variant.partition(":"))
    config = reverie.configure(
        asked.preset, "lucid", seed=0, settings=[*SHORT, *asked.set, *settings.split(), "keep=[features]"]
    )
    dataset = reverie.load_dataset(config, asked.data)
    classes, tasks = first_half(config, dataset)
    stream = reverie.make_stream(config, fold_of(dataset, classes, 0, FOLDS, 0))[:tasks]
    folder = RunFolder(asked.out / name)
    folder.claim(config, "trial")
    learner = reverie.TaskLearner.for_stream(config, stream)
    first, first_features = asked.out / "first.pt", asked.out / "first-features.safetensors"
    accuracies, began = [], time.monotonic()
    for task in stream:
        if task.index == 0 and first.is_file():
            learner.load_state_dict(read_state(first))
            write_bytes(folder.task(0) / FEATURES, first_features.read_bytes())
        else:
            keeper = FeatureKeeper(learner)
            with showing_progress(asked.progress, name) as display:
                learner.learn(task, reverie.engine.observer.Observers(keeper, display))
            keeper.keep(task, stream[: task.index + 1], folder.task(task.index))
        if task.index == 0 and not first.is_file():
            write_bytes(first_features, (folder.task(0) / FEATURES).read_bytes())
            write_state(first, learner.state_dict())
        accuracies.append(learner.score(stream[: task.index + 1].test()))
        print(f"{name}: {accuracies[-1]:.4f} after task {task.index + 1}", flush=True)
        if asked.first:
            return
    write_json(
        folder.path / "trial.json",
        {
            "name": name,
            "settings": settings.split(),
            "accuracies": accuracies,
            "seconds": time.monotonic() - began,
            "environment": provenance.environment(learner.device).as_dict(),
        },
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="+", help='"NAME" or "NAME: KEY=VALUE …"')
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("trials"))
    parser.add_argument("--preset", default=PRESET)
    parser.add_argument("--set", action="append", default=[], help="for all variants")
    parser.add_argument("--first", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--progress", action="store_true")
    asked = parser.parse_args()
    if asked.one:
        torch.set_num_threads(2)
        learn(asked, asked.variants[0])
        sys.exit()
    options = [word for word in sys.argv[1:] if word not in asked.variants]
    alone = [sys.executable, __file__, "--one"]
    if not (asked.out / "first.pt").is_file():
        subprocess.run([*alone, "--first", asked.variants[0], *options], check=True)
    running = [subprocess.Popen([*alone, variant, *options]) for variant in asked.variants]
    codes = [process.wait() for process in running]
    told = shlex.join(["python", "benchmarks/lucid_trials.py", *(word.rpartition("/")[2] for word in sys.argv[1:])])
    files = sorted(asked.out.glob("*/trial.json"))
    write_json(asked.out / "trials.json", {"command": told, "trials": [json.loads(f.read_text()) for f in files]})
    sys.exit(max(codes))

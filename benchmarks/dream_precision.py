"""Are dreams trained in bfloat16 as good as those in TF32? The same teachers, several seeds of the dreamer, both ways.

python benchmarks/dream_precision.py --data data --out precision.json [--teacher MODEL_FOLDER]

Without a teacher, the first task of `cifar100-10` is learned, and that is one. How good a dreamer is: the statistics
loss of its images in plain fp32, its BatchNorm as while it was trained and as while it is sampled; and how sure the
teacher is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from reverie import seeding
from reverie.config.schema import DreamConfig
from reverie.engine.device import find_device
from reverie.engine.loop import Engine
from reverie.methods.dreamer import Dreamer, excite
from reverie.model.folder import load_model
from reverie.nets.classifier import Classifier
from reverie.runs.configure import configure
from reverie.runs.run import run
from reverie.system import provenance

BATCHES = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="where CIFAR-100 lies")
    parser.add_argument("--teacher", type=Path, action="append", default=[], help="a model folder; may be repeated")
    parser.add_argument("--work", type=Path, default=Path("runs/dream-precision"), help="for the first task")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], help="as in `reverie run`, for a quick look")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    device = find_device(asked.device)
    config = configure("cifar100-10", "abd", settings=["stream.take=1", *asked.set])
    folders = asked.teacher
    if not folders:
        run(config, asked.work, data=asked.data, device=asked.device)
        folders = [asked.work / "model"]
    rows = []
    for folder in folders:
        teacher = load_model(folder).classifier.to(device).frozen_copy()
        for seed in range(asked.seeds):
            for mixed in (False, True):
                rows.append({"teacher": folder.name, **measure(teacher, config.dream, mixed, seed, device)})
                print(json.dumps(rows[-1]), flush=True)
        summarise(folder.name, rows)
    facts = {
        "environment": provenance.environment(device).as_dict(),
        "dream": vars(config.dream) | {"mixed": "both"},
        "rows": rows,
    }
    asked.out.write_text(json.dumps(facts, indent=1) + "\n")


def measure(teacher: Classifier, config: DreamConfig, mixed: bool, seed: int, device: torch.device) -> dict[str, Any]:
    chosen = DreamConfig(**{**vars(config), "mixed": mixed})
    dreamer = Dreamer(teacher, chosen, batch_size=128, seed=seed, task=1)
    began = time.monotonic()
    Engine(device).run(dreamer.phase(), seeding.derive(seed, "dream precision"))
    seconds = time.monotonic() - began
    exact = Engine(device, "fp32", capture=False, compile=False)
    rng = torch.Generator(device).manual_seed(seed)
    losses: dict[str, float] = {}
    for mode in ("train", "eval"):
        dreamer.generator.train(mode == "train")
        with exact.arithmetic(), torch.no_grad():
            gaps = []
            for _ in range(BATCHES):
                noise = torch.randn(128, chosen.noise, generator=rng, device=device)
                gaps.append(chosen.statistics * excite(dreamer.watched, dreamer.as_input(dreamer.generator(noise)))[1])
        losses[mode] = float(torch.stack(gaps).mean())
    coverage = dreamer.coverage()
    return {
        "seed": seed,
        "precision": "bf16" if mixed else "tf32",
        "statistics": losses["train"],
        "statistics_sampled": losses["eval"],
        "confidence": coverage["confidence"],
        "covered": coverage["covered"],
        "seconds": round(seconds, 2),
    }


def summarise(name: str, rows: list[dict[str, Any]]) -> None:
    for figure in ("statistics", "statistics_sampled", "confidence"):
        pairs = {
            precision: [row[figure] for row in rows if (row["teacher"], row["precision"]) == (name, precision)]
            for precision in ("tf32", "bf16")
        }
        shown = "   ".join(
            f"{precision} {statistics.mean(values):.4f} ± {statistics.stdev(values) if len(values) > 1 else 0:.4f}"
            for precision, values in pairs.items()
        )
        print(f"{name} {figure}: {shown}", flush=True)


if __name__ == "__main__":
    main()

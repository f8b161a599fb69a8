"""What fixed features say alone, without any network: how much of lucid's figures is theirs.

    python benchmarks/fixed_features.py --data DIR --out fixed.json

Each class leaves the mean of its fixed features; how these spread is told by the new classes of the task, as in lucid.
Linear discriminant analysis of both names the test images of all classes so far. Nothing is learned by steps.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor

import reverie
from reverie.data.images import Images
from reverie.data.preprocessing import Normaliser
from reverie.nets.fixed_evidence import SHRINKAGES, _inside, _Spread
from reverie.nets.fixed_features import fixed_features, make_filters
from reverie.system import provenance
from reverie.system.files import write_json


def look(images: Images, normalise: Normaliser, mirrored: bool = False) -> Tensor:
    """[images, fixed features], and behind them those of mirror images."""
    filters, views = make_filters(images.shape[0]), []
    for flipped in (False, True)[: 1 + mirrored]:
        parts = torch.arange(len(images)).split(500)
        shown = (normalise(images.read(part)) for part in parts)
        views += [fixed_features(part.flip(3) if flipped else part, filters) for part in shown]
    return torch.cat(views).double()


def accuracies(config: reverie.Config, data: Path, shrinkage: float) -> list[float]:
    """After each task, on the test images of all classes so far."""
    stream = reverie.make_stream(config, reverie.load_dataset(config, data))
    normalise, mirrored = Normaliser.of(stream.preprocessing(), torch.device("cpu")), config.augment.flip
    means, test, labels, found = [], [], [], []
    for task in stream:
        seen, its = look(task.images, normalise, mirrored), task.images.labels.repeat(1 + mirrored)
        means += [seen[its == label].mean(dim=0).half() for label in its.unique()]
        held = stream[: task.index + 1].test()
        new = held.select((held.labels >= task.first_label).nonzero().flatten())
        test.append(look(new, normalise))
        labels.append(new.labels)
        known = torch.stack(means).double()
        weight, bias = _Spread.of(_inside(seen, its)).discriminant(known, shrinkage)
        right = (torch.cat(test) @ weight.T + bias).argmax(dim=1) == torch.cat(labels)
        found.append(float(right.double().mean()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--presets", default="cifar100-5-rdfcil,cifar100-10-rdfcil,cifar100-20-rdfcil")
    parser.add_argument("--seeds", default="0,1,2", help="each has an order of classes")
    parser.add_argument("--shrinkage", type=float, default=SHRINKAGES[0])
    parser.add_argument("--out", type=Path, help="a JSON file")
    asked = parser.parse_args()
    runs = []
    for preset in asked.presets.split(","):
        for seed in map(int, asked.seeds.split(",")):
            config = reverie.configure(preset, "lucid", seed=seed)
            found = accuracies(config, asked.data, asked.shrinkage)
            runs.append({"preset": preset, "seed": seed, "accuracies": found})
            print(f"{preset}, seed {seed}: {100 * found[-1]:.1f} %, on average {100 * mean(found):.1f} %", flush=True)
    if asked.out is not None:
        told = shlex.join(
            ["python", "benchmarks/fixed_features.py", *(word.rpartition("/")[2] for word in sys.argv[1:])]
        )
        environment = provenance.environment(torch.device("cpu")).as_dict()
        write_json(asked.out, {"command": told, "environment": environment, "runs": runs})


if __name__ == "__main__":
    main()

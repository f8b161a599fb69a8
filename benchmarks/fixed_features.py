"""What fixed features say alone, without any network: how much of lucid's figures is theirs.

    python benchmarks/fixed_features.py --data DIR [--preset cifar100-10-rdfcil] [--seed 0]

Each class leaves the mean of its fixed features; how these spread is told by the new classes of the task, as in lucid.
Linear discriminant analysis of both names the test images of all classes so far. Nothing is learned by steps.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

import reverie
from reverie.data.images import Images
from reverie.data.preprocessing import Normaliser
from reverie.nets.fixed_evidence import SHRINKAGES, _inside, _Spread
from reverie.nets.fixed_features import fixed_features, make_filters


def look(images: Images, normalise: Normaliser, mirrored: bool = False) -> Tensor:
    """[images, fixed features], and behind them those of mirror images."""
    filters, views = make_filters(images.shape[0]), []
    for flipped in (False, True)[: 1 + mirrored]:
        parts = torch.arange(len(images)).split(500)
        shown = (normalise(images.read(part)) for part in parts)
        views += [fixed_features(part.flip(3) if flipped else part, filters) for part in shown]
    return torch.cat(views).double()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--preset", default="cifar100-10-rdfcil")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shrinkage", type=float, default=SHRINKAGES[0])
    asked = parser.parse_args()
    config = reverie.configure(asked.preset, "lucid", seed=asked.seed)
    stream = reverie.make_stream(config, reverie.load_dataset(config, asked.data))
    normalise, mirrored = Normaliser.of(stream.preprocessing(), torch.device("cpu")), config.augment.flip
    means, test, labels, accuracies = [], [], [], []
    for task in stream:
        seen, its = look(task.images, normalise, mirrored), task.images.labels.repeat(1 + mirrored)
        means += [seen[its == label].mean(dim=0).half() for label in its.unique()]
        held = stream[: task.index + 1].test()
        new = held.select((held.labels >= task.first_label).nonzero().flatten())
        test.append(look(new, normalise))
        labels.append(new.labels)
        known = torch.stack(means).double()
        weight, bias = _Spread.of(_inside(seen, its)).discriminant(known, asked.shrinkage)
        right = (torch.cat(test) @ weight.T + bias).argmax(dim=1) == torch.cat(labels)
        accuracies.append(float(right.double().mean()))
        print(f"after task {task.index + 1}: {100 * accuracies[-1]:.1f} %", flush=True)
    print(json.dumps({"preset": asked.preset, "seed": asked.seed, "accuracies": accuracies}))


if __name__ == "__main__":
    main()

"""Runs of several methods with settings of one's own, side by side, and a page that shows them.

python examples/compare_methods.py [--out runs/comparison]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import reverie

QUICK = {"train.epochs": 4, "train.milestones": [3], "dream.steps": 60, "stream.take": 3}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/comparison"))
    parser.add_argument("--epochs", type=int, default=4)
    asked = parser.parse_args()
    out, quick = asked.out, {**QUICK, "train.epochs": asked.epochs}

    config = reverie.configure("digits-5", "abd", settings=quick)
    result = reverie.run(config, out / "abd", progress=True)
    print(result)

    gentler = config.with_settings({"train.lr": 0.05})
    print(f"with lr 0.05: {reverie.run(gentler, out / 'abd-gentler').metrics.final_accuracy:.1%}")

    base = reverie.configure("digits-5", "base", settings=quick)
    print(reverie.run(base, out / "base"))
    print(reverie.write_report(out, out / "page.html"))

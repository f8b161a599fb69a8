"""Does another checkout compute the same? Small runs of every method, by both, compared bit for bit.

    python benchmarks/same_results.py OLD_CHECKOUT [NEW_CHECKOUT] [--methods abd,bic] [--work FOLDER]

Each checkout runs digits-5 with every method and both recipes, and ABD with a carried dreamer, on the CPU with one
thread, in processes of its own. Compared are the accuracy matrix and all figures made of it, the configuration with the
digest of its upper bound, what was kept, and every tensor of the final model. Takes about ten minutes on two cores;
finished runs are found again in FOLDER. Ends with exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

METHODS = "joint,base,lwf,lwf-mc,dgr,lwf-synthetic,deepinversion,abd,r-dfcil,rehearsal,lwf-coreset,e2e,bic"
SMALL = ["train.epochs=2", "train.milestones=[1]", "train.batch_size=16", "dream.steps=8", "dream.width=8"]
COMPARED = ("metrics", "accuracy_matrix", "class_order", "test_images", "data_fingerprint", "config", "upper_bound")
OF_LEDGER = ("classes", "images_seen", "keeps", "kept_bytes", "classifier_bytes", "kept", "images_kept", "not_kept")


def runs(methods: list[str]) -> dict[str, list[str]]:
    """The words of each run behind `reverie run digits-5`, by the name of its folder."""
    made = {
        f"{method}-{recipe}": ["--method", method, "--recipe", recipe]
        for method in methods
        for recipe in ("paper", "released")
    }
    if "abd" in methods:
        made["abd-carried"] = ["--method", "abd", "--set", "dream.life=carried"]
    return made


def train(checkout: Path, folder: Path, words: list[str]) -> None:
    """By the checkout's own code, in its own process."""
    if (folder / "result.json").is_file():
        return
    command = [sys.executable, "-m", "reverie", "run", "digits-5", *words, "--device", "cpu", "--out", str(folder)]
    for setting in SMALL:
        command += ["--set", setting]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{folder.name} in {checkout} failed:\n{done.stdout}{done.stderr}")


def facts(folder: Path) -> dict[str, Any]:
    """What two runs of the same computation have in common."""
    result = json.loads((folder / "result.json").read_text("utf-8"))
    found = {key: result[key] for key in COMPARED}
    found["ledger"] = [{key: entry[key] for key in OF_LEDGER} for entry in result["ledger"]]
    found["engine"] = result["engine"]
    return found


def known_keys(values: Any, earlier: Any) -> Any:
    """Of `values`, section by section, what `earlier` has a key for."""
    if not isinstance(values, dict) or not isinstance(earlier, dict):
        return values
    return {key: known_keys(value, earlier[key]) for key, value in values.items() if key in earlier}


def differences(old: Path, new: Path) -> list[str]:
    """What a later version adds to a configuration is no difference."""
    before, after = facts(old), facts(new)
    after["config"] = known_keys(after["config"], before["config"])
    found = [key for key in before if before[key] != after[key]]
    ours, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (new, old))
    if ours.keys() != theirs.keys():
        return [*found, "names of weights"]
    return found + [name for name in ours if ours[name].tobytes() != theirs[name].tobytes()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path, nargs="?", default=Path(__file__).resolve().parents[1])
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--work", type=Path, default=Path("runs/same-results"))
    parser.add_argument("--parallel", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    work, sides = asked.work.resolve(), {"old": asked.old.resolve(), "new": asked.new.resolve()}
    wanted = runs(asked.methods.split(","))
    with ThreadPoolExecutor(asked.parallel) as pool:
        begun = [
            pool.submit(train, checkout, work / side / name, words)
            for name, words in wanted.items()
            for side, checkout in sides.items()
        ]
        for run in begun:
            run.result()
    differing = {name: differences(work / "old" / name, work / "new" / name) for name in wanted}
    for name, found in differing.items():
        print(f"{name}: {'the same' if not found else 'DIFFERS in ' + ', '.join(found)}")
    wrong = [name for name, found in differing.items() if found]
    print(f"{len(wanted) - len(wrong)} of {len(wanted)} runs are the same, bit for bit")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

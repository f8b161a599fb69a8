"""Learn some classes from image folders, then others when the first images are gone; predict, score, export.

    python examples/extend_a_classifier.py [--work runs/extend]

The images are scikit-learn's handwritten digits, written as PNG files, one folder a class.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from PIL import Image

import reverie


def write_digits(folder: Path, digits: range, part: str) -> Path:
    """Image folders as a person has them."""
    dataset = reverie.load_dataset(reverie.configure("digits-5", "base"))
    images = dataset.train if part == "train" else dataset.test
    for digit in digits:
        (folder / str(digit)).mkdir(parents=True, exist_ok=True)
        for number, pixels in enumerate(images.pixels[images.labels == digit][:60]):
            Image.fromarray(pixels[0].numpy()).save(folder / str(digit) / f"{number}.png")
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/extend"))
    parser.add_argument("--epochs", type=int, default=20)
    asked = parser.parse_args()
    work, quick = asked.work, {"train.epochs": asked.epochs, "dream.steps": 15 * asked.epochs}

    first = write_digits(work / "images" / "first", range(4), "train")
    report = reverie.learn_folder(first, work / "model", settings=quick, progress=True)
    print(report)
    shutil.rmtree(first)  # the old images are gone

    second = write_digits(work / "images" / "second", range(4, 6), "train")
    print(reverie.learn_folder(second, work / "model-2", old=work / "model", settings=quick, progress=True))

    check = write_digits(work / "images" / "check", range(6), "test")
    learner = reverie.load(work / "model-2")
    print(f"all six digits: {learner.score(check):.1%}")
    print(learner.evaluate(check))
    print(learner.predict([check / "5" / "0.png"], top=2)[0])
    print(learner.predict_proba([check / "5" / "0.png"]).round(3))
    print(reverie.export_model(work / "model-2", "torch", work / "model-2.pt2", overwrite=True))

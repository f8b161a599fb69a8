"""What a person chooses by name, on the command line as in Python. Loads nothing, so that help is quick."""

from __future__ import annotations

from typing import Literal, get_args

Recipe = Literal["paper", "released"]  # values as in the paper, or as in its code
RECIPES: tuple[Recipe, ...] = get_args(Recipe)
KnownClass = Literal["error", "skip", "refine"]  # what becomes of images of a class that the model knows already
ExportFormat = Literal["onnx", "torch"]
Library = Literal["torchvision", "timm"]  # whose networks are built by name
Precision = Literal["fp32", "tf32", "bf16"]
UPPER_BOUND = "joint"  # the method that Omega refers to
ADOPTED = "adopted"  # the preset of a network that somebody else trained

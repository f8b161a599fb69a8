"""What a person chooses by name, on the command line as in Python. Loads no torch, so that help is quick."""

from __future__ import annotations

from typing import Literal

KnownClass = Literal["error", "skip", "refine"]  # what becomes of images of a class that the model knows already
ExportFormat = Literal["onnx", "torch"]
Library = Literal["torchvision", "timm"]  # whose networks are built by name

"""Base and the upper bound: cross-entropy alone, on the new images or on all images so far."""

from __future__ import annotations

from reverie.data.stream import Task
from reverie.methods.base import Keeps, Method


class Base(Method):
    """Fine-tune on the new images and forget: the floor."""

    title = "Base"
    refines = True


class Joint(Method):
    """For every task a new network, trained on all classes so far: the ceiling, and the reference for Omega."""

    title = "Upper Bound"
    keeps = Keeps.EVERYTHING  # so it is handed all tasks so far as one, with a fresh classifier
    _image_bytes = 0
    _images = 0

    def end(self, task: Task) -> None:
        channels, height, width = task.images.shape
        self._images, self._image_bytes = task.size, task.size * channels * height * width

    def kept_bytes(self) -> int:
        return self._image_bytes

    def kept_images(self) -> int:
        return self._images

"""A small dreamer of an untrained teacher."""

from __future__ import annotations

import torch

from reverie.config.schema import DreamConfig
from reverie.data.preprocessing import Preprocessing
from reverie.methods.dreamer import Dreamer
from reverie.nets import make_backbone
from reverie.nets.classifier import Classifier
from reverie.nets.statistics import batchnorm_layers

SMALL = DreamConfig(steps=5, noise=6, width=8)


def teacher(classes: int = 3, seed: int = 0) -> Classifier:
    torch.manual_seed(seed)
    made = Classifier(make_backbone("resnet8", 1), Preprocessing(8, (0.3,), (0.4,)))
    made.grow([str(i) for i in range(classes)])
    for layer in batchnorm_layers(made):
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2)
    return made.frozen_copy()


def dreamer(classes: int = 3, config: DreamConfig = SMALL, batch: int = 5, seed: int = 0, task: int = 1) -> Dreamer:
    return Dreamer(teacher(classes), config, batch, seed, task)

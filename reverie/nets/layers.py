"""What torch has as well, written so that GPUs or exporters manage it better. What is computed is the same."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ALIGNED = 8  # GPUs have no fast kernels for channel counts that are not a multiple of this


class AlignedConv2d(nn.Conv2d):
    """For three-channel images: on a GPU, channels of zeros are added before and taken away behind."""

    def forward(self, images: Tensor) -> Tensor:
        before, behind = -self.in_channels % ALIGNED, -self.out_channels % ALIGNED
        if not images.is_cuda or not (before or behind):
            return super().forward(images)
        weight = F.pad(self.weight, (0, 0, 0, 0, 0, before, 0, behind))
        bias = F.pad(self.bias, (0, behind)) if self.bias is not None else None
        images = F.pad(images, (0, 0, 0, 0, 0, before)) if before else images
        made = F.conv2d(images, weight, bias, self.stride, self.padding, self.dilation, self.groups)
        return made[:, : self.out_channels]


class Double(nn.Module):
    """Every pixel four times. Its gradient is a plain sum, where that of `nn.Upsample` scatters."""

    def forward(self, maps: Tensor) -> Tensor:
        rows, channels, height, width = maps.shape
        apart = maps[:, :, :, None, :, None].expand(rows, channels, height, 2, width, 2)
        return apart.reshape(rows, channels, 2 * height, 2 * width)


def at_least_single(dtype: torch.dtype) -> torch.dtype:
    """As `torch.promote_types` with single precision, which the exporters of torch 2.6 stumble over."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def widened(values: Tensor) -> Tensor:
    """In single precision at least, as sums need it."""
    return values.to(at_least_single(values.dtype))

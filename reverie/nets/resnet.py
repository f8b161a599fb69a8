"""Residual networks: the CIFAR family of He et al. (ResNet-32 is the paper's)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from reverie.nets.backbone import Backbone
from reverie.nets.layers import AlignedConv2d, at_least_single

WIDTHS = (16, 32, 64)  # channels of the three stages


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut without parameters (option A: every second pixel, zero channels).

    `signed`: no ReLU behind the sum, and all zero channels at the end instead of half of them on each side.
    """

    def __init__(self, channels_in: int, channels: int, stride: int, signed: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride, self.signed = stride, signed
        extra = channels - channels_in
        self.extra = (0, extra) if signed else (extra // 2, extra // 2)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        if any(self.extra):
            shortcut = F.pad(shortcut, (0, 0, 0, 0, *self.extra))
        return out + shortcut if self.signed else F.relu(out + shortcut)


class CifarResNet(Backbone):
    """A 3 x 3 convolution, three stages of `blocks` blocks, the mean over the map: 6 * blocks + 2 layers in all.

    `signed`: as R-DFCIL has it. Features may be negative, and every block begins as its shortcut alone.
    """

    feature_dim = WIDTHS[-1]

    def __init__(self, blocks: int, channels: int, signed: bool = False) -> None:
        super().__init__()
        before = WIDTHS[0]
        self.conv = AlignedConv2d(channels, before, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(before)
        stages: list[nn.Module] = []
        for stage, width in enumerate(WIDTHS):
            for block in range(blocks):
                stages.append(BasicBlock(before, width, stride=2 if stage and not block else 1, signed=signed))
                before = width
        self.blocks = nn.Sequential(*stages)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out" if signed else "fan_in", nonlinearity="relu")
            elif isinstance(module, BasicBlock) and signed:
                nn.init.zeros_(module.bn2.weight)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.blocks(F.relu(self.bn(self.conv(images))))
        return maps.mean(dim=(2, 3), dtype=at_least_single(maps.dtype))

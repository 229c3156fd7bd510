"""MobileViT-XS (Mehta and Rastegari 2021, "MobileViT", table 4): convolutions and transformers."""

import torch
from torch import Tensor, nn

from workbench.models.zoo.blocks import (
    Block,
    InvertedResidual,
    convolution,
    inverted_residual,
    zoo_model,
)


def inverted(inputs: int, outputs: int, stride: int = 1) -> InvertedResidual:
    """MobileNetV2's block with SiLU."""
    return inverted_residual("layers", inputs, outputs, stride, 4, nn.SiLU)


class MobileVitBlock(nn.Module):
    """Convolutions, then attention among the pixels at the same position of each patch."""

    def __init__(self, channels: int, width: int, depth: int, patch: int = 2):
        super().__init__()
        self.patch = patch
        self.local = nn.Sequential(
            convolution(channels, channels, 3, activation=nn.SiLU),
            nn.Conv2d(channels, width, 1, bias=False),
        )
        blocks = (Block(width, 4, 2 * width, nn.SiLU, 1e-5) for _ in range(depth))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.project = convolution(width, channels, activation=nn.SiLU)
        self.fuse = convolution(2 * channels, channels, 3, activation=nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        y = self.local(x)
        n, width, height, breadth = y.shape
        side = self.patch
        rows, columns = height // side, breadth // side
        y = y.reshape(n * width * rows, side, columns, side).transpose(1, 2)
        y = y.reshape(n, width, rows * columns, side * side).permute(0, 3, 2, 1)
        y = y.reshape(n * side * side, rows * columns, width)
        y = self.norm(self.blocks(y))
        y = y.reshape(n, side * side, rows * columns, width).permute(0, 3, 2, 1)
        y = y.reshape(n * width * rows, columns, side, side).transpose(1, 2)
        y = y.reshape(n, width, height, breadth)
        return self.fuse(torch.cat([x, self.project(y)], 1))


@zoo_model("mobilevit_xs", (1, 3, 256, 256), norm_batch=(2, 3, 64, 64))
class MobileVitXs(nn.Module):
    """Images ``(n, 3, h, w)``, 64 divides h and w, to logits; 2 317 848 parameters."""

    def __init__(self, classes: int = 1000):
        super().__init__()
        self.features = nn.Sequential(
            convolution(3, 16, 3, 2, activation=nn.SiLU),
            inverted(16, 32),
            inverted(32, 48, 2),
            inverted(48, 48),
            inverted(48, 48),
            inverted(48, 64, 2),
            MobileVitBlock(64, 96, 2),
            inverted(64, 80, 2),
            MobileVitBlock(80, 120, 4),
            inverted(80, 96, 2),
            MobileVitBlock(96, 144, 3),
            convolution(96, 384, activation=nn.SiLU),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(384, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))

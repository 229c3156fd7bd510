"""MobileViT-XS (Mehta and Rastegari 2021, "MobileViT", table 4): convolutions and transformers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from workbench.models.registry import EagerModelBase, register_model
from workbench.models.zoo.blocks import Block, initialize, settle


def convolution(
    inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """A convolution that keeps the size (but for its stride), batch norm, SiLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.SiLU(),
    )


class InvertedResidual(nn.Module):
    """MobileNetV2's block, with four times the channels inside and SiLU."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1):
        super().__init__()
        self.residual = stride == 1 and inputs == outputs
        width = 4 * inputs
        self.layers = nn.Sequential(
            convolution(inputs, width),
            convolution(width, width, 3, stride, width),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        """``(n, inputs, h, w)`` to ``(n, outputs, h / stride, w / stride)``."""
        return x + self.layers(x) if self.residual else self.layers(x)


class MobileVitBlock(nn.Module):
    """Local by convolutions; global by attention among the pixels of equal place in each patch."""

    def __init__(self, channels: int, width: int, depth: int, patch: int = 2):
        super().__init__()
        self.patch = patch
        self.local = nn.Sequential(
            convolution(channels, channels, 3), nn.Conv2d(channels, width, 1, bias=False)
        )
        self.blocks = nn.Sequential(
            *(Block(width, 4, 2 * width, nn.SiLU, 1e-5) for _ in range(depth))
        )
        self.norm = nn.LayerNorm(width)
        self.project = convolution(width, channels)
        self.fuse = convolution(2 * channels, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        """``(n, channels, h, w)`` to the same shape; the patch size divides h and w."""
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


class MobileVitXs(nn.Module):
    """The classifier: images ``(n, 3, h, w)`` to ``(n, classes)`` logits; 64 divides h and w."""

    def __init__(self, classes: int = 1000):
        super().__init__()
        self.features = nn.Sequential(
            convolution(3, 16, 3, 2),
            InvertedResidual(16, 32),
            InvertedResidual(32, 48, 2),
            InvertedResidual(48, 48),
            InvertedResidual(48, 48),
            InvertedResidual(48, 64, 2),
            MobileVitBlock(64, 96, 2),
            InvertedResidual(64, 80, 2),
            MobileVitBlock(80, 120, 4),
            InvertedResidual(80, 96, 2),
            MobileVitBlock(96, 144, 3),
            convolution(96, 384),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(384, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape ``(n, classes)``."""
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


@register_model("mobilevit_xs")
class MobileVitXsModel(EagerModelBase):
    """MobileViT-XS at its published input size, 3 x 256 x 256; 2 317 848 parameters."""

    def get_eager_model(self) -> nn.Module:
        """The network, with random weights."""
        return settle(initialize(MobileVitXs()), torch.randn(2, 3, 64, 64))

    def get_example_inputs(self) -> tuple[Tensor, ...]:
        """One image of noise."""
        return (torch.randn(1, 3, 256, 256),)

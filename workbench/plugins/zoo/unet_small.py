"""A small U-Net (Ronneberger et al. 2015, "U-Net", figure 1): an eighth of the channels.

Padded convolutions with batch norm, as is usual today, instead of cropping.
"""

import itertools

import torch
from torch import Tensor, nn

from workbench.plugins.zoo.blocks import convolution, initialize, set_norm_statistics


def double_convolution(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3x3 convolutions with batch norm and ReLU."""
    first = convolution(inputs, outputs, 3, activation=nn.ReLU)
    return nn.Sequential(*first, *convolution(outputs, outputs, 3, activation=nn.ReLU))


class UNet(nn.Module):
    """Images ``(n, 3, h, w)`` to logits of each pixel ``(n, classes, h, w)``; 16 divides h and w.

    Four levels, each half the size, with skip connections; 486 562 parameters.
    """

    def __init__(self, channels: int = 8, classes: int = 2, levels: int = 4):
        super().__init__()
        widths = [channels * 2**level for level in range(levels + 1)]
        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList(
            double_convolution(inputs, outputs)
            for inputs, outputs in zip([3, *widths], widths, strict=False)
        )
        widths.reverse()
        pairs = list(itertools.pairwise(widths))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(low, high, 2, 2) for low, high in pairs)
        self.up = nn.ModuleList(double_convolution(low, high) for low, high in pairs)
        self.head = nn.Conv2d(channels, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down[0](x)
        skipped = []
        for convolve in self.down[1:]:
            skipped.append(x)
            x = convolve(self.pool(x))
        for grow, convolve, skip in zip(self.grow, self.up, reversed(skipped), strict=True):
            x = convolve(torch.cat([skip, grow(x)], 1))
        return self.head(x)


def get_eager_model() -> nn.Module:
    return set_norm_statistics(initialize(UNet()), torch.randn(2, 3, 64, 64))


def get_example_inputs() -> tuple[Tensor, ...]:
    return (torch.randn(1, 3, 256, 256),)

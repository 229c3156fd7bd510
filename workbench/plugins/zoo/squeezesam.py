"""Interactive segmentation in the manner of SqueezeSAM (Varadarajan et al. 2023).

A U-Net with a small transformer at its coarsest level; clicks and boxes are further channels of the
image. The layout follows the paper, "SqueezeSAM: User-Friendly Mobile Interactive Segmentation",
section 3; the widths, which it does not list, are this file's.
"""

import itertools

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from workbench.plugins.zoo.blocks import Block, convolution, initialize, set_norm_statistics


def make_stage(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """A 3x3 convolution, batch norm, ReLU."""
    return convolution(inputs, outputs, 3, stride, activation=nn.ReLU)


class SqueezeSam(nn.Module):
    """Image, clicks and box to the logits of three masks and their estimated quality."""

    def __init__(self, size: int = 512, widths: tuple[int, ...] = (24, 32, 64, 128, 256)):
        super().__init__()
        self.stem = make_stage(5, widths[0], 2)
        pairs = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(
            nn.Sequential(make_stage(low, high, 2), make_stage(high, high)) for low, high in pairs
        )
        width, tokens = widths[-1], (size // 2 ** len(widths)) ** 2
        self.positions = nn.Parameter(torch.randn(1, tokens, width) * 0.02)
        self.blocks = nn.Sequential(Block(width, 4, 2 * width), Block(width, 4, 2 * width))
        pairs.reverse()
        self.reduce = nn.ModuleList(nn.Conv2d(high, low, 1) for low, high in pairs)
        self.up = nn.ModuleList(make_stage(2 * low, low) for low, _ in pairs)
        self.mask = nn.Conv2d(widths[0], 3, 1)
        self.quality = nn.Linear(widths[-1], 3)

    def forward(self, image: Tensor, points: Tensor, box: Tensor) -> tuple[Tensor, Tensor]:
        """Logits ``(n, 3, size, size)`` and qualities ``(n, 3)`` of an image of that shape.

        ``points`` and ``box``, ``(n, 1, size, size)``, are 1 at what was clicked and in the box.
        """
        x = self.stem(torch.cat([image, points, box], 1))
        skipped = []
        for layers in self.down:
            skipped.append(x)
            x = layers(x)
        tokens = self.blocks(x.flatten(2).transpose(1, 2) + self.positions)
        x = tokens.transpose(1, 2).reshape(x.shape)
        quality = self.quality(x.mean((2, 3)))
        for reduce, layers, skip in zip(self.reduce, self.up, reversed(skipped), strict=True):
            x = interpolate(reduce(x), skip.shape[2:], mode="bilinear", align_corners=False)
            x = layers(torch.cat([skip, x], 1))
        masks = interpolate(self.mask(x), image.shape[2:], mode="bilinear", align_corners=False)
        return masks, quality


def click_and_box(size: int) -> tuple[Tensor, Tensor]:
    """A click in the middle of an image and a box around it, as two channels."""
    points, box = torch.zeros(2, 1, 1, size, size)
    middle, reach = size // 2, size // 64
    points[..., middle - reach : middle + reach, middle - reach : middle + reach] = 1
    box[..., size // 4 : -size // 4, size // 4 : -size // 4] = 1
    return points, box


def get_eager_model() -> nn.Module:
    module = initialize(SqueezeSam())
    return set_norm_statistics(module, torch.randn(1, 3, 512, 512), *click_and_box(512))


def get_example_inputs() -> tuple[Tensor, ...]:
    return (torch.randn(1, 3, 512, 512), *click_and_box(512))

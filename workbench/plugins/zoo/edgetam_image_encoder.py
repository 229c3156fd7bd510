"""EdgeTAM's image encoder (Zhou et al. 2025, "EdgeTAM: On-Device Track Anything Model").

RepViT-M1 (Wang et al. 2023, "RepViT: Revisiting Mobile CNN From ViT Perspective") and the feature
pyramid of SAM 2 (Ravi et al. 2024). The parallel branches of RepViT are merged for export.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad
from torch.nn.utils.fusion import fuse_conv_bn_eval

from workbench.plugins.zoo.blocks import (
    SqueezeExcitation,
    convolution,
    initialize,
    set_norm_statistics,
)

#: Of RepViT-M1: channels of each stage, and the blocks in it.
WIDTHS = (48, 96, 192, 384)
DEPTHS = (3, 4, 16, 3)


class RepDepthwise(nn.Module):
    """A depthwise 3x3 convolution, a 1x1 one, and the input itself, summed and normalised."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv = convolution(channels, channels, 3, groups=channels)
        self.conv1 = nn.Conv2d(channels, channels, 1, groups=channels)
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x) + self.conv1(x) + x)

    def merge(self) -> nn.Conv2d:
        """The one convolution that computes the same in eval mode."""
        merged = fuse_conv_bn_eval(*self.conv)
        with torch.no_grad():
            merged.weight += pad(self.conv1.weight + 1, (1, 1, 1, 1))
            merged.bias += self.conv1.bias
        return fuse_conv_bn_eval(merged, self.bn)


class RepVitBlock(nn.Module):
    """Mix within channels, gate, mix across channels; the first of a stage halves the size."""

    def __init__(self, inputs: int, outputs: int, gated: bool, stride: int):
        super().__init__()
        gate = SqueezeExcitation(inputs, nn.Sigmoid) if gated else nn.Identity()
        if stride == 1:
            self.token_mixer = nn.Sequential(RepDepthwise(inputs), gate)
        else:
            self.token_mixer = nn.Sequential(
                convolution(inputs, inputs, 3, stride, inputs), gate, convolution(inputs, outputs)
            )
        self.channel_mixer = nn.Sequential(
            convolution(outputs, 2 * outputs), nn.GELU(), convolution(2 * outputs, outputs)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.token_mixer(x)
        return x + self.channel_mixer(x)


class EdgeTamImageEncoder(nn.Module):
    """Images ``(n, 3, size, size)`` of values from 0 to 1 to three maps of 256 channels.

    At a 4th, an 8th and a 16th of the size, the finest first; 32 divides the size. The image is
    normalised here, by the mean and standard deviation of ImageNet's colours.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, widths: tuple[int, ...] = WIDTHS, depths: tuple[int, ...] = DEPTHS):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406])[:, None, None])
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225])[:, None, None])
        inputs = widths[0]
        self.stem = nn.Sequential(
            convolution(3, inputs // 2, 3, 2), nn.GELU(), convolution(inputs // 2, inputs, 3, 2)
        )
        self.stages = nn.ModuleList()
        for stage, (outputs, depth) in enumerate(zip(widths, depths, strict=True)):
            blocks = [] if stage == 0 else [RepVitBlock(inputs, outputs, False, 2)]
            for remaining in range(depth - len(blocks), 0, -1):
                # Every other block is gated, but not the last one before the size is halved.
                before_halving = remaining == 1 and stage + 1 < len(widths)
                gated = len(blocks) % 2 == (stage > 0) and not before_halving
                blocks.append(RepVitBlock(outputs, outputs, gated, 1))
            self.stages.append(nn.Sequential(*blocks))
            inputs = outputs

        # The feature pyramid projects all levels to one width.
        self.neck = nn.ModuleList(nn.Conv2d(inputs, 256, 1) for inputs in widths)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.stem((x - self.mean) / self.std)
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        pairs = zip(self.neck, features, strict=True)
        *finer, second, coarsest = (conv(level) for conv, level in pairs)
        return *finer, second + interpolate(coarsest, scale_factor=2.0, mode="nearest")


def get_eager_model() -> nn.Module:
    return set_norm_statistics(initialize(EdgeTamImageEncoder()), torch.rand(2, 3, 128, 128))


def prepare_for_export(module: nn.Module) -> nn.Module:
    """Replace the parallel branches by one convolution each; returns the network."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if isinstance(child, RepDepthwise):
                setattr(parent, name, child.merge())
    return module


def get_example_inputs() -> tuple[Tensor, ...]:
    return (torch.rand(1, 3, 1024, 1024),)

"""EdgeTAM's image encoder (Zhou et al. 2025, "EdgeTAM: On-Device Track Anything Model").

RepViT-M1 (Wang et al. 2023, "RepViT: Revisiting Mobile CNN From ViT Perspective") and the feature
pyramid of SAM 2 (Ravi et al. 2024). The parallel branches of RepViT are merged for export.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad

from workbench.models.registry import EagerModelBase, register_model
from workbench.models.zoo.blocks import convolution, initialize, round_channels, set_norm_statistics

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
        state = self.state_dict()
        scale, shift = norm_scale(state, "conv.1")
        weight = state["conv.0.weight"] * scale[:, None, None, None]
        weight = weight + pad(state["conv1.weight"] + 1, (1, 1, 1, 1))
        bias = shift + state["conv1.bias"]
        scale, shift = norm_scale(state, "bn")
        merged = nn.Conv2d(len(bias), len(bias), 3, padding=1, groups=len(bias))
        weights = {"weight": weight * scale[:, None, None, None], "bias": bias * scale + shift}
        merged.load_state_dict(weights)
        return merged


def norm_scale(state: dict[str, Tensor], norm: str) -> tuple[Tensor, Tensor]:
    """Scale and shift of each channel by a batch norm in eval mode."""
    variance = state[f"{norm}.running_var"] + nn.BatchNorm2d(0).eps
    scale = state[f"{norm}.weight"] / torch.sqrt(variance)
    return scale, state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * scale


class SqueezeExcitation(nn.Module):
    """Scale each channel by a gate that two 1x1 convolutions compute from the channel means."""

    def __init__(self, channels: int):
        super().__init__()
        squeezed = round_channels(channels / 4)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.fc2(self.fc1(x.mean((2, 3), keepdim=True)).relu()).sigmoid()


class RepVitBlock(nn.Module):
    """Mix within channels, gate, mix across channels; the first of a stage halves the size."""

    def __init__(self, inputs: int, outputs: int, gated: bool, stride: int):
        super().__init__()
        gate = SqueezeExcitation(inputs) if gated else nn.Identity()
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


class RepVit(nn.Module):
    """Images ``(n, 3, h, w)`` to features at a 4th, an 8th, a 16th and a 32nd of the size."""

    def __init__(self, widths: tuple[int, ...] = WIDTHS, depths: tuple[int, ...] = DEPTHS):
        super().__init__()
        inputs = widths[0]
        self.stem = nn.Sequential(
            convolution(3, inputs // 2, 3, 2), nn.GELU(), convolution(inputs // 2, inputs, 3, 2)
        )
        self.stages = nn.ModuleList()
        for stage, (outputs, depth) in enumerate(zip(widths, depths, strict=True)):
            blocks = [] if stage == 0 else [RepVitBlock(inputs, outputs, False, 2)]
            for left in range(depth - len(blocks), 0, -1):
                # Every other block is gated, but not the last one before the size is halved.
                before_halving = left == 1 and stage + 1 < len(widths)
                gated = len(blocks) % 2 == (stage > 0) and not before_halving
                blocks.append(RepVitBlock(outputs, outputs, gated, 1))
            self.stages.append(nn.Sequential(*blocks))
            inputs = outputs

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.stem(x)
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        return features


class FeaturePyramid(nn.Module):
    """Project all levels to one width; add the coarsest to the next finer one."""

    def __init__(self, widths: tuple[int, ...] = WIDTHS, width: int = 256):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(inputs, width, 1) for inputs in widths)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """The levels but the coarsest, the finest first."""
        pairs = zip(self.convs, features, strict=True)
        *finer, second, coarsest = (conv(level) for conv, level in pairs)
        return [*finer, second + interpolate(coarsest, scale_factor=2.0, mode="nearest")]


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
        self.trunk = RepVit(widths, depths)
        self.neck = FeaturePyramid(widths)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.neck(self.trunk((x - self.mean) / self.std)))


def merge_branches(network: nn.Module) -> nn.Module:
    """Replace the parallel branches by one convolution each; returns the network."""
    for module in list(network.modules()):
        for name, child in module.named_children():
            if isinstance(child, RepDepthwise):
                setattr(module, name, child.merge())
    return network


@register_model("edgetam_image_encoder")
class EdgeTamImageEncoderModel(EagerModelBase):
    """The encoder at its published input size, 3 x 1024 x 1024; merged, 4 882 736 parameters."""

    def get_eager_model(self) -> nn.Module:
        return set_norm_statistics(initialize(EdgeTamImageEncoder()), torch.rand(2, 3, 128, 128))

    def prepare_for_export(self, module: nn.Module) -> nn.Module:
        return merge_branches(module)

    def get_example_inputs(self) -> tuple[Tensor, ...]:
        return (torch.rand(1, 3, 1024, 1024),)

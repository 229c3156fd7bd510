"""MobileNetV3-Small (Howard et al. 2019, table 2), with the usual names of its parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from workbench.models.registry import EagerModelBase, register_model
from workbench.models.zoo.blocks import initialize

# kernel, expanded channels, output channels, squeeze-and-excitation, activation, stride
BLOCKS = (
    (3, 16, 16, True, nn.ReLU, 2),
    (3, 72, 24, False, nn.ReLU, 2),
    (3, 88, 24, False, nn.ReLU, 1),
    (5, 96, 40, True, nn.Hardswish, 2),
    (5, 240, 40, True, nn.Hardswish, 1),
    (5, 240, 40, True, nn.Hardswish, 1),
    (5, 120, 48, True, nn.Hardswish, 1),
    (5, 144, 48, True, nn.Hardswish, 1),
    (5, 288, 96, True, nn.Hardswish, 2),
    (5, 576, 96, True, nn.Hardswish, 1),
    (5, 576, 96, True, nn.Hardswish, 1),
)


def round_channels(channels: float, divisor: int = 8) -> int:
    """The nearest multiple of ``divisor`` that loses no more than a tenth of the channels."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded if rounded >= 0.9 * channels else rounded + divisor


def convolution(
    inputs: int,
    outputs: int,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    activation: type[nn.Module] | None = None,
) -> nn.Sequential:
    """A convolution that keeps the size (but for its stride), batch norm, activation."""
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, eps=0.001, momentum=0.01),
    ]
    return nn.Sequential(*layers, activation()) if activation else nn.Sequential(*layers)


class SqueezeExcitation(nn.Module):
    """Scale each channel by a gate that two 1x1 convolutions compute from the channel means."""

    def __init__(self, channels: int):
        super().__init__()
        squeezed = round_channels(channels / 4)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.activation = nn.ReLU()
        self.scale_activation = nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        """The gated input, of the same shape."""
        gate = self.fc2(self.activation(self.fc1(self.avgpool(x))))
        return x * self.scale_activation(gate)


class InvertedResidual(nn.Module):
    """Expand, filter each channel by itself, gate, project; add the input where shapes allow."""

    def __init__(
        self,
        inputs: int,
        kernel: int,
        expanded: int,
        outputs: int,
        gated: bool,
        activation: type[nn.Module],
        stride: int,
    ):
        super().__init__()
        self.residual = stride == 1 and inputs == outputs
        layers = []
        if expanded != inputs:
            layers.append(convolution(inputs, expanded, activation=activation))
        layers.append(convolution(expanded, expanded, kernel, stride, expanded, activation))
        if gated:
            layers.append(SqueezeExcitation(expanded))
        layers.append(convolution(expanded, outputs))
        self.block = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """``(n, inputs, h, w)`` to ``(n, outputs, h / stride, w / stride)``."""
        return x + self.block(x) if self.residual else self.block(x)


class MobileNetV3Small(nn.Module):
    """The classifier: images ``(n, 3, h, w)`` to ``(n, classes)`` logits.

    2 542 856 parameters for 1000 classes. The parameters bear the names of torchvision's
    ``mobilenet_v3_small`` (``features.0.0.weight`` to ``classifier.3.bias``), so that its
    state dict loads.
    """

    def __init__(self, classes: int = 1000):
        super().__init__()
        inputs = 16
        layers: list[nn.Module] = [convolution(3, inputs, 3, 2, activation=nn.Hardswish)]
        for kernel, expanded, outputs, gated, activation, stride in BLOCKS:
            layers.append(
                InvertedResidual(inputs, kernel, expanded, outputs, gated, activation, stride)
            )
            inputs = outputs
        layers.append(convolution(inputs, 6 * inputs, activation=nn.Hardswish))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(6 * inputs, 1024), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(1024, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape ``(n, classes)``."""
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


@register_model("mobilenet_v3_small")
class MobileNetV3SmallModel(EagerModelBase):
    """MobileNetV3-Small at its published input size, 3 x 224 x 224."""

    def get_eager_model(self) -> nn.Module:
        """The network, with random weights."""
        return initialize(MobileNetV3Small())

    def get_example_inputs(self) -> tuple[Tensor, ...]:
        """One image of noise."""
        return (torch.randn(1, 3, 224, 224),)

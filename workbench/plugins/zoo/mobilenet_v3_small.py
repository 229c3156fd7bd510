"""MobileNetV3-Small (Howard et al. 2019, table 2), with the usual names of its parameters."""

from functools import partial

import torch
from torch import Tensor, nn

from workbench.plugins.zoo.blocks import SqueezeExcitation, convolution, initialize

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


conv_norm = partial(convolution, eps=0.001)


class InvertedResidual(nn.Module):
    """MobileNetV2's block with a gate before the projection (Howard et al., figure 4)."""

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
        layers: list[nn.Module] = []
        if expanded != inputs:
            layers.append(conv_norm(inputs, expanded, activation=activation))
        layers.append(conv_norm(expanded, expanded, kernel, stride, expanded, activation))
        if gated:
            layers.append(SqueezeExcitation(expanded, nn.Hardsigmoid))
        self.block = nn.Sequential(*layers, conv_norm(expanded, outputs))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x) if self.residual else self.block(x)


class MobileNetV3Small(nn.Module):
    """Images ``(n, 3, h, w)`` to ``(n, classes)`` logits; 2 542 856 parameters.

    The state dict of torchvision's ``mobilenet_v3_small`` loads.
    """

    def __init__(self, classes: int = 1000):
        super().__init__()
        inputs = 16
        layers: list[nn.Module] = [conv_norm(3, inputs, 3, 2, activation=nn.Hardswish)]
        for block in BLOCKS:
            layers.append(InvertedResidual(inputs, *block))
            inputs = block[2]
        layers.append(conv_norm(inputs, 6 * inputs, activation=nn.Hardswish))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(6 * inputs, 1024), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(1024, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def get_eager_model() -> nn.Module:
    return initialize(MobileNetV3Small())


def get_example_inputs() -> tuple[Tensor, ...]:
    return (torch.randn(1, 3, 224, 224),)

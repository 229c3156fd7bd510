"""MobileNetV2 (Sandler et al. 2018, "Inverted Residuals and Linear Bottlenecks", table 2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from workbench.models.registry import EagerModelBase, register_model
from workbench.models.zoo.blocks import initialize, settle

# expansion, output channels, repetitions, stride of the first
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def convolution(
    inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """A convolution that keeps the size (but for its stride), batch norm, ReLU6."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(),
    )


class InvertedResidual(nn.Module):
    """Expand, filter each channel by itself, project linearly; add the input where shapes allow."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int):
        super().__init__()
        self.residual = stride == 1 and inputs == outputs
        width = expansion * inputs
        layers: list[nn.Module] = [convolution(inputs, width)] if expansion > 1 else []
        layers += [
            convolution(width, width, 3, stride, width),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        ]
        self.conv = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """``(n, inputs, h, w)`` to ``(n, outputs, h / stride, w / stride)``."""
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNetV2(nn.Module):
    """The classifier: images ``(n, 3, h, w)`` to ``(n, classes)`` logits.

    3 504 872 parameters for 1000 classes. They bear the names of torchvision's ``mobilenet_v2``
    (``features.0.0.weight`` to ``classifier.1.bias``), so that its state dict loads.
    """

    def __init__(self, classes: int = 1000):
        super().__init__()
        inputs = 32
        layers: list[nn.Module] = [convolution(3, inputs, 3, 2)]
        for expansion, outputs, repetitions, stride in STAGES:
            for number in range(repetitions):
                layers.append(InvertedResidual(inputs, outputs, 1 if number else stride, expansion))
                inputs = outputs
        layers.append(convolution(inputs, 1280))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape ``(n, classes)``."""
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


@register_model("mobilenet_v2")
class MobileNetV2Model(EagerModelBase):
    """MobileNetV2 at its published input size, 3 x 224 x 224."""

    def get_eager_model(self) -> nn.Module:
        """The network, with random weights."""
        return settle(initialize(MobileNetV2()), torch.randn(2, 3, 64, 64))

    def get_example_inputs(self) -> tuple[Tensor, ...]:
        """One image of noise."""
        return (torch.randn(1, 3, 224, 224),)

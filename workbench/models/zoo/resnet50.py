"""ResNet-50 (He et al. 2015, "Deep Residual Learning for Image Recognition", table 1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from workbench.models.registry import EagerModelBase, register_model
from workbench.models.zoo.blocks import initialize, settle
from workbench.models.zoo.resnet import Bottleneck, ResNet


@register_model("resnet50")
class ResNet50Model(EagerModelBase):
    """ResNet-50 at its published input size, 3 x 224 x 224; 25 557 032 parameters."""

    def get_eager_model(self) -> nn.Module:
        """The network, with random weights."""
        return settle(initialize(ResNet(Bottleneck, (3, 4, 6, 3))), torch.randn(2, 3, 64, 64))

    def get_example_inputs(self) -> tuple[Tensor, ...]:
        """One image of noise."""
        return (torch.randn(1, 3, 224, 224),)

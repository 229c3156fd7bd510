"""EfficientSAM-Ti with a point as its prompt: the network in ExecuTorch's wheel, random weights."""

import torch
from executorch.examples.models.efficient_sam.efficient_sam_core.efficient_sam import (
    build_efficient_sam,
)
from torch import Tensor, nn

from workbench.models.registry import EagerModelBase, register_model


@register_model("efficient_sam")
class EfficientSam(EagerModelBase):
    """An image, points and their labels to masks and their predicted quality."""

    def get_eager_model(self) -> nn.Module:
        """The network, without the checkpoint that upstream's own definition downloads."""
        return build_efficient_sam(encoder_patch_embed_dim=192, encoder_num_heads=3)

    def get_example_inputs(self) -> tuple[Tensor, ...]:
        """An image of noise, and one point that belongs to the object."""
        return torch.randn(1, 3, 1024, 1024), 1024 * torch.rand(1, 1, 1, 2), torch.ones(1, 1, 1)

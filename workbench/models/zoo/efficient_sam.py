"""EfficientSAM-Ti with a point as its prompt: the network in ExecuTorch's wheel, random weights."""

import torch
from executorch.examples.models.efficient_sam.efficient_sam_core.efficient_sam import (
    build_efficient_sam,
)
from torch import Tensor, nn


def get_eager_model() -> nn.Module:
    """The network, without the checkpoint that upstream's own definition downloads."""
    return build_efficient_sam(encoder_patch_embed_dim=192, encoder_num_heads=3)


def get_example_inputs() -> tuple[Tensor, ...]:
    """An image of noise, and one point that belongs to the object."""
    return torch.randn(1, 3, 1024, 1024), 1024 * torch.rand(1, 1, 1, 2), torch.ones(1, 1, 1)

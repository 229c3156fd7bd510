"""ViT-Ti/16 (Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words"; size of DeiT-Ti, 2020)."""

import torch
from torch import Tensor, nn

from workbench.plugins.zoo.blocks import Block, initialize


class VisionTransformer(nn.Module):
    """Images ``(n, 3, size, size)`` to ``(n, 1000)`` logits; 5 717 416 parameters.

    The state dict of timm's ``vit_tiny_patch16_224`` loads.
    """

    def __init__(
        self, size: int = 224, patch: int = 16, width: int = 192, depth: int = 12, heads: int = 3
    ):
        super().__init__()
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, patch, patch)})
        self.cls_token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads, 4 * width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, 1e-6)
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed["proj"](x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


def get_eager_model() -> nn.Module:
    return initialize(VisionTransformer())


def get_example_inputs() -> tuple[Tensor, ...]:
    return (torch.randn(1, 3, 224, 224),)

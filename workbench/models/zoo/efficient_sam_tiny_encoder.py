"""EfficientSAM-Ti's image encoder (Xiong et al. 2023, "EfficientSAM", section 3).

A ViT-Ti/16 without class token, and SAM's neck of two convolutions. As in the published code, the
position embedding, trained for 14 x 14 patches, is resized at every inference.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from workbench.models.zoo.blocks import Block, zoo_model


class ChannelNorm(nn.Module):
    """Layer norm over the channels of each pixel."""

    def __init__(self, channels: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(1, keepdim=True)
        x = centred / torch.sqrt(centred.square().mean(1, keepdim=True) + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


@zoo_model("efficient_sam_tiny_encoder", (1, 3, 1024, 1024))
class EfficientSamEncoder(nn.Module):
    """Images ``(n, 3, size, size)`` to embeddings ``(n, 256, size / 16, size / 16)``."""

    def __init__(self, width: int = 192, depth: int = 12, trained: int = 14):
        super().__init__()
        self.trained = trained
        self.patch_embed = nn.Conv2d(3, width, 16, 16)
        self.pos_embed = nn.Parameter(torch.randn(1, trained * trained + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, 3, 4 * width) for _ in range(depth)))
        self.neck = nn.Sequential(
            nn.Conv2d(width, 256, 1, bias=False),
            ChannelNorm(256),
            nn.Conv2d(256, 256, 3, padding=1, bias=False),
            ChannelNorm(256),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        n, width, height, breadth = x.shape
        grid = self.pos_embed[:, 1:].reshape(1, self.trained, self.trained, width)
        grid = grid.permute(0, 3, 1, 2)
        positions = interpolate(grid, (height, breadth), mode="bicubic", align_corners=False)
        x = self.blocks((x + positions).flatten(2).transpose(1, 2))
        return self.neck(x.transpose(1, 2).reshape(n, width, height, breadth))

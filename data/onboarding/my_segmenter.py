"""One small segmentation model, as trained and as prepared for a device."""

import torch
from torch import nn

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class AsTrained(nn.Module):
    """Takes a normalised image, and resizes its position embedding at every inference."""

    def __init__(self, width: int = 96, heads: int = 3):
        super().__init__()
        torch.manual_seed(0)
        self.heads = heads
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.position = nn.Parameter(0.02 * torch.randn(1, width, 14, 14))
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.head = nn.Sequential(nn.Conv2d(width, 64, 3, padding=1), nn.ELU(), nn.Conv2d(64, 1, 1))

    def place(self, x):
        """Add the position embedding, at the size of the image."""
        size = x.shape[-2:]
        position = nn.functional.interpolate(self.position, size, mode="bicubic")
        return x + position

    def forward(self, image):
        """Map a normalised image ``(n, 3, h, w)`` to mask logits, an eighth of its size."""
        x = self.place(self.patches(image))
        n, width, height, length = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        qkv = self.qkv(self.norm(tokens)).reshape(n, -1, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        tokens = tokens + self.mix(mixed.transpose(1, 2).reshape(n, -1, width))
        return self.head(tokens.transpose(1, 2).reshape(n, width, height, length))

    @staticmethod
    def get_example_inputs():
        """An image as the training pipeline provides it."""
        return (torch.randn(1, 3, 256, 256, generator=torch.Generator().manual_seed(0)),)


class Ready(AsTrained):
    """Takes an image of fixed size with values from 0 to 1; constants are computed at export."""

    def __init__(self, size: int = 256):
        super().__init__()
        self.eval()
        # Normalisation is linear in the pixels: fold it into the convolution.
        mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (MEAN, STD))
        weight = self.patches.weight.detach()
        self.patches.bias = nn.Parameter(self.patches.bias - (weight * mean / std).sum((1, 2, 3)))
        self.patches.weight = nn.Parameter(weight / std)
        # The size is fixed, so the resized embedding is a constant.
        grid = (size // 8, size // 8)
        resized = nn.functional.interpolate(self.position.detach(), grid, mode="bicubic")
        self.register_buffer("placed", resized)
        # XNNPACK does not support ELU: rewrite it with operators that it supports.
        self.head[1] = PlainElu()

    def place(self, x):
        """Add the embedding that was resized at construction."""
        return x + self.placed

    @staticmethod
    def get_example_inputs():
        """An image with values from 0 to 1."""
        return (torch.rand(1, 3, 256, 256, generator=torch.Generator().manual_seed(0)),)


class PlainElu(nn.Module):
    """ELU from clamp, exp and relu: ``relu(x) + exp(min(x, 0)) - 1``."""

    def forward(self, x):
        """Any shape; keeps it."""
        return torch.relu(x) + torch.exp(torch.clamp(x, max=0.0)) - 1.0

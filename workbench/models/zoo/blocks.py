"""Random weights that keep a network alive.

The encoder block that the vision and speech transformers here share.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


def initialize(module: nn.Module) -> nn.Module:
    """Give convolutions and linear layers He's normal weights and no bias; returns the module.

    Activations then keep their variance through ReLU-like layers (He et al. 2015, eq. 10).
    PyTorch's own initialisation divides it by six at each, until nothing is left that half
    precision could tell from zero.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module


def settle(module: nn.Module, *inputs: torch.Tensor) -> nn.Module:
    """Give batch norms the statistics of a batch of inputs, as training does; returns the module.

    Networks that add branches up grow too large for half precision without.
    """
    norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]
    usual = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        module.train()(*inputs)
    for norm, momentum in zip(norms, usual, strict=True):
        norm.momentum = momentum
        norm.num_batches_tracked.zero_()
    return module.eval()


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2), one projection for q, k, v."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``(n, tokens, width)`` to the same shape."""
        n, tokens, width = x.shape
        qkv = self.qkv(x).reshape(n, tokens, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = scaled_dot_product_attention(query, key, value)
        return self.proj(attended.transpose(1, 2).reshape(n, tokens, width))


class Mlp(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, width: int, hidden: int, activation: type[nn.Module] = nn.GELU):
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.act = activation()
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """``(..., width)`` to the same shape."""
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    """Attention and an MLP, each behind a layer norm with the input going by."""

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        activation: type[nn.Module] = nn.GELU,
        eps: float = 1e-6,
    ):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps)
        self.mlp = Mlp(width, hidden, activation)

    def forward(self, x: Tensor) -> Tensor:
        """``(n, tokens, width)`` to the same shape."""
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))

"""What several networks share: random weights, and building blocks."""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


def initialize(module: nn.Module) -> nn.Module:
    """Give convolutions and linear layers He's normal weights and no bias; returns the module.

    Activations keep their variance through ReLU-like layers (He et al. 2015, eq. 10). PyTorch's
    default divides the variance by six at each layer, which underflows in half precision.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module


def set_norm_statistics(module: nn.Module, *inputs: Tensor) -> nn.Module:
    """Set the batch norms' statistics to those of a batch, as training does; returns the module.

    Without it, networks that sum branches overflow in half precision.
    """
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 1.0
    with torch.no_grad():
        module.train()(*inputs)
    for name, count in module.named_buffers():
        if name.endswith("num_batches_tracked"):  # ExecuTorch writes it into programs
            count.zero_()
    return module.eval()


def round_channels(channels: float) -> int:
    """The nearest multiple of 8 that loses at most a tenth of the channels."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * channels else rounded + 8


def convolution(
    inputs: int,
    outputs: int,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    activation: type[nn.Module] | None = None,
    eps: float = 1e-5,
) -> nn.Sequential:
    """A padded convolution, batch norm and, if there is one, an activation."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    layers = [conv, nn.BatchNorm2d(outputs, eps)]
    return nn.Sequential(*layers, activation()) if activation else nn.Sequential(*layers)


class SqueezeExcitation(nn.Module):
    """Scale each channel by a gate that two 1x1 convolutions compute from the channel means."""

    def __init__(self, channels: int, gate: type[nn.Module]):
        super().__init__()
        squeezed = round_channels(channels / 4)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.activation = nn.ReLU()
        self.scale_activation = gate()

    def forward(self, x: Tensor) -> Tensor:
        gate = self.fc2(self.activation(self.fc1(self.avgpool(x))))
        return x * self.scale_activation(gate)


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2), one projection for q, k, v."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        qkv = self.qkv(x).reshape(n, tokens, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = scaled_dot_product_attention(query, key, value)
        return self.proj(attended.transpose(1, 2).reshape(n, tokens, width))


class Block(nn.Module):
    """A transformer's encoder block: attention and an MLP, with layer norms and residuals."""

    def __init__(self, width: int, heads: int, hidden: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, 1e-6)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, 1e-6)
        layers = OrderedDict(
            fc1=nn.Linear(width, hidden), act=nn.GELU(), fc2=nn.Linear(hidden, width)
        )
        self.mlp = nn.Sequential(layers)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))

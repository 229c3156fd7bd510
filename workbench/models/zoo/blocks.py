"""What several networks share: registration, random weights, and building blocks."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from workbench.models.registry import EagerModelBase, register_model

Network = type[nn.Module]


def zoo_model(
    name: str, *shapes: tuple[int, ...], norm_batch: tuple[int, ...] = ()
) -> Callable[[Network], Network]:
    """Register a network with random weights and noise of some ``shapes`` as example inputs.

    ``norm_batch`` is the shape of the batch that sets the statistics of the batch norms (empty: 0
    and 1).
    """

    def register(network: Network) -> Network:
        class ZooModel(EagerModelBase):
            def get_eager_model(self) -> nn.Module:
                module = initialize(network())
                if norm_batch:
                    set_norm_statistics(module, torch.randn(norm_batch))
                return module

            def get_example_inputs(self) -> tuple[Tensor, ...]:
                return tuple(torch.randn(shape) for shape in shapes)

        ZooModel.__module__ = network.__module__
        register_model(name, ZooModel)
        return network

    return register


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
    norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        module.train()(*inputs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.zero_()
    return module.eval()


def round_channels(channels: float, divisor: int = 8) -> int:
    """The nearest multiple of ``divisor`` that loses at most a tenth of the channels."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded if rounded >= 0.9 * channels else rounded + divisor


def convolution(
    inputs: int,
    outputs: int,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    activation: type[nn.Module] | None = None,
    eps: float = 1e-5,
    momentum: float = 0.1,
) -> nn.Sequential:
    """A padded convolution, batch norm and, if there is one, an activation."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    layers = [conv, nn.BatchNorm2d(outputs, eps, momentum)]
    return nn.Sequential(*layers, activation()) if activation else nn.Sequential(*layers)


class InvertedResidual(nn.Module):
    """Add the input to what ``layers`` compute, if wanted; the state dict calls them ``name``."""

    def __init__(self, layers: nn.Sequential, name: str, residual: bool):
        super().__init__()
        self.name, self.residual = name, residual
        self.add_module(name, layers)

    def forward(self, x: Tensor) -> Tensor:
        y = self.get_submodule(self.name)(x)
        return x + y if self.residual else y


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


class Mlp(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    """A transformer's encoder block: attention and an MLP, with layer norms and residuals."""

    def __init__(self, width: int, heads: int, hidden: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, 1e-6)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, 1e-6)
        self.mlp = Mlp(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))

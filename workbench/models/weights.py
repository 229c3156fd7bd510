"""Random weights that keep a network alive."""

import torch
from torch import nn


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

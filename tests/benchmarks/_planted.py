"""Models with one planted cause of slowness each, and the same models with the cause fixed."""

import torch
from torch import nn


class Product(nn.Module):
    """A matmul of two activations, which XNNPACK supports only as a batch."""

    def __init__(self, batched: bool = False):
        super().__init__()
        self.batched = batched
        self.left, self.right = nn.Linear(256, 512), nn.Linear(256, 512)

    def forward(self, x):
        a, b = self.left(x), self.right(x)
        if self.batched:
            return torch.bmm(a[None], b.t()[None])[0]
        return torch.mm(a, b.t())


class Transposes(nn.Module):
    """Twenty pairs of transposes around activations that work in any layout."""

    def __init__(self, needless: bool = True):
        super().__init__()
        self.needless = needless
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.last = nn.Conv2d(32, 8, 3, padding=1)

    def forward(self, x):
        x = self.first(x)
        for _ in range(20):
            x = x.permute(0, 2, 3, 1) if self.needless else x
            x = torch.sigmoid(x)
            x = x.permute(0, 3, 1, 2) if self.needless else x
        return self.last(x)


class Wide(nn.Module):
    """Large weights, each used once: memory-bound."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096))

    def forward(self, x):
        return self.layers(x)


class Deep(nn.Module):
    """Large matmuls: compute-bound."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(768, 768) for _ in range(4)))

    def forward(self, x):
        return self.layers(x)


def _inputs(*shape):
    torch.manual_seed(0)
    return (torch.randn(*shape),)


def product():
    """An undelegated operator, as ``(model, example inputs)``."""
    return Product(), _inputs(384, 256)


def product_fixed():
    """The same matmul as a batch of one, which is delegated."""
    return Product(batched=True), _inputs(384, 256)


def transposes():
    """Needless transposes."""
    return Transposes(), _inputs(1, 3, 112, 112)


def transposes_fixed():
    """The same model without the transposes."""
    return Transposes(needless=False), _inputs(1, 3, 112, 112)


def wide():
    """Large weights."""
    return Wide(), _inputs(1, 4096)


def deep():
    """Large matmuls."""
    return Deep(), _inputs(768, 768)

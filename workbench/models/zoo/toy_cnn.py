"""A small convolutional image classifier that exports and runs in seconds."""

import torch
from torch import Tensor, nn


class ToyCnn(nn.Module):
    """Three 3x3 convolutions, a 1x1 one, pooling, a linear layer; ``(n, 3, h, w)`` to logits."""

    def __init__(self, classes: int = 10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.conv3 = nn.Conv2d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv2d(64, 128, 1)
        self.act = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.conv1(x))
        x = self.act(self.conv2(x))
        x = self.act(self.conv3(x))
        x = self.act(self.conv4(self.pool(x)))
        return self.fc(x.mean(dim=(2, 3)))


def fill_weights(module: nn.Module) -> nn.Module:
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


def get_eager_model() -> nn.Module:
    return fill_weights(ToyCnn())


def get_example_inputs() -> tuple[Tensor, ...]:
    return (torch.randn(1, 3, 224, 224),)

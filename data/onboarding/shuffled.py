"""A network with fast convolutions, whose channels are moved about between them."""

import torch
from torch import nn


class Block(nn.Module):
    """A third of the channels pass a convolution, as in FasterNet; all are shuffled afterwards."""

    def __init__(self, width):
        super().__init__()
        self.width = width
        self.conv = nn.Conv2d(width // 3, width // 3, 3, padding=1)

    def forward(self, x):
        """Map an image to one of the same shape."""
        kept, passed = x.split([self.width - self.width // 3, self.width // 3], 1)
        x = torch.cat([kept, self.conv(passed).relu()], 1)
        n, c, h, w = x.shape
        return x.view(n, 3, c // 3, h, w).transpose(1, 2).reshape(n, c, h, w)


class Shuffled(nn.Module):
    """Blocks on an image that was made four times smaller, as in ShuffleNet; then it grows."""

    def __init__(self, width=96, blocks=4):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, stride=4)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.head = nn.Sequential(nn.Conv2d(width, 48, 1), nn.PixelShuffle(4))

    def forward(self, x):
        """Map an image to another one of the same size."""
        return self.head(self.blocks(self.stem(x)))

    @staticmethod
    def get_example_inputs():
        """An image."""
        return (torch.rand(1, 3, 256, 256, generator=torch.Generator().manual_seed(0)),)

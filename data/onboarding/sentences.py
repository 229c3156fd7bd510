"""A small network of which XNNPACK leaves the products of attention to other kernels."""

import torch
from torch import nn


class Sentences(nn.Module):
    """One head of attention over the tokens of a sentence, then their mean."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(1000, 256)
        self.query, self.key, self.value = (nn.Linear(256, 256) for _ in range(3))
        self.head = nn.Linear(256, 64)

    def forward(self, tokens):
        """Map the numbers of tokens to one vector."""
        x = self.tokens(tokens)
        weights = (torch.mm(self.query(x), self.key(x).t()) / 16).softmax(-1)
        return self.head(torch.mm(weights, self.value(x)).mean(0, keepdim=True))

    @staticmethod
    def get_example_inputs():
        """The numbers of 128 tokens."""
        return (torch.arange(128),)

"""What depends on no input is what an export may compute, through overwritten buffers."""

import torch
from torch import nn

from workbench.plugins.remedies.equivalence import Finder


class Counting(nn.Module):
    """A table that stays, a counter that is written, and random numbers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.rand(4))
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x):
        fixed, counted, noise = self.table.exp(), self.count * 2, torch.rand(4).sin()
        self.count.add_(1)
        return x * fixed + counted + noise


def test_a_buffer_that_is_written_and_random_numbers_are_no_constants():
    finder = Finder(torch.export.export(Counting(), (torch.rand(4),)))
    computed = {node.name for node in finder.fixed if node.op == "call_function"}
    assert computed == {"exp"}
    assert {node.name for node in finder.constants} == {"b_table", "exp"}

"""Models in memory, programs that run, and the errors of calls, for tests of the public API."""

import numpy as np
import pytest
import torch

from workbench.errors import WorkbenchError
from workbench.models.loader import LoadedModel

__all__ = ["NET", "LoadedModel", "problem", "run_program", "saved_inputs"]

#: A user's file, or cell, with a network.
NET = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x)
"""


def problem(call, *arguments, **options):
    """The kind and the one line of the error that a call raises."""
    with pytest.raises(WorkbenchError) as caught:
        call(*arguments, **options)
    text = f"{type(caught.value).__name__}: {caught.value}"
    assert "\n" not in text
    return text


def saved_inputs(program):
    """The inputs that lie beside a program, as the tensors that it takes."""
    tensors = []
    for tensor in program.inputs:
        data = np.fromfile(program.path.with_name(tensor.file), dtype=tensor.dtype)
        tensors.append(torch.from_numpy(data).reshape(tensor.shape))
    return tensors


def run_program(program, inputs):
    """The outputs of a program in this process."""
    from executorch.extension.pybindings.portable_lib import _load_for_executorch

    return _load_for_executorch(str(program.path)).run_method("forward", inputs)

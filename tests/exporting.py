"""Models in memory, programs that run, and the errors of calls, for tests of the public API."""

import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

import workbench as wb

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


def slow(*values):
    """A case of a parametrised test that is slow."""
    return pytest.param(*values, marks=pytest.mark.cases)


@cache
def _load_any():
    return wb.load_model(torch.nn.Identity(), torch.zeros(1))


def make_model(name, module, inputs, kwargs=None, **fields):
    """A model as `load_model` returns it, which nobody has run."""
    fields |= {"example_inputs": inputs, "kwargs": kwargs or {}}
    return replace(_load_any(), name=name, module=module, **fields)


def export_quietly(model, root, **options):
    """The record of an export; its warning is in the record, too."""
    with warnings.catch_warnings(action="ignore"):
        return wb.export_model(model, options=wb.ExportOptions(**options), root=root).export


def problem(call, *arguments, **options):
    """The kind and the one line of the error that a call raises."""
    with pytest.raises(wb.WorkbenchError) as caught:
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

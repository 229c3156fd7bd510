"""Probe programs that only compute or only move bytes: they measure a machine's peaks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.export.lower import lower_model
from workbench.models.loader import LoadedModel
from workbench.models.process import silence
from workbench.options import ExportOptions
from workbench.records.runs import Probe
from workbench.store import atomic_write

if TYPE_CHECKING:
    from torch import nn

#: Increased with every change of the probes; other versions are not used.
PROBES_VERSION = 1
#: Matrix products that are large enough to be compute-bound.
_SIDE, _PRODUCTS = 1024, 4
#: Footprints of one copying operator, in bytes: from the inner caches to memory.
_FOOTPRINTS = (2**15, 2**18, 2**21, 2**24, 2**27)
#: Sides of matrices that are read once: 1 MB to 64 MB of weights.
_READ_SIDES = (512, 2048, 4096)
#: Bytes that a chain of copying operators moves in all, and its maximum length.
_CHAIN_BYTES, _LONGEST = 2**26, 256
_TINY = 64


def export_probes(dtypes: Iterable[str], folder: Path) -> list[Probe]:
    """Write one program per probe into a folder.

    ``gemm`` multiplies large matrices, once for each of ``dtypes`` (names in `DTYPES`); ``stream``
    negates tensors repeatedly, at several footprints; ``read`` multiplies one row by a matrix,
    which is bound by reading the matrix; ``call`` negates tiny tensors: the cost of a call.
    """
    return [replace(each[0], file=_write(*each, folder)) for each in _design(dtypes)]


def _design(dtypes: Iterable[str]) -> Iterator[tuple[Probe, nn.Module, tuple[int, ...]]]:
    import torch
    from torch import nn

    class Negate(nn.Module):
        def __init__(self, times: int):
            super().__init__()
            self.times = times

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # Two operators that XNNPACK does not fuse.
            for number in range(self.times):
                x = torch.abs(x) if number % 2 else torch.neg(x)
            return x

    torch.manual_seed(0)
    for dtype in dtypes:
        layers = [nn.Linear(_SIDE, _SIDE, bias=False) for _ in range(_PRODUCTS)]
        work = 2 * _SIDE**3 * _PRODUCTS
        yield Probe("gemm", dtype, work, 0, _PRODUCTS), nn.Sequential(*layers), (_SIDE, _SIDE)
    for size in _FOOTPRINTS:
        times = max(4, min(_LONGEST, _CHAIN_BYTES // size))
        yield Probe("stream", "fp32", 0, size, times), Negate(times), (size // 8,)
    for side in _READ_SIDES:
        linear = nn.Linear(side, side, bias=False)
        yield Probe("read", "fp32", 0, 4 * side * (side + 2), 1), linear, (1, side)
    yield Probe("call", "fp32", 0, 0, _LONGEST), Negate(_LONGEST), (_TINY,)
    # The cost of a program beyond its operators.
    yield Probe("program", "fp32", 0, 0, 1), Negate(1), (_TINY,)


def _write(probe: Probe, module: nn.Module, shape: tuple[int, ...], folder: Path) -> str:
    import torch

    name = f"{probe.kind}_{probe.dtype}_{probe.bytes}.pte"
    model = LoadedModel(probe.kind, module.eval(), (torch.randn(shape),))
    with silence():
        lowered = lower_model(model, ExportOptions(dtype=probe.dtype))
    return atomic_write(folder / name, lowered.pte).name

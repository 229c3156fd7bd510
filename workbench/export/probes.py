"""Programs that only compute, or only move bytes: what a machine can do at most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.export.lower import lower_model, quiet
from workbench.models.loader import LoadedModel
from workbench.options import ExportOptions
from workbench.records.runs import Probe
from workbench.store import atomic_write

if TYPE_CHECKING:
    from torch import nn


#: Changes whenever the probes do: those of another version are not used.
PROBES_VERSION = 1
#: Of the matrix products: large enough to be limited by arithmetic alone.
_SIDE, _PRODUCTS = 1024, 4
#: Footprints of one copying operator, in bytes: from the inner caches to memory.
_FOOTPRINTS = (2**15, 2**18, 2**21, 2**24, 2**27)
#: Sides of matrices that are read once: 1 MB to 64 MB of weights.
_READ_SIDES = (512, 2048, 4096)
#: Bytes that a chain of copying operators moves in all, and how long it may be.
_CHAIN_BYTES, _LONGEST = 2**26, 256
_TINY = 64


def export_probes(dtypes: Iterable[str], folder: Path) -> list[Probe]:
    """Write one program per probe into a folder.

    ``gemm`` multiplies large matrices, once for each dtype; ``stream`` negates tensors over and
    over, at several footprints; ``read`` multiplies one row by a matrix, which is as fast as the
    matrix can be read; ``call`` negates tensors so small that only the operator's call is left.

    Parameters
    ----------
    dtypes
        Names in `DTYPES`, of the matrix products.
    folder
        Where to.
    """
    return [
        replace(probe, file=_write(module, probe, shape, folder))
        for probe, module, shape in _design(dtypes)
    ]


def _design(dtypes: Iterable[str]) -> Iterator[tuple[Probe, nn.Module, tuple[int, ...]]]:
    import torch
    from torch import nn

    class Negate(nn.Module):
        def __init__(self, times: int):
            super().__init__()
            self.times = times

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # Two operators that XNNPACK does not make one of.
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
    # What a program takes beyond its operators.
    yield Probe("program", "fp32", 0, 0, 1), Negate(1), (_TINY,)


def _write(module: nn.Module, probe: Probe, shape: tuple[int, ...], folder: Path) -> str:
    import torch

    name = f"{probe.kind}_{probe.dtype}_{probe.bytes}.pte"
    model = LoadedModel(probe.kind, module.eval(), (torch.randn(shape),))
    with quiet():
        lowered = lower_model(model, ExportOptions(dtype=probe.dtype))
    return atomic_write(folder / name, lowered.pte).name

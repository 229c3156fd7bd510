"""Microkernels with an extension off and on."""

from __future__ import annotations

from itertools import groupby

import pandas as pd

from workbench.schema import KERNEL_CHANGES, KERNELS, check

# Data types of operands that are packed for KleidiAI, and what they are of.
_UNPACKED = {"pf16": "f16", "pf32": "f32", "pqs8": "qs8", "qp8": "qd8"}

# How sums are kept, which is the microkernel's own business.
_ACCUMULATOR = "f32acc"


def compare_kernels(on: pd.DataFrame, off: pd.DataFrame) -> pd.DataFrame:
    """Which microkernels an extension replaces.

    What is compared is the set of microkernels registered for one type of microkernel and the same
    data types; that operands are packed for KleidiAI (``pf32``, ``pqs8``, ``qp8``) makes no other
    data type. A microkernel that was registered need not have run.

    Parameters
    ----------
    on, off
        :data:`workbench.schema.KERNELS` of runs of one program, with the extension and without.

    Returns
    -------
    pandas.DataFrame
        :data:`workbench.schema.KERNEL_CHANGES`: what changed first, then in the order of the logs.
    """
    sides = {name: _by_purpose(check(frame, KERNELS)) for name, frame in (("on", on), ("off", off))}
    needs = on.set_index("kernel")[["sme", "sme2"]]
    rows = []
    for purpose in dict.fromkeys([*sides["on"], *sides["off"]]):
        kernels_on, kernels_off = (sides[side].get(purpose, []) for side in ("on", "off"))
        rows.append(
            {
                "type": purpose[0],
                "dtype": purpose[1],
                "off": ", ".join(kernels_off),
                "on": ", ".join(kernels_on),
                "change": _change(kernels_on, kernels_off),
                "sme": bool(needs.loc[kernels_on, "sme"].any()),
                "sme2": bool(needs.loc[kernels_on, "sme2"].any()),
            }
        )
    table = pd.DataFrame(rows, columns=KERNEL_CHANGES.names)
    order = (table["change"] == "same").sort_values(kind="stable").index
    return check(table.loc[order].reset_index(drop=True), KERNEL_CHANGES)


def _by_purpose(kernels: pd.DataFrame) -> dict[tuple[str, str], list[str]]:
    """The distinct microkernels by type and unpacked data types, in the order of the log."""
    purposes: dict[tuple[str, str], dict[str, None]] = {}
    columns = kernels[["operator", "kernel", "type", "dtype"]]
    for operator, kernel, kind, dtype in columns.itertuples(index=False):
        purposes.setdefault((kind or operator, _unpack(dtype)), {})[kernel] = None
    return {purpose: list(found) for purpose, found in purposes.items()}


def _unpack(dtype: str) -> str:
    """The data types without packing and accumulators: ``pf16_f16`` and ``f16_f32acc`` are f16."""
    parts = [_UNPACKED.get(part, part) for part in dtype.split("_") if part != _ACCUMULATOR]
    return "_".join(part for part, _ in groupby(parts))


def _change(on: list[str], off: list[str]) -> str:
    if not on:
        return "only off"
    if not off:
        return "only on"
    return "same" if set(on) == set(off) else "changed"

"""In which dtype the convolutions and matrix products of a program ran, and why not in its own."""

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from workbench.analysis.dataflow import SEALED
from workbench.analysis.roofline import computed_dtype, dtype_of
from workbench.emulation import is_emulated
from workbench.frames import DTYPES
from workbench.options import GROUP_SIZE, ModuleDtypes, dtype_of_module
from workbench.records.exports import Export
from workbench.wording import format_share, format_size

#: Families of matrix products, and of all operators that a dtype is asked for; the others follow
#: their operands.
PRODUCTS = ("convolution", "deconvolution", "gemm", "bmm")
ASKED = (*PRODUCTS, "depthwise")
_LINEAR_ONLY = ("int8dyn", "8da4w", "8da4c")
_QUANTIZED = ("int8", *_LINEAR_ONLY)


def tabulate_dtypes(operators: pd.DataFrame, export: Export) -> pd.DataFrame:
    """The convolutions and matrix products of one measurement: ``frames.DTYPES``."""
    work = operators["kind"].isin(["delegated", "portable"])
    rows = operators[work & operators["family"].isin(ASKED)].reset_index(drop=True)
    asked = computed_dtype(export)
    ran = [dtype_of(name, export.dtype) for name in rows["operator"]]
    reasons = [
        "" if dtype == asked else explain_float(row, export)
        for row, dtype in zip(rows.to_dict("records"), ran, strict=True)
    ]
    if "module" not in rows:
        rows["module"] = None
    table = rows.assign(asked=asked, dtype=ran, reason=reasons)
    return DTYPES.check(table[DTYPES.names])


def describe_coverage(dtypes: pd.DataFrame) -> str:
    """``2 of 28 convolutions and matrix products ran in int8 (1 % of their time)``."""
    asked, right = dtypes["asked"].iloc[0], dtypes["dtype"] == dtypes["asked"]
    text = f"{right.sum()} of {len(right)} convolutions and matrix products ran in {asked}"
    if is_emulated(dtypes):
        return text
    share = dtypes["mean_ms"][right].sum() / dtypes["mean_ms"].sum()
    return f"{text} ({format_share(share)} of their time)"


def describe_dtypes(dtypes: pd.DataFrame) -> str:
    """The same with the reasons of the others, the most frequent first."""
    reasons = dtypes[dtypes["reason"] != ""].groupby(["dtype", "reason"], sort=False).size()
    texts = [f"{n} in {dtype}: {reason}" for (dtype, reason), n in reasons.nlargest(3).items()]
    return "; ".join([describe_coverage(dtypes), *texts])


def describe_fidelity(export: Export | None, dtypes: pd.DataFrame | None) -> str:
    """``int8: SQNR 25.0 dB, 2.7 MB``, and how much ran in this dtype; of unknown origin: empty."""
    if export is None:
        return ""
    ratio = "unknown" if export.sqnr_db is None else f"{export.sqnr_db:.1f} dB"
    parts = [f"{export.dtype}: SQNR {ratio}", format_size(export.size_bytes)]
    return ", ".join(parts if dtypes is None else [*parts, describe_coverage(dtypes)])


def is_quantized(dtype: str) -> bool:
    """Whether programs of a dtype have integer operators."""
    return dtype in _QUANTIZED


def module_dtypes(export: Export) -> ModuleDtypes:
    """The dtypes that modules were to have."""
    pairs = filter(None, export.options.get("module_dtypes", "").split(", "))
    return tuple((pattern, dtype) for pattern, _, dtype in (p.rpartition("=") for p in pairs))


def group_size(export: Export) -> int:
    """How many int4 weights share a scale, as far as the export says."""
    size = export.options.get("group_size", "")
    return int(size) if size.isdecimal() and int(size) else GROUP_SIZE


def explain_float(row: Mapping[str, Any], export: Export) -> str:
    """Why an operator of the operators frame does not run in its dtype, as far as is known."""
    if not is_quantized(export.dtype):
        return f"XNNPACK has no {export.dtype} kernel for it on this CPU"
    cause = cannot_quantize(row, export.dtype, module_dtypes(export), group_size(export))
    if not cause and row["family"] == "deconvolution":
        return "a transposed convolution in groups: XNNPACK's quantiser has a pattern for one group"
    if not cause and row["family"] == "gemm" and row.get("module_class") != "Linear":
        return "a product outside of a linear layer: XNNPACK's quantiser has no pattern for it"
    return cause or "no pattern of XNNPACK's quantiser has it"


def cannot_quantize(
    row: Mapping[str, Any], dtype: str, modules: ModuleDtypes = (), size: int = GROUP_SIZE
) -> str:
    """What keeps an operator from being quantised; empty if nothing is known to."""
    module, kind = str(row.get("module") or ""), str(row.get("module_class") or "")
    if dtype_of_module(module, dtype, modules) != dtype:
        return f"{dtype_of_module(module, dtype, modules)} by --module-dtype"
    if kind in SEALED:
        return f"inside nn.{kind}, which the quantiser sees as one operator"
    if row["kind"] == "portable":
        return "outside the delegate"
    if row["family"] == "bmm":
        return "product of two activations, without weights to quantise"
    if dtype not in _LINEAR_ONLY:
        return ""
    if row["family"] != "gemm" or kind.startswith("Conv"):
        return f"not a linear layer; {dtype} quantises only those"
    inputs = re.match(r"[\dx]*?(\d+)(?:,| ->)", str(row.get("shapes") or ""))
    if dtype == "8da4w" and inputs and int(inputs[1]) % size:
        return f"its inputs do not divide into groups of {size}"
    return ""

"""Which microkernels a program would run with Arm SME2 and without it, before a device is at hand.

A static prediction from the exported operators; runs with SME2 off and on, for example under QEMU,
add what was executed. How fast the kernels are is not known here.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from workbench import Comparison, Measurement, Program, WorkbenchError
from workbench.api import Frame
from workbench.graphs import predict_calls, resize

SME2 = Frame.make(
    "sme2",
    ("instruction", "int", "", "which instruction of the method"),
    ("xnodes", "text", "", "operators of the sidecar's delegate that it does; empty for a kernel"),
    ("operator", "text", "", "type of the exported operator, or the kernel"),
    "module",
    ("dtype", "text", "", "of its first input and of its weights"),
    "shapes",
    ("m", "float", "", "rows of the matrix product; NaN if it is none"),
    ("n", "float", "", "columns of the product, in each group"),
    ("k", "float", "", "terms of each sum"),
    ("flops", "float", "FLOP/call", "floating-point operations; NaN where unknown"),
    ("kernel_off", "text", "", "kernel without SME2: sme2_mopa | i8mm | neon | portable | ..."),
    ("kernel_on", "text", "", "kernel with SME2"),
    ("reason", "text", "", "what limits it with SME2; empty if nothing is known to"),
    ("remedy", "text", "", "what would bring it onto SME2"),
)

#: The versions of ExecuTorch whose XNNPACK was executed.
CHECKED = ("1.5.0", "1.5.1")
#: Kernels of matrix products by the types of activations and weights, of one row and of several:
#: without SME2 on an Armv8.6 core (i8mm, dot products, fp16), and with it. Executed under QEMU with
#: the XNNPACK of ExecuTorch 1.5 (``tests/plugins/targets/test_qemu.py``).
_PRODUCTS = {
    ("fp32", "fp32"): (("neon", "neon"), ("sme2_mla", "sme2_mopa")),
    ("fp16", "fp16"): (("fp16", "fp16"), ("sme2_dot", "sme2_mopa")),
    ("fp16", "fp32"): (("fp16", "fp16"), ("fp16", "fp16")),
    ("qint8", "qcint8"): (("i8mm", "i8mm"), ("sme2_dot", "sme2_mopa")),
    ("qdint8", "qcint8"): (("dotprod", "i8mm"), ("sme2_dot", "sme2_mopa")),
    ("qdint8", "qcint4"): (("dotprod", "i8mm"), ("sme2_sdot", "sme2_mopa")),
    ("qdint8", "qbint4"): (("dotprod", "i8mm"), ("dotprod", "i8mm")),
}
#: Kernels of convolutions by their type and that of activations; those of one position are alike.
_CONVOLUTIONS = {
    ("Conv2d", "fp32"): ("neon", "sme2_mopa"),
    ("Conv2d", "fp16"): ("fp16", "sme2_mopa"),
    ("Conv2d", "qint8"): ("i8mm", "sme2_mopa"),
    ("Conv2d", "qdint8"): ("i8mm", "i8mm"),
    ("ConvTranspose2d", "fp32"): ("neon", "neon"),
    ("ConvTranspose2d", "fp16"): ("fp16", "fp16"),
    ("ConvTranspose2d", "qint8"): ("i8mm", "sme2_mopa"),
    ("ConvTranspose2d", "qdint8"): ("i8mm", "i8mm"),
    ("DepthwiseConv2d", "fp32"): ("neon", "neon"),
    ("DepthwiseConv2d", "fp16"): ("fp16", "fp16"),
    ("DepthwiseConv2d", "qint8"): ("neon", "neon"),
    ("LargeDepthwiseConv2d", "fp32"): ("neon", "neon"),
    ("LargeDepthwiseConv2d", "fp16"): ("fp16", "fp16"),
    ("LargeDepthwiseConv2d", "qint8"): ("i8mm", "i8mm"),
}
#: XNNPACK's depthwise kernels read at most so many values; larger filters run as one product of one
#: column for each channel.
_MOST_TAPS = 25
_TYPES = (
    "FullyConnected",
    "BatchMatrixMultiply",
    "Conv2d",
    "ConvTranspose2d",
    "DepthwiseConv2d",
)
#: Rows and columns of the tile that ``sme2_mopa`` computes at once with vectors of 512 bits, by
#: activations; from the names of KleidiAI's kernels (``2vlx2vl``, ``1vlx4vl``).
_TILES = {"fp32": (32, 32), "fp16": (32, 32), "qint8": (32, 32), "qdint8": (16, 64)}
#: Less of a tile than this, and shorter sums than this, are worth a remark.
_FULL, _SHORT = 0.5, 32
_UNKNOWN, _NO_PRODUCT, _PORTABLE = "unknown", "no product", "portable"
#: Functions of KleidiAI that prepare the operands of a product.
_PACKING = r"^kai_.*(?:lhs|pack|commit)"
_KLEIDIAI = r"_(sme2?_[a-z]+|(?<=neon_)(?:i8mm|dotprod))$"
#: Fewer samples than this do not name a kernel.
_LEAST_SAMPLES = 3

_DTYPE = "--dtype "
ONE_ROW = "one row: limited by reading the weights; published speed-ups are 0.3x to 1.1x"
LIMITS = (
    f"Predicted from the program and the XNNPACK of ExecuTorch {' and '.join(CHECKED)}: which "
    "kernels run, not how fast. "
    "Cores share an SME2 unit: in published runs, four threads were slower than two."
)


def describe_limits(version: str) -> str:
    """What a prediction does not say, and whether it was checked with a version of ExecuTorch."""
    unchecked = f"Not checked: executorch {version} is not among {', '.join(CHECKED)}."
    return LIMITS if version in CHECKED else f"{LIMITS} {unchecked}"


def predict_kernels(layers: Any) -> pd.DataFrame:
    """The kernel of every operator of the first method with SME2 and without: ``frames.SME2``.

    Operators are those that XNNPACK runs on a CPU with fp16 kernels.
    """
    method, rows = layers.methods[0], []
    numbers = {id(call): number for number, call in enumerate(method.instructions)}
    for row, call, done, values in predict_calls(method):
        kernels = {"kernel_off": _PORTABLE, "kernel_on": _PORTABLE, "operator": call.name}
        if done:
            main = next((node for node in done if node.type in _TYPES), done[-1])
            kernels = _choose_kernels(main, values)
        rows.append(row | kernels | {"instruction": numbers[id(call)]})
    texts = {name: "" for name, kind, *_ in SME2.columns if kind == "text"}
    filled = ({name: value for name, value in row.items() if value is not None} for row in rows)
    return SME2.check(pd.DataFrame([texts | row for row in filled], columns=SME2.names))


def _choose_kernels(node: Any, values: Mapping[int, Any]) -> dict[str, Any]:
    """Kernels, sizes of the product, what limits it with SME2, and what would bring it there."""
    if node.type not in _TYPES:
        names = dict.fromkeys(("kernel_off", "kernel_on"), _NO_PRODUCT)
        return {"operator": node.type, "dtype": values[node.inputs[0]].dtype, **names}
    left, right = (values[number] for number in node.inputs[:2])
    result, groups = values[node.outputs[0]], node.attributes.get("groups", 1)
    kind = "FullyConnected" if node.is_pointwise else node.type
    types, name = (left.dtype, right.dtype), kind
    n, k = result.shape[-1], left.shape[-1]
    m = left.shape[-2] if kind == "BatchMatrixMultiply" else math.prod(result.shape[:-1])
    if kind == "FullyConnected":
        name = "1x1 convolution" if node.type == "Conv2d" else "linear"
    if kind in ("FullyConnected", "BatchMatrixMultiply"):
        off, on = _PRODUCTS.get(types, ((_UNKNOWN,) * 2,) * 2)
        kernels = off[m > 1], on[m > 1]
    else:
        n, k = n // groups, math.prod(right.shape[1:])
        k //= result.shape[-1] if kind == "DepthwiseConv2d" else 1
        size = "Large" if kind == "DepthwiseConv2d" and k > _MOST_TAPS else ""
        kernels = _CONVOLUTIONS.get((f"{size}{kind}", left.dtype), (_UNKNOWN,) * 2)
    sizes = {"m": float(m), "n": float(n), "k": float(k)}
    row = {"operator": name, "dtype": f"{types[0]} x {types[1]}", **sizes}
    row |= dict(zip(("kernel_off", "kernel_on"), kernels, strict=True))
    return row | dict(zip(("reason", "remedy"), _explain(row, kind, types, groups), strict=True))


def _explain(
    row: dict[str, Any], kind: str, types: tuple[str, str], groups: int
) -> tuple[str, str]:
    """What limits a product with SME2, and what would bring it there; empty if nothing does."""
    m, n, k, on = int(row["m"]), int(row["n"]), int(row["k"]), row["kernel_on"]
    if on == _UNKNOWN:
        return f"not known for {row['dtype']}", ""
    if kind == "DepthwiseConv2d":
        if k > _MOST_TAPS:
            return f"depthwise with {k} filter taps: {n}-column products, no SME2 kernel", ""
        return "depthwise: no matrix product, no SME2 kernel", ""
    if types[0] == "qdint8" and kind in ("Conv2d", "ConvTranspose2d"):
        return "a convolution with ranges found at run time: no SME2 kernel", f"{_DTYPE}int8"
    if types[1] == "qbint4":
        return "int4 weights in groups: no SME2 kernel", f"{_DTYPE}8da4c"
    if kind == "ConvTranspose2d" and "sme2" not in on:
        return "transposed convolution: an SME2 kernel in int8 only", f"{_DTYPE}int8"
    if types == ("fp16", "fp32") and "sme2" not in on:
        return "its fp16 weights are stored as fp32: no SME2 kernel", f"{_DTYPE}fp16w"
    if on != "sme2_mopa":
        return ONE_ROW, "more rows: a batch, or several tokens at once"
    high, wide = _TILES[types[0]]
    filled = m / (math.ceil(m / high) * high) * n / (math.ceil(n / wide) * wide)
    if filled < _FULL:
        text = f"fills {100 * filled:.0f} % of its {high} x {wide} tiles (m = {m}, n = {n})"
        return text, f"one group instead of {groups}" if groups > 1 else ""
    return (f"short sums: {k} terms" if k < _SHORT else ""), ""


def add_executed(
    table: pd.DataFrame, sides: Sequence[tuple[pd.DataFrame, pd.DataFrame]]
) -> pd.DataFrame:
    """The predicted kernels with those that ran: ``executed_off``, ``executed_on``.

    ``sides`` are the operators and the evidence of two measurements, without SME2 and with it. A
    kernel is empty where there are fewer than `_LEAST_SAMPLES` samples of it.
    """
    place = list(zip(table["instruction"], table["xnodes"], strict=True))
    for name, (operators, evidence) in zip(("off", "on"), sides, strict=True):
        executed: dict[tuple[int, str], str] = {}
        computing = evidence[~evidence["function"].str.contains(_PACKING)]
        top = computing.drop_duplicates("key").set_index("key")
        for row in operators[operators["xnodes"].notna()].itertuples():
            if row.key in top.index and top.at[row.key, "samples"] >= _LEAST_SAMPLES:
                # ``sme2_mopa`` of a microkernel of KleidiAI, else its class of machine code.
                match = re.search(_KLEIDIAI, top.at[row.key, "function"])
                label = match[1] if match else top.at[row.key, "code"]
                executed[_instruction_of(row.key), row.xnodes] = label
        table[f"executed_{name}"] = [executed.get(key, "") for key in place]
    return table


def _instruction_of(key: str) -> int:
    """The instruction number in a ledger key; -1 for another chain or method."""
    number = key.partition("/")[0]
    return int(number) if number.isdecimal() else -1


def describe_kernels(table: pd.DataFrame) -> str:
    """How much of the arithmetic of matrix products would run on SME2, as a sentence."""
    products = table[table["m"].notna()]
    total = products["flops"].sum()
    if not total:
        return "no matrix products or convolutions in delegates: SME2 changes nothing"
    on = products["kernel_on"].str.startswith("sme2")
    one_row = on & (products["reason"] == ONE_ROW)
    shares = [products["flops"][rows].sum() / total for rows in (on & ~one_row, one_row, ~on)]
    kernels, one, without = (f"{100 * s:.{int(s < 0.0995)}f} %" for s in shares)
    return (
        f"of the arithmetic in matrix products and convolutions ({len(products)}), {kernels} would "
        f"run in SME2 kernels of several rows, {one} in those of one row, and {without} in none; "
        f"operators outside of XNNPACK: {(table['kernel_on'] == _PORTABLE).sum()}"
    )


def group_kernels(table: pd.DataFrame) -> pd.DataFrame:
    """The operators by type, dtype and kernels, the most arithmetic first."""
    executed = [name for name in ("executed_off", "executed_on") if name in table]
    by = ["operator", "dtype", "kernel_off", "kernel_on", *executed, "reason", "remedy"]
    groups = table.groupby(by, sort=False)
    kernels = groups.agg(operators=("flops", "size"), flops=("flops", "sum")).reset_index()
    kernels["share"] = kernels["flops"] / table["flops"].sum()
    columns = ["operator", "dtype", "operators", "share", *by[2:]]
    return kernels.sort_values("share", ascending=False, kind="stable")[columns]


def predict_program(program: Program) -> dict[str, pd.DataFrame]:
    """``frames.SME2`` of a program by its name, dtype, signal to noise ratio and size of inputs.

    Of dynamic inputs, the largest size and 1: prefill and decode of a language model.
    """
    layers, export = program.layers, program.export
    if layers is None:
        hint = "export it here, or copy its .layers.json with it"
        raise WorkbenchError("its operators are unknown", where=program.path, hint=hint)
    parts = [program.model] + ([export.dtype] if export else [])
    if export and export.sqnr_db is not None:
        parts.append(f"SQNR {export.sqnr_db:.1f} dB")
    tensors = [tensor for tensor in program.inputs if any(tensor.dims)]
    named = [list(zip(each.dims, each.most, strict=True)) for each in tensors]
    most = {dim: size for pairs in named for dim, size in pairs if dim}
    ones = [tuple(1 if dim else size for dim, size in pairs) for pairs in named]
    small = resize(layers, [(t.most, one) for t, one in zip(tensors, ones, strict=True)])
    sizes = [(dict.fromkeys(most, 1), small)] * bool(most) + [(most, layers)]
    return {
        ", ".join([*parts, *(f"{dim}={n}" for dim, n in dims.items())]): predict_kernels(each)
        for dims, each in sizes
        if each
    }


def list_dtypes(program: Program) -> list[str]:
    """The dtypes that would bring some of a program's operators onto SME2."""
    tables = predict_program(program).values()
    remedies = dict.fromkeys(text for table in tables for text in table["remedy"])
    return [text.removeprefix(_DTYPE) for text in remedies if text.startswith(_DTYPE)]


def predict_measured(m: Measurement) -> pd.DataFrame | None:
    """The kernels that its program would run with SME2 and without: ``frames.SME2``."""
    return predict_kernels(m.resized) if m.resized and m.resized.methods else None


def predict_compared(ab: Comparison) -> pd.DataFrame | None:
    """The kernels that the program would run with SME2 and without: ``frames.SME2``.

    If the sides differ in SME2, and both were sampled, ``executed_off`` and ``executed_on`` name
    those that did run.
    """
    table, sides = predict_measured(ab.candidate), (ab.baseline, ab.candidate)
    evidence = [(side.operators, side.machine_code) for side in sides]
    if table is None or ab.toggle != "sme2" or any(each is None for _, each in evidence):
        return table
    return add_executed(table, evidence)

"""Rules that look at times: against another level, thread count, dtype, and the machine's roofs."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import pandas as pd

from workbench.analysis.findings.context import (
    EFFICIENCY,
    Finding,
    Gain,
    RuleContext,
    count,
    layers_of,
)

#: A speed-up below which an extension did nothing, and one above which it surely did.
_NO_SPEEDUP, _SPEEDUP = 1.1, 1.2
_PRODUCTS = ("convolution", "gemm", "bmm", "deconvolution")
#: What one call of the runtime takes at least, about; operators like it are overhead.
_TINY_MS = 0.005
#: Part of the memory's roof from which on an operator waits for memory: weights that are used once
#: per inference come from further away than what a probe reads again and again.
_WAITING = 1 / 3
_MATRICES = ("Convolution", "GEMM")
_WEIGHTED = ("Conv2d", "FullyConnected", "ConvTranspose2d", "DepthwiseConv2d")


def find_slow_products(context: RuleContext, left: Collection[str]) -> Iterator[Finding]:
    """Convolutions and matrix products that an extension did not speed up."""
    if context.changes is None or not context.toggle:
        return
    changes = context.changes.set_index("key").join(context.rows[["family", "mean_ms"]])
    products = changes[changes["family"].isin(_PRODUCTS)]
    peers = products[products["low"] > _SPEEDUP]["speedup"]
    same = products[(products["high"] < _NO_SPEEDUP) & products.index.isin(left)]
    same = same[~same.index.isin(_waiting(context))]
    for name, part in same.groupby("name", sort=False):
        keys = list(part.index)
        spent = context.spent(keys)
        gain = Gain.at_most(spent.ms)
        if len(peers) >= 3:
            least, typical, most = (1 - 1 / np.percentile(peers, q) for q in (10, 50, 90))
            gain = Gain(spent.ms * typical, spent.low * least, spent.high * most)
        ratio = part["baseline_ms"].sum() / part["candidate_ms"].sum()
        yield Finding(
            f"{context.toggle} does not speed up {name}: {ratio:.2f}x over "
            f"{count(len(keys), 'operator')}; in "
            f"{layers_of(context.rows.loc[keys]) or 'layers that are not known'}"
            f"{_kernels_of(context, keys)}",
            gain,
            tuple(keys),
            "see which kernel it runs, and give it operands that the extension's kernel takes: "
            "another dtype, static per-channel weights, no depthwise or grouped form",
            "workbench export MODEL --dtype int8",
        )


def find_wide_weights(context: RuleContext, left: Collection[str]) -> Iterator[Finding]:
    """Half-precision convolutions whose weights are stored in single precision."""
    if not context.flow:
        return
    wide = [
        step
        for step in context.flow.steps
        if step.type in ("Conv2d", "FullyConnected")
        and context.flow.tensors[step.reads[0]].dtype in ("fp16", "float16")
        and context.flow.tensors[step.reads[1]].constant
        and context.flow.tensors[step.reads[1]].dtype in ("fp32", "float32")
        and _is_pointwise_convolution(context.flow.tensors[step.reads[1]].shape)
    ]
    keys = [key for key in context.keys_of(wide) if key in left]
    if not keys:
        return
    yield Finding(
        f"the weights of {len(keys)} half-precision 1x1 convolutions are in single precision, with "
        f"which XNNPACK runs these without SME2 kernels; in {layers_of(context.rows.loc[keys])}",
        Gain.at_most(context.spent(keys).ms),
        tuple(keys),
        "store these weights in half precision; it pays on an Arm CPU with SME2",
        "workbench export MODEL --dtype fp16w",
    )


def find_tiny_operators(context: RuleContext, left: Collection[str]) -> Iterator[Finding]:
    """Operators so short that the calls around them count."""
    rows = context.rows[context.rows.index.isin(left)]
    kinds = rows["kind"]
    tiny = rows[(rows["mean_ms"] < _TINY_MS * rows["calls"]) & kinds.isin(["portable"])]
    calls = rows[kinds.isin(["call_overhead", "framework"])]
    keys = [*calls.index, *tiny.index]
    if len(tiny) < 2:
        return
    outside = context.spent(calls.index)
    yield Finding(
        f"{len(tiny)} kernels are shorter than {_TINY_MS * 1e3:g} µs, and the calls around all "
        f"kernels take {outside.ms / max(len(calls), 1) * 1e3:.1f} µs each",
        Gain.at_most(context.spent(keys).ms),
        tuple(keys),
        "do more in one call: batch inputs, merge operators, drop those that change nothing",
        "workbench export MODEL  # --rewrite, the default, drops some",
    )


def find_threads(context: RuleContext, left: Collection[str]) -> Iterator[Finding]:
    """More threads than pay."""
    table = context.statistics
    if table is None or len(table) < 2:
        return
    own = table[table["threads"] == context.threads].iloc[0]
    fewer = table[(table["threads"] < context.threads) & (table["high"] < own["low"])]
    if fewer.empty:
        return
    best = fewer.loc[fewer["median"].idxmin()]
    yield Finding(
        f"{context.threads} threads are slower than {best['threads']}: {own['median']:.3g} ms "
        f"against {best['median']:.3g} ms",
        Gain(
            own["median"] - best["median"],
            own["low"] - best["high"],
            own["high"] - best["low"],
            "measured",
        ),
        (),
        f"run it with {best['threads']} threads",
        f"workbench run MODEL.pte --threads {best['threads']}",
    )


def find_dtype(context: RuleContext, left: Collection[str]) -> Iterator[Finding]:
    """Another dtype: measured where it was exported, bounded by the matrix products otherwise."""
    own = context.own
    faster = [rival for rival in context.alternatives if own and rival.high < own.low]
    if faster:
        best = min(faster, key=lambda rival: rival.ms)
        yield Finding(
            f"in {best.dtype} the same model takes {best.ms:.3g} ms instead of {own.ms:.3g} ms",
            Gain(own.ms - best.ms, own.low - best.high, own.high - best.low, "measured"),
            (),
            f"use {best.dtype}, if what it computes is good enough: see the record of its export",
            f"workbench profile MODEL --dtype {best.dtype}",
        )
    if context.alternatives or not context.export or context.export.dtype != "fp32":
        return
    rows = context.rows[
        (context.rows["kind"] == "delegated") & context.rows["category"].isin(_MATRICES)
    ]
    keys = [key for key in rows.index if key in left]
    yield Finding(
        "convolutions and matrix products are in single precision; int8 needs a quarter of their "
        "bytes, and was not measured",
        Gain.at_most(0.75 * context.spent(keys).ms),
        tuple(keys),
        "export it in int8 and measure that",
        "workbench profile MODEL --dtype int8",
    )


def find_memory_bound(context: RuleContext, left: Collection[str]) -> Iterator[Finding]:
    """Operators that wait for the weights that they read."""
    if not context.flow or context.roof is None:
        return
    keys, kept, fastest, size = [], 0.0, 0.0, 0.0
    for key in _waiting(context):
        share = _weight_share(context, key) if key in left else 0.0
        if share > 0.5:
            keys.append(key)
            # Weights of one byte instead of four; everything else stays.
            part, row = 1 - 0.75 * share, context.rows.loc[key]
            kept += context.spent([key]).ms * part
            size += row["bytes"]
            # The smaller ones may come from a cache that these do not fit into.
            rate = context.roof.bandwidth(part * row["bytes"])
            fastest += row["calls"] * part * row["bytes"] / rate / 1e6 / min(context.scale, 1.0)
    if not keys:
        return
    spent = context.spent(keys)
    roof = _roofline(context).set_index("key").loc[keys]
    speed = (roof["bytes_per_run"].sum() / 1e6) / roof["mean_ms"].sum() / context.scale
    near = roof["least_ms"].sum() / roof["mean_ms"].sum()
    slower = (spent.ms - kept) / 2
    yield Finding(
        f"memory limits {count(len(keys), 'operator')}: {size / 1e6:.0f} MB, mostly weights, are "
        f"read at {speed:.0f} GB/s, {100 * near:.0f} % of what this core can do; in "
        f"{layers_of(context.rows.loc[keys])}",
        Gain(spent.ms - kept, max(0.0, slower), spent.high - min(fastest, kept)),
        tuple(keys),
        "no faster arithmetic helps: make the weights smaller, or use them for several inputs at "
        "once",
        "workbench profile MODEL --dtype int8dyn  # weights of one byte",
    )


def find_compute_bound(context: RuleContext, left: Collection[str]) -> Iterator[Finding]:
    """Operators near the most that the CPU can compute in this dtype."""
    if context.roofline is None or context.roof is None:
        return
    table = _roofline(context)
    rows = table[
        (table["bound"] == "compute")
        & (table["roof_share"] >= EFFICIENCY[1])
        & table["key"].isin(left)
        & (table["dtype"] == "fp32")
    ]
    ratio = context.roof.peak("int8") / context.roof.peak("fp32")
    if rows.empty or not ratio > 1:
        return
    spent = context.spent(rows["key"])
    # The ceilings themselves are as certain as one process is like another.
    best = 1 + context.roof.spread
    slow, typical, fast = (spent.ms / ratio / part for part in (0.5, 0.75, best))
    yield Finding(
        f"arithmetic limits {count(len(rows), 'operator')}, which run at "
        f"{100 * rows['least_ms'].sum() / rows['mean_ms'].sum():.0f} % of what this core can "
        f"compute in single precision ({context.roof.peak('fp32'):.0f} GFLOP/s); in "
        f"{layers_of(context.rows.loc[list(rows['key'])])}",
        Gain(spent.ms - typical, max(0.0, spent.low - slow), spent.high - fast),
        tuple(rows["key"]),
        f"compute less, or in int8, which this core does {ratio:.1f} times as fast",
        "workbench profile MODEL --dtype int8",
    )


def find_far_from_roof(context: RuleContext, left: Collection[str]) -> Iterator[Finding]:
    """The operators with the most time between them and the roof."""
    if context.roofline is None:
        return
    table = _roofline(context)
    rows = table[
        table["key"].isin(left)
        & (table["roof_share"] < EFFICIENCY[1])
        & table["bound"].isin(["compute", "memory"])
    ]
    rows = rows.assign(lost=rows["mean_ms"] - rows["least_ms"]).nlargest(3, "lost")
    for row in rows.itertuples():
        yield Finding(
            f"{row.operator} runs at {100 * row.roof_share:.0f} % of what this core can do "
            f"({row.bound}-bound): {row.shapes}; in {layers_of(context.rows.loc[[row.key]])}",
            Gain.at_most(row.lost),
            (row.key,),
            "see whether it is as slow alone; if not, it waits for data that left the caches: less "
            "data, or weights in fewer bytes"
            if row.bound == "memory"
            else "see whether it is as slow alone; if so, its shape does not suit the kernel: try "
            "channels in multiples of 16",
            f"workbench replay RUN_DIR --layer {context.rows.loc[row.key, 'module'] or '...'}",
        )


def _kernels_of(context: RuleContext, keys: list[str]) -> str:
    """Which functions some operators ran in, for a sentence; nothing where no sample tells."""
    names = dict.fromkeys(context.kernels[key] for key in keys if key in context.kernels)
    return f"; it ran in {', '.join(list(names)[:2])}" if names else ""


def _waiting(context: RuleContext) -> list[str]:
    """Operators that run near the roof of the memory."""
    if context.roofline is None:
        return []
    table = _roofline(context)
    near = (table["bound"] == "memory") & (table["roof_share"] >= _WAITING)
    return list(table[near]["key"])


def _roofline(context: RuleContext) -> pd.DataFrame:
    """The roofline with what other programs added to traced times taken off, never above 1."""
    share = (context.roofline["roof_share"] / min(context.scale, 1.0)).clip(upper=1.0)
    return context.roofline.assign(roof_share=share, least_ms=share * context.roofline["mean_ms"])


def _weight_share(context: RuleContext, key: str) -> float:
    """Which part of the bytes of an operator are weights of four bytes."""
    total = weights = 0.0
    for node_id in context.node_ids.get(key, ()):
        step = context.flow.by_id.get(node_id)
        if step and step.type in _WEIGHTED:
            tensors = [context.flow.tensors[place] for place in (*step.reads, *step.writes)]
            total += sum(tensor.size_bytes for tensor in tensors)
            weights += sum(t.size_bytes for t in tensors if t.constant and t.dtype == "fp32")
    return weights / total if total else 0.0


def _is_pointwise_convolution(shape: tuple[int, ...]) -> bool:
    """Whether a filter, in OHWI, is 1x1; a linear layer's weights, which have two dims, are not."""
    return len(shape) == 4 and shape[1:3] == (1, 1)

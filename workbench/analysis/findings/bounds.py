"""Rules on what bounds layers: memory, weights, the arithmetic of the machine."""

import math
from collections.abc import Collection, Iterator

import pandas as pd

from workbench.analysis.dataflow import SEALED, WEIGHTED, FlowStep
from workbench.analysis.findings import commands, gains
from workbench.analysis.findings.finding import Finding, Gain
from workbench.analysis.findings.gains import keys_of, time_spent
from workbench.analysis.roofline import NEAR_ROOF, Roof
from workbench.analysis.run import Measurement
from workbench.records.layer_sidecar import Value
from workbench.wording import format_size, plural

#: Channels of a vector of any CPU, and the most channels of an image.
_TILE, _IMAGE_CHANNELS = 16, 4


def find_memory_bound(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Operators limited by reading their weights, which can be smaller, or are quantised."""
    products = list_products(m)
    near = [key for key in list_memory_bound(m) if key in unclaimed and key in products]
    shares = {key: share for key in near if (share := _weight_share(m, key)) > 0.5}
    if shares and m.roof is not None:
        yield _tell_weights(m, shares, m.roof, products)
    quantized = [key for key in near if _reads_quantized(m, products[key])]
    if quantized:
        size, speed = _read_speed(m, quantized)
        yield Finding(
            f"memory limits {plural(len(quantized), 'operator')} with quantised weights: "
            f"{size} are {speed}",
            Gain.at_most(time_spent(m, quantized).ms),
            quantized,
            "compute several tokens or samples at once, which read the weights once: batches, or "
            "speculative decoding; faster arithmetic does not help",
            command="workbench run MODEL.pte --sweep tokens=1,2,4,8  # when does latency grow?",
        )


def _reads_quantized(m: Measurement, step: FlowStep) -> bool:
    tensors = [m.flow.tensors[tensor] for tensor in step.reads]
    return any(tensor.constant and tensor.dtype[0] == "q" for tensor in tensors)


def _tell_weights(
    m: Measurement, shares: dict[str, float], roof: Roof, products: dict[str, FlowStep]
) -> Finding:
    """Weights of one byte instead of four: everything else stays."""
    keys, rows = list(shares), m.costs.loc[list(shares)]
    spent, (size, speed) = time_spent(m, keys), _read_speed(m, keys)
    parts = 1 - 0.75 * pd.Series(shares)
    remaining_ms = float((parts * rows["mean_ms"]).sum())
    # Smaller weights may fit into a faster cache.
    rates = (parts * rows["bytes"]).map(roof.bandwidth)
    fastest = float((rows["calls"] * parts * rows["bytes"] / rates).sum()) / 1e6
    least, most = (spent.ms - remaining_ms) / 2, spent.high - min(fastest, remaining_ms)
    linear = all(products[key].type == "FullyConnected" for key in keys)
    dtype = "int8dyn" if linear else "int8"
    return Finding(
        f"memory limits {plural(len(keys), 'operator')}: {size}, mostly weights, are {speed}",
        Gain(spent.ms - remaining_ms, max(0.0, least), most),
        keys,
        "make the weights smaller, of one byte each, or use them for several inputs; faster "
        "arithmetic does not help",
        **commands.use_dtype(m, dtype),
    )


def _read_speed(m: Measurement, keys: list[str]) -> tuple[str, str]:
    """How many bytes some rows read, and how fast, beside main memory."""
    rows = m.costs.loc[keys]
    size = float((rows["calls"] * rows["bytes"]).sum())
    return format_size(size), f"read at {gains.describe_speed(m, keys, size)}"


def find_compute_bound(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Operators near the peak of the CPU in this dtype."""
    if m.roofline is None or m.roof is None:
        return
    table = tabulate_roofline(m)
    near = (table["bound"] == "compute") & (table["roof_share"] >= gains.EFFICIENCY[1])
    # int8 does not accelerate depthwise kernels, first convolutions and products of activations.
    products = {key: step for key, step in list_products(m).items() if key in unclaimed}
    rows = table[near & table["key"].isin(products) & (table["dtype"] == "fp32")]
    ratio = m.roof.peak("int8") / m.roof.peak("fp32")
    if rows.empty or 0.75 * ratio <= 1:  # kernels reach about three quarters of a peak
        return
    linear = rows["key"].map(lambda key: products[key].type == "FullyConnected")
    dtype = "int8dyn" if rows["mean_ms"][linear].sum() > rows["mean_ms"].sum() / 2 else "int8"
    spent = time_spent(m, rows["key"])
    # Ceilings vary between processes.
    best = 1 + m.roof.spread
    slow, typical, fast = (spent.ms / ratio / part for part in (0.5, 0.75, best))
    gain = Gain(spent.ms - typical, max(0.0, spent.low - slow), spent.high - fast)
    faster = f"{ratio:.1f} times as fast"
    if math.isnan(ratio):  # the peak of int8 was not measured
        gain, faster = Gain.at_most(0.75 * spent.ms), "at most four times as fast"
    total, least = rows["mean_ms"].sum(), rows["least_ms"].sum()
    yield Finding(
        f"arithmetic limits {plural(len(rows), 'operator')} at {100 * least / total:.0f} % of this "
        f"core's fp32 peak ({m.roof.peak('fp32'):.0f} GFLOP/s); int8 is {faster}",
        gain,
        list(rows["key"]),
        f"reduce the arithmetic, or use {dtype}",
        **commands.use_dtype(m, dtype),
    )


def list_memory_bound(m: Measurement) -> list[str]:
    """Operators that run near the memory roof."""
    if m.roofline is None:
        return []
    table = tabulate_roofline(m)
    speed = table["bytes_per_run"] / table["mean_ms"] / 1e6
    memory = m.roof.bandwidths[-1][1] if m.roof else math.inf
    return list(table[(table["bound"] == "memory") & (speed >= NEAR_ROOF * memory)]["key"])


def tabulate_roofline(m: Measurement) -> pd.DataFrame:
    """The roofline without what other programs added to traced times, never above 1."""
    assert m.roofline is not None
    table = m.roofline
    undisturbed = table["key"].map(m.costs["mean_ms"])
    share = (table["roof_share"] * table["mean_ms"] / undisturbed).clip(upper=1.0)
    return table.assign(mean_ms=undisturbed, roof_share=share, least_ms=share * undisturbed)


def _weight_share(m: Measurement, key: str) -> float:
    """The share of fp32 weights in the bytes of a row."""
    tensors = [
        m.flow.tensors[tensor]
        for step in gains.steps_of(m, [key])
        if step.type in WEIGHTED
        for tensor in (*step.reads, *step.writes)
    ]
    total = sum(tensor.size_bytes for tensor in tensors)
    weights = sum(t.size_bytes for t in tensors if t.constant and t.dtype == "fp32")
    return weights / total if total else 0.0


def is_fp32_pointwise(weights: Value) -> bool:
    """Whether constant weights are fp32 1x1 filters (OHWI); those of a linear layer are 2-D."""
    pointwise = len(weights.shape) == 4 and weights.shape[1:3] == (1, 1)
    return weights.constant and pointwise and weights.dtype in ("fp32", "float32")


def list_products(m: Measurement) -> dict[str, FlowStep]:
    """The rows that are products with weights, other than depthwise and first convolutions."""
    products: dict[str, FlowStep] = {}
    for step in m.flow.steps:
        shape = step.xnode.attributes if step.xnode else {}
        wide = shape.get("group_input_channels", _TILE) > _IMAGE_CHANNELS
        sealed = step.origin is not None and step.origin.module_class in SEALED
        if step.type in ("Conv2d", "FullyConnected") and wide and not sealed:
            products |= dict.fromkeys(keys_of(m, [step]), step)
    return products

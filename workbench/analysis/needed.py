"""Which part of its time each operator of the delegate needs, as far as a run tells."""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from workbench.analysis.dataflow import WEIGHTED, Dataflow, FlowStep, NodeId
from workbench.frames import NEEDED

#: A part of the latency from which on a run says why an operator takes it.
LEAST_PART = 0.1
#: Share of a roof, or of the rate of similar operators, from which on an operator needs its time.
_OF_ROOF, _OF_TWINS = 0.8, 0.9
#: Similar operators that have a median.
_LEAST_TWINS = 3
#: Shorter operators have no rate: XNNPACK logs whole microseconds.
_RATED_MS = 0.02
#: In the name of a microkernel: rows, channels and depth of its tile; or filter taps and channels.
_PRODUCT = re.compile(r"ukernel_(\d+)x(\d+)(?:c(\d+))?(?![\dv])")
_DEPTHWISE = re.compile(r"ukernel_(\d+)p(\d+)c")


def judge_operators(
    costs: pd.DataFrame,
    flow: Dataflow,
    nodes: Mapping[str, Sequence[NodeId]],
    roofline: pd.DataFrame | None,
    kernels: pd.DataFrame,
) -> pd.DataFrame:
    """All operators of delegates with what they need of their time: ``frames.NEEDED``.

    ``costs`` are the operators by key, ``nodes`` the steps of ``flow`` that each executes, and
    ``kernels`` their microkernels by key, if these are known.
    """
    rows = costs[costs["kind"] == "delegated"]
    rate = (rows["flops"] * rows["calls"] / rows["mean_ms"] / 1e6).where(
        (rows["flops"] > 0) & (rows["mean_ms"] > _RATED_MS * rows["calls"])
    )
    roof, bound = pd.Series(math.nan, rows.index), pd.Series("", rows.index)
    if roofline is not None:
        placed = roofline.set_index("key")
        least = placed["least_ms"].where(placed["roof_share"].notna())
        roof = (least.reindex(rows.index) / rows["mean_ms"]).clip(upper=1.0)
        bound = placed["bound"].reindex(rows.index).fillna("")
    twins = pd.Series(
        [_compare_with_twins(rate, rows["family"], key) for key in rows.index], rows.index, float
    )
    limited = (roof >= _OF_ROOF) & bound.isin(["compute", "memory"])
    alike = roof.isna() & (twins >= _OF_TWINS)
    names = kernels.get("function", pd.Series(dtype=object))
    padding = [
        min((_find_needed(flow, flow.by_id[node], str(names.get(key, "")))
             for node in nodes.get(key, ()) if node in flow.by_id), default=math.nan)
        for key in rows.index
    ]  # fmt: skip
    table = rows.reset_index().assign(
        needed=padding,
        gflops=rate.to_numpy(),
        roof_share=roof.to_numpy(),
        twins=twins.to_numpy(),
        reason=np.select([limited, alike], [bound, "twins"], "").astype(object),
    )
    return NEEDED.check(table[NEEDED.names])


def _compare_with_twins(rate: pd.Series, family: pd.Series, key: str) -> float:
    """The rate of an operator as a part of the median of others of its family."""
    rates = rate[(family == family[key]) & (rate.index != key)].dropna()
    return float(rate[key] / rates.median()) if len(rates) >= _LEAST_TWINS else math.nan


def _find_needed(flow: Dataflow, step: FlowStep, kernel: str) -> float:
    """The part of an operator's arithmetic that is no padding of its tile; NaN if unknown."""
    if step.xnode is None or step.type not in WEIGHTED:
        return math.nan
    shape = step.xnode.attributes
    taps, groups = count_taps(step), shape.get("groups", 1)
    read, written = count_channels(flow, step)
    if tile := _DEPTHWISE.search(kernel):
        most, width = map(int, tile.groups())
        return taps / most * _fill(written, width) if taps <= most else math.nan
    tile = _PRODUCT.search(kernel)
    if tile is None or not written:
        return math.nan
    rows, width, depth = (int(part or 1) for part in tile.groups())
    positions = math.prod(flow.tensors[step.writes[0]].shape) // written
    return _fill(positions, rows) * _fill(written // groups, width) * _fill(read // groups, depth)


def count_channels(flow: Dataflow, step: FlowStep) -> tuple[int, int]:
    """The channels that a layer with weights reads and writes; 0 if unknown."""
    shape = step.xnode.attributes if step.xnode else {}
    if "group_input_channels" in shape:
        groups, read = shape.get("groups", 1), shape["group_input_channels"]
        return groups * read, groups * shape.get("group_output_channels", 0)
    weights = flow.tensors[step.reads[1]].shape if len(step.reads) > 1 else ()
    is_matrix = step.type == "FullyConnected" and len(weights) == 2
    return (weights[1], weights[0]) if is_matrix else (0, 0)


def count_taps(step: FlowStep) -> int:
    """The elements of a filter of one channel."""
    shape = step.xnode.attributes if step.xnode else {}
    return int(shape.get("kernel_height", 1) * shape.get("kernel_width", 1))


def _fill(count: int, tile: int) -> float:
    """The part of whole tiles that so many elements fill."""
    return count / (math.ceil(count / tile) * tile) if count else math.nan

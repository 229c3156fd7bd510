"""What operators of a measurement cost, and what replacing them saves."""

import math
from collections.abc import Collection, Iterable
from itertools import groupby

import numpy as np
import pandas as pd

from workbench.analysis import quality
from workbench.analysis.dataflow import Dataflow, FlowStep, instruction_of
from workbench.analysis.findings.finding import Gain
from workbench.analysis.run import Measurement
from workbench.analysis.statistics import blocks_of, half_width
from workbench.wording import shorten_source

#: Fraction of the attainable rate that an XNNPACK operator reaches: worst, typical, best.
EFFICIENCY = (0.2, 0.5, 1.0)
#: Shorter operators do not count for the best rates: XNNPACK logs whole microseconds, and the
#: maximum would be the rate of the operator whose time is most underestimated.
_RATED_MS = 0.02
LEAST_TWINS = 3


def keys_of(
    m: Measurement, steps: Iterable[FlowStep], unclaimed: Collection[str] | None = None
) -> list[str]:
    """The (unclaimed) rows that execute some of these operators, most expensive first."""
    wanted = {step.id for step in steps}
    keys = [key for key, nodes in m.nodes.items() if wanted.intersection(nodes)]
    return [key for key in keys if unclaimed is None or key in unclaimed]


def steps_of(m: Measurement, keys: Iterable[str], flow: Dataflow | None = None) -> list[FlowStep]:
    """The program's operators that some rows execute, in ``m.flow`` or another graph."""
    by_id = (flow or m.flow).by_id
    nodes = (node for key in keys for node in m.nodes.get(key, ()))
    return [by_id[node] for node in nodes if node in by_id]


def call_keys(m: Measurement, keys: Iterable[str]) -> list[str]:
    """The overhead rows of calls to some kernels."""
    kinds = m.costs["kind"]
    called = {instruction_of(key) for key in keys if kinds[key] == "portable"}
    overhead = kinds.index[kinds == "call_overhead"]
    return [key for key in overhead if instruction_of(key) in called]


def time_spent(m: Measurement, keys: Collection[str]) -> Gain:
    """The time of some rows, with Student's 95 % interval over the process restarts.

    The interval is that of their share: interference lengthens whole inferences by an amount that
    varies between restarts and cancels in a share.
    """
    runs, latency_ms = m.times.undisturbed, m.latency_ms
    keys = [key for key in dict.fromkeys(keys) if key in runs]
    times = runs[keys].sum(axis=1)
    whole = runs.sum(axis=1)
    shares = blocks_of(times) / blocks_of(whole)
    if len(shares) == 1:  # of inferences: what lengthens them all cancels, too
        shares = times / whole
    ms, half = float(times.mean()), latency_ms * float(half_width(shares.to_numpy()))
    if math.isnan(half):  # one run has no interval
        half = latency_ms
    high = min(ms + half, latency_ms)
    if m.share_error > quality.USELESS[1]:
        half = max(half, latency_ms * m.share_error)
        # Without tracing, they take no longer than with it.
        traced = high * np.maximum(1.0, m.traced_ms / latency_ms)  # NaN if unknown
        high = float(np.nanmin([ms + half, traced, latency_ms]))
    return Gain(ms, max(0.0, ms - half), high, "removal")


def scale_error(m: Measurement, keys: Collection[str], ms: float) -> tuple[float, float]:
    """How far off the time of some rows may be because it is scaled: least and most, as factors.

    Tracing lengthens inferences by an amount that is spread over the rows by their time, as the
    scale has it, by the number of events, or not over these rows at all.
    """
    longer = m.traced_ms / m.latency_ms if m.latency_ms else math.nan  # by one clock
    if not longer > 0 or not ms:
        return 1.0, 1.0
    least, added = min(1.0, longer), m.traced_ms - m.latency_ms
    if added > 0:
        calls = m.costs["calls"]
        by_calls = longer - added * calls[list(keys)].sum() / calls.sum() / ms
        least = min(least, max(0.0, by_calls))
    return least, max(1.0, longer)


def joined_calls_ms(m: Measurement, keys: Collection[str]) -> float:
    """The most that fewer delegates save: one call's overhead for every group of kernels."""
    calls = m.costs[m.costs["kind"] == "delegate_overhead"]["mean_ms"]
    numbers = sorted({instruction_of(key) for key in keys})
    groups = sum(1 for _ in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]))
    return float(calls.mean() * min(groups, len(calls) - 1)) if len(calls) > 1 else 0.0


def describe_speed(m: Measurement, keys: Collection[str], size: float) -> str:
    """How fast some rows move so many bytes, beside main memory."""
    memory = m.roof.bandwidths[-1][1] if m.roof else math.nan
    speed = size / time_spent(m, keys).ms / 1e6
    return f"{speed:.0f} GB/s (main memory: {memory:.0f} GB/s)"


def share_of(m: Measurement, ms: float) -> float:
    """A time as a part of E2E."""
    return ms / m.latency_ms if m.latency_ms else math.nan


def find_rated(m: Measurement) -> pd.DataFrame:
    """The delegated operators that are long enough to be timed well, by key."""
    rows = m.costs
    return rows[(rows["kind"] == "delegated") & (rows["mean_ms"] > _RATED_MS * rows["calls"])]


def find_best_rates(m: Measurement) -> tuple[float, float]:
    """The highest operations and bytes per ms that a delegated operator reached."""
    rated = find_rated(m)
    rates = rated[["flops", "bytes"]].mul(rated["calls"] / rated["mean_ms"], axis=0)
    # If no operator was long enough to be timed well, assume a slow core: 1 GFLOP/s, 1 GB/s.
    per_flop, per_byte = rates.max().replace(0.0, np.nan).fillna(1e6)
    return per_flop, per_byte


def least_ms(m: Measurement, keys: Iterable[str]) -> pd.Series:
    """How long each of some rows would take at the best rates."""
    rows = m.costs.loc[list(keys)]
    flops, size = (rows[name].fillna(0) * rows["calls"] for name in ("flops", "bytes"))
    per_flop, per_byte = find_best_rates(m)
    return np.maximum(flops / per_flop, size / per_byte)


def gain_of_replacing(
    m: Measurement, keys: Collection[str], passes: float, extra: Collection[str] = (),
    flops: float = 0.0,
) -> Gain:  # fmt: skip
    """The gain of replacing some rows: their time less that of their replacements.

    Each is replaced by ``passes`` delegated operators, of ``flops`` in all, which reach the share
    of the best rates that those of its category reach: tenth, median and ninetieth percentile of
    those that are timed well, or the usual shares if these are fewer than three. ``extra`` rows
    exist only because of them; the lower bound assumes that these stay.
    """
    now, around = time_spent(m, keys), time_spent(m, extra)
    most = min(now.high + around.high, m.latency_ms)
    rated = find_rated(m)
    if not passes:
        return Gain(now.ms + around.ms, now.low, most, "removal")
    if rated.empty:  # nothing shows how fast operators of the delegate are
        return Gain.at_most(most)
    twins = rated[rated["category"].isin(set(m.costs["category"][list(keys)]))]
    shares = least_ms(m, twins.index) / twins["mean_ms"]
    pace, basis = EFFICIENCY, "roofline"
    if (shares > 0).sum() >= LEAST_TWINS:
        pace, basis = tuple(np.percentile(shares[shares > 0], (10, 50, 90))), "twin"
    per_flop, per_byte = find_best_rates(m)
    least = passes * float(least_ms(m, keys).sum())
    if flops:  # which are not those of the rows
        rows = m.costs.loc[list(keys)]
        least = passes * float((rows["bytes"] * rows["calls"]).sum()) / per_byte + flops / per_flop
    slow, typical, fast = (least / share for share in pace)
    low, high = max(0.0, now.low - slow), most - fast
    return Gain(now.ms + around.ms - typical, low, high, basis)


def layers_of(rows: pd.DataFrame) -> str:
    """The layers and source lines of some rows in words: two at most, then a count."""
    modules = rows.dropna(subset="module")[["module", "source"]].drop_duplicates()
    places = [
        f"{module or 'the model'}"
        + (f" ({shorten_source(source)})" if isinstance(source, str) else "")
        for module, source in modules.itertuples(index=False)
    ]
    more = f" and {len(places) - 2} more" if len(places) > 2 else ""
    return ", ".join(places[:2]) + more

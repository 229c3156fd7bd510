"""Rules that look at times: against another ISA level, thread count or dtype, and the roofline."""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pandas as pd

from workbench.analysis import dtypes, statistics
from workbench.analysis.findings import commands, gains
from workbench.analysis.findings.bounds import (
    is_fp32_pointwise,
    list_memory_bound,
    tabulate_roofline,
)
from workbench.analysis.findings.finding import Finding, Gain
from workbench.analysis.findings.gains import LEAST_TWINS, keys_of, time_spent
from workbench.analysis.layers import NO_LAYER
from workbench.analysis.run import Comparison, Measurement
from workbench.analysis.speedup import (
    Speedup,
    shared_restarts,
    speedup_of_restarts,
)
from workbench.records.exports import list_differences, same_model
from workbench.records.runs import LADDER_TOGGLE, Experiment, RunRecord
from workbench.wording import format_range, format_ratio, plural

#: A speed-up below which an extension did nothing, and one above which it certainly worked.
_NO_SPEEDUP, _SPEEDUP = 1.1, 1.2
_ARM = ("aarch64", "arm64")
#: Of a shorter model, calls and conversions take what int8 would save.
_LEAST_QUANTIZED_MS = 0.1

#: By the start of the reason why a layer was not quantised: what to do, in code, or the dtype.
_QUANTIZE = {
    "inside nn.": (
        "write the cell with nn.Linear layers, which the quantiser sees",
        "gates = self.input(x) + self.hidden(h)  # two nn.Linear, in a loop over the steps",
        "",
    ),
    "a transposed convolution": (
        "use one group, which the quantiser has (another network: retrain it)",
        "nn.ConvTranspose2d(channels, channels, 2, 2, groups=1)",
        "",
    ),
    "a product that is no": (
        "write it as a linear layer",
        "F.linear(x, weight.T)  # for x @ weight",
        "",
    ),
    "not a linear layer": (
        "export in int8, which quantises convolutions too",
        "",
        "int8",
    ),
    "its inputs": (
        "give these layers inputs in multiples of 32, or export in int8dyn",
        "",
        "int8dyn",
    ),
}


def find_slow_operators(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Operators that an extension makes slower, and products that it does not speed up."""
    comparisons = [
        ab for ab in m.run.comparisons if ab.candidate is m and ab.toggle not in ("", "none")
    ]
    if not comparisons:
        return
    changes = (
        comparisons[0].operators.set_index("key").join(m.costs[["family", "mean_ms"]], how="inner")
    )
    yield from _find_slower(m, comparisons[0], changes[changes["outcome"] == "slower"])
    products = changes[changes["family"].isin(dtypes.PRODUCTS)]
    same = products[(products["high"] < _NO_SPEEDUP) & (products["outcome"] != "slower")]
    same = same[same.index.isin(unclaimed) & ~same.index.isin(list_memory_bound(m))]
    peers = products[products["low"] > _SPEEDUP]["speedup"]
    yield from _find_unchanged(m, comparisons[0].toggle, same, peers)


def _find_slower(m: Measurement, ab: Comparison, changes: pd.DataFrame) -> Iterator[Finding]:
    how = ab.label if ab.toggle == LADDER_TOGGLE else f"with {ab.toggle}"
    for name, part in changes.groupby("name", sort=False):
        spent = time_spent(m, part.index)
        ratio, low, high = (_mean_ratio(part, end) for end in ("speedup", "low", "high"))
        least, most = max(0.0, spent.low * (1 - high)), spent.high * (1 - low)
        yield Finding(
            f"{name} is {1 / ratio:.1f}x slower {how}, over {plural(len(part), 'operator')}",
            Gain(spent.ms * (1 - ratio), least, most, "measured"),
            [*part.index],
        )


def _mean_ratio(part: pd.DataFrame, column: str) -> float:
    """The mean of a ratio over operators, by their time."""
    return float(np.average(part[column], weights=part["candidate_ms"]))


def _find_unchanged(
    m: Measurement, toggle: str, same: pd.DataFrame, peers: pd.Series
) -> Iterator[Finding]:
    best = pd.Series(0.0, m.costs.index)
    if m.roofline is not None and m.roof is not None:  # peaks vary between processes
        best.update(tabulate_roofline(m).set_index("key")["least_ms"] / (1 + m.roof.spread))
    for name, part in same.groupby("name", sort=False):
        keys, spent = [*part.index], time_spent(m, part.index)
        excess_ms = spent.ms - float(best[keys].sum())  # no kernel is faster than the roof
        gain = Gain.at_most(excess_ms)
        if len(peers) >= LEAST_TWINS:
            least, typical, most = (1 - 1 / np.percentile(peers, q) for q in (10, 50, 90))
            times = spent.low * least, spent.ms * typical, spent.high * most
            low, typical, most = (min(ms, excess_ms) for ms in times)
            gain = Gain(typical, low, most, "twin")
        functions = _name_functions(m, keys)
        yield Finding(
            f"{toggle} does not speed up {name}: "
            f"{format_ratio(_mean_ratio(part, 'speedup'))}x over {plural(len(keys), 'operator')}"
            + (f"; ran in {', '.join(functions[:2])}" if functions else ""),
            gain,
            keys,
            *_speed_up(m, keys, toggle),
        )


def _name_functions(m: Measurement, keys: Iterable[str]) -> list[str]:
    """The functions that ran some operators; of one without a name, the class of its code."""
    names = m.kernels.get("function", pd.Series(dtype=object))
    codes = m.kernels.get("code", names).radd("unnamed ").add(" code")
    names = names.mask(names.str.contains(r"\+0x", na=False), codes)
    return [*dict.fromkeys(str(names[key]) for key in keys if names.get(key))]


def _speed_up(m: Measurement, keys: Iterable[str], toggle: str) -> tuple[str, str]:
    """What may give products a kernel of an extension; empty where nothing about them can."""
    steps = gains.steps_of(m, keys)
    products = [step for step in steps if len(step.reads) > 1]
    weights = [m.flow.tensors[step.reads[1]] for step in products]
    if weights and not any(tensor.constant for tensor in weights):
        action = f"make the weights constant: kernels of {toggle} need packed ones"
        return action, "F.linear(x, self.weight)  # weight: a parameter, not computed in forward()"
    convolutions = [step.xnode for step in products if step.type == "Conv2d"]
    if any(xnode and xnode.attributes.get("groups", 1) > 1 for xnode in convolutions):
        action = f"use a dense convolution: groups have no kernel of {toggle} (retrain it)"
        return action, "nn.Conv2d(64, 64, 3, groups=1)"
    return "", ""


def find_wide_weights(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Half-precision convolutions whose weights are stored in single precision."""
    # Other CPUs compute as fast with either.
    machine = str(m.run.record.host.get("machine", ""))
    if machine and machine not in _ARM:
        return
    tensors = m.flow.tensors
    wide = [
        step
        for step in m.flow.steps
        if step.type in ("Conv2d", "FullyConnected")
        and tensors[step.reads[0]].dtype in ("fp16", "float16")
        and is_fp32_pointwise(tensors[step.reads[1]])
    ]
    keys = keys_of(m, wide, unclaimed)
    if not keys:
        return
    yield Finding(
        f"{len(keys)} half-precision 1x1 convolutions have fp32 weights, so XNNPACK runs them "
        "without SME2 kernels",
        Gain.at_most(time_spent(m, keys).ms),
        keys,
        "store these weights in half precision; this pays on an Arm CPU with SME2",
        **commands.use_dtype(m, "fp16w"),
    )


def find_threads(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """More threads than are useful."""
    timed = statistics.pick_timed(m.run.latencies)
    by_threads = timed[timed["experiment"] == m.name].groupby("threads")
    restarts = {int(n): statistics.restart_latencies(part, "wall_ns") for n, part in by_threads}
    if (latencies := restarts.get(m.threads)) is None:
        return
    fewer = {
        threads: speedup_of_restarts(*shared_restarts(latencies, other))
        for threads, other in restarts.items()
        if threads < m.threads
    }
    for best, gain in _best_shown(float(latencies.mean()), fewer):
        times = format_range(float(latencies.mean()), float(restarts[best].mean()))
        yield Finding(
            f"{m.threads} threads are slower than {best}: {' against '.join(times)}",
            gain,
            (),
            f"run with {plural(best, 'thread')}",
            command=f"workbench run MODEL.pte --threads {best}",
        )


def find_slower_layers(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Layers that another runtime computes faster."""
    for ab in m.run.comparisons:
        if ab.candidate is not m or not ab.baseline.runtime or ab.models or ab.layers is None:
            continue
        rows = ab.layers[(ab.layers["outcome"] == "slower") & (ab.layers["name"] != NO_LAYER)]
        lost = rows["candidate_ms"]
        gain, low, high = (
            float((lost * (1 - rows[column])).sum()) for column in ("speedup", "high", "low")
        )
        texts = [
            f"{row.name} {1 / row.speedup:.1f}x ({row.differs})"
            for row in rows.itertuples(index=False)
        ]
        more = f" and {len(texts) - 3} more" if len(texts) > 3 else ""
        if texts:
            yield Finding(
                f"{plural(len(texts), 'layer')} slower than in {ab.baseline.runtime}: "
                f"{', '.join(texts[:3])}{more}",
                Gain(gain, low, high, "measured"),
                ab.operators_of(rows["name"]),
                "see what these layers do otherwise: delegate their operators, or change them",
                f"wb.open_run('RUN_DIR').compare('{ab.baseline.name}').layers",
            )


_Name = TypeVar("_Name", bound=Hashable)


def _best_shown(own_ms: float, speedups: Mapping[_Name, Speedup]) -> Iterator[tuple[_Name, Gain]]:
    """The fastest alternative of those shown to be faster, if any, and its measured gain.

    The alternatives are judged as one family; the gain's interval is that of the speed-up.
    """
    if not speedups:
        return
    joined = Speedup.concatenate(list(speedups.values()))
    outcome = joined.outcomes
    if not (outcome == "faster").any():
        return
    best = int(np.argmax(np.where(outcome == "faster", joined.log, -np.inf)))
    value, low, high = (own_ms * (1 - 1 / x[best]) for x in (joined.value, joined.low, joined.high))
    yield list(speedups)[best], Gain(float(value), float(low), float(high), "measured")


def find_dtype(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Another dtype: measured if it was exported, otherwise bounded by the matrix products."""
    dtype = m.export.dtype if m.export else ""
    latencies = _latencies_by_dtype(m)
    baseline = latencies.pop(dtype, [])
    speedups = {
        name: speedup_of_restarts(baseline, times, separate=True)
        for name, times in latencies.items()
        if baseline
    }
    for best, gain in _best_shown(float(np.mean(baseline or 0)), speedups):
        times = format_range(float(np.mean(latencies[best])), float(np.mean(baseline)))
        yield Finding(
            f"{best} takes {' instead of '.join(times)} (separate runs)",
            gain,
            (),
            f"use {best} if its accuracy suffices: see the record of its export",
            command=commands.write_command(m, "profile", dtype=best),
            remedy=best,
        )
    # Peaks say more: see `find_memory_bound` and `find_compute_bound`.
    if latencies or m.roofline is not None or dtype != "fp32":
        return
    products = m.costs.index[m.costs["family"].isin(dtypes.PRODUCTS)]
    keys = _quantizable(m, [key for key in products if key in unclaimed])
    if not keys or m.latency_ms < _LEAST_QUANTIZED_MS:
        return
    possible = len(_quantizable(m, products))
    part = f", and {possible} of {len(products)} can be quantised"
    yield Finding(
        f"convolutions and matmuls run in fp32{'' if possible == len(products) else part}; int8 "
        "would read a quarter of the bytes",
        Gain.at_most(0.75 * time_spent(m, keys).ms),
        keys,
        "use int8, if its accuracy suffices",
        **commands.use_dtype(m, "int8"),
    )


def _latencies_by_dtype(m: Measurement) -> dict[str, list[float]]:
    """The latency in ms of every restart, by dtype of programs that differ in nothing else.

    Those of other dtypes are of other runs, measured alike; of several, the latest counts.
    """
    export = m.export
    if export is None:
        return {}
    by_dtype = {export.dtype: _restarts_of(m.run.latencies, m.name, m.threads)}
    wanted = _describe_conditions(m.run.record, m.experiment)
    for record in m.run.siblings if export.graph else ():
        for experiment in record.plan.experiments:
            other = record.export_of(record.plan.program_of(experiment))
            if other is None or other.problem or experiment.control or other.dtype in by_dtype:
                continue
            if not same_model(export, other) or list_differences(export, other) != {"dtype"}:
                continue
            if _describe_conditions(record, experiment) == wanted:
                latencies = statistics.tabulate_latencies(record)
                if times := _restarts_of(latencies, experiment.name, m.threads):
                    by_dtype[other.dtype] = times
    return {dtype: times for dtype, times in by_dtype.items() if times}


def _restarts_of(latencies: pd.DataFrame, experiment: str, threads: int) -> list[float]:
    """The latency in ms of every restart of an experiment."""
    part = latencies[(latencies["experiment"] == experiment) & (latencies["threads"] == threads)]
    return statistics.restart_latencies(part).to_list() if len(part) else []


def _describe_conditions(record: RunRecord, experiment: Experiment) -> tuple[object, ...]:
    """What two measurements share whose programs differ in their dtype at most."""
    phase = record.plan.phase_of(experiment)
    inputs = (phase.method, phase.tokens, phase.position, [t.shape for t in phase.inputs])
    how = replace(experiment, name="", program="", phase="")
    machine = (record.platform, record.emulated, record.host.get("cpu"), record.runner.get("kind"))
    return (how, *inputs, record.versions.get("executorch"), *machine)


def find_float_layers(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Layers that were to be quantised and ran in floating point."""
    export, table = m.export, m.dtypes
    if export is None or table is None or not dtypes.is_quantized(export.dtype):
        return
    for start, (action, code, dtype) in _QUANTIZE.items():
        part = table[table["reason"].str.startswith(start) & table["key"].isin(unclaimed)]
        keys = list(part["key"])
        if keys:
            yield Finding(
                f"{export.dtype} was asked for, but {len(keys)} of {len(table)} "
                f"convolutions and matrix products ran in {part['dtype'].iloc[0]}: "
                f"{part['reason'].iloc[0]}",
                Gain.at_most(0.75 * time_spent(m, keys).ms),
                keys,
                action,
                code,
                **(commands.use_dtype(m, dtype) if dtype else {}),
            )


def _quantizable(m: Measurement, keys: Iterable[str]) -> list[str]:
    """Those of some rows that nothing is known to keep from being quantised in int8."""
    return [key for key in keys if not dtypes.cannot_quantize(m.costs.loc[key].to_dict(), "int8")]

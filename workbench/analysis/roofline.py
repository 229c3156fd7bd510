"""The roofline of a run: how near every operator comes to the ceilings of its machine."""

import math
import re
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import pandas as pd

from workbench.errors import StoreError
from workbench.frames import LAYERS, OPERATORS, ROOFLINE
from workbench.records.exports import Export
from workbench.records.runs import Ceilings, Experiment
from workbench.store import ceilings_path, load_record

#: XNNPACK logs whole microseconds: of a shorter call, nobody can say how fast it was.
RESOLVED_MS = 0.01
#: Share of a roof from which an operator counts as bound by it.
NEAR_ROOF = 1 / 3

_TABLE = ["isa", "threads", "ceiling", "value", "unit", "spread", "measured"]
_DTYPES = (("Q", "int8"), ("F16", "fp16"), ("PF16", "fp16"), ("BF16", "bf16"))


@dataclass(frozen=True)
class Roof:
    """What a machine can do, from its ceilings.

    ``peaks`` are GFLOP/s by dtype; ``bandwidths`` pairs of a footprint in bytes and the GB/s that
    were reached at it or any larger one, the smallest footprint first; ``call_ms`` is what an
    operator takes that does nothing; ``spread`` how far another process stayed below a ceiling at
    most.
    """

    peaks: dict[str, float]
    bandwidths: tuple[tuple[int, float], ...]
    call_ms: float
    spread: float

    def bandwidth(self, size: float) -> float:
        """GB/s of the largest footprint measured up to this size: it may still be in a cache."""
        below = [rate for place, rate in self.bandwidths if place <= size]
        return below[-1] if below else self.bandwidths[0][1]

    def peak(self, dtype: str) -> float:
        """GFLOP/s in a dtype; NaN if it was not measured."""
        return self.peaks.get(dtype, math.nan)


def build_roof(ceilings: Ceilings) -> Roof:
    """The roof over a machine, from what its probes took."""
    probes = ceilings.probes
    kinds = {probe.kind: probe for probe in probes}
    valid = all(p.ms > 0 and p.operators > 0 and math.isfinite(p.ms + p.spread) for p in probes)
    if not {"gemm", "stream", "call", "program"} <= kinds.keys() or not valid:
        raise StoreError("ceilings without a probe of each kind", hint="measure them again")
    call = kinds["call"].ms / kinds["call"].operators
    program = max(0.0, kinds["program"].ms - call)
    peaks = {p.dtype: p.flops / p.ms / 1e6 for p in probes if p.kind == "gemm"}
    moved = [p for p in probes if p.bytes]
    # Less what the calls took; never as little as nothing, should the clock have been off.
    times = [max((p.ms - program) / p.operators - call, p.ms / p.operators / 2) for p in moved]
    rates = sorted((p.bytes, p.bytes / ms / 1e6) for p, ms in zip(moved, times, strict=True))
    best = np.maximum.accumulate([rate for _, rate in reversed(rates)])[::-1]
    sizes = [size for size, _ in rates]
    return Roof(peaks, tuple(zip(sizes, best.tolist(), strict=True)), call, ceilings.spread)


def place_on_roof(operators: pd.DataFrame, roof: Roof, dtype: str = "fp32") -> pd.DataFrame:
    """Where every operator of known cost lies below the roof: ``frames.ROOFLINE``.

    The least time of a call is the largest of three: its operations at the peak of its dtype, its
    bytes at the bandwidth of its footprint, and the time of a call that does nothing. It is bound
    by that one if it reaches `NEAR_ROOF` of it, else by neither. Products that memory limits, and
    whose weights, which are used once per inference, are read at this share or more of the
    bandwidth of main memory, or of all that an inference reads, but no faster, have that one as
    their roof.
    ``roof_share`` is NaN for calls below `RESOLVED_MS`.
    """
    OPERATORS.check(operators)
    if "flops" not in operators:
        raise StoreError("operators without their cost", hint="only a program's sidecar knows it")
    costed = operators[
        operators["flops"].notna() & (operators["bytes"] > 0) & (operators["role"] != "overhead")
    ]
    call_ms = costed["mean_ms"] / costed["calls"]
    types = [dtype_of(name, dtype) for name in costed["operator"]]
    peaks = np.array([roof.peak(each) for each in types])
    least, rates, bounds = _find_limits(costed, call_ms, peaks, roof)
    timed = (call_ms >= RESOLVED_MS) & (call_ms > 0)
    share = pd.Series(least, costed.index) / call_ms
    near = share >= NEAR_ROOF
    bounds[(bounds != "overhead") & ~near] = "neither"
    bounds[np.isnan(least) | ((bounds != "overhead") & ~timed)] = "unknown"
    table = costed.assign(
        dtype=types,
        intensity=costed["flops"] / costed["bytes"],
        bytes_per_run=costed["bytes"] * costed["calls"],
        gflops=costed["flops"] / call_ms / 1e6,
        gbps=costed["bytes"] / call_ms / 1e6,
        roof_gflops=peaks,
        roof_gbps=rates,
        least_ms=least * costed["calls"],
        roof_share=share.where(timed),
        bound=bounds,
    )
    return ROOFLINE.check(table[ROOFLINE.names].reset_index(drop=True))


def _find_limits(
    costed: pd.DataFrame, call_ms: pd.Series, peaks: np.ndarray, roof: Roof
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By operator, the least time of a call, the bandwidth of its bytes, and what limits it."""
    rates = np.array([roof.bandwidth(size) for size in costed["bytes"]])
    compute_ms, memory_ms = costed["flops"] / peaks / 1e6, costed["bytes"] / rates / 1e6
    costs = np.column_stack([compute_ms, memory_ms, np.full(len(costed), roof.call_ms)])
    least = costs.max(axis=1)
    bounds = np.array(["compute", "memory", "overhead"], dtype=object)[costs.argmax(axis=1)]
    weights = costed["operator"].str.contains("Fully Connected|Convolution")
    speed, memory_bound = costed["bytes"] / call_ms / 1e6, bounds == "memory"
    # Between two uses of a weight, everything else is read: where all of that is, it comes from.
    every = float((costed["bytes"] * costed["calls"]).sum())
    for rate in (roof.bandwidths[-1][1], roof.bandwidth(every)):
        streamed = weights & memory_bound & (speed / rate).between(NEAR_ROOF, 1 + roof.spread)
        rates = np.where(streamed, rate, rates)
        least = np.where(streamed, costed["bytes"] / rate / 1e6, least)
        memory_bound &= ~streamed
    return least, rates, bounds


def place_layers(roofline: pd.DataFrame | None, layers: pd.DataFrame | None) -> pd.DataFrame | None:
    """Sum a roofline by layer, over the operators that each layer owns; None without either.

    ``bound`` is that of the layer's operator with the most time.
    """
    if roofline is None or layers is None:
        return None
    LAYERS.check(layers)
    rows = roofline[roofline["module"].notna()].assign(flop=lambda t: t["gflops"] * t["mean_ms"])
    by = rows.groupby("module")
    sums = by[["mean_ms", "least_ms", "flop", "bytes_per_run"]].sum()
    sums["bound"] = rows.loc[by["mean_ms"].idxmax()].set_index("module")["bound"]
    sums["gflops"] = sums["flop"] / sums["mean_ms"]
    sums["gbps"] = sums["bytes_per_run"] / sums["mean_ms"] / 1e6
    sums["roof_share"] = (sums["least_ms"] / sums["mean_ms"]).where(sums["mean_ms"] >= RESOLVED_MS)
    classes = layers.dropna(subset="module").set_index("module")["module_class"]
    table = sums.join(classes).sort_values("mean_ms", ascending=False).reset_index()
    columns = ["module", "module_class", "mean_ms", "least_ms", "gflops", "gbps", "roof_share"]
    return table[[*columns, "bound"]]


def dtype_of(operator: str, dtype: str) -> str:
    """In which dtype ``Convolution (NHWC, PF16) IGEMM`` computes, or the program's."""
    match = re.search(r"\((?:[^,()]*, )?([^()]+)\)", operator)
    types = [part.strip() for part in match[1].split(",")] if match else []
    for part in types:
        for start, name in _DTYPES:
            if part.startswith(start):
                return name
    if any(part.startswith(("F32", "PF32")) for part in types):
        return "fp32"
    return dtype if dtype in ("fp16", "bf16") else "fp32"


def find_roof(run_dir: Path, experiment: Experiment, threads: int) -> Roof | None:
    """The roof over one experiment, from the ceilings in the run's folder; None without any."""
    path = ceilings_path(run_dir, experiment.isa, threads)
    if not experiment.has_roof or not path.is_file():
        return None
    return build_roof(load_record(Ceilings, path))


def list_ceilings(run_dir: Path) -> pd.DataFrame:
    """The measured peaks in a run's folder, by ISA level and threads, with their spread."""
    rows = []
    for path in sorted(run_dir.glob("ceilings_*_t*.json")):
        ceilings = load_record(Ceilings, path)
        roof = build_roof(ceilings)
        probes = sorted(ceilings.probes, key=lambda p: p.kind)  # of equal sizes, that of a stream
        spreads = {p.dtype if p.kind == "gemm" else p.bytes: p.spread for p in probes}
        peaks = [
            (f"matrix product, {dtype}", peak, "GFLOP/s", spreads[dtype])
            for dtype, peak in roof.peaks.items()
        ]
        rates = dict[str, tuple[float, str, float]]()
        for rate, sizes in groupby(roof.bandwidths, lambda pair: pair[1]):
            footprints = [size for size, _ in sizes]  # the largest one has the rate
            ends = map(_format_footprint, (footprints[0], footprints[-1]))
            span = " to ".join(dict.fromkeys(ends))
            # Of a copy and a read of one size, the lower rate stays.
            rates[f"bandwidth at {span}"] = rate, "GB/s", spreads[footprints[-1]]
        peaks += [(name, *row) for name, row in rates.items()]
        rows += [(ceilings.isa, ceilings.threads, *row, ceilings.measured) for row in peaks]
    return pd.DataFrame(rows, columns=_TABLE)


def _format_footprint(size: int) -> str:
    return f"{size / 2**20:.0f} MB" if size >= 2**20 else f"{size / 2**10:.0f} kB"


def computed_dtype(export: Export | None) -> str:
    """In which dtype a program's matrix products are computed, as far as its export says."""
    return export.computed_dtype if export else "fp32"

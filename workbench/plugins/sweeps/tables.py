"""Sweeps over ISA levels, thread counts and sizes: what each step changes."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise, product

import numpy as np
import pandas as pd

from workbench import Run
from workbench.analysis import compare
from workbench.analysis.speedup import shared_restarts, speedup_of_restarts
from workbench.analysis.statistics import describe_latencies, pick_timed, restart_latencies
from workbench.api import format_ratio, half_width, plural
from workbench.plugins.sweeps.frames import LADDER, SCALING, SIZE_FITS
from workbench.records.pairing import find_control
from workbench.records.runs import LADDER_TOGGLE, Phase, Plan


def experiments_by_phase(plan: Plan) -> list[list[str]]:
    """The experiments of every phase, without controls."""
    phases: dict[str, list[str]] = {}
    for experiment in plan.experiments:
        if not experiment.control:
            phases.setdefault(experiment.phase, []).append(experiment.name)
    return list(phases.values())


def list_isa_levels(run: Run) -> pd.DataFrame | None:
    """Every ISA level of a run against the one below, and the lowest: ``frames.LADDER``.

    None without levels. The noise floor is that of the highest level. Latency is CPU time for one
    thread and wall time for several.
    """
    latencies, record = run.latencies, run.record
    if record.plan.toggle != LADDER_TOGGLE:
        return None
    masked = {s.experiment: s.masked for s in record.sessions}
    rows = []
    for names, threads in product(experiments_by_phase(record.plan), thread_counts(latencies)):
        part = latencies[latencies["threads"] == threads]
        described = describe_latencies(part).set_index("experiment")
        original, control = find_control(record.plan, names[-1])
        judge = cache(
            partial(compare.compare_latencies, part, control=control, control_of=original)
        )
        for below, level in pairwise(["", *names]):
            adds = [f for f in masked[below] if f not in masked[level]] if below else []
            setup = level, ", ".join(adds), threads, *described.loc[level, _LATENCY]
            against = (np.nan, np.nan, np.nan, None, 1.0, 1.0, 1.0, np.nan)
            if below:
                step, total = (judge(name, level).iloc[0] for name in (below, names[0]))
                against = (*step[[*_SPEEDUP, "outcome"]], *total[_SPEEDUP], step["floor"])
            rows.append((*setup, *against))
    return LADDER.check(pd.DataFrame(rows, columns=LADDER.names))


def thread_counts(latencies: pd.DataFrame) -> list[int]:
    """The thread counts that were timed, the fewest first."""
    return sorted(set(pick_timed(latencies)["threads"]))


def list_swept(latencies: pd.DataFrame, experiments: Sequence[str]) -> list[str]:
    """The experiments that were measured at each of several thread counts."""
    counts = len(thread_counts(latencies))
    measured = pick_timed(latencies).groupby("experiment")["threads"].nunique()
    swept = [name for name in experiments if measured.get(name, 0) == counts]
    return swept if counts > 1 else []


#: With several threads, latency is the time that the caller waits; the same clock for one.
_CLOCK = "wall_ns"

#: Two sizes are on a line whatever the latency.
_LEAST_SIZES = 3

_LATENCY, _SPEEDUP = ["latency", "low", "high"], ["speedup", "low", "high"]
_Setup = tuple[str, int]


def sweep_threads(run: Run) -> pd.DataFrame | None:
    """Wall time of every experiment at every thread count, against the fewest: ``frames.SCALING``.

    None with one thread count. Thread counts are measured one after the other within a restart, so
    each restart gives one ratio; the interval is over the restarts.
    """
    experiments = list_swept(run.latencies, run.experiments)
    if not experiments:
        return None
    timed = pick_timed(run.latencies)
    restarts = _split_restarts(timed)
    rows = []
    for name in experiments:
        part = timed[timed["experiment"] == name]
        described = describe_latencies(part, _CLOCK).set_index("threads").sort_index()
        fewest = int(described.index[0])
        for threads, statistics in described.iterrows():
            speedup, outcome = [1.0, 1.0, 1.0], None
            if threads != fewest:
                *speedup, outcome = _compare_setups(restarts, (name, fewest), (name, int(threads)))
            efficiency = speedup[0] * fewest / threads
            rows.append((name, threads, *statistics[_LATENCY], *speedup, outcome, efficiency))
    return SCALING.check(pd.DataFrame(rows, columns=SCALING.names))


def describe_threads(run: Run) -> tuple[str, ...]:
    """What changes with more threads, as sentences."""
    if run.emulated:
        return ()
    sentences = price_threads(run.latencies, run.record.plan, run.experiments)
    for names in experiments_by_phase(run.record.plan):
        sentences += find_crossovers(run.latencies, list_swept(run.latencies, names))
    return tuple(sentences)


def find_crossovers(latencies: pd.DataFrame, experiments: Sequence[str]) -> list[str]:
    """Sentences on what more threads change; the experiments from the lowest level up.

    For each step to more threads: the experiments that become slower, or do not become faster
    (cores share memory, and some share the SME2 unit). For each two neighbouring experiments:
    whether the slower one with more threads beats the faster one with the fewest, and from which
    thread count on their order reverses. Only differences that the interval shows are stated.
    """
    timed = pick_timed(latencies)
    restarts = _split_restarts(timed)
    counts = sorted(int(count) for count in timed["threads"].unique())
    first = counts[0]

    @cache
    def verdict(baseline: _Setup, candidate: _Setup) -> str:
        return _compare_setups(restarts, baseline, candidate)[-1]

    sentences = list[str]()
    for few, more in pairwise(counts):
        verdicts = {name: verdict((name, few), (name, more)) for name in experiments}
        sentences += _describe_step(few, more, verdicts)
    for one, other in pairwise(experiments):
        upwards = verdict((one, first), (other, first)) == "faster"
        slow, fast = (one, other) if upwards else (other, one)
        if verdict((slow, first), (fast, first)) == "faster":
            sentences += _describe_overtaking(slow, fast, counts, verdict)
    return sentences


def _describe_step(few: int, more: int, verdicts: Mapping[str, str]) -> Iterator[str]:
    """What a step to more threads does not make faster, given the verdict of each experiment."""
    slower = [name for name, verdict in verdicts.items() if verdict == "slower"]
    idle = [name for name, verdict in verdicts.items() if verdict not in ("faster", "slower")]
    if slower:
        yield f"{more} threads are slower than {few} for {', '.join(slower)}"
    if idle:
        yield f"{more} threads were not shown to be faster than {few} for {', '.join(idle)}"


def _describe_overtaking(
    slow: str, fast: str, counts: Sequence[int], verdict: Callable[[_Setup, _Setup], str]
) -> Iterator[str]:
    """Where the slower of two experiments overtakes the other one."""
    first, *larger = counts
    for count in larger:
        if verdict((fast, count), (slow, count)) == "faster":
            yield f"from {count} threads on, {slow} is faster than {fast}"
            break
    for count in larger:
        if verdict((fast, first), (slow, count)) == "faster":
            yield f"{slow} with {count} threads is faster than {fast} with {first}"
            break


def price_threads(latencies: pd.DataFrame, plan: Plan, experiments: Sequence[str]) -> list[str]:
    """Sentences on the thread counts that ExecuTorch would choose: the best, and what others cost.

    The ratios and their intervals are those of `sweep_threads`, against the fastest count.
    """
    restarts = _split_restarts(pick_timed(latencies))
    rules = dict(zip(plan.threads, plan.thread_rules, strict=False))
    sentences = []
    for name in experiments:
        times = {n: restarts[name, n].mean() for n in rules if (name, n) in restarts}
        if not times:
            continue
        best = min(times, key=lambda count: times[count])
        texts = [f"{plural(best, 'thread')} fastest here ({rules[best]})"]
        for count in times.keys() - {best}:
            ratio, low, high, outcome = _compare_setups(restarts, (name, count), (name, best))
            cost = f"{format_ratio(ratio)}x [{format_ratio(low)}, {format_ratio(high)}] as long"
            cost += "" if outcome == "faster" else f" ({outcome})"
            texts.append(f"{plural(count, 'thread')} ({rules[count]}) {cost}")
        sentences.append(f"{name}, wall time: {'; '.join(texts)}")
    return sentences


def _split_restarts(timed: pd.DataFrame, clock: str | None = _CLOCK) -> dict[_Setup, pd.Series]:
    """The latency of every restart by experiment and thread count."""
    return {
        (str(name), int(threads)): restart_latencies(part, clock)
        for (name, threads), part in timed.groupby(["experiment", "threads"])
    }


def _compare_setups(
    restarts: Mapping[_Setup, pd.Series], baseline: _Setup, candidate: _Setup
) -> tuple[float, float, float, str]:
    """The speed-up in wall time, its interval and the verdict, over the restarts of both setups."""
    speedup = speedup_of_restarts(*shared_restarts(restarts[baseline], restarts[candidate]))
    outcome = speedup.outcomes
    return float(speedup.value[0]), float(speedup.low[0]), float(speedup.high[0]), str(outcome[0])


def size_power(phases: Sequence[Phase]) -> int:
    """The power of a swept size that the number of input values grows with."""
    values = {p.size: max(math.prod(t.shape) for t in p.inputs) for p in phases}
    (few, least), *_, (many, most) = sorted(values.items())
    return max(1, round(math.log(most / least) / math.log(many / few)))


def fit_sizes(run: Run) -> pd.DataFrame | None:
    """Straight lines through latency over ``size ** power``, by side: ``frames.SIZE_FITS``.

    One least-squares line per restart, weighted by 1 / latency; the interval is Student's over the
    restarts. None with fewer than three sizes.
    """
    if not run.record.plan.sweep or run.emulated:
        return None
    sides = {m.name: (m.side, m.phase.size) for m in run.measurements if not m.control}
    power = size_power(run.record.plan.phases)
    times: dict[_Setup, dict[int, pd.Series]] = {}
    for (name, threads), restarts in _split_restarts(pick_timed(run.latencies), None).items():
        if name in sides:
            side, size = sides[name]
            times.setdefault((side, threads), {})[size] = restarts
    rows = []
    for setup, table in ((setup, pd.DataFrame(each).dropna()) for setup, each in times.items()):
        if table.shape[1] < _LEAST_SIZES or table.empty:
            continue
        work, mean = table.columns.to_numpy(float) ** power, table.mean().to_numpy()
        lines = np.array([np.polyfit(work, y, 1, w=1 / mean)[::-1] for y in table.to_numpy()])
        middle, half = lines.mean(axis=0), half_width(lines)
        off = np.abs(np.polyval(middle[::-1], work) / mean - 1).max()
        ends = np.column_stack([middle, middle - half, middle + half]).ravel()
        rows.append((*setup, power, *ends, off))
    return SIZE_FITS.check(pd.DataFrame(rows, columns=SIZE_FITS.names)) if rows else None


def describe_sizes(run: Run) -> tuple[str, ...]:
    """Sentences on where the bottleneck changes with a size, and where an extension pays."""
    name = run.record.plan.sweep
    if not name or run.phases is None or run.emulated:
        return ()
    sides = {m.name: m.side for m in run.measurements}
    phases = run.phases.dropna(subset="share")
    phases = phases.assign(side=phases["experiment"].map(sides))
    speedups = pd.concat(
        ab.latency.assign(
            label=f"{ab.candidate.side} over {ab.baseline.side}, {ab.threads_text}",
            size=ab.candidate.phase.size,
        )
        for ab in run.comparisons
    )
    lines = []
    for (side, threads), part in phases.sort_values("size").groupby(["side", "threads"]):
        steps = part[part["category"] != part["category"].shift()]
        texts = [f"{row.category} from {name}={row.size:.0f}" for row in steps.itertuples()]
        texts = [f"{steps['category'].iloc[0]} at every size"] if len(steps) == 1 else texts
        lines.append(f"{side}, {plural(threads, 'thread')}: most time in {', then '.join(texts)}")
    for label, part in speedups.sort_values("size").groupby("label", sort=False):
        faster = part[part["outcome"] == "faster"]
        rows = faster.itertuples()
        texts = [f"{format_ratio(row.speedup)}x at {name}={row.size}" for row in rows]
        lines.append(f"{label}: {', '.join(texts) if texts else 'not faster at any size'}")
    return tuple(lines)

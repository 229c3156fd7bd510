"""Sweeps over ISA levels, thread counts and sizes: what each step changes."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise, product

import numpy as np
import pandas as pd

from workbench import Comparison, Run
from workbench.api import Frame
from workbench.pages import Speedup, format_ratio, half_width, plural

LADDER = Frame.make(
    "ladder",
    ("level", "text", "", "ISA level, the lowest first"),
    ("adds", "text", "", "CPU features that this level adds to the one below"),
    "threads",
    ("latency_ms", "float", "ms", "latency of one inference, as in the statistics"),
    *Frame.interval("its", "ms", prefix="latency_", suffix="_ms"),
    ("speedup", "float", "ratio", "latency of the level below / this one's; NaN for the lowest"),
    "low high",
    ("outcome", "text", "", "as elsewhere; none for the lowest"),
    ("total", "float", "ratio", "latency of the lowest level / this one's"),
    *Frame.interval("its", "ratio", prefix="total_"),
    (
        "floor",
        "float",
        "share",
        "noise of the speed-up: how far equal experiments differ, as a ratio - 1",
    ),
)
SCALING = Frame.make(
    "scaling",
    "experiment threads",
    ("latency_ms", "float", "ms", "wall time of one inference, as in the statistics"),
    *Frame.interval("its", "ms", prefix="latency_", suffix="_ms"),
    ("speedup", "float", "ratio", "latency with the fewest threads / this one's"),
    "low high",
    ("outcome", "text", "", "as elsewhere; none for the fewest"),
    ("efficiency", "float", "share", "speed-up / how many times as many threads"),
)


def experiments_by_phase(run: Run) -> list[list[str]]:
    """The experiments of every phase, without controls."""
    phases: dict[str, list[str]] = {}
    for experiment in run.record.plan.experiments:
        if not experiment.control:
            phases.setdefault(experiment.phase, []).append(experiment.name)
    return list(phases.values())


def list_isa_levels(run: Run) -> pd.DataFrame | None:
    """Every ISA level of a run against the one below, and the lowest: ``frames.LADDER``.

    None without levels. The noise floor is that of the highest level. Latency is CPU time for one
    thread and wall time for several.
    """
    record = run.record
    if not record.plan.is_ladder:
        return None
    by_setup = {(m.name, m.threads): m for m in run.measurements}
    masked = {s.experiment: s.masked for s in record.sessions}
    rows = []
    for names, threads in product(experiments_by_phase(run), thread_counts(run)):
        for below, level in pairwise(["", *names]):
            adds = [f for f in masked[below] if f not in masked[level]] if below else []
            now = by_setup[level, threads]
            setup = level, ", ".join(adds), threads, *now.statistics[_LATENCY].iloc[0]
            against = (np.nan, np.nan, np.nan, None, 1.0, 1.0, 1.0, np.nan)
            if below:
                befores = (by_setup[name, threads] for name in (below, names[0]))
                step, total = (Comparison(each, now).latency.iloc[0] for each in befores)
                against = (*step[[*_SPEEDUP, "outcome"]], *total[_SPEEDUP], step["floor"])
            rows.append((*setup, *against))
    return LADDER.check(pd.DataFrame(rows, columns=LADDER.names))


def thread_counts(run: Run) -> list[int]:
    """The thread counts that were timed, the fewest first."""
    return sorted({m.threads for m in run.measurements})


def list_swept(run: Run, experiments: Sequence[str]) -> list[str]:
    """The experiments that were measured at each of several thread counts."""
    counts, measured = len(thread_counts(run)), Counter(m.name for m in run.measurements)
    return [name for name in experiments if measured[name] == counts > 1]


#: With several threads, latency is the time that the caller waits; the same clock for one.
_CLOCK = "wall_ns"

_LATENCY, _SPEEDUP = ["latency", "low", "high"], ["speedup", "low", "high"]
_Setup = tuple[str, int]


def sweep_threads(run: Run) -> pd.DataFrame | None:
    """Wall time of every experiment at every thread count, against the fewest: ``frames.SCALING``.

    None with one thread count. Thread counts are measured one after the other within a restart, so
    each restart gives one ratio; the interval is over the restarts.
    """
    experiments = list_swept(run, run.experiments)
    if not experiments:
        return None
    restarts, (fewest, *_), rows = _split_restarts(run), thread_counts(run), []
    for name, threads in product(experiments, thread_counts(run)):
        times = restarts[name, threads].to_numpy()
        mean, half = times.mean(), half_width(times)
        speedup, outcome = [1.0, 1.0, 1.0], None
        if threads != fewest:
            *speedup, outcome = _compare_setups(restarts, (name, fewest), (name, threads))
        latency = mean, max(mean - half, 0.0), mean + half
        rows.append((name, threads, *latency, *speedup, outcome, speedup[0] * fewest / threads))
    return SCALING.check(pd.DataFrame(rows, columns=SCALING.names))


def describe_threads(run: Run) -> tuple[str, ...]:
    """What changes with more threads, as sentences."""
    if run.emulated:
        return ()
    sentences = price_threads(run)
    for names in experiments_by_phase(run):
        sentences += find_crossovers(run, list_swept(run, names))
    return tuple(sentences)


def find_crossovers(run: Run, experiments: Sequence[str]) -> list[str]:
    """Sentences on what more threads change; the experiments from the lowest level up.

    For each step to more threads: the experiments that become slower, or do not become faster
    (cores share memory, and some share the SME2 unit). For each two neighbouring experiments:
    whether the slower one with more threads beats the faster one with the fewest, and from which
    thread count on their order reverses. Only differences that the interval shows are stated.
    """
    restarts, counts = _split_restarts(run), thread_counts(run)
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


def price_threads(run: Run) -> list[str]:
    """Sentences on the thread counts that ExecuTorch would choose: the best, and what others cost.

    The ratios and their intervals are those of `sweep_threads`, against the fastest count.
    """
    restarts, plan = _split_restarts(run), run.record.plan
    rules = dict(zip(plan.threads, plan.thread_rules, strict=False))
    sentences = []
    for name in run.experiments:
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


def _split_restarts(run: Run) -> dict[_Setup, pd.Series]:
    """The wall time of every restart by experiment and thread count."""
    return {(m.name, m.threads): m.restarts_by(_CLOCK) for m in run.measurements}


def _compare_setups(
    restarts: Mapping[_Setup, pd.Series], baseline: _Setup, candidate: _Setup
) -> tuple[float, float, float, str]:
    """The speed-up in wall time, its interval and the verdict, over the restarts of both setups."""
    speedup = Speedup.between(restarts[baseline], restarts[candidate])
    outcome = speedup.outcomes
    return float(speedup.value[0]), float(speedup.low[0]), float(speedup.high[0]), str(outcome[0])


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

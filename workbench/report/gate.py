"""Hold comparisons to limits: verdicts and tables, and JUnit for CI."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from workbench.analysis.compare_runs import (
    Comparisons,
    check_comparable,
    check_several,
    contrast_programs,
    describe_programs,
    describe_uses,
    find_measurements,
    name_pair,
    name_runs,
    pair_runs,
    split_name,
    suggest_interleaving,
    tabulate_pairs,
)
from workbench.analysis.open import open_run
from workbench.analysis.run import Comparison, Measurement
from workbench.emulation import WRONG
from workbench.errors import WorkbenchError, printable
from workbench.frames import GATE_ROWS
from workbench.plots.tables import show_aligned, show_table
from workbench.store import atomic_write
from workbench.wording import format_range, format_ratio

#: By resource, the most that it may grow, as a fraction.
Limits: TypeAlias = Mapping[str, float]
_WORSE = {
    "latency": "slower",
    "peak memory": "more peak memory",
    "first output": "later first output",
}
_UNMEASURED = {
    "peak memory": ("the memory of a side was not measured", "--fail-memory-above"),
    "first output": ("the starts of a side were not measured", "--fail-start-above"),
}
#: Resources that only the JSON has.
_FOR_PROGRAMS = ("CPU time of a start", "anonymous memory", "PSS")


@dataclass(frozen=True)
class Gate:
    """What was compared, and whether it keeps to a limit.

    ``rows`` are ``frames.GATE_ROWS``; ``verdicts`` are sentences; ``aligned`` (``frames.ALIGNED``)
    has the parts if they were asked for; ``notes`` are caveats; ``resources`` has memory and starts
    if both sides were measured. ``limits`` are fractions of what the baseline needs: of its
    ``latency``, ``peak memory`` and ``first output``.
    """

    rows: pd.DataFrame
    verdicts: tuple[str, ...] = ()
    aligned: pd.DataFrame | None = None
    notes: tuple[str, ...] = ()
    resources: pd.DataFrame | None = None
    limits: Limits = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether nothing is proven to be beyond a limit, and no outputs are wrong."""
        tables = (table for table in (self.rows, self.resources) if table is not None)
        return not any((table["gate"] == "failed").any() for table in tables)

    @property
    def allowed(self) -> str:
        """What may be worse, and by how much: ``at most 5 % slower``; empty without a limit."""
        return ", ".join(f"at most {100 * n:g} % {_WORSE[what]}" for what, n in self.limits.items())

    @property
    def outcome(self) -> str:
        """How many rows keep to the limits: ``at most 5 % slower: 2 passed``; empty without any."""
        tables = [table["gate"] for table in (self.rows, self.resources) if table is not None]
        counts = pd.concat(tables).value_counts().drop("open", errors="ignore")
        counted = ", ".join(f"{count} {name}" for name, count in counts.items())
        return f"{self.allowed}: {counted}" if self.limits else ""

    @property
    def record(self) -> dict[str, Any]:
        """The same for programs."""
        return {"passed": self.passed, **asdict(self)}


def compare_named(
    names: Sequence[str],
    *,
    baseline: str | Path = "",
    across: Collection[str] = (),
    by: str | None = None,
    limits: Limits | None = None,
) -> Gate:
    """Compare measurements with the first of them, or with the same of an earlier run.

    One run is its own first comparison. Two give a verdict, more give a row each, of latencies; a
    table of their parts is added if ``by`` asks for it, which needs their traces. With a
    ``baseline``, a run or its ``manifest.json``, each measurement of one run gives a verdict.
    """
    limits = limits or {}
    if baseline:
        return _compare_earlier(pair_runs(baseline, names[0], across), limits)
    subject, measurements = _find_sides(names)
    if subject and not any(any(split_name(name)[1:]) for name in names):
        across = {*across, "program"}  # two runs, such as before and after an edit
    check_comparable(measurements.values(), across)
    several = Comparisons(measurements, subject)
    notes = describe_uses(measurements, traced=bool(by or subject))
    if subject:
        notes += suggest_interleaving([*several.pairs.values()][-1])
    else:
        notes += [*contrast_programs(several.pairs), *describe_programs(measurements)]
    if unknown := ", ".join(name for name, m in measurements.items() if not m.identity.device):
        notes.append(f"device and build are unknown, and not compared: {unknown}")
    subjects = [subject] if subject else [f"E2E in {name}" for name in several.others]
    gate = judge_pairs(several.others, limits, subjects, notes, verdicts=bool(subject))
    if not by:
        return gate
    aligned = several.align(by)
    rows = pd.concat([gate.rows, judge_latencies(_list_parts(aligned), limits)], ignore_index=True)
    return replace(gate, rows=rows, aligned=aligned)


def _compare_earlier(pairs: Mapping[str, Comparison], limits: Limits) -> Gate:
    """Hold the measurements of a run, each beside the same of an earlier one, to limits."""
    pair = next(iter(pairs.values()))
    before, after = (side.run.record.started for side in (pair.baseline, pair.candidate))
    notes = [f"measured apart: the baseline at {before}, this run at {after}"]
    return judge_pairs(pairs, limits, [*pairs], notes, verdicts=True)


def _find_sides(names: Sequence[str]) -> tuple[str, dict[str, Measurement]]:
    """Measurements by name; of one run, its two sides. What a comparison of two is about."""
    if len(names) == 1 and not any(split_name(names[0])[1:]):
        pair = open_run(names[0]).compare()
        sides = {side.label: side for side in (pair.baseline, pair.candidate)}
        return f"{pair.candidate.label} against {pair.baseline.label}", sides
    check_several(names)
    measurements = find_measurements(names)
    if len(names) > 2:
        return "", measurements
    before, after = measurements.values()
    labels = name_runs([before, after])
    return name_pair(before, after), dict(zip(labels, (before, after), strict=True))


def judge_pairs(
    pairs: Mapping[str, Comparison], limits: Limits, subjects: Sequence[str], notes: Sequence[str],
    *, verdicts: bool,
) -> Gate:  # fmt: skip
    """Hold latency, memory and starts of comparisons to limits; with their verdicts if asked."""
    latencies = tabulate_pairs(pairs).assign(subject=subjects)
    outcomes = zip(pairs.values(), latencies["outcome"], strict=True)
    texts = [replace(pair.verdict, outcome=outcome).text for pair, outcome in outcomes if verdicts]
    rows, resources = judge_latencies(latencies, limits), _judge_resources(pairs, limits)
    return Gate(rows, tuple(texts), None, tuple(notes), resources, limits)


def judge_latencies(rows: pd.DataFrame, limits: Limits) -> pd.DataFrame:
    """``frames.GATE_ROWS``; a row fails only if it was shown to be slower."""
    ratios = rows.assign(low=1 / rows["high"], high=1 / rows["low"])
    gate = judge_limit(ratios, limits.get("latency"), rows["outcome"] == "slower")
    return GATE_ROWS.check(rows.assign(gate=gate)[GATE_ROWS.names].reset_index(drop=True))


def _judge_resources(pairs: Mapping[str, Comparison], limits: Limits) -> pd.DataFrame | None:
    """Latency, memory and starts against the baseline's; None if latency alone was measured."""
    frames = {name: pair.resources for name, pair in pairs.items()}
    resources = set.intersection(*({*each["resource"]} for each in frames.values()))
    for resource, (text, option) in _UNMEASURED.items():
        if resource in limits and resource not in resources:
            raise WorkbenchError(text, where=option, hint="measure both again: workbench run")
    table = pd.concat(frames, names=["subject"]).reset_index("subject").reset_index(drop=True)
    if table["resource"].isin(["latency"]).all():
        return None
    is_shown = (table["outcome"] == "more") | (table["resource"] == "peak memory")
    table = table.assign(gate=judge_limit(table, table["resource"].map(limits), is_shown))
    return table if len(frames) > 1 else table.drop(columns="subject")


def judge_limit(
    ratios: pd.DataFrame, limit: float | pd.Series | None, is_shown: pd.Series
) -> pd.Series:
    """Whether ratios of candidate to baseline, by their intervals and outcomes, keep to a limit.

    ``failed`` if outputs are wrong, or if all of the interval is beyond the limit and the
    difference was ``shown``; ``passed`` if all of it is within; in between, or without an interval,
    ``undecided``: more restarts would tell. ``open`` without a limit.
    """
    most = 1 + pd.Series(limit, ratios.index, dtype=float)
    failed = (ratios["outcome"] == WRONG) | (ratios["low"] > most) & is_shown
    choices = [most.isna(), failed, ratios["high"] <= most]
    gate = np.select(choices, ["open", "failed", "passed"], "undecided")
    return pd.Series(gate, ratios.index, dtype="str")


def _list_parts(aligned: pd.DataFrame) -> pd.DataFrame:
    """The parts of the other runs than the first, beside those of the first."""
    parts = aligned[aligned["level"] != "e2e"]
    is_first = parts["run"] == parts["run"].iloc[0]
    times, candidates = parts[is_first].set_index("name")["time_ms"], parts[~is_first]
    return candidates.assign(
        subject=candidates["name"].astype(str) + " in " + candidates["run"].astype(str),
        baseline_ms=candidates["name"].map(times),
        candidate_ms=candidates["time_ms"],
    ).dropna(subset="outcome")


def write_junit(gate: Gate, path: Path) -> Path:
    """Write a gate as JUnit XML, undecided rows as skipped; returns the path."""
    from junitparser import Failure, JUnitXml, Skipped, TestCase, TestSuite

    suite = TestSuite(gate.allowed)
    cases = [
        (row["subject"], row["level"], row, describe_row(row))
        for row in gate.rows.to_dict("records")
    ]
    resource_rows = [] if gate.resources is None else gate.resources.to_dict("records")
    for row in resource_rows:
        if row["resource"] == "latency":  # which is among the rows
            continue
        name = ": ".join(filter(None, (row.get("subject"), row["resource"])))
        ratio, low, high = (format_ratio(row[each]) for each in ("ratio", "low", "high"))
        text = "{outcome}: {baseline:.4g} -> {candidate:.4g} {unit}".format_map(row)
        cases.append((name, "resources", row, f"{text}, {ratio}x [{low}, {high}]"))
    for name, kind, row, text in cases:
        case = TestCase(printable(name), f"workbench.{kind}")
        if row["gate"] == "failed":
            case.result = [Failure(text, row["outcome"])]
        elif row["gate"] == "undecided":
            case.result = [Skipped(text)]
        case.system_out = text
        suite.add_testcase(case)
    document = JUnitXml("workbench compare")
    document.add_testsuite(suite)
    return atomic_write(path, document.tostring())


def describe_row(row: dict[str, Any]) -> str:
    """One row of a gate: ``slower: 10.0 ms -> 11.0 ms, latency +8.7 % to +11.1 % (...)``."""
    times = format_range(row["baseline_ms"], row["candidate_ms"])
    text = f"{row['outcome']}: {' -> '.join(times)}"
    if row["outcome"] == WRONG:
        return text
    if math.isnan(row["low"]):
        return f"{text}, too few restarts for an interval"
    low, high = (100 * (1 / row[end] - 1) for end in ("high", "low"))
    return f"{text}, latency {low:+.1f} % to {high:+.1f} % (95 % interval)"


def show_gate(gate: Gate) -> list[object]:
    """Verdicts, or a row for each of several measurements; parts, limits and notes."""
    table = []
    if gate.aligned is not None:
        table = ["", show_aligned(gate.aligned)]
    elif not gate.verdicts:
        columns = gate.rows.columns.drop("level" if gate.limits else ["level", "gate"])
        table = [show_table(gate.rows, columns)]
    resources = []
    if gate.resources is not None:
        rows = gate.resources[~gate.resources["resource"].isin(_FOR_PROGRAMS)]
        resources = ["", show_table(rows if gate.limits else rows.drop(columns="gate")), ""]
    outcome = [gate.outcome] if gate.limits else []
    return [*gate.verdicts, *table, *resources, *outcome, *gate.notes]

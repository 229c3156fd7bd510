"""Comparisons held to a limit: what is surely slower than it may be, and what is not.

Compare any two measurements, if they can be compared.

Any number of measurements side by side.

A run against what an earlier one has left of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.analysis.align import Traced, align_runs, tabulate_runs
from workbench.analysis.compare import (
    compare_apart,
    compare_categories,
    compare_latencies,
    compare_operators,
    compare_restarts,
    typical_restarts,
)
from workbench.analysis.run import Analysis, analyze_run, find_control, identify_run
from workbench.analysis.shift import bottleneck_shift
from workbench.analysis.statistics import clock_of, pick_timed
from workbench.analysis.verdict import Verdict, reach_verdict, summarize_verdict
from workbench.errors import ComparisonError, UsageError, unknown_name
from workbench.frames import EMULATED, JUDGED, check
from workbench.records.documents import read_document
from workbench.records.runs import count_threads
from workbench.store import MANIFEST


@dataclass(frozen=True)
class Compared:
    """What was compared, and whether it keeps to a limit.

    ``rows`` are ``schema.JUDGED``; ``verdicts`` sentences on what has one, ``aligned``
    (``schema.ALIGNED``) the parts if they were asked for; ``notes`` what is to be kept in mind.
    ``fail_above`` is the limit as a fraction of the baseline's time, None without one.
    """

    rows: pd.DataFrame
    verdicts: tuple[str, ...] = ()
    aligned: pd.DataFrame | None = None
    notes: tuple[str, ...] = ()
    fail_above: float | None = None

    @property
    def passed(self) -> bool:
        """Whether nothing is surely slower than it may be."""
        return not (self.rows["gate"] == "failed").any()

    @property
    def record(self) -> dict[str, Any]:
        """The same for programs."""
        return {"passed": self.passed, **asdict(self)}


def judge_rows(rows: pd.DataFrame, fail_above: float | None, **facts: Any) -> Compared:
    """Hold comparisons to a limit.

    A row has ``failed`` if it was shown to be slower and its whole 95 % interval lies beyond the
    limit; it has ``passed`` if the whole interval lies within. In between, or without an interval,
    it is ``undecided``: more restarts would tell.

    Parameters
    ----------
    rows
        ``schema.COMPARISON`` with ``subject``.
    fail_above
        By which fraction of the baseline's time something may be slower; None: no limit.
    facts
        As ``Compared`` has them.
    """
    gate = pd.Series("open", index=rows.index)
    if fail_above is not None:
        least = 1 / (1 + fail_above)
        gate[:] = "undecided"
        gate[rows["low"] >= least] = "passed"
        gate[(rows["high"] < least) & (rows["outcome"] == "slower")] = "failed"
    judged = check(rows.assign(gate=gate)[JUDGED.names].reset_index(drop=True), JUDGED)
    return Compared(judged, fail_above=fail_above, **facts)


#: What may differ between two measurements only where that is the question.
AXES = ("program", "threads", "device", "build")


@dataclass(frozen=True)
class Measurement:
    """One experiment of a run at one thread count."""

    analysis: Analysis
    experiment: str
    threads: int

    @property
    def traced(self) -> Traced:
        """Its ledger and operators."""
        return Traced(self.select(self.analysis.ledger), self.select(self.analysis.operators))

    def select(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows of this measurement."""
        return self.analysis.select(frame, self.experiment, self.threads)


def compare_runs(baseline: str, candidate: str, *, across: Collection[str] = ()) -> Verdict:
    """Compare two measurements, each ``RUN_DIR[:EXPERIMENT[:THREADS]]``.

    Without an experiment, that of a run is the candidate of its first pair; without threads, the
    first thread count. Two experiments of one run were interleaved, which makes for a narrower
    interval.

    Parameters
    ----------
    baseline, candidate
        Folders of runs, with experiment and threads if need be.
    across
        Which of ``program``, ``threads``, ``device`` and ``build`` may differ.

    Raises
    ------
    UsageError
        An unknown run, experiment or axis.
    ComparisonError
        They differ in something that was not declared; names it with both values. Or one was
        emulated.
    """
    before, after = find_comparable([baseline, candidate], across)
    return judge_pair(before, after, f"{candidate} against {baseline}")[0]


def judge_pair(
    before: Measurement, after: Measurement, subject: str
) -> tuple[Verdict, pd.DataFrame]:
    """The verdict on two measurements, and their latencies as ``schema.COMPARISON``."""
    latency = compare_e2e(before, after)
    shift = bottleneck_shift(*(m.select(m.analysis.categories) for m in (before, after)))
    return reach_verdict(subject, "", latency, shift), latency


def compare_e2e(before: Measurement, after: Measurement) -> pd.DataFrame:
    """One row of ``schema.COMPARISON``: interleaved where they are of one run, else apart."""
    if are_interleaved(before, after):
        origin, control = find_control(before.analysis.run.plan, before.experiment)
        return compare_latencies(
            before.analysis.latencies,
            before.experiment,
            after.experiment,
            control=control,
            control_of=origin,
            threads=before.threads,
        )
    return compare_apart(
        *(m.select(m.analysis.latencies) for m in (before, after)),
        floor=max(before.analysis.floor, after.analysis.floor),
    )


def are_interleaved(before: Measurement, after: Measurement) -> bool:
    """Whether two measurements took turns: experiments of one run at one thread count."""
    return is_one_run([before, after]) and before.threads == after.threads


def is_one_run(measurements: Sequence[Measurement]) -> bool:
    """Whether all measurements are of the same run."""
    return len({m.analysis.run_dir.resolve() for m in measurements}) == 1


def find_comparable(names: Sequence[str], across: Collection[str] = ()) -> list[Measurement]:
    """The measurements of these names, none of which differs from the first in what it must not.

    Raises
    ------
    UsageError, ComparisonError
        As from `compare_runs`.
    """
    check_axes(across)
    analyze = cache(analyze_run)
    found = [find_measurement(name, analyze) for name in names]
    for other in found:
        check_comparable(identify(found[0]), identify(other), across)
    if any(measurement.analysis.run.emulated for measurement in found):
        raise ComparisonError(f"no speed to compare; {EMULATED}", hint="measure on silicon")
    return found


def find_measurement(name: str, analyze: Callable[[str], Analysis] = analyze_run) -> Measurement:
    """The measurement that ``RUN_DIR[:EXPERIMENT[:THREADS]]`` names.

    Raises
    ------
    UsageError
        No such run, or no such experiment or thread count in it.
    """
    folder, experiment, threads = split_name(name)
    analysis = analyze(folder)
    plan = analysis.run.plan
    experiment = experiment or plan.pairs[0].candidate
    known = [e.name for e in plan.experiments]
    if experiment not in known:
        raise unknown_name("experiment", experiment, known, where=folder)
    counts = {str(count): count for count in plan.threads}
    if threads and threads not in counts:
        raise unknown_name("thread count", threads, counts, where=folder)
    return Measurement(analysis, experiment, counts[threads] if threads else plan.threads[0])


def split_name(name: str) -> tuple[str, str, str]:
    """Folder, experiment and threads of ``RUN_DIR[:EXPERIMENT[:THREADS]]``; empty if not given."""
    plain = (Path(name) / MANIFEST).exists()
    folder, experiment, threads, *_ = [*([name] if plain else name.split(":", 2)), "", ""]
    return folder, experiment, threads


def check_axes(across: Collection[str]) -> None:
    """Refuse what is none of the ``AXES``."""
    for axis in across:
        if axis not in AXES:
            raise unknown_name("axis", axis, AXES, where="--across")


def check_comparable(
    before: Mapping[str, str], after: Mapping[str, str], across: Collection[str] = ()
) -> None:
    """Refuse to compare what differs in more than it should.

    Raises
    ------
    ComparisonError
        Names the axis and both values.
    """
    for axis in AXES:
        if axis in after and before[axis] != after[axis] and axis not in across:
            raise ComparisonError(
                f"the two differ in {axis}: {before[axis]} against {after[axis]}",
                hint=f"add --across {axis} if that is the question",
            )


def identify(measurement: Measurement) -> dict[str, str]:
    """What was measured, along the ``AXES``."""
    return {**identify_run(measurement.analysis.run), "threads": str(measurement.threads)}


#: What the rows of a table of several measurements can be.
PARTS = ("layer", "category", "operator")


def align_measurements(
    names: Sequence[str], *, across: Collection[str] = (), by: str = "layer"
) -> pd.DataFrame:
    """E2E and every part of it in several measurements, against the first of them.

    Parameters
    ----------
    names
        At least two of ``RUN_DIR[:EXPERIMENT[:THREADS]]``.
    across
        Which of ``program``, ``threads``, ``device`` and ``build`` may differ.
    by
        ``layer`` (which survives renaming and fusion), ``category``, or ``operator`` for
        measurements of one program.

    Returns
    -------
    DataFrame
        ``schema.ALIGNED``: first E2E (of the untraced runs), then the parts (of the traced ones).

    Raises
    ------
    UsageError
        An unknown run, experiment, axis or kind of part; or one measurement twice.
    ComparisonError
        They differ in something that was not declared, or have no such parts.
    """
    if by not in PARTS:
        raise unknown_name("part", by, PARTS, where="--by")
    if len(names) < 2 or len(set(names)) < len(names):
        raise UsageError("needs two or more measurements, each once", where="compare")
    found = dict(zip(names, find_comparable(names, across), strict=True))
    first = found[names[0]]
    latencies = {name: compare_e2e(first, m).assign(name="E2E") for name, m in found.items()}
    e2e = tabulate_runs(latencies, ["E2E"])
    return pd.concat([e2e, _align(found, by)], ignore_index=True)


def compare_many(
    names: Sequence[str],
    *,
    across: Collection[str] = (),
    by: str | None = None,
    fail_above: float | None = None,
) -> Compared:
    """Compare measurements with the first of them.

    Two give a verdict, with a table of their parts if ``by`` asks for it; more give a table, by
    layer if not otherwise asked for.

    Parameters
    ----------
    names, across, by
        As for ``align_measurements``.
    fail_above
        By which fraction of the first one's time the others may be slower.

    Raises
    ------
    UsageError, ComparisonError
        As from ``align_measurements``.
    """
    verdicts, rows, aligned = (), [], None
    if len(names) == 2:
        subject = f"{names[1]} against {names[0]}"
        verdict, latency = judge_pair(*find_comparable(names, across), subject)
        verdicts = (summarize_verdict(verdict),)
        rows.append(latency.assign(subject=subject))
    if by or len(names) != 2:
        aligned = align_measurements(names, across=across, by=by or PARTS[0])
        parts = list_others(aligned)
        rows.append(parts[parts["level"] != "e2e"] if verdicts else parts)
    return judge_rows(
        pd.concat(rows, ignore_index=True), fail_above, verdicts=verdicts, aligned=aligned
    )


def list_others(aligned: pd.DataFrame) -> pd.DataFrame:
    """What the other runs than the first have, as it was compared with the first."""
    others = aligned[aligned["run"] != aligned["run"].iloc[0]]
    times = aligned[aligned["run"] == aligned["run"].iloc[0]].set_index(["level", "name"])[
        "time_ms"
    ]
    keys = pd.MultiIndex.from_frame(others[["level", "name"]])
    return others.assign(
        subject=others["name"].astype(str) + " in " + others["run"].astype(str),
        baseline_ms=times.reindex(keys).to_numpy(),
        candidate_ms=others["time_ms"],
    ).dropna(subset="outcome")


def _align(found: dict[str, Measurement], by: str) -> pd.DataFrame:
    apart = not is_one_run(list(found.values()))
    traced = {name: measurement.traced for name, measurement in found.items()}
    if by == "layer":
        return align_runs(traced, apart=apart)
    first = next(iter(traced.values())).ledger
    if by == "category":
        pairs = {
            name: compare_categories(first, t.ledger, apart=apart) for name, t in traced.items()
        }
        return tabulate_runs(pairs, next(iter(pairs.values()))["name"])
    if len({measurement.analysis.run.plan.sha256 for measurement in found.values()}) > 1:
        raise ComparisonError("operators of different programs have no pairs", hint="--by layer")
    pairs = {
        name: compare_operators(first, t.ledger, apart=apart).assign(name=lambda p: p["key"])
        for name, t in traced.items()
    }
    return tabulate_runs(pairs, next(iter(pairs.values()))["name"])


def compare_with_metrics(
    metrics_json: str | Path,
    name: str,
    *,
    across: Collection[str] = (),
    fail_above: float | None = None,
) -> Compared:
    """Compare a run with the ``metrics.json`` that an earlier one has left.

    The two did not take turns. The interval is over the process restarts of both; what else
    changed on the machine between them is in the difference, and not in the interval.

    Parameters
    ----------
    metrics_json
        A copy of the earlier run's file.
    name
        ``RUN_DIR[:EXPERIMENT[:THREADS]]``. Without an experiment, every measurement of the earlier
        run is compared, controls apart, and all as one family.
    across, fail_above
        As for ``compare_many``; threads are those of the name.

    Raises
    ------
    StoreError
        The file is no such file.
    ComparisonError
        The runs are not comparable, one was emulated, or a measurement is missing.
    """
    check_axes(across)
    metrics = read_document(Path(metrics_json), "metrics")
    folder, experiment, threads = split_name(name)
    analysis = analyze_run(folder)
    check_comparable(metrics, identify_run(analysis.run), across)
    if metrics["emulated"] or analysis.run.emulated:
        raise ComparisonError(f"no speed to compare; {EMULATED}", hint="measure on silicon")
    wanted = [
        row
        for row in metrics["latencies"]
        if not row["control"]
        and experiment in ("", row["experiment"])
        and threads in ("", str(row["threads"]))
    ]
    if not wanted:
        known = sorted({f"{row['experiment']}:{row['threads']}" for row in metrics["latencies"]})
        raise unknown_name("measurement", f"{experiment}:{threads}", known, where=metrics_json)
    subjects = [
        f"{metrics['model']}, {row['experiment']}, {count_threads(row['threads'])}"
        for row in wanted
    ]
    table = compare_restarts(
        subjects,
        [row["restarts_ms"] for row in wanted],
        [find_restarts(analysis, row) for row in wanted],
        floor=max(metrics["floor"] or 0.0, analysis.floor),
    )
    verdicts = tuple(
        summarize_verdict(reach_verdict(subject, "", table.iloc[[number]]))
        for number, subject in enumerate(subjects)
    )
    apart = f"measured apart: the baseline at {metrics['started']}, this at {analysis.run.started}"
    rows = table.rename(columns={"name": "subject"})
    return judge_rows(rows, fail_above, verdicts=verdicts, notes=(apart,))


def find_restarts(analysis: Analysis, row: Mapping[str, Any]) -> list[float]:
    """The typical latencies of the restarts of what a row of ``metrics.json`` measured.

    Raises
    ------
    ComparisonError
        It was not measured, or on another clock.
    """
    latencies = pick_timed(analysis.select(analysis.latencies, row["experiment"], row["threads"]))
    if latencies.empty:
        raise ComparisonError(
            f"{row['experiment']} with {count_threads(row['threads'])} was not measured",
            where=analysis.run_dir,
            hint="name what to compare: RUN_DIR:EXPERIMENT",
        )
    if clock_of(latencies) != row["clock"]:
        raise ComparisonError(
            f"the clocks differ: {row['clock']} against {clock_of(latencies)}",
            where=analysis.run_dir,
            hint="measure both with the same runner",
        )
    return typical_restarts(latencies)

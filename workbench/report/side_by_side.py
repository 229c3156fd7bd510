"""Any number of measurements side by side."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pandas as pd

from workbench.analyze import (
    align_runs,
    compare_categories,
    compare_operators,
    summarize_verdict,
    tabulate_runs,
)
from workbench.errors import ComparisonError, UsageError, unknown_name
from workbench.report.comparison import (
    Measurement,
    compare_e2e,
    find_comparable,
    is_one_run,
    judge_pair,
)
from workbench.report.gates import Compared, judge_rows

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

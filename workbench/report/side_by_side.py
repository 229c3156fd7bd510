"""Any number of measurements side by side."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pandas as pd

from workbench.analyze import (
    Verdict,
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
    compare_runs,
    find_comparable,
    is_one_run,
    is_slower_by,
)
from workbench.show import Table, show_table
from workbench.show.style import format_ms

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


@dataclass(frozen=True)
class Compared:
    """What `workbench compare` found: a verdict, a table of parts (``schema.ALIGNED``), or both.

    ``is_slower`` says whether anything is surely slower than it may be.
    """

    verdict: Verdict | None
    aligned: pd.DataFrame | None
    is_slower: bool

    @property
    def texts(self) -> list[str]:
        """The verdict in one line, and the table as Markdown."""
        verdict = [summarize_verdict(self.verdict)] if self.verdict else []
        return verdict if self.aligned is None else [*verdict, str(show_aligned(self.aligned))]


def compare_many(
    names: Sequence[str],
    *,
    across: Collection[str] = (),
    by: str | None = None,
    fail_above: float | None = None,
) -> Compared:
    """Compare measurements with the first of them.

    Two give a verdict, with a table of their parts if ``by`` asks for it; more give a table, by
    layer if not otherwise asked for. The 95 % interval has to be beyond ``fail_above``, a fraction
    of the first one's time, and not the estimate, for anything to count as slower.
    """
    verdict = compare_runs(*names, across=across) if len(names) == 2 else None
    aligned = None
    if by or len(names) != 2:
        aligned = align_measurements(names, across=across, by=by or PARTS[0])
    is_slower = fail_above is not None and (
        (verdict is not None and is_slower_by(verdict, fail_above))
        or (aligned is not None and not find_slower(aligned, fail_above).empty)
    )
    return Compared(verdict, aligned, is_slower)


def find_slower(aligned: pd.DataFrame, fraction: float) -> pd.DataFrame:
    """The rows that are surely slower than in the first run by more than a fraction."""
    surely = aligned["high"] < 1 / (1 + fraction)
    return aligned[surely & (aligned["outcome"] == "slower")]


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


def show_aligned(aligned: pd.DataFrame, *, rows: int = 12) -> Table:
    """The parts with the most time in any run, one column per run: time and speed-up.

    A speed-up since the first run is said only where one was shown; E2E comes first.
    """
    largest = aligned.groupby("name", sort=False)["time_ms"].max()
    parts = largest.drop("E2E", errors="ignore").nlargest(rows).index
    chosen = ["E2E", *parts] if "E2E" in largest else list(parts)
    cells = aligned.assign(
        text=[
            format_ms(row.time_ms)
            + (f" ({row.speedup:.2f}x)" if row.outcome in ("faster", "slower") else "")
            for row in aligned.itertuples()
        ]
    )
    runs = list(dict.fromkeys(aligned["run"]))
    heads = {run: f"[{number}]" for number, run in enumerate(runs, 1)}
    wide = cells.pivot(index="name", columns="run", values="text").loc[chosen, runs]
    wide = wide.rename(columns=heads).reset_index(names=aligned["level"].iloc[-1])
    return show_table(wide, caption="; ".join(f"{head} {run}" for run, head in heads.items()))

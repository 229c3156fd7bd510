"""What an analysed run says, one row for each experiment and thread count."""

from __future__ import annotations

from workbench.records import Row
from workbench.report import Analysis, Comparison


def tabulate_rows(analysis: Analysis) -> tuple[Row, ...]:
    """The rows of a run, without its controls; an emulated one has no times."""
    isa = {e.name: e.isa for e in analysis.run.plan.experiments if not e.control}
    measured = analysis.statistics[analysis.statistics["experiment"].isin(list(isa))]
    rows = []
    for found in measured.to_dict("records"):
        experiment, threads = str(found["experiment"]), int(found["threads"])
        plain = Row(experiment, isa[experiment], threads)
        if analysis.run.emulated:
            rows.append(plain)
            continue
        categories = analysis.select(analysis.categories, experiment, threads)
        largest = categories.loc[categories["mean_ms"].idxmax()]
        rows.append(
            Row(
                experiment=experiment,
                isa=isa[experiment],
                threads=threads,
                clock=str(found["clock"]),
                n=int(found["n"]),
                median_ms=float(found["median"]),
                low_ms=float(found["low"]),
                high_ms=float(found["high"]),
                bottleneck=str(largest["category"]),
                share=float(largest["share"]),
                **_compare(analysis, experiment, threads),
            )
        )
    return tuple(rows)


def _compare(analysis: Analysis, experiment: str, threads: int) -> dict[str, object]:
    """What the first comparison says of which this is the candidate."""
    found = next((c for c in analysis.comparisons if c.sides[1] == (experiment, threads)), None)
    return _speedup(found) if found else {}


def _speedup(comparison: Comparison) -> dict[str, object]:
    latency = comparison.latency.iloc[0]
    return {
        "against": comparison.sides[0][0],
        "speedup": float(latency["speedup"]),
        "speedup_low": float(latency["low"]),
        "speedup_high": float(latency["high"]),
        "outcome": comparison.verdict.outcome,
    }

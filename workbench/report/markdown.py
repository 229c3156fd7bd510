"""A run as Markdown: what ``report.md`` and the pipeline summary say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from workbench.analysis.compat import Analysis, check_run
from workbench.analysis.run import Comparison, describe_run
from workbench.analysis.what_if import rank_bottlenecks
from workbench.plots.tables import show_table
from workbench.plots.text import (
    count_outcomes,
    show_findings,
    show_kernels,
    show_layers,
    show_quality,
    show_sweeps,
    show_undelegated,
    show_verdicts,
)
from workbench.store import REPORT_HTML, REPORT_MD, SUMMARY, atomic_write

#: Rows of the operator table.
TOP = 12


def write_markdown(analysis: Analysis, findings: pd.DataFrame) -> tuple[Path, Path]:
    """Write ``report.md`` and ``<stem>_pipeline_summary.md``; returns their paths.

    ``findings`` are those of `find_next_steps`.
    """
    stem = analysis.run.plan.stem
    report = atomic_write(analysis.run_dir / REPORT_MD, render_report(analysis, findings))
    summary = analysis.run_dir / f"{stem}_pipeline_summary.md"
    return report, atomic_write(summary, render_summary(analysis, findings))


def render_summary(analysis: Analysis, findings: pd.DataFrame) -> str:
    """The verdicts, the checks that did not pass, and where everything lies."""
    checks = check_run(analysis)
    doubts = checks[checks["status"] != "ok"]
    return _join(
        f"# {analysis.run.plan.stem}",
        show_verdicts(analysis),
        show_findings(findings, top=3),
        show_table(doubts, caption="To be kept in mind") if len(doubts) else "All checks passed.",
        show_table(describe_run(analysis)),
        f"Details: {REPORT_HTML}, {REPORT_MD}, {SUMMARY}.",
    )


def render_report(analysis: Analysis, findings: pd.DataFrame) -> str:
    """The whole report."""
    timed = "traced" if analysis.latencies["traced"].all() else "untraced"
    return _join(
        f"# {analysis.run.plan.stem}: where the time goes",
        show_verdicts(analysis),
        "## What to do next",
        show_findings(findings),
        "## Latency",
        f"`Method::execute`, {timed}, in ms.",
        show_table(
            analysis.statistics,
            ["experiment", "threads", "clock", "n", "median", "low", "high", "mean", "p95", "p99"],
        ),
        *(["## ISA levels and threads", show_sweeps(analysis)] if _has_sweeps(analysis) else []),
        *(part for c in analysis.comparisons for part in _comparison(analysis, c)),
        *_kernels(analysis),
        "## Operators without a delegate",
        show_undelegated(analysis),
        "## Can the numbers be trusted?",
        show_quality(analysis),
        show_table(check_run(analysis)),
        "## What was measured",
        show_table(describe_run(analysis)),
    )


def _comparison(analysis: Analysis, comparison: Comparison) -> list[object]:
    pair, threads = comparison.pair, comparison.threads
    operators, ledger = (
        analysis.select(frame, pair.candidate, threads)
        for frame in (analysis.operators, analysis.ledger)
    )
    columns = ["name", "category", "family", "calls", "mean_ms", "std_ms", "share"]
    if "confidence" in operators:
        layer = ["module", "module_class", "source", "confidence"]
        columns = ["name", "category", *layer, "mean_ms", "share"]
    return [
        f"## {pair.candidate} against {pair.baseline}, {comparison.text_threads}",
        "Traced `Method::execute` by category; times add up to E2E.",
        show_table(comparison.shift),
        f"What would be left of {pair.candidate} if a category were free, or twice as fast.",
        show_table(rank_bottlenecks(ledger).drop(columns="level")),
        "Speed-up by category, with 95 % intervals.",
        show_table(comparison.categories, ["name", "speedup", "low", "high", "outcome"]),
        count_outcomes(comparison.operators, "operators"),
        f"The most expensive operators of {pair.candidate}.",
        show_table(operators, columns, top=TOP),
        "The layers that they come from.",
        show_layers(comparison.candidate),
        "The machine code that they ran, from samples of the program counter.",
        show_kernels(comparison),
    ]


def _has_sweeps(run: Analysis) -> bool:
    return run.isa_levels is not None or run.scaling is not None


def _kernels(analysis: Analysis) -> Iterator[object]:
    for name, changes in analysis.kernel_changes.items():
        yield f"## Microkernels that XNNPACK registered, {name}"
        yield show_table(changes[changes["change"] != "same"])
        yield f"{(changes['change'] == 'same').sum()} further types are the same on both sides."


def _join(*parts: object) -> str:
    return "\n\n".join(str(part) for part in parts) + "\n"

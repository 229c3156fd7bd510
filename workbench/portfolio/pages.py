"""The portfolio as one page that needs nothing else.

The page, the Markdown and the summary of runs side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.frames import EMULATED
from workbench.plots.categories import plot_categories
from workbench.plots.speedups import plot_heatmap
from workbench.plots.tables import Table, show_note, show_table
from workbench.portfolio.combined import Combined, combine_runs
from workbench.records.codec import to_document
from workbench.records.portfolio import Outcome, Portfolio, Row
from workbench.records.runs import count_threads
from workbench.report.gate import put_side_by_side, show_aligned
from workbench.report.html import render_page, render_template
from workbench.store import atomic_write, safe_name

#: Axes that the page can be filtered by.
AXES = ("model", "dtype", "target", "toggle", "state")
#: Columns that are left out where all rows have the same value.
SHARED = ("target", "toggle", "threads", "state")


def render_index(portfolio: Portfolio) -> str:
    """The page of a portfolio: a sparkline per model, all measurements, all failures."""
    outcomes = portfolio.outcomes
    states = [outcome.state for outcome in outcomes]
    counts = ", ".join(f"{states.count(s)} {s}" for s in ("done", "failed", "open") if s in states)
    updated = portfolio.updated.replace("T", " ").replace("+00:00", " UTC")
    rows = [row for outcome in outcomes for row in _list_rows(outcome)]
    values = {name: {row["cells"][name] for row in rows} - {""} for name in SHARED}
    shared = {name: found.pop() for name, found in values.items() if len(found) == 1}
    choices = {axis: list(dict.fromkeys(row["axes"][axis] for row in rows)) for axis in AXES}
    return render_page(
        "Portfolio",
        "portfolio/index.html.j2",
        script=(resources.files("workbench.portfolio") / "index.js").read_text(),
        summary=f"{len(outcomes)} cells: {counts}. {updated}",
        models=_list_models(outcomes),
        failures=[outcome for outcome in outcomes if outcome.state == "failed"],
        filters={axis: found for axis, found in choices.items() if len(found) > 1},
        shared=shared,
        heads=[name for name in rows[0]["cells"] if name not in shared],
        rows=rows,
    )


def _list_models(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """The models, each with the latency of every measurement."""
    bars: dict[str, list[dict[str, Any]]] = {}
    for outcome in outcomes:
        cell, known = outcome.cell, bars.setdefault(outcome.cell.label, [])
        for row in outcome.rows:
            name = f"{cell.dtype}, {cell.target}, {row.experiment}, {count_threads(row.threads)}"
            known += [{"name": name, "ms": row.median_ms}] if row.median_ms else []
    return [
        {
            "name": name,
            "bars": found,
            "fastest": min(found, key=lambda bar: bar["ms"], default=None),
        }
        for name, found in bars.items()
    ]


def _list_rows(outcome: Outcome) -> Iterator[dict[str, Any]]:
    """The table rows of a cell: texts by column, with links, tooltips and filter values."""
    cell = outcome.cell
    axes = (cell.label, cell.dtype, cell.target, cell.isa, outcome.state)
    state = outcome.state + (f": {outcome.problem}" if outcome.problem else "")
    size = None if outcome.size_bytes is None else outcome.size_bytes / 1e6
    for row in outcome.rows or (Row("", "", 0),):
        speedup = f"{row.speedup:.2f}x" if row.speedup is not None else ""
        unclear = f" ({row.outcome})" if speedup and row.outcome != "faster" else ""
        share = f" {100 * row.share:.0f} %" if row.share is not None else ""
        interval = f"{_number(row.low_ms, '.3f')} to {_number(row.high_ms, '.3f')}"
        titles = {
            "median ms": f"{row.n} inferences, {row.clock}",
            "speed-up": f"{_number(row.speedup_low, '.2f')} to {_number(row.speedup_high, '.2f')}, "
            f"against {row.against}",
        }
        yield {
            "axes": dict(zip(AXES, axes, strict=True)),
            "links": {"model": outcome.report} if outcome.report else {},
            "titles": titles if row.median_ms is not None else {},
            "cells": {
                **dict(zip(AXES[:-1], axes, strict=False)),
                "experiment": row.experiment,
                "threads": row.threads or "",
                "median ms": EMULATED if outcome.emulated else _number(row.median_ms, ".3f"),
                "95 % interval": interval if row.median_ms is not None else "",
                "speed-up": speedup + unclear,
                "bottleneck": row.bottleneck + share,
                "quality": outcome.grade,
                "MB": _number(size, ".2f"),
                "SQNR dB": _number(outcome.sqnr_db, ".1f"),
                "state": state,
            },
        }


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


PAGE, MARKDOWN = "combined_report.html", "combined_report.md"
SUMMARY_JSON, SUMMARY_MD = "combined_pipeline_summary.json", "combined_pipeline_summary.md"

COMBINED_HTML, COMBINED_MD = "portfolio/combined.html.j2", "portfolio/combined.md.j2"
#: Layers in the tables.
TOP = 20

Section = tuple[str, list[object]]


def write_combined(names: Sequence[str], out: str | Path | None = None) -> list[Path]:
    """Write the combined report of several measurements; returns its files.

    Parameters
    ----------
    names
        As for ``combine_runs``.
    out
        The folder, ``combined_<model>`` by default.

    Raises
    ------
    UsageError
        As from ``combine_runs``.
    """
    combined = combine_runs(names)
    folder = Path(out or f"combined_{safe_name('_'.join(combined.models))}")
    title = f"{', '.join(combined.models)}: {len(combined.runs)} runs side by side"
    sections = list(describe_combined(combined))
    content = {"title": title, "sections": sections}
    brief = {"title": title, "sections": sections[:2]}
    return [
        atomic_write(folder / PAGE, render_page(template=COMBINED_HTML, **content)),
        atomic_write(folder / MARKDOWN, render_template(COMBINED_MD, **content)),
        atomic_write(folder / SUMMARY_JSON, to_document(summarize_combined(combined))),
        atomic_write(folder / SUMMARY_MD, render_template(COMBINED_MD, **brief)),
    ]


def summarize_combined(combined: Combined) -> dict[str, Any]:
    """The combined report for programs, as its schema has it."""
    return {
        "models": combined.models,
        "runs": combined.runs,
        "latencies": combined.latencies,
        "layers": combined.layers,
        "problem": combined.problem,
    }


def describe_combined(combined: Combined) -> Iterator[Section]:
    """The headings of the report, each with its tables and figures."""
    runs = combined.runs
    mark = [f"{', '.join(runs['run'][runs['emulated']])}: {EMULATED}."]
    verdicts = [f"{row.run}: {row.verdict}" for row in runs.itertuples() if row.verdict]
    yield (
        "What every run says",
        [show_note(*(mark if runs["emulated"].any() else []), *verdicts)],
    )
    columns = ["run", "latency_ms", "low_ms", "high_ms", "grade", "device", "program", "build"]
    yield "The runs", [show_table(runs, columns, caption="Median of untraced E2E")]
    if len(combined.latencies):
        first = next(iter(combined.silicon))
        columns = ["name", "baseline_ms", "candidate_ms", "speedup", "low", "high", "outcome"]
        caption = f"Untraced E2E against {first}; all that differs between two runs is in it"
        yield "Latency", [show_table(combined.latencies, columns, caption=caption)]
    bars = {name: one.categories for name, one in combined.silicon.items()}
    if bars:
        yield "Where the time goes", [plot_categories(bars), _show_categories(bars)]
    if combined.layers is None:
        yield "Layer by layer", [show_note(f"Not lined up: {combined.problem}")]
        return
    timed = combined.layers[combined.layers["run"].isin(list(combined.silicon))]
    if len(combined.silicon) > 1:
        yield "Layer by layer", [plot_heatmap(timed, top=TOP), show_aligned(timed, rows=TOP)]
    yield "Which code each layer runs", [_show_code(combined.layers)]


def _show_categories(bars: dict[str, pd.DataFrame]) -> Table:
    """The time of every category in every run."""
    parts = {name: part.set_index("category")["mean_ms"] for name, part in bars.items()}
    wide = pd.DataFrame(parts).rename_axis("category").reset_index()
    return show_table(wide, caption="Mean of traced Method::execute, in ms of wall time")


def _show_code(layers: pd.DataFrame) -> Table:
    """What every layer ran in every run, a column per run."""
    texts = layers.assign(
        text=[
            f"{row.operators} [{row.kernels}]" if row.kernels else row.operators
            for row in layers.itertuples()
        ]
    )
    names = list(dict.fromkeys(layers["name"]))
    wide, runs = put_side_by_side(texts, names)
    wide.insert(0, "layer", names)
    caption = "Operators as logged; in brackets the functions that samples found at work. "
    return show_table(wide, caption=caption + runs)

"""The page, the Markdown and the summary of runs side by side."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from workbench.codec import to_document
from workbench.emulation import EMULATED
from workbench.portfolio.combined import Combined, combine_runs
from workbench.report import show_aligned, show_note
from workbench.report.gates import put_side_by_side
from workbench.report.html import render_page
from workbench.show import Table, plot_categories, plot_heatmap, show_table
from workbench.store import safe_name, write_whole

PAGE, MARKDOWN = "combined_report.html", "combined_report.md"
SUMMARY_JSON, SUMMARY_MD = "combined_pipeline_summary.json", "combined_pipeline_summary.md"

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
    return [
        write_whole(folder / PAGE, render_page(title, _to_html(title, sections))),
        write_whole(folder / MARKDOWN, _to_markdown(title, sections)),
        write_whole(folder / SUMMARY_JSON, to_document(summarize_combined(combined))),
        write_whole(folder / SUMMARY_MD, _to_markdown(title, sections[:2])),
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
    bars = {name: one.select(one.analysis.categories) for name, one in combined.silicon.items()}
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


def _to_html(title: str, sections: list[Section]) -> str:
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for heading, shown in sections:
        parts.append(f"<h2>{html.escape(heading)}</h2>")
        parts += [f'<div class="output">{_embed(item)}</div>' for item in shown]
    return "\n".join(parts)


def _embed(item: Any) -> str:
    if not isinstance(item, Figure):
        return item._repr_html_()
    png = base64.b64encode(item.to_png()).decode()
    return f'<img alt="{html.escape(item.alt_text)}" src="data:image/png;base64,{png}">'


def _to_markdown(title: str, sections: list[Section]) -> str:
    parts = [f"# {title}"]
    for heading, shown in sections:
        texts = [str(item) for item in shown if not isinstance(item, Figure)]
        parts += [f"## {heading}", *texts] if texts else []
    return "\n\n".join(parts) + "\n"

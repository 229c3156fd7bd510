"""The portfolio as one page that needs nothing else.

The page, the Markdown and the summary of runs side by side.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from workbench.frames import EMULATED
from workbench.plots.align import plot_heatmap
from workbench.plots.categories import plot_categories
from workbench.plots.tables import Table, show_table
from workbench.plots.text import show_note
from workbench.portfolio.combined import Combined, combine_runs
from workbench.records.codec import to_document
from workbench.records.portfolio import Cell, Outcome, Portfolio, Row
from workbench.records.runs import count_threads
from workbench.report.gate import put_side_by_side, show_aligned
from workbench.report.html import render_page
from workbench.store import atomic_write, safe_name

#: Axes that the page can be filtered by.
AXES = ("model", "dtype", "target", "toggle", "state")
#: Columns that are left out where all rows say the same: once is enough.
SHARED = ("target", "toggle", "threads", "state")
MEASURED = ("experiment", "threads", "median ms", "95 % interval", "speed-up", "bottleneck")
TABLE = "measurements"
STYLE = f"""
body {{ max-width: 84rem; }}
#{TABLE} :is(th, td) {{ padding: .3rem .5rem; white-space: nowrap; }}
#{TABLE} td:last-child {{ white-space: normal; }}
"""
BAR, GAP, HEIGHT = 7, 2, 26

#: HTML by column.
Cells = dict[str, str]


def render_index(portfolio: Portfolio) -> str:
    """The page of a portfolio: models with a sparkline each, all measurements, all failures."""
    outcomes = portfolio.outcomes
    states = [outcome.state for outcome in outcomes]
    counts = ", ".join(f"{states.count(s)} {s}" for s in ("done", "failed", "open") if s in states)
    problems = [outcome for outcome in outcomes if outcome.state == "failed"]
    updated = portfolio.updated.replace("T", " ").replace("+00:00", " UTC")
    rows = [row for outcome in outcomes for row in _rows(outcome)]
    said = {name: {cells[name] for cells, _ in rows} - {""} for name in SHARED}
    same = {name: values.pop() for name, values in said.items() if len(values) == 1}
    heads = [name for name in rows[0][0] if name not in same]
    parts = [
        "<h1>Portfolio</h1>",
        f"<p>{len(outcomes)} cells: {counts}. {_escape(updated)}</p>",
        "<h2>Models</h2>",
        "<p>A bar is the median latency of one measurement, in the order of the table below; bars "
        "of one model have one scale, and the fastest is dark.</p>",
        _table(("model", "latencies", "fastest ms", "of"), _models(outcomes)),
        *(_failures(problems) if problems else ()),
        "<h2>Measurements</h2>",
        _filters(outcomes),
        *([f"<p>All of them: {', '.join(map(' '.join, same.items()))}.</p>"] if same else ()),
        _table(heads, (_row((c[name] for name in heads), data) for c, data in rows), TABLE),
        "<p>A model's name leads to its report. Thread counts and the levels of an extension were "
        "measured within one run, taking turns. Latency is untraced <code>Method::execute</code>; "
        "speed-ups are against the experiment named in the tooltip.</p>",
    ]
    script = (resources.files("workbench.portfolio") / "index.js").read_text()
    return render_page("Portfolio", "\n".join(parts), script, STYLE)


def draw_sparkline(values: Iterable[tuple[str, float]]) -> str:
    """Bars of positive values, each with its name as a tooltip, as SVG; the least is dark."""
    values = list(values)
    if not values:
        return ""
    most, least = (pick(value for _, value in values) for pick in (max, min))
    bars = []
    for place, (name, value) in enumerate(values):
        height = max(1.0, HEIGHT * value / most)
        bars.append(
            f'<rect x="{place * (BAR + GAP)}" y="{HEIGHT - height:.1f}" width="{BAR}" '
            f'height="{height:.1f}" fill="{"#0b5cad" if value == least else "#a9c4de"}">'
            f"<title>{_escape(name)}: {value:.3f} ms</title></rect>"
        )
    width = len(values) * (BAR + GAP)
    label = f"{len(values)} latencies from {least:.3f} to {most:.3f} ms"
    return (
        f'<svg role="img" aria-label="{label}" width="{width}" height="{HEIGHT}">{"".join(bars)}'
        "</svg>"
    )


def _models(outcomes: Iterable[Outcome]) -> Iterator[str]:
    by_model: dict[str, list[tuple[str, float]]] = {}
    for outcome in outcomes:
        known = by_model.setdefault(outcome.cell.label, [])
        known += [(_name(outcome.cell, r), r.median_ms) for r in outcome.rows if r.median_ms]
    for model, values in by_model.items():
        name, least = min(values, key=lambda value: value[1], default=("", None))
        cells = (_escape(model), draw_sparkline(values), _number(least, ".3f"), _escape(name))
        yield _row(cells)


def _name(cell: Cell, row: Row) -> str:
    return f"{cell.dtype}, {cell.target}, {row.experiment}, {count_threads(row.threads)}"


def _failures(problems: Iterable[Outcome]) -> Iterator[str]:
    yield "<h2>Failures</h2>"
    rows = []
    for outcome in problems:
        log = f'<a href="{_escape(outcome.log)}">log</a>'
        cells = (
            _escape(outcome.cell.name),
            _escape(outcome.failed_stage),
            _escape(outcome.error),
            log,
            f"<code>{_escape(outcome.retry)}</code>",
        )
        rows.append(_row(cells))
    yield _table(("Cell", "failed in", "error", "log", "try again"), rows)


def _filters(outcomes: Iterable[Outcome]) -> str:
    """A field for words, and a choice for each axis that has more than one value."""
    known = [_axes(outcome) for outcome in outcomes]
    choices = []
    for axis in AXES:
        values = dict.fromkeys(axes[axis] for axes in known)
        options = "".join(f"<option>{_escape(value)}</option>" for value in values)
        if len(values) > 1:
            choices.append(
                f'<label>{axis} <select data-axis="{axis}"><option value="">all</option>{options}'
                "</select></label>"
            )
    search = '<label>words <input type="search" id="words"></label>'
    return f'<p id="filters">{" ".join([search, *choices])} <span id="count"></span></p>'


def _axes(outcome: Outcome) -> dict[str, str]:
    cell = outcome.cell
    return dict(
        zip(AXES, (cell.label, cell.dtype, cell.target, cell.isa, outcome.state), strict=True)
    )


def _rows(outcome: Outcome) -> Iterator[tuple[Cells, str]]:
    """The cells of each row, and the attributes that it is filtered by."""
    axes = {axis: _escape(value) for axis, value in _axes(outcome).items()}
    data = "".join(f' data-{axis}="{value}"' for axis, value in axes.items())
    state = outcome.state + (f": {outcome.problem}" if outcome.problem else "")
    size = None if outcome.size_bytes is None else outcome.size_bytes / 1e6
    model = axes["model"]
    if outcome.report:
        model = f'<a href="{_escape(outcome.report)}">{model}</a>'
    before = {"model": model} | {axis: axes[axis] for axis in ("dtype", "target", "toggle")}
    after = {
        "quality": _escape(outcome.grade),
        "MB": _number(size, ".2f"),
        "SQNR dB": _number(outcome.sqnr_db, ".1f"),
        "state": _escape(state),
    }
    for row in outcome.rows or (None,):
        yield before | _measured(row, outcome.emulated) | after, data


def _measured(row: Row | None, emulated: bool) -> Cells:
    cells = dict.fromkeys(MEASURED, "")
    if row is None:
        return cells
    cells |= {"experiment": _escape(row.experiment), "threads": str(row.threads)}
    if emulated:
        return cells | {"median ms": f"<i>{EMULATED}</i>"}
    bottleneck = f"{row.bottleneck} {100 * row.share:.0f} %" if row.share is not None else ""
    return cells | {
        "median ms": f'<span title="{_escape(f"{row.n} inferences, {row.clock}")}">'
        f"{_number(row.median_ms, '.3f')}</span>",
        "95 % interval": f"{_number(row.low_ms, '.3f')} to {_number(row.high_ms, '.3f')}",
        "speed-up": _speedup(row),
        "bottleneck": _escape(bottleneck),
    }


def _speedup(row: Row) -> str:
    if row.speedup is None:
        return ""
    interval = f"{row.speedup_low:.2f} to {row.speedup_high:.2f}, against {row.against}"
    text = f"{row.speedup:.2f}x" + (f" ({row.outcome})" if row.outcome != "faster" else "")
    return f'<span title="{_escape(interval)}">{_escape(text)}</span>'


def _table(heads: Iterable[str], rows: Iterable[str], name: str = "") -> str:
    head = "".join(f"<th>{_escape(text)}</th>" for text in heads)
    return (
        f'<div class="output"><table{f" id={name}" if name else ""}><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _row(cells: Iterable[str], data: str = "") -> str:
    return f"<tr{data}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _escape(text: str) -> str:
    return html.escape(text, quote=True)


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
        atomic_write(folder / PAGE, render_page(title, _to_html(title, sections))),
        atomic_write(folder / MARKDOWN, _to_markdown(title, sections)),
        atomic_write(folder / SUMMARY_JSON, to_document(summarize_combined(combined))),
        atomic_write(folder / SUMMARY_MD, _to_markdown(title, sections[:2])),
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

"""The portfolio as one page that needs nothing else."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from importlib import resources

from workbench.emulation import EMULATED
from workbench.records import Cell, Outcome, Portfolio, Row, count_threads
from workbench.report.html import render_page

#: Axes that the page can be filtered by.
AXES = ("model", "dtype", "target", "toggle", "state")
COLUMNS = (
    "Model", "dtype", "target", "toggle", "experiment", "threads", "median ms", "95 % interval",
    "speed-up", "bottleneck", "quality", "MB", "SQNR dB", "state", "report",
)  # fmt: skip
BAR, GAP, HEIGHT = 7, 2, 26


def render_index(portfolio: Portfolio) -> str:
    """The page of a portfolio: models with a sparkline each, all measurements, all failures."""
    outcomes = portfolio.outcomes
    states = [outcome.state for outcome in outcomes]
    counts = ", ".join(f"{states.count(s)} {s}" for s in ("done", "failed", "open") if s in states)
    problems = [outcome for outcome in outcomes if outcome.state == "failed"]
    parts = [
        "<h1>Portfolio</h1>",
        f"<p>{len(outcomes)} cells: {counts}. {_escape(portfolio.updated)}</p>",
        "<h2>Models</h2>",
        "<p>A bar is the median latency of one measurement, in the order of the table below; bars "
        "of one model have one scale, and the fastest is dark.</p>",
        _table(("Model", "latencies", "fastest ms", "of"), _models(outcomes)),
        *(_failures(problems) if problems else ()),
        "<h2>Measurements</h2>",
        _filters(outcomes),
        _table(COLUMNS, (row for o in outcomes for row in _rows(o)), "measurements"),
        f"<p>{len(portfolio.matrix['threads'])} thread counts and the levels of an extension were "
        "measured within one run, taking turns. Latency is untraced <code>Method::execute</code>; "
        "speed-ups are against the experiment named in the tooltip.</p>",
    ]
    script = (resources.files("workbench.portfolio") / "index.js").read_text()
    return render_page("Portfolio", "\n".join(parts), script)


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


def _rows(outcome: Outcome) -> Iterator[str]:
    axes = _axes(outcome)
    data = "".join(f' data-{axis}="{_escape(value)}"' for axis, value in axes.items())
    before = [_escape(axes[axis]) for axis in AXES[:-1]]
    report = f'<a href="{_escape(outcome.report)}">report</a>' if outcome.report else ""
    state = outcome.state + (f": {outcome.problem}" if outcome.problem else "")
    size = None if outcome.size_bytes is None else outcome.size_bytes / 1e6
    after = [
        _escape(outcome.grade),
        _number(size, ".1f"),
        _number(outcome.sqnr_db, ".1f"),
        _escape(state),
        report,
    ]
    for row in outcome.rows or (None,):
        yield _row(before + _measured(row, outcome.emulated) + after, data)


def _measured(row: Row | None, emulated: bool) -> list[str]:
    if row is None:
        return ["", "", "", "", "", ""]
    if emulated:
        return [_escape(row.experiment), str(row.threads), f"<i>{EMULATED}</i>", "", "", ""]
    interval = f"{_number(row.low_ms, '.3f')} to {_number(row.high_ms, '.3f')}"
    bottleneck = f"{row.bottleneck} {100 * row.share:.0f} %" if row.share is not None else ""
    return [
        _escape(row.experiment),
        str(row.threads),
        f'<span title="{_escape(f"{row.n} inferences, {row.clock}")}">'
        f"{_number(row.median_ms, '.3f')}</span>",
        interval,
        _speedup(row),
        _escape(bottleneck),
    ]


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

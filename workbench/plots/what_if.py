"""What there is to gain at each part of an inference.

What E2E would be if parts of it were faster: measured above predicted.
"""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from workbench.frames import format_ms, format_number
from workbench.plots.categories import plot_categories
from workbench.plots.style import (
    FAINT,
    INK,
    PLAIN,
    color_of,
    label_margin,
    label_x,
    marked,
    new_figure,
    set_rows,
    set_title,
    shorten,
)


@marked
def plot_bottlenecks(
    bottlenecks: pd.DataFrame, *, top: int = 10, title: str = "Where there is something to gain"
) -> Figure:
    """For each part the E2E time that would be left if it were free, and if it were faster.

    Parameters
    ----------
    bottlenecks
        From `rank_bottlenecks`: ``schema.BOTTLENECKS``.
    top
        How many rows.
    title
        Of the figure.

    Returns
    -------
    Figure
        Bars reach from the E2E time without the part to that with it; the dot is E2E with the part
        so many times faster. Whiskers are 95 % intervals.
    """
    rows = bottlenecks.head(top)
    labels = [shorten(name, 40) for name in rows["name"]]
    figure, (axis,) = new_figure(
        1.15 + 0.42 * len(rows), left=label_margin(labels), right=2.35, top=0.5
    )
    e2e = float((rows["mean_ms"] + rows["free_ms"]).iloc[0]) if len(rows) else 1.0
    axis.axvline(e2e, color="#9A9A9A", linewidth=1)
    for place, row in enumerate(rows.itertuples()):
        _draw_row(axis, place, row, e2e)
    set_rows(axis, labels)
    axis.set_xlim(_start(rows["free_ms"].min(), e2e), 1.02 * e2e)
    factor = f"{rows['factor'].iloc[0]:g}x faster" if len(rows) else "faster"
    label_x(axis, f"E2E (ms) if the part were free (left end) or {factor} (dot); "
                  f"line: E2E as measured, {format_ms(e2e)}")  # fmt: skip
    set_title(figure, title)
    return figure


def _start(least: float, e2e: float) -> float:
    """Where the axis starts: at 0, unless all that happens is far from there."""
    return max(0.0, least - 0.3 * (e2e - least)) if least > 0.6 * e2e else 0.0


def _draw_row(axis, place: int, row, e2e: float) -> None:
    color = color_of(row.name) if row.level == "category" else PLAIN
    axis.barh(place, e2e - row.free_ms, left=row.free_ms, height=0.6, color=color, alpha=0.45)
    if math.isfinite(row.free_low):
        # E2E of the mean: the speed-up's interval is of the ratio, without what both share.
        ends = [e2e / row.free_high, e2e / row.free_low]
        axis.plot(ends, [place, place], color=INK, linewidth=1.8)
    axis.plot(row.faster_ms, place, "o", markersize=7, color=color, markeredgecolor="white")
    texts = (
        (8, f"{_ratio(row.free_speedup)} if free", INK),
        (88, f"{_ratio(row.speedup)} at {row.factor:g}x", FAINT),
    )
    for points, text, ink in texts:
        axis.annotate(text, (1, place), (points, 0), xycoords=axis.get_yaxis_transform(),
                      textcoords="offset points", va="center", fontsize=9, color=ink)  # fmt: skip


def _ratio(ratio: float) -> str:
    return f"{format_number(ratio, 2)}x" if math.isfinite(ratio) else "\N{INFINITY}"


#: Choices for the speed-up of a part, as measured first.
FACTORS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, math.inf)

_REST = "all else"
#: Letters of a title's assumptions, beyond which they are counted.
_LONGEST = 60


@marked
def plot_what_if(what_if: pd.DataFrame, title: str = "") -> Figure:
    """Two bars: E2E as measured and as predicted, with the prediction's 95 % interval.

    Parameters
    ----------
    what_if
        ``schema.WHAT_IF``; where the parts are no categories, those that stay as they are are
        drawn as one.
    title
        Of the figure; empty names the speed-up of E2E and what it assumes.
    """
    e2e, parts = what_if.iloc[0], what_if[1:]
    if not (parts["level"] == "category").all():
        parts = _fold(parts)
    bars = {
        label: pd.DataFrame(
            {
                "category": parts["name"],
                "mean_ms": parts[column],
                "share": parts[column] / e2e[column] if e2e[column] else math.nan,
            }
        )
        for label, column in (("measured", "measured_ms"), ("predicted", "predicted_ms"))
    }
    known = math.isfinite(e2e["low_ms"])
    figure = plot_categories(
        bars, title or describe_what_if(what_if), reach=e2e["high_ms"] if known else 0.0
    )
    if known:
        axis = figure.axes[0]
        axis.plot([e2e["low_ms"], e2e["high_ms"]], [1.44, 1.44], color=INK, linewidth=2.2)
        axis.set_xlabel(f"{axis.get_xlabel()}; line: 95 % interval of the prediction")
    return figure


def describe_what_if(what_if: pd.DataFrame) -> str:
    """The speed-up of E2E and what it assumes, in one line."""
    e2e, parts = what_if.iloc[0], what_if[1:]
    changed = parts[parts["speedup"] != 1]
    if changed.empty:
        return f"Nothing faster: {format_ms(e2e['measured_ms'])}"
    by_factor = changed.groupby("speedup", sort=False)["name"].agg(", ".join)
    assumed = ", ".join(
        f"{names} {'free' if math.isinf(factor) else f'{factor:g}x'}"
        for factor, names in by_factor.items()
    )
    if len(assumed) > _LONGEST:
        assumed = f"{len(changed)} parts are faster"
    band = f" ({e2e['low']:.2f} to {e2e['high']:.2f})" if math.isfinite(e2e["low"]) else ""
    return f"{e2e['speedup']:.2f}x{band} if {assumed}"


def _fold(parts: pd.DataFrame) -> pd.DataFrame:
    """The parts that become faster, and all others as one."""
    faster = parts["speedup"] != 1
    columns = ["measured_ms", "predicted_ms"]
    rest = pd.DataFrame([{"name": _REST, **parts.loc[~faster, columns].sum()}])
    return pd.concat([parts.loc[faster, ["name", *columns]], rest], ignore_index=True)

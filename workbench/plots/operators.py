"""The most expensive operators, alone or before and after."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from workbench.frames import format_ms, format_share
from workbench.plots.style import (
    COLORS,
    FAINT,
    INK,
    WIDTH,
    color_of,
    label_margin,
    label_x,
    marked,
    new_figure,
    set_rows,
    set_title,
    shorten,
)

_WHISKERS = {"ecolor": INK, "elinewidth": 1, "capsize": 2}


@marked
def plot_operators(
    operators: pd.DataFrame,
    candidate: pd.DataFrame | None = None,
    *,
    top: int = 15,
    title: str = "The most expensive operators",
) -> Figure:
    """Bars of mean time with the standard deviation over the runs, coloured by category.

    Parameters
    ----------
    operators
        ``schema.OPERATORS``.
    candidate
        The same of another experiment: drawn as a solid bar on the pale one of ``operators``,
        paired by ``key``. Then the rows are those with the largest time on either side.
    top
        How many rows.
    title
        Of the figure.
    """
    rows = operators.head(top) if candidate is None else _pair(operators, candidate).head(top)
    labels = [shorten(name, 46) for name in rows["name"]]
    figure, (axis,) = new_figure(
        1.4 + 0.27 * len(rows), left=label_margin(labels), right=1.55, top=0.75
    )
    places = range(len(rows))
    look = {"height": 0.72, "color": [color_of(category) for category in rows["category"]]}
    whiskers = {"error_kw": _WHISKERS}
    unit = "mean time per inference (ms), ± standard deviation over the runs"
    if candidate is None:
        reach = rows["mean_ms"] + rows["std_ms"].fillna(0)
        axis.barh(places, rows["mean_ms"], xerr=rows["std_ms"], **look, **whiskers)
        texts = [
            f"{format_ms(row.mean_ms)} · {format_share(row.share)}" for row in rows.itertuples()
        ]
    else:
        reach = (rows["new_ms"] + rows["new_std_ms"].fillna(0)).combine(rows["mean_ms"], np.fmax)
        axis.barh(places, rows["mean_ms"].fillna(0), alpha=0.35, **look)
        solid = look | {"height": 0.38}
        axis.barh(places, rows["new_ms"].fillna(0), xerr=rows["new_std_ms"], **solid, **whiskers)
        texts = [f"{format_ms(row.mean_ms)} → {format_ms(row.new_ms)}" for row in rows.itertuples()]
        unit += "; pale: before, solid: after"
    for place, end, text in zip(places, reach, texts, strict=True):
        axis.annotate(text, (end, place), (7, 0), textcoords="offset points", va="center",
                      fontsize=9, color=FAINT, annotation_clip=False)  # fmt: skip
    set_rows(axis, labels)
    axis.set_xlim(0, 1.04 * max(reach, default=0.0) or 1.0)
    label_x(axis, unit)
    _add_key(figure, set(rows["category"]))
    set_title(figure, title)
    return figure


def _pair(operators: pd.DataFrame, candidate: pd.DataFrame) -> pd.DataFrame:
    """Both sides by key, the largest time on either side first; NaN where one lacks it."""
    new = {
        "mean_ms": "new_ms",
        "std_ms": "new_std_ms",
        "name": "new_name",
        "category": "new_category",
    }
    other = candidate[["key", *new]].rename(columns=new)
    rows = operators[["key", "name", "category", "mean_ms"]].merge(other, on="key", how="outer")
    rows["name"] = rows["name"].fillna(rows["new_name"])
    rows["category"] = rows["category"].fillna(rows["new_category"])
    largest = rows[["mean_ms", "new_ms"]].max(axis=1)
    return rows.loc[largest.sort_values(ascending=False, kind="stable").index]


def _add_key(figure: Figure, present: set[str]) -> None:
    chips = [Patch(color=color, label=name) for name, color in COLORS.items() if name in present]
    figure.legend(
        handles=chips, loc="upper left", ncols=len(COLORS), frameon=False, fontsize=9,
        bbox_to_anchor=(0.1 / WIDTH, 1 - 0.42 / figure.get_figheight()), borderaxespad=0,
        borderpad=0, handlelength=1, handleheight=1, handletextpad=0.4, columnspacing=1.4,
    )  # fmt: skip

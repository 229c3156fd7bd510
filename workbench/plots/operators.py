"""The most expensive operators of a measurement, or of both sides of a comparison."""

import numpy as np
import pandas as pd

from workbench.analysis.operators import label_operators
from workbench.analysis.run import Comparison, Measurement
from workbench.frames import format_share
from workbench.plots import style
from workbench.plots.style import Chart, marked

_WHISKERS = {"ecolor": style.INK, "elinewidth": 1, "capsize": 2}


@marked
def plot_operators(
    source: Measurement | Comparison | pd.DataFrame, candidate: pd.DataFrame | None = None, *,
    top: int = 15,
) -> Chart:  # fmt: skip
    """Bars of mean time with the standard deviation over the iterations, by category.

    ``source`` is a measurement, a comparison, or a frame of ``frames.OPERATORS``; a second frame is
    the ``candidate`` of a comparison. The ``top`` rows are those with the most time on either side,
    in ms. Of a comparison, solid bars are the candidate's, pale ones the baseline's, paired by
    ``key``.

    Examples
    --------
    >>> "features." in wb.plot_operators(wb.open_run(wb.sample_run())["avx512_on"], top=5).alt_text
    True
    """
    if isinstance(source, Comparison):
        source, candidate = source.baseline.operators, source.candidate_operators
    operators = source if isinstance(source, pd.DataFrame) else source.operators
    rows = operators.head(top) if candidate is None else _pair(operators, candidate).head(top)
    labels = [style.shorten(label, 50) for label in label_operators(rows)]
    figure, axis = style.new_rows(
        "The most expensive operators", labels, 0.27, head=0.75, right=1.65
    )
    places, colors = range(len(rows)), [style.color_of(category) for category in rows["category"]]
    unit = "mean time per traced inference (ms) ± standard deviation"
    ends, times = rows["mean_ms"] + rows["std_ms"].fillna(0), map(style.write_ms, rows["mean_ms"])
    if candidate is None:
        axis.barh(places, rows["mean_ms"], 0.72, xerr=rows["std_ms"], color=colors,
                  error_kw=_WHISKERS)  # fmt: skip
        shares = map(format_share, rows["share"])
        texts = [" · ".join(pair) for pair in zip(times, shares, strict=True)]
    else:
        axis.barh(places, rows["before_ms"].fillna(0), 0.72, alpha=0.35, color=colors)
        axis.barh(places, rows["mean_ms"].fillna(0), 0.38, xerr=rows["std_ms"], color=colors,
                  error_kw=_WHISKERS)  # fmt: skip
        ends = ends.combine(rows["before_ms"], np.fmax)
        before = map(style.write_ms, rows["before_ms"])
        texts = [" → ".join(pair) for pair in zip(before, times, strict=True)]
        unit += "; pale: baseline, solid: candidate"
    for place, end, text in zip(places, ends, texts, strict=True):
        style.write_after(axis, end, place, text, color=style.FAINT)
    axis.set_xlim(0, 1.04 * max(ends, default=0.0) or 1.0)
    style.label_x(axis, unit)
    present = set(rows["category"])
    style.add_key(figure, {name: color for name, color in style.COLORS.items() if name in present})
    return figure


def _pair(baseline: pd.DataFrame, candidate: pd.DataFrame) -> pd.DataFrame:
    texts = [name for name in ("name", "category", "module") if name in baseline]
    both = candidate.set_index("key").reindex(columns=[*texts, "mean_ms", "std_ms"])
    before = baseline.set_index("key")
    both = both.reindex(before.index.union(both.index, sort=False))
    both[texts] = before[texts].reindex(both.index).fillna(both[texts])
    both["before_ms"] = before["mean_ms"]
    largest = both[["before_ms", "mean_ms"]].max(axis=1).sort_values(ascending=False, kind="stable")
    return both.loc[largest.index].reset_index()

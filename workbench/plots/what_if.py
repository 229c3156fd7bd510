"""What E2E would be if parts of it were faster."""

import math
from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes

from workbench.analysis.run import Measurement
from workbench.analysis.what_if import predict_what_if, rank_bottlenecks
from workbench.plots import style
from workbench.plots.categories import plot_categories
from workbench.plots.style import Chart, marked

_LONGEST = 60  #: Letters of a title's assumptions, beyond which they are counted.


@marked
def plot_bottlenecks(
    source: Measurement | pd.DataFrame, *, by: str = "category", top: int = 10,
    title: str = "Where is time to gain?",
) -> Chart:  # fmt: skip
    """For each part the E2E time that would be left if it were free, and if it were faster.

    ``source`` is a measurement, split ``by`` category, family, operator, key or layer; or a frame
    of ``frames.BOTTLENECKS`` from `rank_bottlenecks`. Bars reach from the E2E time without the part
    to that with it, in ms; the dot is E2E with the part so many times faster. Lines are 95 %
    intervals.

    Examples
    --------
    >>> on = wb.open_run(wb.sample_run())["avx512_on"]
    >>> "if free" in wb.plot_bottlenecks(on, by="layer").alt_text
    True
    """
    if isinstance(source, Measurement):
        source = rank_bottlenecks(source.ledger, by=by)
    rows = source.head(top)
    labels = [style.shorten(name, 40) for name in rows["name"]]
    figure, axis = style.new_rows(title, labels, 0.42, right=2.35)
    e2e = float((rows["mean_ms"] + rows["free_ms"]).iloc[0]) if len(rows) else 1.0
    axis.axvline(e2e, color=style.LINE, linewidth=1)
    for place, row in enumerate(rows.itertuples()):
        _draw_row(axis, place, row, e2e)
    least = float(rows["free_ms"].min()) if len(rows) else 0.0
    # The axis starts at 0, unless all bars are far from there.
    start = max(0.0, least - 0.3 * (e2e - least)) if least > 0.6 * e2e else 0.0
    axis.set_xlim(start, 1.02 * e2e)
    factor = f"{rows['factor'].iloc[0]:g}x faster" if len(rows) else "faster"
    style.label_x(axis, f"traced E2E (ms) if the part were free (left end) or {factor} (dot); "
                  f"line: measured E2E, {style.write_ms(e2e)}")  # fmt: skip
    return figure


def _draw_row(axis: Axes, place: int, row, e2e: float) -> None:
    colors = {"category": style.color_of, "layer": style.color_of_module}
    color = colors.get(row.level, lambda _: style.PLAIN)(row.name)
    style.draw_bar(axis, place, e2e - row.free_ms, color, left=row.free_ms, height=0.6, alpha=0.6)
    if math.isfinite(row.free_low):
        # E2E of the mean: the speed-up's interval is of the ratio, without what both share.
        style.draw_interval(axis, place, e2e / row.free_high, e2e / row.free_low)
    axis.plot(row.faster_ms, place, "o", markersize=7, color=color, markeredgecolor="white")
    style.write_beside(axis, place, f"{style.write_ratio(row.free_speedup)} if free")
    style.write_beside(
        axis, place, f"{style.write_ratio(row.speedup)} at {row.factor:g}x", 88, color=style.FAINT
    )


@marked
def plot_what_if(
    source: Measurement | pd.DataFrame, factors: Mapping[str, float] | None = None, *,
    by: str = "category", title: str = "",
) -> Chart:  # fmt: skip
    """Two bars: E2E as measured and as predicted, with the prediction's 95 % interval.

    ``source`` is a measurement whose parts become ``factors`` times faster (``inf``: free), split
    as by `plot_bottlenecks`; or a frame of ``frames.WHAT_IF`` from `predict_what_if`. Times in ms.
    Parts other than categories that stay as they are are drawn as one. An empty title names the
    speed-up of E2E and what it assumes.

    Examples
    --------
    >>> on = wb.open_run(wb.sample_run())["avx512_on"]
    >>> "if GEMM 2x" in wb.plot_what_if(on, {"GEMM": 2}).alt_text
    True
    """
    if isinstance(source, Measurement):
        source = predict_what_if(source.ledger, factors or {}, by=by)
    e2e, parts = source.iloc[0], source[1:]
    if not (parts["level"] == "category").all():
        # The parts that become faster, and all others as one.
        faster = parts["speedup"] != 1
        rest = parts.loc[~faster, ["measured_ms", "predicted_ms"]].sum().to_frame().T
        parts = pd.concat([parts[faster], rest.assign(name="all else")], ignore_index=True)
    bars = {}
    for label in ("measured", "predicted"):
        ms, total = parts[f"{label}_ms"], e2e[f"{label}_ms"] or math.nan
        bars[label] = pd.DataFrame({"category": parts["name"], "mean_ms": ms, "share": ms / total})
    figure = plot_categories(bars, title=title or describe_what_if(source))
    if math.isfinite(e2e["low_ms"]):
        axis = figure.axes[0]
        axis.set_xlim(0, max(axis.get_xlim()[1], e2e["high_ms"]))
        style.draw_interval(axis, 1.44, e2e["low_ms"], e2e["high_ms"], width=2.2)
        style.label_x(axis, f"{axis.get_xlabel()}; line: 95 % interval of the prediction")
    return figure


def describe_what_if(what_if: pd.DataFrame) -> str:
    """The speed-up of E2E and what it assumes, in one line."""
    e2e, parts = what_if.iloc[0], what_if[1:]
    changed = parts[parts["speedup"] != 1]
    if changed.empty:
        return f"Nothing faster: {style.write_ms(e2e['measured_ms'])}"
    by_factor = changed.groupby("speedup", sort=False)["name"].agg(", ".join)
    assumed = ", ".join(
        f"{names} {'free' if math.isinf(factor) else f'{factor:g}x'}"
        for factor, names in by_factor.items()
    )
    if len(assumed) > _LONGEST:
        assumed = f"{len(changed)} parts are faster"
    band = f" ({e2e['low']:.2f} to {e2e['high']:.2f})" if math.isfinite(e2e["low"]) else ""
    return f"{e2e['speedup']:.2f}x{band} if {assumed}"

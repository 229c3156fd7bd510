"""What limits the time: the roofline, and what E2E would be if parts of it were faster."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workbench.analysis.operators import label_operator
from workbench.analysis.run import Measurement
from workbench.analysis.what_if import predict_what_if, rank_bottlenecks
from workbench.plots import style
from workbench.plots.breakdown import draw_categories
from workbench.plots.style import Chart, draws
from workbench.plots.tables import Table, show_note

NO_ROOFLINE = (
    "No roofline: machine peaks or operator costs are missing. `workbench roofline RUN_DIR` "
    "measures the peaks; exports by the workbench record the costs."
)
_LINES = 4  #: Bandwidths drawn at most: the fastest, the slowest, and some between.
_LARGEST_DOT = 420.0
_NAMED = 8  #: Operators that are named, unless their names would overlap.


_LONGEST = 60  #: Letters of a title's assumptions, beyond which they are counted.


@draws(Measurement)
def plot_roofline(m: Measurement) -> Chart | Table:
    """Operations per second over operations per byte, logarithmic; a dot's area is its time.

    Horizontal lines are peaks in GFLOP/s by dtype, slanted ones bandwidths in GB/s by footprint.
    The shade below a line is how much another process fell short of it. Operators without
    operations, or too short to time, are left out; the key says how much time is shown. A sentence
    where peaks or costs are missing.

    Examples
    --------
    >>> "GFLOP/s" in wb.plot_roofline(wb.open_run(wb.sample_run())["avx512_on"]).alt_text
    True
    """
    roof, rates = m.roof, m.roofline
    if rates is None or roof is None:
        return show_note(NO_ROOFLINE)
    shown = rates[(rates["flops"] > 0) & rates["roof_share"].notna()]
    title = f"Roofline of {m.label}"
    figure, (axis,) = style.new_figure(title, 5.2, left=0.75, right=1.6, top=0.75, bottom=0.6)
    axis.grid(axis="both", color="#EEEEEE", linewidth=0.8)
    used = [dtype for dtype in roof.peaks if dtype in set(shown["dtype"])] or list(roof.peaks)[:1]
    top = max(roof.peaks[dtype] for dtype in used)
    least = min([*shown["intensity"], 0.1])
    slowest = min(rate for _, rate in roof.bandwidths)
    style.use_log_scales(axis)
    axis.set_xlim(least / 1.5, max([*shown["intensity"], top / slowest]) * 4)
    axis.set_ylim(min([*shown["gflops"], top / 100]) / 1.6, 2.2 * top)
    _draw_slopes(axis, _choose(roof.bandwidths), top, roof.spread)
    for dtype in used:
        peak = roof.peaks[dtype]
        axis.axhline(peak, color=style.INK, linewidth=1.4)
        axis.axhspan(peak / (1 + roof.spread), peak, color=style.INK, alpha=0.1, linewidth=0)
        style.write_beside(axis, peak, f"{dtype}: {peak:.0f} GFLOP/s", 5)
    _draw_dots(axis, shown)
    axis.set_ylabel("GFLOP/s")
    varied = f"; peaks vary by {100 * roof.spread:.0f} % between processes" if roof.spread else ""
    axis.set_xlabel(f"operations per byte; area of a dot: its time{varied}")
    present = {name: c for name, c in style.COLORS.items() if name in set(shown["category"])}
    style.add_key(figure, present, note=f"shown: {100 * shown['share'].sum():.0f} % of the time")
    return figure


def _choose(bandwidths: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    chosen: list[tuple[int, float]] = []
    for size, rate in bandwidths:
        if not chosen or rate < 0.7 * chosen[-1][1]:
            chosen.append((size, rate))
    return [*chosen[: _LINES - 1], *chosen[-1:]] if len(chosen) > _LINES else chosen


def _draw_slopes(
    axis: Axes, bandwidths: list[tuple[int, float]], top: float, spread: float
) -> None:
    (left, right), (low, high) = axis.get_xlim(), axis.get_ylim()
    box = axis.get_window_extent()
    rise = (box.height / np.log10(high / low)) / (box.width / np.log10(right / left))
    angle = float(np.degrees(np.arctan(rise)))
    for size, rate in bandwidths:
        start = max(left, low / rate)
        x = np.array([start, top / rate])
        axis.plot(x, rate * x, color=style.FAINT, linewidth=1.1)
        axis.fill_between(x, rate * x / (1 + spread), rate * x, color=style.FAINT, alpha=0.12,
                          linewidth=0)  # fmt: skip
        unit = f"{size / 2**20:.0f} MB" if size >= 2**20 else f"{size / 2**10:.0f} kB"
        axis.annotate(f"{unit}: {rate:.0f} GB/s", (start, rate * start), (4, 6),
                      textcoords="offset points", fontsize=8, color=style.FAINT, rotation=angle,
                      rotation_mode="anchor")  # fmt: skip


def _draw_dots(axis: Axes, shown: pd.DataFrame) -> None:
    if shown.empty:
        return
    area = _LARGEST_DOT * shown["mean_ms"] / shown["mean_ms"].max()
    axis.scatter(shown["intensity"], shown["gflops"], s=area.clip(lower=8), alpha=0.65,
                 c=[style.color_of(c) for c in shown["category"]], edgecolors="white",
                 linewidths=0.6, zorder=3)  # fmt: skip
    named: list[tuple[float, float]] = []
    for row in shown.nlargest(_NAMED, "mean_ms").itertuples():
        place = (np.log10(row.intensity), np.log10(row.gflops))
        if any(abs(place[0] - x) < 0.9 and abs(place[1] - y) < 0.15 for x, y in named):
            continue
        named.append(place)
        label = style.shorten(label_operator(row.name, row.module), 40)
        axis.annotate(f"{label}, {100 * row.roof_share:.0f} %", (row.intensity, row.gflops),
                      (0, -13), textcoords="offset points", ha="center", fontsize=8,
                      color=style.HIGHLIGHT, zorder=4)  # fmt: skip


@draws(Measurement, pd.DataFrame)
def plot_bottlenecks(
    source: Measurement | pd.DataFrame, *, by: str = "category", top: int = 10,
    title: str = "Where is time to gain?",
) -> Chart:  # fmt: skip
    """For each part the E2E time that would be left if it were free, and if it were faster.

    ``source`` is a measurement, split ``by`` category, family, operator, key or layer; or a frame
    with the columns ``category`` and ``mean_ms``. Bars reach from the E2E time without the part to
    that with it, in ms; the dot is E2E with the part twice as fast. Lines are 95 % intervals.

    Examples
    --------
    >>> on = wb.open_run(wb.sample_run())["avx512_on"]
    >>> "if free" in wb.plot_bottlenecks(on, by="layer").alt_text
    True
    """
    times = source.ledger if isinstance(source, Measurement) else source
    rows = rank_bottlenecks(times, by=by).head(top)
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
    axis.set_xlabel(f"traced E2E (ms) if the part were free (left end) or {factor} (dot); "
                  f"line: measured E2E, {style.write_ms(e2e)}")  # fmt: skip
    return figure


def _draw_row(axis: Axes, place: int, row, e2e: float) -> None:
    color = style.color_of(row.name) if row.level == "category" else style.PLAIN
    style.draw_bar(axis, place, e2e - row.free_ms, color, left=row.free_ms, height=0.6, alpha=0.6)
    if math.isfinite(row.free_low):
        # E2E of the mean: the speed-up's interval is of the ratio, without what both share.
        style.draw_interval(axis, place, e2e / row.free_high, e2e / row.free_low)
    axis.plot(row.faster_ms, place, "o", markersize=7, color=color, markeredgecolor="white")
    style.write_beside(axis, place, f"{style.write_ratio(row.free_speedup)} if free")
    style.write_beside(
        axis, place, f"{style.write_ratio(row.speedup)} at {row.factor:g}x", 88, color=style.FAINT
    )


@draws(Measurement, pd.DataFrame)
def plot_what_if(
    source: Measurement | pd.DataFrame, factors: Mapping[str, float], *, by: str = "category",
    title: str = "",
) -> Chart:  # fmt: skip
    """Two bars: E2E as measured and as predicted, with the prediction's 95 % interval.

    Parts become ``factors`` times faster (``inf``: free); ``source`` and ``by`` are as for
    `plot_bottlenecks`. Times in ms. Parts other than categories that stay as they are are drawn as
    one. An empty title names the speed-up of E2E and what it assumes.

    Examples
    --------
    >>> on = wb.open_run(wb.sample_run())["avx512_on"]
    >>> "if GEMM 2x" in wb.plot_what_if(on, {"GEMM": 2}).alt_text
    True
    """
    times = source.ledger if isinstance(source, Measurement) else source
    predicted = predict_what_if(times, factors, by=by)
    e2e, parts = predicted.iloc[0], predicted[1:]
    if not (parts["level"] == "category").all():
        # The parts that become faster, and all others as one.
        faster = parts["speedup"] != 1
        rest = parts.loc[~faster, ["measured_ms", "predicted_ms"]].sum().to_frame().T
        parts = pd.concat([parts[faster], rest.assign(name="all else")], ignore_index=True)
    bars = {}
    for label in ("measured", "predicted"):
        ms, total = parts[f"{label}_ms"], e2e[f"{label}_ms"] or math.nan
        bars[label] = pd.DataFrame({"category": parts["name"], "mean_ms": ms, "share": ms / total})
    figure = draw_categories(bars, title or _describe_what_if(predicted))
    if math.isfinite(e2e["low_ms"]):
        axis = figure.axes[0]
        axis.set_xlim(0, max(axis.get_xlim()[1], e2e["high_ms"]))
        style.draw_interval(axis, 1.44, e2e["low_ms"], e2e["high_ms"], width=2.2)
        axis.set_xlabel(f"{axis.get_xlabel()}; line: 95 % interval of the prediction")
    return figure


def _describe_what_if(what_if: pd.DataFrame) -> str:
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

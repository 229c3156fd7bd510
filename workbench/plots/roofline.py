"""The roofline: what every operator reaches, below what the machine can do."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workbench.analysis.operators import label_operator
from workbench.analysis.roofline import Roof
from workbench.analysis.run import Measurement
from workbench.plots import style
from workbench.plots.style import Chart, marked
from workbench.plots.tables import Table, show_note

NO_ROOFLINE = (
    "No roofline: machine peaks or operator costs are missing. `workbench roofline RUN_DIR` "
    "measures the peaks; exports by the workbench record the costs."
)
_LINES = 4  #: Bandwidths drawn at most: the fastest, the slowest, and some between.
_LARGEST_DOT = 420.0
_NAMED = 8  #: Operators that are named, unless their names would overlap.


@marked
def plot_roofline(source: Measurement | pd.DataFrame, roof: Roof | None = None) -> Chart | Table:
    """Operations per second over operations per byte, logarithmic; a dot's area is its time.

    ``source`` is a measurement, or ``frames.ROOFLINE`` with its ``roof``: peaks in GFLOP/s by
    dtype, the horizontal lines, and bandwidths in GB/s by footprint, the slanted ones. The shade
    below a line is how much another process fell short of it. Operators without operations, or too
    short to time, are left out; the key says how much time is shown. A sentence
    where peaks or costs are missing.

    Examples
    --------
    >>> "GFLOP/s" in wb.plot_roofline(wb.open_run(wb.sample_run())["avx512_on"]).alt_text
    True
    """
    title = "Roofline"
    if isinstance(source, Measurement):
        title, roof, source = f"Roofline of {source.label}", source.roof, source.roofline
    if source is None or roof is None:
        return show_note(NO_ROOFLINE)
    shown = source[(source["flops"] > 0) & source["roof_share"].notna()]
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
    style.label_y(axis, "GFLOP/s")
    varied = f"; peaks vary by {100 * roof.spread:.0f} % between processes" if roof.spread else ""
    style.label_x(axis, f"operations per byte; area of a dot: its time{varied}")
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

"""Speed-ups with their intervals: of the parts of one comparison, and of layers in many runs."""

import math
from textwrap import wrap

import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from workbench.analysis.run import Comparison
from workbench.plots import style
from workbench.plots.style import Chart, marked

_MAP = LinearSegmentedColormap.from_list("change", [style.SLOWER, "#F2F2F2", style.FASTER])


@marked
def plot_speedups(source: Comparison | pd.DataFrame) -> Chart:
    """One dot per compared part with its 95 % interval, on a logarithmic axis.

    ``source`` is a comparison, of which E2E and the categories are shown, or a frame of
    ``frames.COMPARISON``. Ratios of baseline to candidate: blue is faster, orange slower, hollow
    equivalent or inconclusive. A grey band is the noise ``floor``, where the frame has one.

    Examples
    --------
    >>> "faster" in wb.plot_speedups(wb.open_run(wb.sample_run()).compare()).alt_text
    True
    """
    parts = source if isinstance(source, pd.DataFrame) else source.speedups
    labels = [
        "E2E" if level == "e2e" else style.shorten(name, 40)
        for level, name in zip(parts["level"], parts["name"], strict=True)
    ]
    figure, axis = style.new_rows("What became faster", labels, 0.36, right=3.05)
    ends = parts[["speedup", "low", "high"]].to_numpy(dtype=float).ravel()
    ends = np.append(ends[np.isfinite(ends) & (ends > 0)], 1.0)
    reach = max(0.05, 1.08 * np.abs(np.log(ends)).max())
    axis.set_xscale("log")
    lower = -reach if np.log(ends).min() < -0.1 * reach else -0.15 * reach
    upper = reach if np.log(ends).max() > 0.1 * reach else 0.15 * reach
    axis.set_xlim(math.exp(lower), math.exp(upper))
    axis.axvline(1, color=style.LINE, linewidth=1)
    for row, entry in enumerate(parts.itertuples()):
        style.draw_speedup(axis, row, entry)
    axis.set_xticks(_ticks(*axis.get_xlim()), minor=False)
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}x"))
    noise = "; grey: noise floor" if "floor" in parts and (parts["floor"] > 0).any() else ""
    style.label_x(axis, f"speed-up: baseline / candidate, with 95 % interval{noise}")
    return figure


def _ticks(low: float, high: float) -> list[float]:
    if high / low < 1.7:
        ticks = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high)
    elif high / low < 12:
        ticks = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 7, 10)
    else:
        ticks = [first * 10.0**power for power in range(-4, 5) for first in (1, 2, 5)]
    return [round(float(tick), 6) for tick in ticks if low <= tick <= high]


@marked
def plot_heatmap(
    aligned: pd.DataFrame, *, top: int = 20, title: str = "Every layer in every run"
) -> Chart:
    """One row per layer, one column per run; the colour is the speed-up over the first run.

    ``aligned`` is ``frames.ALIGNED`` from `align_measurements`; the ``top`` rows are those with the
    most time in any run. Cells show the time, and the speed-up with its 95 % interval where one was
    shown; all others have no colour. A layer that a run lacks is empty.

    Examples
    --------
    >>> sides = [f"{wb.sample_run()}:avx512_{isa}" for isa in ("off", "on")]
    >>> "E2E" in wb.plot_heatmap(wb.align_measurements(sides), top=5).alt_text
    True
    """
    largest = aligned.groupby("name", sort=False)["time_ms"].max().nlargest(top).index
    names = [name for name in dict.fromkeys(aligned["name"]) if name in largest]
    runs = list(dict.fromkeys(aligned["run"]))
    labels = [style.shorten(name, 40) for name in names]
    inches = (style.WIDTH - style.label_margin(labels) - 0.3) / len(runs)
    letters = int(inches / style.text_inches("m"))
    # A name may be broken where it may be in a sentence, and is cut where that does not suffice.
    heads = [
        [style.shorten(part, letters) for line in run.split("\n") for part in wrap(line, letters)]
        for run in runs
    ]
    lines = max(map(len, heads), default=1)
    figure, axis = style.new_rows(title, labels, 0.36, head=0.55 + 0.16 * lines)
    cells = aligned[aligned["name"].isin(names)]
    shown = cells["outcome"].isin(["faster", "slower"])
    change = np.where(shown, np.log2(cells["speedup"].where(shown, 1.0)), 0.0)
    reach = max(0.5, np.abs(change).max(initial=0.0))
    colors = _MAP(Normalize(-reach, reach)(change))
    colors[cells["time_ms"].isna()] = (1, 1, 1, 1)
    x = cells["run"].map(runs.index).to_numpy(dtype=float)
    y = cells["name"].map(names.index).to_numpy(dtype=float)
    style.draw_boxes(axis, x - 0.5, y - 0.5, 1, 1, colors, edge=1.5)
    for cell, column, row, color in zip(cells.itertuples(), x, y, colors, strict=True):
        if math.isfinite(cell.time_ms):
            time, texts = style.write_ms(cell.time_ms), []
            if cell.outcome in ("faster", "slower"):
                texts = [f"{time}\n{style.write_ratio(cell.speedup, cell.low, cell.high)}"]
                texts.append(f"{time}\n{style.write_ratio(cell.speedup)}")
            style.write_inside(axis, column, row, style.fit([*texts, time], inches), color[:3])
    axis.grid(False)
    axis.set_xlim(-0.5, len(runs) - 0.5)
    axis.set_xticks(range(len(runs)), ["\n".join(head) for head in heads])
    axis.xaxis.tick_top()
    axis.tick_params(axis="x", labelcolor=style.INK)
    axis.spines["bottom"].set_visible(False)
    note = "typical time per inference, and speed-up over the first column, with its 95 % interval "
    note += "if there is room; blue: faster, orange: slower, pale: no difference shown"
    figure.text(0.5, 0.1 / figure.get_figheight(), note, ha="center", fontsize=8, color=style.FAINT)
    return figure

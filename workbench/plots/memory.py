"""Memory over the operators of an inference, and the time until the first output."""

import numpy as np

from workbench.analysis.layers import name_layer
from workbench.analysis.run import Measurement, Run
from workbench.plots import style
from workbench.plots.style import Chart, marked
from workbench.plots.tables import Table, show_note

_NO_TENSORS = "Tensors unknown: the program has no layer sidecar."
_NO_STARTS = (
    "Not recorded: memory and the time until the first output. `workbench run` measures them."
)
#: Colours of the stages of a start; those of delegates have one, and all others the last.
_STAGES = {
    "process": style.SERIES[0], "libraries": style.SERIES[3], "delegate": style.SERIES[1],
    "inputs": style.SERIES[2], "first inference": style.SERIES[6], "other": style.UNSPLIT_COLOR,
}  # fmt: skip


@marked
def plot_memory(source: Measurement) -> Chart | Table:
    """The bytes of all live activations in MB, operator by operator, as planned.

    Below, the arenas of the memory planner; above them, the delegate that needs the largest
    workspace. The line marks the operator at which most are live, and names the largest tensors. A
    sentence where the program is unknown.

    Examples
    --------
    >>> "Conv2d" in wb.plot_memory(wb.open_run(wb.sample_run())["avx512_on"]).alt_text
    True
    """
    tensors = source.tensors
    if tensors is None or tensors.empty:
        return show_note(_NO_TENSORS)
    figure, (axis,) = style.new_figure("Activation memory", 3.2, left=0.75, top=0.8)
    steps = int(tensors["last"].max()) + 1
    base, names, shown = (
        np.zeros(steps),
        {},
        list(tensors.loc[tensors["at_peak"], "memory"].unique()),
    )
    for place, color in zip(sorted(shown), (style.SERIES[0], style.SERIES[6]), strict=False):
        part = tensors[tensors["memory"] == place]
        change = np.zeros(steps + 1)
        np.add.at(change, part["first"], part["size_bytes"] / 1e6)
        np.add.at(change, part["last"] + 1, -part["size_bytes"] / 1e6)
        live = base + change.cumsum()[:-1]
        axis.fill_between(range(steps), base, live, step="mid", color=color, linewidth=0)
        base, names[place] = live, color
    peak, top = int(base.argmax()), float(base.max())
    live = tensors[(tensors["first"] <= peak) & (peak <= tensors["last"])].head(3)
    figure.rows_text = [
        f"{row.operator} of {name_layer(row.module)}: {row.size_bytes / 1e6:.3g} MB, "
        f"operators {row.first + 1} to {row.last + 1}"
        for row in live.itertuples()
    ]
    axis.axvline(peak, color=style.HIGHLIGHT, linewidth=1)
    left = peak < steps / 2
    axis.annotate(
        "\n".join([f"most: {top:.3g} MB; the largest:", *(style.shorten(t, 90) for t in
                                                          figure.rows_text)]),
        (peak, top), (6 if left else -6, 0), textcoords="offset points", fontsize=8, va="top",
        ha="left" if left else "right", color=style.INK,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
    )  # fmt: skip
    axis.set_xlim(-0.5, steps - 0.5)
    axis.set_ylim(0, 1.12 * top)
    axis.set_ylabel("MB", fontsize=9, color=style.FAINT)
    style.label_x(axis, "operators in the order of execution")
    style.add_key(figure, names)
    return figure


@marked
def plot_cold_start(source: Run) -> Chart | Table:
    """One bar per measurement, as long as the mean time in ms from its start to the first output.

    ``cold``: with the program's file dropped from the page cache. Segments are
    stages. A sentence where it was not measured.

    Examples
    --------
    >>> print(wb.plot_cold_start(wb.open_run(wb.sample_run())))
    > Not recorded: memory and the time until the first output. `workbench run` measures them.
    """
    bars = {
        f"{m.label}{'' if cache == 'warm' else ', cold'}": rows
        for m in source.measurements
        if m.cold_start is not None and not m.control
        for cache, rows in m.cold_start.groupby("cache", sort=False)
    }
    if not bars:
        return show_note(_NO_STARTS)
    labels = [style.shorten(name, 28) for name in bars]
    title = "From the start of a process to its first output"
    figure, axis = style.new_rows(title, labels, 0.45, head=0.74, right=0.9)
    longest = max(rows["mean_ms"].sum() for rows in bars.values())
    inches = style.WIDTH * axis.get_position().width / longest
    for row, rows in enumerate(bars.values()):
        kinds = rows["stage"].str.rstrip("0123456789 ")
        times = rows.groupby(kinds.where(kinds.isin(_STAGES), "other"))["mean_ms"].sum()
        start = 0.0
        for kind, color in _STAGES.items():
            ms = float(times.get(kind, 0.0))
            style.draw_bar(axis, row, ms, color, left=start, edge="white")
            text = style.fit((f"{kind} {style.write_ms(ms)}", style.write_ms(ms)), ms * inches)
            style.write_inside(axis, start + ms / 2, row, text, color)
            start += ms
        style.write_after(axis, start, row, style.write_ms(start), size=10, bold=True)
    figure.rows_text = [
        f"{name}: {style.write_ms(rows['mean_ms'].sum())}, "
        f"most of it {rows.loc[rows['mean_ms'].idxmax(), 'stage']}"
        for name, rows in bars.items()
    ]
    axis.set_xlim(0, longest)
    style.label_x(axis, "mean time (ms)")
    style.add_key(figure, _STAGES, style.label_margin(labels))
    return figure

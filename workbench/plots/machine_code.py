"""Which machine code ran: a stacked bar of instruction classes for each part, side by side."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes

from workbench.analysis.machine_code import explain_lack, split_code
from workbench.analysis.run import Comparison
from workbench.frames import format_share
from workbench.plots import style
from workbench.plots.categories import name_sides
from workbench.plots.style import Chart, marked
from workbench.plots.tables import Table, show_note

#: From the narrowest vectors to the widest: paler to stronger, x86 blue and Arm green; what needs
#: the newest extension stands out. Brightness alone tells them apart, too.
CODE_COLORS = {
    "unknown": "#FFFFFF", "scalar": "#E0E0E0", "sse": "#C6DBEF", "avx": "#9ECAE1",
    "avx2": "#4292C6", "avx512": "#084594", "avx512vnni": "#3F007D", "neon": "#C7E9C0",
    "fp16": "#A1D99B", "dotprod": "#74C476", "bf16": "#41AB5D", "i8mm": "#238B45",
    "sve": "#005A32", "sme": "#F4A582", "sme2": "#B2182B",
}  # fmt: skip
_RIGHT = 1.7  #: Inches right of the bars.


@marked
def plot_machine_code(
    source: Comparison | Mapping[str, pd.DataFrame], *, by: str = "family", top: int = 8
) -> Chart | Table:
    """A bar for every part and side, split into classes of machine code.

    ``source`` is a comparison, or frames of ``frames.CODE_SHARES`` by label, the baseline first.
    Parts of a comparison are a ``category``, ``family``, ``operator`` or ``key``; the ``top`` ones
    have the most samples of the program counter. Shares in per cent; each bar ends with the number
    of its samples. A sentence where nothing was sampled.

    Examples
    --------
    >>> "sme2" in wb.plot_machine_code(wb.open_run(wb.sample_run("toy_cnn")).compare()).alt_text
    True
    """
    if isinstance(source, Comparison):
        shares = _split(source, by)
        if not shares:
            return show_note(explain_lack(source.run.record))
    else:
        shares = dict(source)
    totals = pd.concat(shares.values()).groupby("part", sort=False)["samples"].sum()
    parts = list(totals.sort_values(ascending=False, kind="stable").index[:top])
    labels = [style.shorten(part, 28) for part in parts]
    figure, axis = style.new_rows(
        "Which machine code ran", labels, 0.22 * max(len(shares), 2), head=0.74, right=_RIGHT
    )
    step, inches = 0.8 / len(shares), style.WIDTH - style.label_margin(labels) - _RIGHT
    for place, (name, frame) in enumerate(shares.items()):
        for row, part in enumerate(parts):
            at = row + (place - (len(shares) - 1) / 2) * step
            _draw_bar(axis, frame[frame["part"] == part], at, step, inches)
            samples = int(frame.loc[frame["part"] == part, "samples"].sum())
            style.write_after(axis, 1, at, f"{style.shorten(name, 14)}: {samples}", size=8)
    axis.set_xlim(0, 1)
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1], [f"{n} %" for n in (0, 25, 50, 75, 100)])
    style.label_x(axis, "share of the samples (%)")
    found = set().union(*(frame["code"] for frame in shares.values()))
    style.add_key(figure, {c: color for c, color in CODE_COLORS.items() if c in found}, 0.1)
    return figure


def _split(ab: Comparison, by: str) -> dict[str, pd.DataFrame]:
    before, after = ab.baseline.machine_code, ab.candidate.machine_code
    if before is None or after is None:
        return {}
    return {
        name: pd.concat([split_code(evidence), split_code(evidence, by)])
        for name, evidence in zip(name_sides(ab), (before, after), strict=True)
    }


def _draw_bar(axis: Axes, frame: pd.DataFrame, row: float, step: float, inches: float) -> None:
    start, order = 0.0, list(CODE_COLORS)
    for code, share in sorted(
        zip(frame["code"], frame["share"], strict=True), key=lambda part: order.index(part[0])
    ):
        color = CODE_COLORS[code]
        axis.barh(row, share, left=start, height=0.9 * step, color=color, edgecolor="#BBBBBB",
                  linewidth=0.5)  # fmt: skip
        text = f"{code} {format_share(share)}"
        if style.text_inches(text, 8) + 0.08 < share * inches:
            style.write_inside(axis, start + share / 2, row, text, color)
        start += share

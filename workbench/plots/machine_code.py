"""Which machine code ran: a stacked bar of its classes for each part, side by side."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from workbench.frames import format_share
from workbench.plots.style import (
    INK,
    WIDTH,
    ink_on,
    label_margin,
    label_x,
    marked,
    new_figure,
    set_rows,
    set_title,
    shorten,
    text_inches,
)

#: From the narrowest vectors to the widest: paler to stronger, x86 blue and Arm green; what needs
#: the newest extension stands out. Told apart by those who do not see colours, too.
CODE_COLORS = {
    "unknown": "#FFFFFF",
    "scalar": "#E0E0E0",
    "sse": "#C6DBEF",
    "avx": "#9ECAE1",
    "avx2": "#4292C6",
    "avx512": "#084594",
    "avx512vnni": "#3F007D",
    "neon": "#C7E9C0",
    "fp16": "#A1D99B",
    "dotprod": "#74C476",
    "bf16": "#41AB5D",
    "i8mm": "#238B45",
    "sve": "#005A32",
    "sme": "#E69F00",
    "sme2": "#B2182B",
}


@marked
def plot_code(
    shares: Mapping[str, pd.DataFrame], title: str = "Which machine code ran", top: int = 8
) -> Figure:
    """A bar for every part and experiment, split into classes of machine code.

    Parameters
    ----------
    shares
        ``schema.CODE_SHARES`` by name of the experiment, the baseline first.
    title
        Of the figure.
    top
        How many parts to show; those with the most samples, over all experiments.

    Returns
    -------
    Figure
        Each bar ends with its number of samples: few of them say little.
    """
    totals = pd.concat(shares.values()).groupby("part", sort=False)["samples"].sum()
    parts = list(totals.sort_values(ascending=False, kind="stable").index[:top])
    labels = [shorten(part, 28) for part in parts]
    left, right = label_margin(labels), 1.7
    height = 1.6 + 0.22 * len(parts) * max(len(shares), 2)
    figure, (axis,) = new_figure(height, left=left, right=right, top=0.74)
    step = 0.8 / len(shares)
    for place, (name, frame) in enumerate(shares.items()):
        for row, part in enumerate(parts):
            at = row + (place - (len(shares) - 1) / 2) * step
            _draw_bar(axis, frame[frame["part"] == part], at, step, name, WIDTH - left - right)
    set_rows(axis, labels)
    axis.set_xlim(0, 1)
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1], [f"{n} %" for n in (0, 25, 50, 75, 100)])
    label_x(axis, "share of the samples")
    _add_key(figure, left, set().union(*(frame["code"] for frame in shares.values())))
    set_title(figure, title)
    return figure


def _draw_bar(axis, frame: pd.DataFrame, at: float, step: float, name: str, inches: float) -> None:
    start = 0.0
    order = list(CODE_COLORS)
    for code, share in sorted(
        zip(frame["code"], frame["share"], strict=True), key=lambda row: order.index(row[0])
    ):
        color = CODE_COLORS[code]
        axis.barh(at, share, left=start, height=0.9 * step, color=color, edgecolor="#BBBBBB",
                  linewidth=0.5)  # fmt: skip
        text = f"{code} {format_share(share)}"
        if text_inches(text, 8) + 0.08 < share * inches:
            axis.text(start + share / 2, at, text, ha="center", va="center", fontsize=8,
                      color=ink_on(color))  # fmt: skip
        start += share
    samples = int(frame["samples"].sum())
    axis.text(1.01, at, f"{shorten(name, 14)}: {samples}", va="center", fontsize=8, color=INK)


def _add_key(figure: Figure, left: float, codes: set[str]) -> None:
    chips = [
        Patch(facecolor=color, edgecolor="#BBBBBB", label=code)
        for code, color in CODE_COLORS.items()
        if code in codes
    ]
    figure.legend(
        handles=chips, loc="upper left", ncols=max(len(chips), 1), frameon=False, fontsize=9,
        bbox_to_anchor=(left / WIDTH, 1 - 0.4 / figure.get_figheight()), borderaxespad=0,
        borderpad=0, handlelength=1, handleheight=1, handletextpad=0.4, columnspacing=1.4,
    )  # fmt: skip

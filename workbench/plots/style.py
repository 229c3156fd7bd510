"""One look for all figures: colours, axes and how numbers are written."""

from __future__ import annotations

import base64
import functools
import html
import io
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

import numpy as np
import pandas as pd
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from workbench.frames import EMULATED, is_emulated

#: The palette of Okabe and Ito, which colour-blind readers can tell apart. The two categories
#: that multiply matrices are both blue: they are what an extension such as SME2 speeds up.
COLORS = {
    "Convolution": "#0072B2",
    "GEMM": "#56B4E9",
    "Data Movement": "#E69F00",
    "Elementwise": "#009E73",
    "Other": "#8A8A8A",
}

#: For experiments, threads, models: whatever is no category. Of the same palette.
SERIES = ("#0072B2", "#D55E00", "#8A8A8A", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")

#: For what belongs to no single category.
UNSPLIT_COLOR = "#D4D4D4"
#: For bars of what is not a category: a whole inference, a layer.
PLAIN = "#4D4D4D"
INK = "#222222"
FAINT = "#6B6B6B"
HIGHLIGHT = "#C8401F"

#: Inches: what a notebook and a report page are wide.
WIDTH = 9.0
_DPI = 110
#: Of a label, in pixels of the figure.
_LABEL_HEIGHT = 16.0
_INCH_PER_LETTER = {8: 0.072, 9: 0.081, 10: 0.090}
#: Stands for a number that there is not.
P = ParamSpec("P")
F = TypeVar("F", bound=Figure)


class Chart(Figure):
    """A figure that every notebook shows, sharp, whatever its matplotlib is set up to do."""

    @property
    def alt_text(self) -> str:
        """All that is written in the figure, for those who cannot see it."""
        texts = (text.get_text() for text in self.findobj(Text) if text.get_visible())
        return "; ".join(dict.fromkeys(" ".join(text.split()) for text in texts if text.strip()))

    def draw(self, renderer: RendererBase) -> None:
        """Draw it; a dollar in a name starts no formula, other than those of matplotlib's ticks."""
        for text in self.findobj(Text):
            if "$" in text.get_text() and not text.get_text().startswith(r"$\mathdefault{"):
                text.set_parse_math(False)
        super().draw(renderer)

    def to_png(self) -> bytes:
        """The figure as a file, at twice the resolution of its size."""
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=2 * _DPI)
        return file.getvalue()

    def _repr_html_(self) -> str:
        source = base64.b64encode(self.to_png()).decode()
        alt = html.escape(self.alt_text, quote=True)
        return f'<img alt="{alt}" src="data:image/png;base64,{source}">'

    def _ipython_display_(self) -> None:
        # Not _repr_png_: matplotlib's inline backend, once active, would draw it its own way.
        width, height = (round(inches * _DPI) for inches in self.get_size_inches())
        size = {"width": width, "height": height, "alt": self.alt_text}
        display(
            {"image/png": self.to_png(), "text/plain": repr(self)},
            metadata={"image/png": size},
            raw=True,
        )


def new_figure(
    height: float,
    columns: int = 1,
    *,
    left: float = 0.3,
    right: float = 0.3,
    top: float = 0.45,
    bottom: float = 0.5,
    ratios: tuple[float, ...] | None = None,
    gap: float = 0.3,
    share_y: bool = False,
) -> tuple[Chart, list[Axes]]:
    """A figure of the standard width with tidied axes side by side; all measures in inches.

    It belongs to no window and to no global state: the caller shows or saves it.
    """
    figure = Chart(figsize=(WIDTH, height), dpi=_DPI, facecolor="white")
    room = (WIDTH - left - right - gap * (columns - 1)) / columns
    axes = figure.subplots(
        1,
        columns,
        squeeze=False,
        sharey=share_y,
        gridspec_kw={
            "left": left / WIDTH,
            "right": 1 - right / WIDTH,
            "top": 1 - top / height,
            "bottom": bottom / height,
            "wspace": gap / room,
            "width_ratios": ratios,
        },
    )[0]
    for axis in axes:
        tidy(axis)
    return figure, list(axes)


def stack_panels(count: int, each: float) -> tuple[Chart, list[Axes]]:
    """A figure of the standard width with panels of so many inches above one another."""
    height = 0.8 + each * count
    figure = Chart(figsize=(WIDTH, height), dpi=_DPI, facecolor="white")
    room = {"left": 0.08, "right": 0.97, "top": 1 - 0.55 / height, "bottom": 0.35 / height}
    axes = figure.subplots(
        count, 1, squeeze=False, sharex=True, gridspec_kw={**room, "hspace": 0.35}
    )
    for axis in axes[:, 0]:
        tidy(axis)
    return figure, list(axes[:, 0])


def tidy(axis: Axes) -> None:
    """Leave of the axes what helps to read: a baseline, faint vertical lines, no ticks."""
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color("#BBBBBB")
    axis.grid(axis="x", color="#E6E6E6", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(axis="both", length=0, labelsize=9, labelcolor=FAINT)
    axis.tick_params(axis="y", labelcolor=INK)


def set_title(figure: Figure, title: str) -> None:
    """The title, at the upper left corner."""
    height = figure.get_figheight()
    figure.text(0.1 / WIDTH, 1 - 0.12 / height, title, va="top", fontsize=11, fontweight="bold",
                color=INK)  # fmt: skip


def set_rows(axis: Axes, labels: list[str]) -> None:
    """Name the rows of a horizontal chart, the first on top."""
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(max(len(labels), 1) - 0.5, -0.5)


def label_x(axis: Axes, text: str) -> None:
    """Name the quantity on the x axis, and its unit."""
    axis.set_xlabel(text, fontsize=9, color=FAINT)


def label_ends(axis: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Name what ends at a height at the right of it; names move apart rather than overlap.

    ``ends`` are triples of height, name and colour.
    """
    low, high = (axis.transData.transform((1, value))[1] for value in axis.get_ylim())
    gap = min(_LABEL_HEIGHT, (high - low) / max(len(ends), 1))
    ceiling = high
    for value, label, color in sorted(ends, reverse=True):
        placed = min(axis.transData.transform((1, value))[1], ceiling)
        ceiling = placed - gap
        place = (1, (placed - low) / (high - low))
        axis.annotate(label, place, (8, 0), xycoords="axes fraction", textcoords="offset points",
                      va="center", fontsize=9, color=color)  # fmt: skip


def mark_figure(figure: Figure, text: str) -> Figure:
    """Write a reservation into the upper right corner: "emulated: says nothing of speed"."""
    figure.text(1 - 0.1 / WIDTH, 1 - 0.12 / figure.get_figheight(), text, ha="right", va="top",
                fontsize=9, fontweight="bold", color=HIGHLIGHT)  # fmt: skip
    return figure


def marked(draw: Callable[P, F]) -> Callable[P, F]:
    """A plot that says so if a frame that it is given was measured under emulation."""

    @functools.wraps(draw)
    def draw_marked(*args: P.args, **choices: P.kwargs) -> F:
        figure = draw(*args, **choices)
        given = [*args, *choices.values()]
        return mark_figure(figure, EMULATED) if any(map(_is_emulated, given)) else figure

    return draw_marked


def _is_emulated(given: object) -> bool:
    if isinstance(given, Mapping):
        return any(map(_is_emulated, given.values()))
    return isinstance(given, pd.DataFrame) and is_emulated(given)


def color_of(category: str) -> str:
    """The colour of a category; light grey for what is none."""
    return COLORS.get(category, UNSPLIT_COLOR)


def fade(color: str, kept: float) -> tuple[float, ...]:
    """A colour of which so much is left on white."""
    return tuple(1 - kept * (1 - part) for part in to_rgb(color))


def ink_on(color: str) -> str:
    """White or dark ink, whichever is easier to read on a colour."""
    luminance = np.dot(to_rgb(color), (0.299, 0.587, 0.114))
    return "white" if luminance < 0.52 else INK


def text_inches(text: str, size: int = 9) -> float:
    """About how wide the longest line of a text is."""
    return max(map(len, text.split("\n")), default=0) * _INCH_PER_LETTER[size]


def shorten(text: str, letters: int) -> str:
    """The text, cut in the middle if it is too long: both ends of an operator's name matter."""
    if len(text) <= letters:
        return text
    tail = (letters - 1) // 3
    return f"{text[: letters - 1 - tail]}…{text[-tail:] if tail else ''}"


def label_margin(labels: list[str], least: float = 0.8) -> float:
    """Inches that row labels need left of the axes."""
    return max(least, 0.25 + max(map(text_inches, labels), default=0.0))

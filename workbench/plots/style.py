"""One look for all figures: colours, axes, and the marks that several plots draw."""

import base64
import functools
import html
import io
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import pandas as pd
from IPython.display import display
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Annotation, Text
from matplotlib.ticker import FixedLocator, FuncFormatter

from workbench.analysis.open import open_run
from workbench.analysis.run import Comparison, Measurement, Run
from workbench.emulation import EMULATED, is_emulated
from workbench.errors import UsageError
from workbench.plots.tables import COLORS, pick_ink, to_markdown
from workbench.records.exports import Export
from workbench.wording import MISSING, format_figure, format_ratio

UNSPLIT_COLOR = "#D4D4D4"  #: For what belongs to no single category.


class Ink:
    """The colours of figures; on a dark page, others are in their place.

    ``CATEGORIES`` are in the order of every legend. ``SERIES`` are for experiments and samples of
    them, from Paul Tol's muted palette, apart from the categories'; ``FASTER`` and ``SLOWER`` for
    differences that were shown; ``PLAIN`` for bars of a whole inference or of one operator.
    """

    CATEGORIES = COLORS
    SERIES = ("#332288", "#CC6677", "#999933", "#882255", "#AA4499", "#6E5A4B", "#DDAA33")
    FASTER, SLOWER = "#2455C3", "#D95F0E"
    PLAIN = "#4D4D4D"
    TEXT = "#222222"
    FAINT = "#6B6B6B"
    LINE = "#9A9A9A"
    HIGHLIGHT = "#C8401F"


#: The inks of figures, and what takes their place on a dark page; the colours of boxes stay.
_DARK = {
    "#ffffff": "#12161c", Ink.TEXT: "#e4e9ef", Ink.FAINT: "#a5b0bd", Ink.LINE: "#7d8896",
    Ink.PLAIN: "#aab4c0",
    "#bbbbbb": "#566270", "#e6e6e6": "#2a323c", "#eeeeee": "#232a33", "#e4e4e4": "#39424d",
    Ink.FASTER: "#7ea2ff", Ink.SLOWER: "#ff9a57", Ink.HIGHLIGHT: "#ff8a75",
    **dict(zip(
        Ink.SERIES,
        ("#9a8ff0", "#e08795", "#b9b94a", "#d977a0", "#d07fcc", "#b8a08d", "#e5bd55"),
        strict=True,
    )),
}  # fmt: skip
#: Of an image: which colours it takes, where the page has a theme of its own.
_THEMES = (
    "<style>[data-jp-theme-light=true] .wb-figure,[data-theme=light] .wb-figure"
    "{color-scheme:light}@media screen{[data-jp-theme-light=false] .wb-figure,"
    "[data-theme=dark] .wb-figure,.vscode-dark .wb-figure{color-scheme:dark}}"
    "@media print{.wb-figure{color-scheme:light !important}}</style>"
)
#: Environment variable: with `svg`, notebooks have no figure as PNG, for readers without HTML.
FIGURES = "WORKBENCH_FIGURES"

WIDTH = 9.0  #: Inches: the width of a notebook and of a report page.
_DPI = 110
_LABEL_HEIGHT = 16.0  #: Of a label, in pixels of the figure.
_INCH_PER_LETTER = {8: 0.072, 9: 0.081, 10: 0.090}

F = TypeVar("F")


class Chart(Figure):
    """A figure that displays itself sharp in every notebook, whatever the matplotlib backend."""

    #: What its rows say, where the texts that are drawn do not suffice.
    rows_text: Sequence[str] = ()

    @classmethod
    def new(
        cls, title: str, height: float, *, columns: int = 1, rows: int = 1, left: float = 0.3,
        right: float = 0.3, top: float = 0.5, bottom: float = 0.5, gap: float = 0.3,
    ) -> tuple[Self, list[Axes]]:  # fmt: skip
        """A figure of the standard width with its title and tidied axes; all measures in inches.

        Columns share their rows, and rows their columns. The caller shows or saves the figure.
        """
        figure = cls(figsize=(WIDTH, height), dpi=_DPI, facecolor="white")
        grid = {
            "left": left / WIDTH,
            "right": 1 - right / WIDTH,
            "top": 1 - top / height,
            "bottom": bottom / height,
            "wspace": gap * columns / (WIDTH - left - right - gap * (columns - 1)),
            "hspace": 0.35,
        }
        axes = figure.subplots(
            rows, columns, squeeze=False, sharex="col", sharey="row", gridspec_kw=grid
        ).ravel()
        for axis in axes:
            for side in ("top", "right", "left"):
                axis.spines[side].set_visible(False)
            axis.spines["bottom"].set_color("#BBBBBB")
            axis.grid(axis="x", color="#E6E6E6", linewidth=0.8)
            axis.set_axisbelow(True)
            axis.tick_params(axis="both", length=0, labelsize=9, labelcolor=Ink.FAINT)
            axis.tick_params(axis="y", labelcolor=Ink.TEXT)
            for scale in (axis.xaxis, axis.yaxis):
                scale.label.set(fontsize=9, color=Ink.FAINT)
        figure.text(0.1 / WIDTH, 1 - 0.12 / height, title, va="top", fontsize=11, fontweight="bold",
                    color=Ink.TEXT)  # fmt: skip
        return figure, list(axes)

    @classmethod
    def new_rows(
        cls,
        title: str,
        labels: Sequence[str],
        each: float,
        *,
        head: float = 0.5,
        right: float = 0.3,
    ) -> tuple[Self, Axes]:
        """A figure with a row of ``each`` inches per label, below ``head`` inches; see `new`."""
        height, left = head + 0.7 + each * len(labels), label_margin(labels)
        figure, (axis,) = cls.new(title, height, left=left, right=right, top=head)
        set_rows(axis, labels)
        return figure, axis

    @property
    def alt_text(self) -> str:
        """What it says, for readers who cannot see it: its title, axes, rows and key."""
        parts, key = [text.get_text() for text in self.texts], []
        for axis in self.axes:
            parts += [axis.get_title("left"), axis.get_xlabel(), axis.get_ylabel()]
            parts += [] if self.rows_text else _describe_rows(axis, self.axes[0])
        for legend in self.legends:
            key += [text.get_text() for text in legend.get_texts()]
        parts += [*self.rows_text, f"key: {', '.join(key)}" if key else ""]
        texts = (" ".join(part.split()) for part in parts)
        return "; ".join(dict.fromkeys(filter(None, texts)))

    def __repr__(self) -> str:
        return f"Figure. {self.alt_text}"

    def draw(self, renderer: RendererBase) -> None:
        """Draw it; a dollar in a name starts no formula, except in matplotlib's own ticks."""
        for text in self.findobj(Text):
            if "$" in text.get_text() and not text.get_text().startswith(r"$\mathdefault{"):
                text.set_parse_math(False)
        super().draw(renderer)

    def to_png(self) -> bytes:
        """The figure as a PNG file, at twice the resolution of its size."""
        file = io.BytesIO()
        # Level 6 takes a quarter longer, and saves a tenth of the file.
        self.savefig(file, format="png", dpi=2 * _DPI, pil_kwargs={"compress_level": 3})
        return file.getvalue()

    def to_svg(self) -> str:
        """The figure as SVG, whose inks turn where the page is dark."""
        file = io.StringIO()
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": self.alt_text[:40]}):
            self.savefig(file, format="svg", metadata={"Date": None})
        rules = "".join(
            f'[style*="{what}: {ink.lower()}"]{{{what}:{dark} !important}}'
            for ink, dark in _DARK.items()
            for what in ("fill", "stroke")
        )
        # Dots that are many are pixels. The darkest colour of a category needs an edge.
        rules += "image{filter:invert(1) hue-rotate(180deg)}"
        rules += f'[style*="{COLORS["Convolution"].lower()}"]{{stroke:#5b8fd6 !important}}'
        style = f"<style>@media (prefers-color-scheme: dark) {{{rules}}}</style>"
        return file.getvalue().replace("</metadata>", f"</metadata>{style}", 1)

    def __str__(self) -> str:
        return f"*Figure. {to_markdown(self.alt_text)}*"

    def _repr_html_(self) -> str:
        source = base64.b64encode(self.to_svg().encode()).decode()
        alt = html.escape(self.alt_text, quote=True)
        image = f'<img class="wb-figure" alt="{alt}" src="data:image/svg+xml;base64,{source}"'
        return f'{_THEMES}{image} style="width:{self._pixels[0]}px;max-width:100%">'

    @property
    def _pixels(self) -> tuple[int, ...]:
        return tuple(round(inches * _DPI) for inches in self.get_size_inches())

    def _ipython_display_(self) -> None:
        # Not _repr_png_: matplotlib's inline backend, once active, would draw it its own way.
        vector = os.environ.get(FIGURES) == "svg"
        kind = "image/svg+xml" if vector else "image/png"
        content = self.to_svg() if vector else self.to_png()
        width, height = self._pixels
        size = {kind: {"width": width, "height": height, "alt": self.alt_text}}
        texts = {"text/html": self._repr_html_(), "text/plain": repr(self)}
        display({kind: content, **texts}, metadata=size, raw=True)


def _describe_rows(axis: Axes, first: Axes) -> list[str]:
    """The texts of every row of axes, whose names the first axes of the figure have."""
    is_named = isinstance(first.yaxis.get_major_locator(), FixedLocator)
    ticks = first.get_yticklabels() if is_named else []
    rows: dict[str, list[str]] = {tick.get_text(): [] for tick in ticks}
    names = dict(enumerate(rows))
    for text in filter(Text.get_text, axis.texts):
        height = text.xy[1] if isinstance(text, Annotation) else text.get_position()[1]
        rows.setdefault(names.get(round(height), ""), []).append(text.get_text())
    return [f"{name}: {', '.join(words)}".strip(": ") for name, words in rows.items()]


def set_head(axis: Axes, text: str) -> None:
    """The title of one of several axes."""
    axis.set_title(text, loc="left", fontsize=9, color=Ink.FAINT)


def set_rows(axis: Axes, labels: Sequence[str]) -> None:
    """Name the rows of a horizontal chart, the first on top."""
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(max(len(labels), 1) - 0.5, -0.5)


def label_ends(axis: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Name lines at their right ends, from height, name, colour; names move apart to fit."""
    low, high = (axis.transData.transform((1, value))[1] for value in axis.get_ylim())
    gap = min(_LABEL_HEIGHT, (high - low) / max(len(ends), 1))
    ceiling = high
    for value, label, color in sorted(ends, reverse=True):
        height = min(axis.transData.transform((1, value))[1], ceiling)
        ceiling = height - gap
        place = (1, (height - low) / (high - low))
        axis.annotate(label, place, (8, 0), xycoords="axes fraction", textcoords="offset points",
                      va="center", fontsize=9, color=color)  # fmt: skip


def write_after(
    axis: Axes, x: float, row: float, text: str, *, color: str = Ink.TEXT, size: int = 9,
    bold: bool = False, points: int = 6, place: Any = "data",
) -> None:  # fmt: skip
    """Write just right of a place on a row."""
    axis.annotate(text, (x, row), (points, 0), xycoords=place, textcoords="offset points",
                  va="center", fontsize=size, color=color, annotation_clip=False,
                  fontweight="bold" if bold else "normal")  # fmt: skip


def write_beside(axis: Axes, row: float, text: str, points: int = 8, **look: Any) -> None:
    """Write at the right of the axes, in line with a row."""
    write_after(axis, 1, row, text, points=points, place=axis.get_yaxis_transform(), **look)


def write_inside(axis: Axes, x: float, row: float, text: str, color: str) -> None:
    """Write in the middle of a box of a colour, in white or dark ink."""
    ink = pick_ink(color).replace("#ffffff", "#fefefe")  # which turns on no dark page
    axis.text(x, row, text, ha="center", va="center", fontsize=8, linespacing=1.2, color=ink)


def write_ms(ms: float) -> str:
    """Three figures of a time in ms: along one axis, the unit does not change."""
    return f"{format_figure(ms)} ms" if math.isfinite(ms) else MISSING


def write_ratio(ratio: float, low: float = math.nan, high: float = math.nan) -> str:
    """A speed-up, and its interval if that is known: ``1.36x (1.30 to 1.41)``."""
    if math.isinf(ratio):
        return "\N{INFINITY}"
    text = f"{format_ratio(ratio)}x" if math.isfinite(ratio) else MISSING
    ends = f" ({format_ratio(low)} to {format_ratio(high)})"
    return f"{text}{ends}" if math.isfinite(high - low) else text


def fit(texts: Iterable[str], inches: float) -> str:
    """The first small text that is narrower than this; empty if none is."""
    return next((text for text in texts if text_inches(text, 8) + 0.06 < inches), "")


def text_inches(text: str, size: int = 9) -> float:
    """About how wide the longest line of a text is."""
    return max(map(len, text.split("\n")), default=0) * _INCH_PER_LETTER[size]


def shorten(text: str, letters: int) -> str:
    """The text, cut in the middle if it is too long: both ends of an operator's name matter."""
    if len(text) <= letters:
        return text
    tail = (letters - 1) // 3
    return f"{text[: letters - 1 - tail]}…{text[-tail:] if tail else ''}"


def distinguish(labels: Collection[str]) -> list[list[str]]:
    """The parts of each label, between commas or colons, without those that all labels have."""
    parts = [re.split(", |: ", label) for label in labels]
    common = set.intersection(*map(set, parts)) if parts[1:] else set()
    return [[part for part in pieces if part not in common] or pieces for pieces in parts]


def label_margin(labels: Iterable[str]) -> float:
    """Inches that row labels need left of the axes."""
    return max(0.8, 0.25 + max(map(text_inches, labels), default=0.0))


def draw_interval(
    axis: Axes, row: float, low: float, high: float, *, color: str = Ink.TEXT, width: float = 1.8
) -> None:
    """A line from one end of an interval to the other."""
    axis.plot([low, high], [row, row], color=color, linewidth=width, solid_capstyle="butt")


def draw_bar(
    axis: Axes, row: float, width: float, color: str, *, left: float = 0.0, height: float = 0.62,
    edge: str = "none",
) -> None:  # fmt: skip
    """A horizontal bar; hatched if its colour says that it is no single category."""
    mixed = color == UNSPLIT_COLOR
    axis.barh(row, width, height, left, color=color, edgecolor=edge_of(color, edge),
              linewidth=0.8, hatch="///" if mixed else None)  # fmt: skip


def edge_of(color: str, usual: str = "white") -> str:
    """The edge of a box of a colour: grey where the page would not show its end."""
    if color == UNSPLIT_COLOR:
        return "white"
    return Ink.LINE if color == COLORS["Other"] else usual


def line_color(category: str) -> str:
    """The colour of a category's lines and dots: one that a white page shows."""
    color = color_of(category)
    return edge_of(color, color)


def use_log_scales(axis: Axes) -> None:
    """Logarithmic axes with plain numbers."""
    for scale in (axis.xaxis, axis.yaxis):
        scale.axes.set(**{f"{scale.axis_name}scale": "log"})
        scale.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def draw_speedup(axis: Axes, row: int, entry: Any) -> None:
    """A row of ``frames.COMPARISON``: a dot with its 95 % interval, hollow if not significant."""
    floor = getattr(entry, "floor", 0.0)
    if 0 < floor < math.inf:
        axis.fill_betweenx([row - 0.36, row + 0.36], 1 / (1 + floor), 1 + floor, color="#E4E4E4",
                           linewidth=0)  # fmt: skip
    colors = dict.fromkeys(("faster", "less"), Ink.FASTER) | dict.fromkeys(
        ("slower", "more"), Ink.SLOWER
    )
    color, is_shown = colors.get(entry.outcome, Ink.TEXT), entry.outcome in colors
    if math.isfinite(entry.low):
        draw_interval(axis, row, entry.low, entry.high, color=color, width=2.2)
    axis.plot(entry.speedup, row, "o", markersize=8, markeredgewidth=1.8, color=color,
              markerfacecolor=color if is_shown else "white")  # fmt: skip
    write_beside(axis, row, write_ratio(entry.speedup, entry.low, entry.high), bold=is_shown)
    write_beside(axis, row, entry.outcome, 150, color=Ink.FAINT)


def add_key(figure: Figure, colors: Mapping[str, str], left: float = 0.1, note: str = "") -> None:
    """A legend below the title: a chip of each colour; and a note after them."""
    chips = [
        Patch(facecolor=color, label=name, edgecolor=edge_of(color),
              hatch="///" if color == UNSPLIT_COLOR else None)
        for name, color in colors.items()
    ]  # fmt: skip
    chips += [Patch(alpha=0, label=note)] if note else []
    if chips:
        figure.legend(
            handles=chips, loc="upper left", ncols=len(chips), frameon=False, fontsize=9,
            labelcolor=Ink.TEXT, bbox_to_anchor=(left / WIDTH, 1 - 0.4 / figure.get_figheight()),
            borderaxespad=0, borderpad=0, handlelength=1, handleheight=1, handletextpad=0.4,
            columnspacing=1.4,
        )  # fmt: skip


def draws(*kinds: type) -> Callable[[Callable[..., F]], Callable[..., F]]:
    """A figure of nouns of these types, or of what leads to one; it says if that was emulated."""

    def decorate(draw: Callable[..., F]) -> Callable[..., F]:
        @functools.wraps(draw)
        def draw_marked(source: Any, *args: Any, **choices: Any) -> F:
            source = convert_source(source, kinds, f"wb.{draw.__name__}")
            figure = draw(source, *args, **choices)
            if isinstance(figure, Figure) and any(map(_is_emulated, [source, *args])):
                place = (1 - 0.1 / WIDTH, 1 - 0.12 / figure.get_figheight())
                figure.text(*place, EMULATED, ha="right", va="top", fontsize=9, fontweight="bold",
                            color=Ink.HIGHLIGHT)  # fmt: skip
            return figure

        return draw_marked

    return decorate


def convert_source(source: Any, kinds: tuple[type, ...], user: str) -> Any:
    """Return the noun that a figure or a view takes, given one that leads to it.

    A path leads to its run, or to what a noun's own ``read`` makes of it; a run to its subject and
    its first comparison; a comparison to its candidate, and both sides to their run.
    """
    if isinstance(source, kinds):
        return source
    if isinstance(source, str | Path):
        readers = [kind.read for kind in kinds if hasattr(kind, "read")]
        return convert_source((readers or [open_run])[0](source), kinds, user)
    if isinstance(source, Run) and Measurement in kinds:
        return source.subject
    if isinstance(source, Run) and Comparison in kinds:
        return source.compare()
    if isinstance(source, Run) and Export in kinds:
        return source.record.export
    if isinstance(source, Measurement | Comparison) and Run in kinds:
        return source.run
    if isinstance(source, Comparison) and Measurement in kinds:
        return source.candidate
    names = ", ".join(f"a {kind.__name__}" for kind in kinds)
    raise UsageError(f"{user} takes {names} or a path, not a {type(source).__name__}")


def _is_emulated(given: object) -> bool:
    if isinstance(given, Mapping):
        return any(map(_is_emulated, given.values()))
    if isinstance(given, pd.DataFrame):
        return is_emulated(given)
    return bool(getattr(given, "emulated", False))


def color_of(category: str) -> str:
    """The colour of a category; light grey for anything else."""
    return COLORS.get(category, UNSPLIT_COLOR)

"""Frames as tables for readers: units in the header, a sensible number of digits."""

import html
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real

import pandas as pd
from IPython.display import display
from matplotlib.figure import Figure

from workbench.errors import printable, unknown_name
from workbench.frames import EMULATED, FRAMES, MISSING, decimals_of, format_number, is_emulated
from workbench.plots.style import COLORS

_SHARES = {
    "share", "baseline_share", "candidate_share", "roof_share", "spread", "share_before",
    "share_after", "contribution", "cv", "floor", "margin", "efficiency", "detectable",
    "bound_share",
}  # fmt: skip
_RATIOS = {
    "speedup", "low", "high", "total", "total_low", "total_high", "factor", "free_speedup",
    "free_low", "free_high", "ratio", "control",
}  # fmt: skip
#: The unit by the end of a column's name.
_SUFFIXES = {"_ms": "ms", "_ns": "ns", "_mb": "MB", "_db": "dB"}
_LEAST_P = 0.001  #: Smaller p-values are written as "below".

# Inks and lines that read well on a light and on a dark page.
_TABLE = "border-collapse:collapse;font:13px system-ui,sans-serif;color:inherit;margin:.4em 0"
_CAPTION = "caption-side:top;text-align:left;font-weight:600;padding:.3em 0"
_HEAD = "padding:.3em .5em;border-bottom:1.5px solid #999;background:none"
_CELL = "padding:.22em .5em;border-bottom:1px solid #8883"
_UNIT = "opacity:.75;font-weight:400"
_RIGHT = "text-align:right"
_CHIP = "display:inline-block;width:.75em;height:.75em;border-radius:2px;margin-right:.45em"
_SCROLLED = "overflow-x:auto;max-width:100%"
_WIDE = 90  #: Letters in a row beyond which a table may need to be scrolled.
#: Letters beyond which a word may be broken, and beyond which a text needs a wide column.
_LONG_WORD, _PROSE = 24, 40
#: Where a long name may be broken: after a slash, a dot (but not within a file's name), ...
_JOINT = re.compile(r"[/_,|](?=\w)|\.(?=\w)(?!py\b)")


@dataclass(frozen=True)
class Table:
    """A table or text as HTML, for notebooks and reports, and as Markdown, for everything else."""

    html: str
    markdown: str

    def _repr_html_(self) -> str:
        return self.html

    def __str__(self) -> str:
        return self.markdown


class VStack:
    """Figures, tables and sentences, shown one below the other; as text, without the figures."""

    def __init__(self, *parts: object):
        self.parts = parts

    def _ipython_display_(self) -> None:
        for part in self.parts:
            display(part)

    def __str__(self) -> str:
        return "\n\n".join(str(part) for part in self.parts if not isinstance(part, Figure))


def show(*parts: object) -> VStack:
    """Show figures, tables and sentences one below the other, from one cell.

    Examples
    --------
    >>> run = wb.open_run(wb.sample_run())
    >>> len(wb.show(wb.plot_latencies(run), wb.show_latencies(run)).parts)
    2
    """
    return VStack(*parts)


def join_tables(*tables: Table) -> Table:
    """Tables and notes, one below the other, as one."""
    parts = [table for table in tables if table.markdown]
    return Table("".join(p.html for p in parts), "\n\n".join(p.markdown for p in parts))


def show_note(*lines: str) -> Table:
    """Sentences as a set-off paragraph; of markup, they may contain code in backticks."""
    shown = [line for line in lines if line]
    paragraphs = "".join(f"<p>{to_html(line)}</p>" for line in shown)
    text = "\n>\n".join(f"> {to_markdown(line, pipes=False)}" for line in shown)
    return Table(f"<blockquote>{paragraphs}</blockquote>", text)


def to_html(text: str) -> str:
    """Text as HTML: code in backticks is set as code, and all else is text."""
    return re.sub(r"`+([^`]+)`+", r"<code>\1</code>", html.escape(text))


def fold(summary: str, content: Table) -> Table:
    """Content that a page shows once the reader opens it; Markdown has it below its summary."""
    page = f"<details><summary>{html.escape(summary)}</summary>{content.html}</details>"
    return Table(page, f"{to_markdown(summary)}\n\n{content.markdown}")


def show_answer(*parts: str | Table) -> Table:
    """The answer to an exercise, folded until the reader opens it.

    Examples
    --------
    >>> print(wb.show_answer("42 %"))
    Answer: 42 %
    """
    texts = [p if isinstance(p, Table) else Table(to_html(p), p) for p in parts]
    page = "<br>".join(text.html for text in texts)
    text = "\n\n".join(text.markdown for text in texts)
    return Table(f"<details><summary>Answer</summary>{page}</details>", f"Answer: {text}")


def show_table(
    frame: pd.DataFrame | None, columns: Sequence[str] | None = None, *, top: int | None = None,
    caption: str = "",
) -> Table:  # fmt: skip
    """A frame as a table; whatever the frame contains is text, never markup.

    Parameters
    ----------
    frame
        Any frame; columns that ``frames`` defines get their unit. None: a run did not record it.
    columns, top
        Which columns, in this order, and how many rows; None shows all.
    caption
        A line above the table.

    Raises
    ------
    UsageError
        The frame has no such column.

    Examples
    --------
    >>> print(wb.show_table(wb.open_run(wb.sample_run()).statistics, ["experiment", "n"], top=1))
    | experiment | n |
    | --- | ---: |
    | avx512_off | 516 |
    """
    if frame is None:
        return show_note(f"{caption or 'This'}: not recorded in this run")
    for name in columns or ():
        if name not in frame:
            raise unknown_name("column", name, map(str, frame.columns))
    shown = (frame if columns is None else frame[list(columns)]).iloc[:top]
    if is_emulated(frame):
        caption = f"{caption} ({EMULATED})" if caption else EMULATED
    shares, ratios = _SHARES, set()
    if "speedup" in frame or "ratio" in frame:
        ratios = _RATIOS
    elif "share" in frame:
        shares = _SHARES | {"low", "high"}
    # Units are those of the largest of the known frames that this one contains.
    contained = [schema for schema in FRAMES if set(schema.names) <= set(frame.columns)]
    largest = max(contained, key=lambda schema: len(schema.columns), default=None)
    units = {column.name: column.unit for column in largest.columns} if largest else {}
    made = [_make(str(name), shown[name], shares, ratios, units) for name in shown]
    lines = list(zip(*(column.texts for column in made), strict=True))
    return Table(_html(made, lines, caption), _markdown(made, lines, caption))


@dataclass(frozen=True)
class _Column:
    name: str
    head: str
    unit: str
    number: bool
    texts: list[str]

    @property
    def style(self) -> str:
        """How it is aligned, and the width that it needs to be readable."""
        if self.number:
            return _RIGHT
        if any(len(text) > _PROSE and " " in text for text in self.texts):
            return "text-align:left;min-width:14em"
        long = any(len(word) > _LONG_WORD for text in self.texts for word in text.split(" "))
        return "text-align:left" + (";min-width:11em" if long else "")


def _make(
    name: str, column: pd.Series, shares: set[str], ratios: set[str], units: dict[str, str]
) -> _Column:
    boolean = pd.api.types.is_bool_dtype(column)
    number = pd.api.types.is_numeric_dtype(column) and not boolean
    head, unit = name, units.get(name, "")
    if number:
        unit = "%" if name in shares else unit.removesuffix("/run").removeprefix("1")
        for suffix, meaning in _SUFFIXES.items():
            if name.endswith(suffix):
                head, unit = name.removesuffix(suffix), unit or meaning
    write = _number_writer(name, column, shares, ratios) if number else str
    if boolean:
        column, write = column.map({True: "yes", False: "no"}), str
    texts = [MISSING if _is_missing(value) else write(value) for value in column]
    return _Column(name, head.replace("_", " "), unit, number, texts)


def _is_missing(value: object) -> bool:
    return value is None or value is pd.NA or (isinstance(value, Real) and math.isnan(value))


def _number_writer(
    name: str, column: pd.Series, shares: set[str], ratios: set[str]
) -> Callable[[float], str]:
    if name in shares:
        return lambda value: format_number(100 * value, 1)
    if name == "q":
        return lambda value: format_number(value, 3) if value >= _LEAST_P else f"< {_LEAST_P:g}"
    if name in ratios:
        return lambda value: f"{value:.2f}x"
    # The same decimals for a whole column, so that it lines up: at most three, and no more than
    # three figures of the smallest value need.
    finite = column.dropna().astype(float).abs()
    finite = finite[finite < math.inf]
    whole = len(finite) == column.notna().sum() and (finite % 1 == 0).all()
    decimals = 0 if whole else min(3, decimals_of(finite[finite > 0].min()))
    return lambda value: format_number(value, decimals)


def _html(columns: list[_Column], lines: list[tuple[str, ...]], caption: str) -> str:
    head = f'<caption style="{_CAPTION}">{html.escape(caption)}</caption>' if caption else ""
    head += "<thead><tr>"
    for column in columns:
        unit = f' <span style="{_UNIT}">{html.escape(column.unit)}</span>' if column.unit else ""
        head += f'<th style="{_HEAD};{column.style}">{html.escape(column.head)}{unit}</th>'
    rows = "".join(f"<tr>{''.join(map(_cell, columns, line))}</tr>" for line in lines)
    table = f'<table style="{_TABLE}">{head}</tr></thead><tbody>{rows}</tbody></table>'
    letters = sum(max(map(len, (c.head + c.unit, *c.texts))) + 2 for c in columns)
    if letters < _WIDE:
        return table
    name = html.escape(caption or "Table", quote=True)
    return f'<div style="{_SCROLLED}" tabindex="0" role="group" aria-label="{name}">{table}</div>'


def _cell(column: _Column, text: str) -> str:
    color = COLORS.get(text) if column.name in ("category", "name") else None
    chip = f'<span style="{_CHIP};background:{color}"></span>' if color else ""
    wrap = ";white-space:nowrap" if chip or column.number else ""
    # Names too long for a column may be broken, but no number from its unit.
    words = " ".join(
        _JOINT.sub(r"\g<0><wbr>", word) if len(word) > _LONG_WORD else word
        for word in html.escape(text).split(" ")
    ).replace(" %", "\N{NO-BREAK SPACE}%")
    return f'<td style="{_CELL};{column.style}{wrap}">{chip}{words}</td>'


def _markdown(columns: list[_Column], lines: list[tuple[str, ...]], caption: str) -> str:
    heads = [f"{column.head} ({column.unit})" if column.unit else column.head for column in columns]
    rule = ["---:" if column.number else "---" for column in columns]
    rows = ["| " + " | ".join(map(to_markdown, row)) + " |" for row in [heads, rule, *lines]]
    return "\n".join([*([f"**{to_markdown(caption)}**", ""] if caption else []), *rows])


def to_markdown(text: str, pipes: bool = True) -> str:
    """Text as Markdown on one line, in which nothing is a link, an image or a tag."""
    text = re.sub(r"\](?=[(\[:])", r"]\\", html.escape(printable(text), quote=False))
    return " ".join((text.replace("|", "\\|") if pipes else text).split())

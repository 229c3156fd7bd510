"""Frames as tables for people: units in the header, as many digits as make sense.

Several things shown as one.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import pandas as pd
from IPython.display import display
from matplotlib.figure import Figure

from workbench.errors import unknown_name
from workbench.frames import (
    EMULATED,
    FINDINGS,
    FRAMES,
    MISSING,
    ROOFLINE,
    format_number,
    is_emulated,
)
from workbench.plots.style import COLORS

_SHARES = {
    "share",
    "baseline_share",
    "candidate_share",
    "roof_share",
    "spread",
    "share_before",
    "share_after",
    "contribution",
    "cv",
    "floor",
    "margin",
    "efficiency",
    "detectable",
}
_RATIOS = {
    "speedup",
    "low",
    "high",
    "total",
    "total_low",
    "total_high",
    "factor",
    "free_speedup",
    "free_low",
    "free_high",
}

#: The unit that the end of a column's name stands for.
_SUFFIXES = {"_ms": "ms", "_ns": "ns", "_mb": "MB", "_db": "dB"}
#: What a p-value is not told apart from zero below.
_LEAST_P = 0.001

# Inks and lines that read well on a light and on a dark page.
_TABLE = "border-collapse:collapse;font:13px system-ui,sans-serif;color:inherit;margin:.4em 0"
_CAPTION = "caption-side:top;text-align:left;font-weight:600;padding:.3em 0"
_HEAD = "padding:.3em .5em;border-bottom:1.5px solid #999;background:none"
_CELL = "padding:.22em .5em;border-bottom:1px solid #8883"
#: Letters beyond which a word may be broken, and beyond which a text wants a wide column.
_LONG_WORD, _PROSE = 24, 40
#: Where a long name may be broken: after a slash, a dot (but not within a file's name), ...
_JOINT = re.compile(r"[/_,|](?=\w)|\.(?=\w)(?!py\b)")
_RIGHT = "text-align:right"
_CHIP = "display:inline-block;width:.75em;height:.75em;border-radius:2px;margin-right:.45em"


@dataclass(frozen=True)
class Table:
    """A table as HTML, for notebooks and reports, and as Markdown, for everything else."""

    html: str
    markdown: str

    def _repr_html_(self) -> str:
        return self.html

    def __str__(self) -> str:
        return self.markdown


def show_table(
    frame: pd.DataFrame,
    columns: Sequence[str] | None = None,
    *,
    rows: int | None = None,
    caption: str = "",
) -> Table:
    """A frame as a table; whatever the frame holds is text there, never markup.

    Parameters
    ----------
    frame
        Any frame; columns that ``schema`` knows get their unit.
    columns
        Which, in this order; None shows all.
    rows
        How many from the top; None shows all.
    caption
        A line above the table.

    Raises
    ------
    UsageError
        The frame has no such column.
    """
    for name in columns or ():
        if name not in frame:
            raise unknown_name("column", name, map(str, frame.columns))
    shown = frame if columns is None else frame[list(columns)]
    shown = shown if rows is None else shown.head(rows)
    if is_emulated(frame):
        caption = f"{caption} ({EMULATED})" if caption else EMULATED
    units = _units(frame)
    shares, ratios = _SHARES, set()
    if "speedup" in frame:
        ratios = _RATIOS
    elif "share" in frame:
        shares = _SHARES | {"low", "high"}
    texts = [_texts(shown[name], _writer(str(name), shown[name], shares, ratios)) for name in shown]
    heads = [_head(str(name), shown[name], shares, units) for name in shown]
    numeric = [_is_number(shown[name]) for name in shown]
    lines = list(zip(*texts, strict=True))
    names = [str(name) for name in shown]
    return Table(
        _html(names, heads, numeric, lines, caption), _markdown(heads, numeric, lines, caption)
    )


def _is_number(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _units(frame: pd.DataFrame) -> dict[str, str]:
    """Units by column, from the largest of the known frames that this one contains."""
    contained = [
        schema
        for schema in (*FRAMES, FINDINGS, ROOFLINE)
        if set(schema.names) <= set(frame.columns)
    ]
    largest = max(contained, key=lambda schema: len(schema.columns), default=None)
    return {column.name: column.unit for column in largest.columns} if largest else {}


def _head(name: str, column: pd.Series, shares: set[str], units: dict[str, str]) -> tuple[str, str]:
    """The words and the unit of a column's header."""
    unit = units.get(name, "")
    if name in shares and _is_number(column):
        unit = "%"
    for suffix, meaning in _SUFFIXES.items():
        if name.endswith(suffix) and _is_number(column):
            name, unit = name.removesuffix(suffix), unit or meaning
    return name.replace("_", " "), unit


def _texts(column: pd.Series, write: Callable[[Any], str]) -> list[str]:
    return [MISSING if _is_missing(value) else write(value) for value in column]


def _is_missing(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, Real) and math.isnan(value))


def _writer(
    name: str, column: pd.Series, shares: set[str], ratios: set[str]
) -> Callable[[Any], str]:
    """How the values of a column are written."""
    if pd.api.types.is_bool_dtype(column):
        return lambda value: "yes" if value else "no"
    if not _is_number(column):
        return str
    if name in shares:
        return lambda value: format_number(100 * value, 1)
    if name == "q":
        return lambda value: format_number(value, 3) if value >= _LEAST_P else f"< {_LEAST_P:g}"
    if name in ratios:
        return lambda value: f"{value:.2f}x"
    if all(isinstance(v, Integral) or float(v).is_integer() for v in column.dropna()):
        return lambda value: format_number(value, 0)
    decimals = _decimals(column)
    return lambda value: format_number(value, decimals)


def _decimals(column: pd.Series) -> int:
    """The same decimals for a whole column, so that it lines up: five figures, at most three."""
    finite = column[column.abs() < math.inf].abs()
    largest = finite.max() if len(finite) else 0.0
    before = math.floor(math.log10(largest)) + 1 if largest >= 1 else 1
    return min(3, max(0, 5 - before))


def _html(
    names: list[str],
    heads: list[tuple[str, str]],
    numeric: list[bool],
    lines: list[tuple[str, ...]],
    caption: str,
) -> str:
    columns = list(zip(*lines, strict=True)) or [()] * len(names)
    sides = [_side(number, column) for number, column in zip(numeric, columns, strict=True)]
    parts = [f'<table style="{_TABLE}">']
    if caption:
        parts.append(f'<caption style="{_CAPTION}">{html.escape(caption)}</caption>')
    parts.append("<thead><tr>")
    for (words, unit), side in zip(heads, sides, strict=True):
        mark = (
            f' <span style="color:#888;font-weight:400">{html.escape(unit)}</span>' if unit else ""
        )
        parts.append(f'<th style="{_HEAD};{side}">{html.escape(words)}{mark}</th>')
    parts.append("</tr></thead><tbody>")
    for line in lines:
        cells = zip(names, line, sides, strict=True)
        parts.append(
            "<tr>" + "".join(_cell(name, text, side) for name, text, side in cells) + "</tr>"
        )
    parts.append("</tbody></table>")
    return "".join(parts)


def _side(number: bool, texts: Sequence[str]) -> str:
    """To which side a column leans, and the room that it needs to be read."""
    if number:
        return _RIGHT
    prose = any(len(text) > _PROSE and " " in text for text in texts)
    names = any(len(word) > _LONG_WORD for text in texts for word in text.split(" "))
    return "text-align:left" + (";min-width:14em" if prose else ";min-width:11em" if names else "")


def _cell(name: str, text: str, side: str) -> str:
    color = COLORS.get(text) if name == "category" or name == "name" else None
    chip = f'<span style="{_CHIP};background:{color}"></span>' if color else ""
    side += ";white-space:nowrap" if chip or side == _RIGHT else ""
    return f'<td style="{_CELL};{side}">{chip}{_breakable(text)}</td>'


def _breakable(text: str) -> str:
    """The text, escaped; names too long for a column may be broken, but no number from its unit."""
    words = (
        _JOINT.sub(r"\g<0><wbr>", word) if len(word) > _LONG_WORD else word
        for word in html.escape(text).split(" ")
    )
    return " ".join(words).replace(" %", "\N{NO-BREAK SPACE}%")


def _markdown(
    heads: list[tuple[str, str]],
    numeric: list[bool],
    lines: list[tuple[str, ...]],
    caption: str,
) -> str:
    words = [f"{text} ({unit})" if unit else text for text, unit in heads]
    rule = ["---:" if number else "---" for number in numeric]
    table = [words, rule, *lines]
    rows = ["| " + " | ".join(map(_escape, cells)) + " |" for cells in table]
    return "\n".join([*([f"**{_escape(caption)}**", ""] if caption else []), *rows])


def _escape(text: str) -> str:
    """Text that stays text in a Markdown table."""
    return " ".join(html.escape(text, quote=False).replace("|", "\\|").split())


class Sheet:
    """Figures, tables and notes that belong together, shown one below the other.

    As text it is what the tables and notes say; figures have no text.
    """

    def __init__(self, *parts: object):
        self.parts = parts

    def _ipython_display_(self) -> None:
        for part in self.parts:
            display(part)

    def __str__(self) -> str:
        return "\n\n".join(str(part) for part in self.parts if not isinstance(part, Figure))


def show_together(*parts: object) -> Sheet:
    """Show figures, tables and notes one below the other, from one cell."""
    return Sheet(*parts)

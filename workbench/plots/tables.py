"""Frames as tables for readers: units in the header, a sensible number of digits."""

from __future__ import annotations

import html
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from workbench.emulation import EMULATED, is_emulated
from workbench.errors import printable, unknown_name
from workbench.frames import describe_columns
from workbench.wording import (
    MISSING,
    Column,
    Grid,
    format_figure,
    format_number,
    format_range,
    format_ratio,
    format_share,
    shorten_source,
)

#: The colours of categories, for figures, pages and the explorer, in the order of every legend.
#: Each is 13 or more darker or lighter (of 100) than any other, so they differ in grey print and
#: for colour-blind readers; the two that multiply matrices, which SME2 speeds up, are blue.
COLORS = {
    "Convolution": "#1A478A",
    "GEMM": "#2F73B1",
    "Data Movement": "#E4B22F",
    "Elementwise": "#5FA171",
    "Other": "#EFE2EF",
}
#: The unit by the end of a column's name.
_SUFFIXES = {"_ms": "ms", "_ns": "ns", "_mb": "MB", "_db": "dB"}
#: Letters in the heads of several runs above which the heads are numbers.
_HEADS = 60
#: Smaller p-values, and times in ms among longer ones, are written as "below".
_LEAST_P, _LEAST_MS, _LONG_MS = 0.001, 0.001, 0.1

# Inks and lines that read well on a light and on a dark page; heads of numbers may take several
# lines. ``#`` stands for the table.
_CSS = (
    "#{border-collapse:collapse;font:13px system-ui,sans-serif;color:inherit;margin:.4em 0}"
    "# caption{caption-side:top;text-align:left;font-weight:600;padding:.3em 0}"
    "# th{padding:.3em .4em;border-bottom:1.5px solid #999;background:none;text-align:left}"
    "# td{padding:.22em .4em;border-bottom:1px solid #8883;text-align:left}"
)
_NUMBER_CSS = "# .c{0}{{text-align:right}}# td.c{0}{{white-space:nowrap}}"
_PROSE_CSS = "# .c{0}{{min-width:min(12em,26vw);overflow-wrap:anywhere}}"
_SHORT_CSS = "# td.c{0}{{white-space:nowrap}}"
_CHIP_CSS = "white-space:nowrap;border-left:.75em solid"
NOT_RECORDED = "Not recorded in this run."
_PROSE_LETTERS = 24  #: Letters of a text beyond which its column needs some width.
#: Letters of a text, of a name and of a source line on one line.
_SHORT_LETTERS, _WORD_LETTERS, _LINE_LETTERS = 8, 16, 48
_CAPTION_LETTERS = 52  #: Letters of a caption on one line, also on a phone.
_WIDE = 90  #: Letters in a row beyond which a table may need to be scrolled.


@dataclass(frozen=True, repr=False)
class Table:
    """A table or text as HTML, for notebooks and reports, and as Markdown, for everything else.

    A terminal draws ``grids``, the text and the cells that the Markdown has.
    """

    html: str
    markdown: str
    grids: tuple[str | Grid, ...] = ()

    @property
    def printed(self) -> tuple[str | Grid, ...]:
        """What a terminal shows."""
        return self.grids or (self.markdown,)

    def fold(self, summary: str) -> Table:
        """It behind a summary: a page shows it once the reader opens it, Markdown below that."""
        page = f"<details><summary>{html.escape(summary)}</summary>{self.html}</details>"
        title = to_markdown(summary)
        return Table(page, f"{title}\n\n{self.markdown}", (title, "", *self.printed))

    def _repr_html_(self) -> str:
        return self.html

    def _repr_markdown_(self) -> str:
        return self.markdown

    def __repr__(self) -> str:
        return self.markdown

    __str__ = __repr__


class VStack:
    """Figures, tables and sentences, shown one below the other; as text, without the figures."""

    def __init__(self, *parts: object):
        self.parts = parts

    def _ipython_display_(self) -> None:
        from IPython.display import display

        for part in filter(lambda part: part is not None, self.parts):
            display(part)

    @property
    def html(self) -> str:
        """Its parts as HTML."""
        return "".join(map(to_page, self.parts))

    @property
    def _texts(self) -> list[object]:
        return [part for part in self.parts if not hasattr(part, "savefig")]

    @property
    def printed(self) -> tuple[str | Grid, ...]:
        """What a terminal shows."""
        return _stack(getattr(part, "printed", (str(part),)) for part in self._texts)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self._texts))


def to_page(content: object) -> str:
    """As HTML what a cell shows."""
    if isinstance(content, VStack):
        return content.html
    if hasattr(content, "_repr_html_"):
        return str(content._repr_html_())
    return "" if content is None else f"<pre>{html.escape(str(content))}</pre>"


def _stack(parts: Iterable[tuple[str | Grid, ...]]) -> tuple[str | Grid, ...]:
    """The texts and cells of some parts, one below the other, with a blank line between them."""
    return tuple(each for part in parts for each in ("", *part))[1:]


def join_tables(*tables: Table) -> Table:
    """Tables and notes, one below the other, as one."""
    parts = [table for table in tables if table.markdown]
    markdown = "\n\n".join(p.markdown for p in parts)
    return Table("".join(p.html for p in parts), markdown, _stack(p.printed for p in parts))


def show_note(*lines: str, leads: bool = False) -> Table:
    """Sentences as a set-off paragraph; of markup, they may contain code in backticks.

    If it ``leads``, the first one is larger.
    """
    sentences = [line for line in lines if line]
    paragraphs = "".join(f"<p>{to_html(line)}</p>" for line in sentences)
    if leads:
        paragraphs = paragraphs.replace("<p>", '<p style="font-size:1.2em;font-weight:600">', 1)
    text = "\n>\n".join(f"> {to_markdown(line, pipes=False)}" for line in sentences)
    return Table(f"<blockquote>{paragraphs}</blockquote>", text)


def to_html(text: str) -> str:
    """Text as HTML: code in backticks is set as code, and all else is text, with its arrows."""
    parts = re.split(r"`+([^`]+)`+", text)
    parts[::2] = [html.escape(typeset(part)) for part in parts[::2]]
    parts[1::2] = [f"<code>{html.escape(code)}</code>" for code in parts[1::2]]
    return "".join(parts)


def typeset(text: str) -> str:
    """The text with arrows, minus signs and dashes for hyphens; figures keep their units."""
    text = re.sub(r"(?<=\s)->(?=\s)", "\N{RIGHTWARDS ARROW}", text)
    text = re.sub(r"(?<![^\s(])-(?=\d)", "\N{MINUS SIGN}", text)
    text = re.sub(
        r"(?<=\d) (?=%|(?:[mµn]?s|[kMG]?B|dB|points)\b)|(?<=±) ", "\N{NO-BREAK SPACE}", text
    )
    return re.sub(r"(\d\.\d+)-(?=\d+\.\d)", "\\1\N{EN DASH}", text)


def pick_ink(color: str) -> str:
    """Dark or white ink, whichever has more contrast with a colour."""
    levels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in levels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#16191d" if luminance > 0.179 else "#ffffff"


def lighten(color: str) -> str:
    """A pale tone of a colour, for figures of what was measured on a busy machine."""
    levels = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(0.35 * level + 0.65 * 255):02x}" for level in levels)


def to_markdown(text: str, pipes: bool = True) -> str:
    """Text as Markdown on one line, in which nothing is a link, an image or a tag."""
    text = html.escape(printable(text), quote=False).replace("-&gt;", "->")
    text = re.sub(r"&lt;(?=\d)", "<", text)  # as in "<0.001", which begins no tag
    text = re.sub(r"\](?=[(\[:])", r"]\\", text)
    return " ".join((text.replace("|", "\\|") if pipes else text).split())


def show_table(
    frame: pd.DataFrame | None, columns: Sequence[str] | None = None, *, top: int | None = None,
    caption: str = "", links: Mapping[str, str] = {},
) -> Table:  # fmt: skip
    """A frame as a table; whatever the frame contains is text, never markup.

    Columns that ``frames`` defines get their unit and, as a title, their meaning. None: a run did
    not record it. ``links`` has addresses of pages by the text of the cells that lead there.
    """
    if frame is None:
        return show_note(f"{caption}: not recorded in this run" if caption else NOT_RECORDED)
    for name in () if columns is None else columns:
        if name not in frame:
            raise unknown_name("column", name, map(str, frame.columns))
    rows = (frame if columns is None else frame[list(columns)]).iloc[:top]
    if is_emulated(frame):
        caption = f"{caption} ({EMULATED})" if caption else EMULATED
    meanings = describe_columns(frame)
    written = [
        _write_column(name, rows.iloc[:, place], meanings.get(name))
        for place, name in enumerate(map(str, rows))
    ]
    grid = Grid(tuple(written), caption, links)
    return Table(_write_html(grid), _write_markdown(grid), (grid,))


def show_aligned(aligned: pd.DataFrame, *, top: int = 12) -> Table:
    """E2E and the parts with the most time in any run; speed-ups only where significant."""
    largest = aligned.groupby("name", sort=False)["time_ms"].max()
    parts = largest.drop("E2E", errors="ignore").nlargest(top).index
    names = ["E2E", *parts] if "E2E" in largest else list(parts)
    first = aligned["time_ms"].groupby(aligned["name"], sort=False).transform("first")
    # On a busy machine, mean times may contradict the ratio of typical ones, which is not said.
    agrees = (first > aligned["time_ms"]) == (aligned["speedup"] > 1)
    significant = aligned["outcome"].isin(["faster", "slower"]) & agrees
    ratios = aligned["speedup"].map(lambda ratio: f" ({format_ratio(ratio)}x)")
    ratios = ratios.where(significant, "")
    times = aligned["time_ms"]
    cells = aligned.assign(text=format_range(times.max(), *times)[1:] + ratios)
    wide, caption = put_side_by_side(cells, names)
    wide.insert(0, aligned["level"].iloc[-1], names)
    return show_table(wide, caption=f"Mean times; speed-ups where one was shown{caption}")


def put_side_by_side(cells: pd.DataFrame, names: Sequence[str]) -> tuple[pd.DataFrame, str]:
    """The ``text`` of each ``name`` with a column per ``run``, and a legend of long columns."""
    runs = list(dict.fromkeys(cells["run"]))
    wide = cells.pivot(index="name", columns="run", values="text").loc[names, runs]
    if sum(map(len, runs)) <= _HEADS:
        return wide.reset_index(drop=True), ""
    heads = {run: f"[{number}]" for number, run in enumerate(runs, 1)}
    caption = "".join(f"; {head} {run}" for run, head in heads.items())
    return wide.rename(columns=heads).reset_index(drop=True), caption


def _is_number(dtype: object) -> bool:
    types = pd.api.types
    return types.is_numeric_dtype(dtype) and not types.is_bool_dtype(dtype)


def _write_column(name: str, column: pd.Series, described: tuple[str, str] | None) -> Column:
    """A column as text: its head with the unit, and every cell.

    ``described`` has unit and meaning; a name without any, such as that of a run, stays as it is.
    """
    unit, meaning = described or ("", "")
    name_as_words = (lambda text: text.replace("_", " ")) if described else str
    head = name_as_words(name)
    missing = column.isna()
    if not _is_number(column.dtype):
        words = column.astype(object).where(~missing, MISSING)
        texts = [["no", "yes"][w] if isinstance(w, bool) else str(w) for w in words]
        texts = list(map(shorten_source, texts)) if name == "source" else texts
        return Column(name, head, tuple(texts), meaning=meaning)
    unit = {"share": "%", "ratio": "x"}.get(unit, unit.removesuffix("/run").removeprefix("1"))
    for suffix, its_unit in _SUFFIXES.items():
        if name.endswith(suffix):
            head, unit = name_as_words(name.removesuffix(suffix)), unit or its_unit
    if name.endswith("_bytes") or unit.startswith("FLOP"):  # nobody reads nine digits
        head = name_as_words(name.removesuffix("_bytes"))
        column, unit = column / 1e6, f"M{unit or 'B'}"
    whole = (column[~missing].astype(float) % 1 == 0).all()
    has_long = unit == "ms" and column.abs().max() >= _LONG_MS

    def write(value: float) -> str:
        if unit == "%":
            return format_share(value).removesuffix(" %")
        if unit == "x":
            return f"{format_ratio(value)}x" if math.isfinite(value) else MISSING
        if name == "q":
            return format_number(value, 3) if value >= _LEAST_P else f"<{_LEAST_P:g}"
        if has_long and 0 < abs(value) < _LEAST_MS:  # XNNPACK logs whole microseconds
            return f"<{_LEAST_MS:g}"
        return format_number(value, 0) if whole else format_figure(value)

    texts = [MISSING if lacks else write(v) for v, lacks in zip(column, missing, strict=True)]
    head = f"{head} ({unit})" if unit not in ("", "x") else head
    return Column(name, head, tuple(texts), True, meaning)


def _write_markdown(grid: Grid) -> str:
    def write(text: str) -> str:
        address = grid.links.get(text)
        return f"[{to_markdown(text)}]({address})" if address else to_markdown(text)

    rule = ["---:" if column.is_number else "---" for column in grid.columns]
    rows = [[column.head for column in grid.columns], rule, *grid.rows]
    title = [f"**{to_markdown(grid.caption)}**", ""] if grid.caption else []
    return "\n".join([*title, *(f"| {' | '.join(map(write, row))} |" for row in rows)])


def _write_html(grid: Grid) -> str:
    key, columns = f"T_{zlib.crc32(repr(grid).encode()):08x}", grid.columns
    widths = [max(map(len, (column.head, *column.cells))) for column in columns]
    rules = map(_style_column, columns, widths)
    css = _CSS + "".join(rule.format(place) for place, rule in enumerate(rules))

    def write(text: str, place: int) -> str:
        link, text_html = grid.links.get(text), html.escape(typeset(text))
        text_html = f'<a href="{html.escape(link)}">{text_html}</a>' if link else text_html
        is_named = columns[place].name in ("category", "name") and text in COLORS
        chip = f' style="{_CHIP_CSS} {COLORS[text]}"' if is_named else ""
        return f'<td class="c{place}"{chip}>{text_html}</td>'

    heads = "".join(
        f'<th class="c{place}"' + f' title="{html.escape(c.meaning)}"' * bool(c.meaning)
        + f">{html.escape(c.head)}</th>"
        for place, c in enumerate(columns)
    )  # fmt: skip
    rows = ("".join(write(text, n) for n, text in enumerate(row)) for row in grid.rows)
    body = "".join(f"<tr>{row}</tr>\n" for row in rows)
    caption = html.escape(grid.caption)
    page = f"<style>{css.replace('# ', f'#{key} ').replace('#{', f'#{key}{{')}</style>"
    # A short one may be wider than its table.
    whole = ' style="white-space:nowrap"' * (len(caption) <= _CAPTION_LETTERS)
    page += f'<table id="{key}">' + f"<caption{whole}>{caption}</caption>" * bool(caption)
    page += f"<thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody></table>"
    if sum(widths) + 2 * len(widths) < _WIDE:
        return page
    scrolled = 'style="overflow-x:auto;max-width:100%" tabindex="0" role="group"'
    return f'<div {scrolled} aria-label="{caption or "Table"}">{page}</div>'


def _style_column(column: Column, width: int) -> str:
    """How a column is set: a source line and short words are not broken."""
    if column.is_number:
        return _NUMBER_CSS
    is_word = column.name == "name" and not any(" " in cell for cell in column.cells)
    most = _LINE_LETTERS if column.name == "source" else _SHORT_LETTERS
    if width <= (_WORD_LETTERS if is_word else most):
        return _SHORT_CSS
    return _PROSE_CSS if width > _PROSE_LETTERS else ""

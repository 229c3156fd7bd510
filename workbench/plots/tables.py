"""Frames as tables for readers: units in the header, a sensible number of digits."""

import html
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from workbench.emulation import EMULATED, is_emulated
from workbench.errors import printable, unknown_name
from workbench.frames import FRAMES
from workbench.wording import (
    MISSING,
    Grid,
    format_figure,
    format_number,
    format_range,
    format_ratio,
    format_share,
    shorten_source,
)

#: Of categories alone. Each has another lightness, so that they differ in grey print and for
#: colour-blind readers; the two that multiply matrices, which SME2 speeds up, are both blue.
COLORS = {
    "Convolution": "#00639E",
    "GEMM": "#4AA6DC",
    "Data Movement": "#F2B134",
    "Elementwise": "#009465",
    "Other": "#E6D3E6",
}
_SHARES = {
    "share", "baseline_share", "candidate_share", "roof_share", "spread", "share_before",
    "share_after", "contribution", "cv", "floor", "noise_floor", "margin", "efficiency",
    "detectable", "bound_share",
}  # fmt: skip
_RATIOS = {
    "speedup", "low", "high", "total", "total_low", "total_high", "factor", "free_speedup",
    "free_low", "free_high", "ratio", "control",
}  # fmt: skip
#: The unit by the end of a column's name.
_SUFFIXES = {"_ms": "ms", "_ns": "ns", "_mb": "MB", "_db": "dB"}
_LEAST_P = 0.001  #: Smaller p-values are written as "below".

# Inks and lines that read well on a light and on a dark page.
_CSS = [
    {"selector": "", "props": "border-collapse:collapse;font:13px system-ui,sans-serif;"
     "color:inherit;margin:.4em 0"},
    {"selector": "caption", "props": "caption-side:top;text-align:left;font-weight:600;"
     "padding:.3em 0"},
    {"selector": "th", "props": "padding:.3em .4em;border-bottom:1.5px solid #999;"
     "background:none;text-align:left"},
    {"selector": "td", "props": "padding:.22em .4em;border-bottom:1px solid #8883;"
     "text-align:left"},
]  # fmt: skip
_CHIP_CSS = "white-space:nowrap;border-left:.75em solid"
#: Of numbers; their heads may take several lines.
_NUMBER_CSS = [
    {"selector": "", "props": "text-align:right"},
    {"selector": "td", "props": "white-space:nowrap"},
]
_PROSE_CSS = [{"selector": "", "props": "min-width:14em;overflow-wrap:anywhere"}]
_SHORT_CSS = [{"selector": "td", "props": "white-space:nowrap"}]
NOT_RECORDED = "Not recorded in this run."
_PROSE_LETTERS = 24  #: Letters of a text beyond which its column needs some width.
_SHORT_LETTERS, _LINE_LETTERS = 8, 48  #: Letters of a text, and of a source line, on one line.
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
    def _texts(self) -> list[object]:
        return [part for part in self.parts if not hasattr(part, "savefig")]

    @property
    def printed(self) -> tuple[str | Grid, ...]:
        """What a terminal shows."""
        return _stack(getattr(part, "printed", (str(part),)) for part in self._texts)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self._texts))


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
    shown = [line for line in lines if line]
    paragraphs = "".join(f"<p>{to_html(line)}</p>" for line in shown)
    if leads:
        paragraphs = paragraphs.replace("<p>", '<p style="font-size:1.2em;font-weight:600">', 1)
    text = "\n>\n".join(f"> {to_markdown(line, pipes=False)}" for line in shown)
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
    text = re.sub(r"\](?=[(\[:])", r"]\\", text)
    return " ".join((text.replace("|", "\\|") if pipes else text).split())


def fold_table(summary: str, content: Table) -> Table:
    """Content that a page shows once the reader opens it; Markdown has it below its summary."""
    page = f"<details><summary>{html.escape(summary)}</summary>{content.html}</details>"
    title = to_markdown(summary)
    return Table(page, f"{title}\n\n{content.markdown}", (title, "", *content.printed))


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
    shown = (frame if columns is None else frame[list(columns)]).iloc[:top]
    if is_emulated(frame):
        caption = f"{caption} ({EMULATED})" if caption else EMULATED
    # Units are those of the largest of the known frames that this one contains.
    contained = [schema for schema in FRAMES if set(schema.names) <= set(frame.columns)]
    largest = max(contained, key=lambda schema: len(schema.columns), default=None)
    units = {name: unit for name, _, unit, _ in largest.columns} if largest else {}
    meanings = {name: meaning for name, *_, meaning in largest.columns} if largest else {}
    if "speedup" in frame or "ratio" in frame:
        units |= dict.fromkeys(_RATIOS, "x")
    elif "share" in frame:
        units |= {"low": "%", "high": "%"}
    units |= dict.fromkeys(_SHARES, "%")
    heads, texts = {}, {}
    for place, name in enumerate(map(str, shown)):
        heads[place], texts[place] = _write_column(name, shown.iloc[:, place], units.get(name, ""))
    cells = pd.DataFrame(texts, index=range(len(shown)), columns=list(heads), dtype=object)
    dtypes = list(shown.dtypes)
    numbers = [p for p in heads if _is_number(dtypes[p])]
    rule = ["---:" if place in numbers else "---" for place in heads]
    rows = [list(heads.values()), rule, *cells.to_numpy().tolist()]

    def write_cell(text: str) -> str:
        address = links.get(text)
        return f"[{to_markdown(text)}]({address})" if address else to_markdown(text)

    lines = ["| " + " | ".join(map(write_cell, row)) + " |" for row in rows]
    title = [f"**{to_markdown(caption)}**", ""] if caption else []
    page = _write_html(cells, list(map(str, shown)), heads, numbers, caption, meanings, links)
    body = tuple(map(tuple, rows[2:]))
    grid = Grid(tuple(heads.values()), body, frozenset(numbers))
    return Table(page, "\n".join([*title, *lines]), (*title, grid))


def show_aligned(aligned: pd.DataFrame, *, top: int = 12) -> Table:
    """E2E and the parts with the most time in any run; speed-ups only where significant."""
    largest = aligned.groupby("name", sort=False)["time_ms"].max()
    parts = largest.drop("E2E", errors="ignore").nlargest(top).index
    chosen = ["E2E", *parts] if "E2E" in largest else list(parts)
    significant = aligned["outcome"].isin(["faster", "slower"])
    ratios = aligned["speedup"].map(lambda ratio: f" ({format_ratio(ratio)}x)")
    ratios = ratios.where(significant, "")
    times = aligned["time_ms"]
    cells = aligned.assign(text=format_range(times.max(), *times)[1:] + ratios)
    wide, caption = put_side_by_side(cells, chosen)
    wide.insert(0, aligned["level"].iloc[-1], chosen)
    return show_table(wide, caption=f"{caption}; mean times, and speed-ups of typical ones")


def put_side_by_side(cells: pd.DataFrame, names: Sequence[str]) -> tuple[pd.DataFrame, str]:
    """The ``text`` of each ``name`` with a column per ``run``, and a legend of the columns."""
    runs = list(dict.fromkeys(cells["run"]))
    heads = {run: f"[{number}]" for number, run in enumerate(runs, 1)}
    wide = cells.pivot(index="name", columns="run", values="text").loc[names, runs]
    caption = "; ".join(f"{head} {run}" for run, head in heads.items())
    return wide.rename(columns=heads).reset_index(drop=True), caption


def _is_number(dtype: object) -> bool:
    types = pd.api.types
    return types.is_numeric_dtype(dtype) and not types.is_bool_dtype(dtype)


def _write_column(name: str, column: pd.Series, unit: str) -> tuple[str, list[str]]:
    """The head of a column, and the text of every cell."""
    head = name if " " in name else name.replace("_", " ")  # labels of runs have spaces
    missing = column.isna()
    if not _is_number(column.dtype):
        words = column.astype(object).where(~missing, MISSING)
        texts = [["no", "yes"][w] if isinstance(w, bool) else str(w) for w in words]
        return head, list(map(shorten_source, texts)) if name == "source" else texts
    unit = unit.removesuffix("/run").removeprefix("1")
    for suffix, meaning in _SUFFIXES.items():
        if name.endswith(suffix):
            head, unit = name.removesuffix(suffix).replace("_", " "), unit or meaning
    if name.endswith("_bytes") or unit.startswith("FLOP"):  # nobody reads nine digits
        head = name.removesuffix("_bytes").replace("_", " ")
        column, unit = column / 1e6, f"M{unit or 'B'}"
    whole = (column[~missing].astype(float) % 1 == 0).all()

    def write(value: float) -> str:
        if unit == "%":
            return format_share(value).removesuffix(" %")
        if unit == "x":
            return f"{format_ratio(value)}x" if math.isfinite(value) else MISSING
        if name == "q":
            return format_number(value, 3) if value >= _LEAST_P else f"< {_LEAST_P:g}"
        return format_number(value, 0) if whole else format_figure(value)

    texts = [MISSING if lacks else write(v) for v, lacks in zip(column, missing, strict=True)]
    return f"{head} ({unit})" if unit not in ("", "x") else head, texts


def _style_text(name: str, width: int) -> list[dict[str, str]]:
    """How a column of texts is set: a source line and short words are not broken."""
    if width <= (_LINE_LETTERS if name == "source" else _SHORT_LETTERS):
        return _SHORT_CSS
    return _PROSE_CSS if width > _PROSE_LETTERS else []


def _write_html(
    cells: pd.DataFrame, names: list[str], heads: dict[int, str], numbers: list[int], caption: str,
    meanings: dict[str, str], links: Mapping[str, str],
) -> str:  # fmt: skip
    from pandas.io.formats.style import Styler  # which imports Jinja

    widths = {p: max([len(heads[p]), *cells[p].str.len()]) for p in heads}
    columns = {
        place: _NUMBER_CSS if place in numbers else _style_text(names[place], width)
        for place, width in widths.items()
    }
    text = f"{caption}{cells.to_csv()}".encode()
    styler = Styler(cells, uuid=f"{zlib.crc32(text):08x}", cell_ids=False)

    def write_cell(text: str) -> str:
        link, shown = links.get(text), html.escape(typeset(text))
        return f'<a href="{html.escape(link)}">{shown}</a>' if link else shown

    styler.hide(axis="index").format(write_cell)

    def write_head(place: int) -> str:
        text, meaning = html.escape(heads[place]), meanings.get(names[place], "")
        return f'<span title="{html.escape(meaning)}">{text}</span>' if meaning else text

    styler.format_index(write_head, axis=1)
    styler.set_table_styles(_CSS).set_table_styles(columns, overwrite=False)
    styler.set_caption(html.escape(caption))
    named = [place for place, name in enumerate(names) if name in ("category", "name")]
    styler.map(
        lambda text: f"{_CHIP_CSS} {COLORS[text]}" if text in COLORS else "",
        subset=named,
    )
    page = styler.to_html()
    if sum(widths.values()) + 2 * len(widths) < _WIDE:
        return page
    label = html.escape(caption or "Table", quote=True)
    scrolled = 'style="overflow-x:auto;max-width:100%" tabindex="0" role="group"'
    return f'<div {scrolled} aria-label="{label}">{page}</div>'

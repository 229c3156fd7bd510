"""Output on a terminal: Markdown tables in columns, colour, and lines that wrap between words."""

import html
import re
import sys
import textwrap
from itertools import groupby
from typing import TYPE_CHECKING

import click

from workbench.errors import printable
from workbench.process import output

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

#: What starts a line or is a verdict, and its style.
_STYLES = {
    r"^ok\b|\b\d\S*x faster\b": "green",
    r"^note\b|\binconclusive\b": "yellow",
    r"^fail\b|\b\d\S*x slower\b|^error:|^warning:": "red",
    r"^\d+\. .+|^measurement quality \w|^next:|^report:": "bold",
    r"^   (where|gain|do):": "dim",
}
_CELLS = re.compile(r"(?<!\\) \| ")


def write(text: str, *, err: bool = False) -> None:
    """Print a text, which may quote untrusted files; a terminal gets columns and colour."""
    text, stream = printable(text), sys.stderr if err else output()
    if not stream.isatty():
        click.echo(text, file=stream)
        return
    from rich.console import Console

    console, lines = Console(file=stream), text.splitlines() or [""]
    for tabular, group in groupby(lines, key=lambda line: line.startswith("| ")):
        if tabular:
            console.print(_make_table(list(group), console.width))
            continue
        for line in group:
            # One line is a sentence; several are JSON or a playbook, which stay as they are.
            styled = _style(_wrap(line, console.width) if len(lines) == 1 else line)
            console.print(styled, soft_wrap=True)


def _wrap(line: str, width: int) -> str:
    """A line broken between words. Paths stay in one piece, to be copied."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _style(text: str) -> "Text":
    from rich.text import Text

    if title := re.fullmatch(r"\*\*(.*)\*\*", text):
        return Text(title[1], style="bold")
    styled = Text(text)
    for pattern, style in _STYLES.items():
        styled.highlight_regex(pattern, style)
    return styled


def _make_table(lines: list[str], width: int) -> "Table":
    """A Markdown table; if the terminal is wide enough, no word of its head is broken."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    rows = [[html.unescape(c).replace("\\", "") for c in _CELLS.split(r[2:-2])] for r in lines]
    share = width // len(rows[0]) - 2
    for head, rule in zip(*rows[:2], strict=True):
        table.add_column(
            _style(head),
            justify="right" if rule.endswith(":") else "left",
            min_width=min(share, max(map(len, head.split()), default=0)),
            overflow="fold",
        )
    for row in rows[2:]:
        table.add_row(*map(_style, row))
    return table

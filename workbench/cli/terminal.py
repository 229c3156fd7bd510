"""Output on a terminal: tables in columns, colour, and lines that wrap between words."""

import sys
import textwrap
from typing import TYPE_CHECKING

import click

from workbench.errors import printable
from workbench.process import output
from workbench.wording import Grid

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


def write(content: object, *, err: bool = False) -> None:
    """Print what may quote untrusted files; a terminal gets columns and colour."""
    stream = sys.stderr if err else output()
    if not stream.isatty():
        click.echo(printable(str(content)), file=stream)
        return
    from rich.console import Console

    console = Console(file=stream)
    parts = getattr(content, "printed", (str(content),))
    for part in parts:
        if isinstance(part, Grid):
            console.print(_make_table(part, console.width))
            continue
        lines = printable(part).splitlines() or [""]
        for line in lines:
            # One line is a sentence; several stay as they are.
            is_sentence = len(parts) == len(lines) == 1
            styled = _style(_wrap(line, console.width) if is_sentence else line)
            console.print(styled, soft_wrap=True)


def _wrap(line: str, width: int) -> str:
    """A line broken between words. Paths stay in one piece, to be copied."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _style(text: str) -> "Text":
    from rich.text import Text

    styled = Text(text)
    for pattern, style in _STYLES.items():
        styled.highlight_regex(pattern, style)
    return styled


def _make_table(grid: Grid, width: int) -> "Table":
    """A table in columns; if the terminal is wide enough, no word of its head is broken."""
    from rich.table import Table

    title = printable(grid.caption) or None
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False,
        header_style="bold", padding=(0, 2, 0, 0),
    )  # fmt: skip
    share = width // max(1, len(grid.columns)) - 2
    for column in grid.columns:
        table.add_column(
            _style(printable(column.head)),
            justify="right" if column.is_number else "left",
            min_width=min(share, max(map(len, column.head.split()), default=0)),
            overflow="fold",
        )
    for row in grid.rows:
        table.add_row(*(_style(printable(cell)) for cell in row))
    return table

"""Answers on a terminal: aligned columns, wrapped lines, bold titles, colour."""

import html
import os
import re
import shutil
import sys
from functools import partial
from itertools import zip_longest
from textwrap import wrap
from typing import Any

import click

from workbench.errors import printable

#: What starts a line or is a verdict, and its style.
_STYLES: dict[str, dict[str, Any]] = {
    r"^ok\b|\b\d\S*x faster\b": {"fg": "green"},
    r"^note\b|\binconclusive\b": {"fg": "yellow"},
    r"^fail\b|\b\d\S*x slower\b|^error:|^warning:": {"fg": "red"},
    r"^\d+\. .+|^measurement quality \w|^next:|^report:": {"bold": True},
    r"^   (where|gain|do):": {"dim": True},
}
#: Long words are paths: in one piece, to be copied.
_WRAP = partial(wrap, break_long_words=False, break_on_hyphens=False)
#: Between a number and its unit, no line ends.
_UNIT = re.compile(r"(?<=[\d%]) (?=%|CI\b|[µnm]?s\b|[KMG]B\b|G\w+/s)")
_CELLS = re.compile(r"(?<!\\) \| ")


def write(text: str, *, err: bool = False) -> None:
    """Print a text, which may quote untrusted files; on a terminal, Markdown tables are aligned."""
    text, stream = printable(text), sys.stderr if err else sys.stdout
    if stream.isatty():
        text = "\n".join(_lay_out(text.splitlines(), shutil.get_terminal_size().columns))
    click.echo(text, err=err, color=False if os.environ.get("NO_COLOR") else None)


def _lay_out(lines: list[str], width: int) -> list[str]:
    """Lines with aligned tables; a single line wraps, but not JSON or a playbook."""
    done: list[str] = []
    limit = width if len(lines) == 1 else sys.maxsize
    while lines:
        count = next((n for n, line in enumerate(lines) if not line.startswith("| ")), len(lines))
        if count:
            done += _align(lines[:count], width)
        else:
            lines[0] = re.sub(r"^\*\*(.*)\*\*$", r"\1", lines[0])
            indent = " " * (len(lines[0]) - len(lines[0].lstrip()) + 2)
            whole = _UNIT.sub("\N{NO-BREAK SPACE}", lines[0])
            wrapped = _WRAP(whole, limit, subsequent_indent=indent) or [""]
            first, *rest = (line.replace("\N{NO-BREAK SPACE}", " ") for line in wrapped)
            titled = bool(re.match(r"\d+\. ", first))
            done += [_color(first), *(click.style(r, bold=True) if titled else r for r in rest)]
        lines = lines[max(count, 1) :]
    return done


def _color(line: str) -> str:
    for pattern, style in _STYLES.items():
        line = re.sub(pattern, click.style(r"\g<0>", **style), line)
    return line


def _align(lines: list[str], width: int) -> list[str]:
    """The rows of a Markdown table in columns.

    If they are too wide, what is the same in all rows is said once, and the widest cells wrap.
    """
    rows = [[html.unescape(c).replace("\\", "") for c in _CELLS.split(r[2:-2])] for r in lines]
    columns = [*zip(*rows, strict=True)]
    widths = [max(map(len, (head, *cells))) for head, _, *cells in columns]
    same = ""
    if sum(widths) + 2 * len(widths) - 2 > width and len(rows) > 3:
        constant = [column for column in columns if len(set(column[2:])) == 1]
        same = "; ".join(f"{head}: {cell}" for head, _, cell, *_ in constant)
        columns = [column for column in columns if column not in constant]
    head, rule, *body = zip(*columns, strict=True)
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    least = [max(6, *map(len, re.split("[ _/-]", name))) for name in head]
    while sum(widths) + 2 * len(widths) - 2 > width:
        wide = [n for n, known in enumerate(widths) if known > least[n]]
        if not wide:
            break
        widths[max(wide, key=widths.__getitem__)] -= 1
    done = []
    for number, row in enumerate((head, *body)):
        cells = [_fold(cell, size) for cell, size in zip(row, widths, strict=True)]
        for texts in zip_longest(*cells, fillvalue=""):
            sides = zip(texts, widths, rule, strict=True)
            padded = [t.rjust(n) if side.endswith(":") else t.ljust(n) for t, n, side in sides]
            line = "  ".join(padded).rstrip()
            done.append(_color(line) if number else click.style(line, bold=True))
    return [*done, *(_WRAP(f"all rows: {same}", width) if same else [])]


def _fold(text: str, size: int) -> list[str]:
    """A cell in lines of at most ``size`` letters, broken at spaces and underscores."""
    lines = [""]
    for word in re.findall(r"[^ _/-]*[ _/-]?", text):
        for part in (word[i : i + size] for i in range(0, len(word), size)):
            if len(lines[-1] + part.rstrip()) > size:
                lines.append("")
            lines[-1] += part
    return [line.rstrip() for line in lines]

"""What the commands have in common."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

PATH = click.Path(path_type=Path)


@contextlib.contextmanager
def show_progress() -> Iterator[Callable[[str, float], None]]:
    """A bar on a terminal, plain lines elsewhere; all on stderr."""
    from tqdm import tqdm

    if not sys.stderr.isatty():
        yield lambda text, part: click.echo(text, err=True)
        return
    bar_format = "{percentage:3.0f} % |{bar}| {elapsed} {desc}"
    with tqdm(total=1.0, bar_format=bar_format, leave=False) as bar:

        def show(text: str, part: float) -> None:
            bar.set_description_str(text)
            bar.update(part - bar.n)

        yield show

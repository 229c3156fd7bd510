"""What the commands have in common: options, their types, and how progress is shown."""

from __future__ import annotations

import contextlib
import functools
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_type_hints

import click

from workbench.options import ExportOptions, MeasureOptions

PATH = click.Path(path_type=Path)
Param: TypeAlias = click.Parameter | None
Context: TypeAlias = click.Context | None
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Record = TypeVar("Record", ExportOptions, MeasureOptions)


class Percent(click.ParamType):
    """A percentage such as ``5%`` or ``5``, as a fraction."""

    name = "percent"

    def convert(self, value: Any, param: Param, ctx: Context) -> float:
        """The fraction of 1 that ``value`` says."""
        try:
            fraction = float(str(value).removesuffix("%")) / 100
        except ValueError:
            self.fail(f"{value!r} is no percentage", param, ctx)
        if not 0 <= fraction < 10:
            self.fail(f"{value!r} is out of range", param, ctx)
        return fraction


class Duration(click.ParamType):
    """A time such as ``30s``, ``2m`` or ``90``, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: Param, ctx: Context) -> float:
        """The seconds that ``value`` says."""
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)(s|m|h)?", value)
        if not found or not float(found[1]):
            self.fail(f"{value!r} is no duration such as 30s or 2m", param, ctx)
        return float(found[1]) * {"m": 60, "h": 3600}.get(found[2], 1)


class Numbers(click.ParamType):
    """Whole numbers separated by commas."""

    name = "n,n..."

    def convert(self, value: Any, param: Param, ctx: Context) -> tuple[int, ...]:
        """The numbers as a tuple."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of whole numbers", param, ctx)


class Floats(click.ParamType):
    """Numbers separated by commas."""

    name = "x,x..."

    def convert(self, value: Any, param: Param, ctx: Context) -> tuple[float, ...]:
        """The numbers as a tuple."""
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(float(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of numbers", param, ctx)
        if not all(map(math.isfinite, numbers)):
            self.fail(f"{value!r} is out of range", param, ctx)
        return numbers


class Size(click.ParamType):
    """A dimension and its size, such as ``batch=4``."""

    name = "dim=n"

    def convert(self, value: Any, param: Param, ctx: Context) -> tuple[str, int]:
        """The name and the number."""
        name, _, size = value.partition("=")
        if not name or not size.isdecimal() or not 0 < int(size) < 2**31:
            self.fail(f"{value!r} is no size such as batch=4", param, ctx)
        return name, int(size)


OUT = click.option("--out", type=PATH, help="Output folder [default: out_<model>].")

_TYPES = {"duration": Duration(), "percent": Percent()}


def _make_option(found: Field[Any], hint: Any) -> Callable[[F], F]:
    """The click option of a field: its type by the annotation, the rest by the metadata."""
    cli = dict(found.metadata["cli"])
    flag = f"--{cli.pop('name', found.name).replace('_', '-')}"
    settings: dict[str, Any] = {"default": found.default, "help": found.metadata["help"]}
    if hint is bool:
        settings["is_flag"] = True
        flag += f"/--no-{flag[2:]}" if found.default else ""
    elif hint == tuple[int, ...]:
        settings["type"] = Numbers()
    elif hint == tuple[float, ...]:
        settings["type"] = Floats()
    elif hint == tuple[tuple[str, int], ...]:
        settings |= {"type": Size(), "multiple": True}
    elif hint == tuple[str, ...]:
        settings["multiple"] = True
    else:
        settings |= {"type": _TYPES.get(cli.pop("type", ""), hint)}
    settings["show_default"] = bool(found.default) and hint is not bool
    return click.option(flag, found.name, **(settings | cli))


def options_of(record: type[Record], name: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """A decorator: one option per field; the command gets the record as keyword ``name``."""
    hints = get_type_hints(record)

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(command)
        def call(**values: Any) -> T:
            chosen = {each.name: values.pop(each.name) for each in fields(record)}
            return command(**values, **{name: record(**chosen)})

        for each in reversed(fields(record)):
            call = _make_option(each, hints[each.name])(call)
        return call

    return decorate


OUT = click.option("--out", type=PATH, help="Output folder [default: out_<model>].")
EXPORT_OPTIONS = options_of(ExportOptions, "export")
RUN_OPTIONS = options_of(MeasureOptions, "measure")


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
            if "warning: " in text:  # stays above the bar
                bar.write(text, file=sys.stderr)
                return
            bar.set_description_str(text)
            bar.update(part - bar.n)

        yield show

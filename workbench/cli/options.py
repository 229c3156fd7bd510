"""What the commands have in common: options, their types, and how progress is shown."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

PATH = click.Path(path_type=Path)


def _options(*options):
    def add(command):
        for option in reversed(options):
            command = option(command)
        return command

    return add


class Percent(click.ParamType):
    """A percentage such as ``5%`` or ``5``, as a fraction."""

    name = "percent"

    def convert(self, value, param, ctx):
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

    def convert(self, value, param, ctx):
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

    def convert(self, value, param, ctx):
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

    def convert(self, value, param, ctx):
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

    def convert(self, value, param, ctx):
        """The name and the number."""
        name, _, size = value.partition("=")
        if not name or not size.isdecimal() or not 0 < int(size) < 2**31:
            self.fail(f"{value!r} is no size such as batch=4", param, ctx)
        return name, int(size)


OUT = click.option("--out", type=PATH, help="Output folder [default: out_<model>].")
EXPORT_OPTIONS = _options(
    click.option(
        "--dtype",
        default="fp32",
        show_default=True,
        help="fp32, fp16, fp16w, bf16, int8, int8dyn or 8da4w.",
    ),
    click.option("--backend", default="xnnpack", show_default=True, help="xnnpack or portable."),
    click.option(
        "--state-dict", type=PATH, help="Weights: a file that torch.save(state_dict) wrote."
    ),
    click.option(
        "--inputs",
        multiple=True,
        metavar="SOURCE",
        help="Inputs: .npy, .pt, .safetensors, an image or a folder of them, random:SEED; "
        "one for each input. Several samples calibrate int8, and the first one is run.",
    ),
    click.option(
        "--size",
        "sizes",
        type=Size(),
        multiple=True,
        help="Run at this size of a dynamic dimension, such as batch=4.",
    ),
    click.option("--mean", type=Floats(), default=(), help="Of images, per channel, from 0 to 1."),
    click.option("--std", type=Floats(), default=(), help="Of images, per channel."),
    click.option(
        "--keep-float", multiple=True, metavar="PATTERN", help="Module paths not to quantise."
    ),
    click.option("--rewrite/--no-rewrite", default=True, help="Spell out what XNNPACK lacks."),
    click.option("--fresh", is_flag=True, help="Export again even if nothing has changed."),
)
RUN_OPTIONS = _options(
    click.option(
        "--toggle",
        default="auto",
        show_default=True,
        help="CPU extension to switch off and on; auto: the strongest; none: an A/A run.",
    ),
    click.option("--isa-ladder", is_flag=True, help="Measure every ISA level of this CPU instead."),
    click.option("--threads", type=Numbers(), default="1", show_default=True, help="CPU threads."),
    click.option("--runs", default=50, show_default=True, help="Least timed inferences of each."),
    click.option(
        "--budget",
        "budget_s",
        type=Duration(),
        default=0.0,
        help="Time to measure for, such as 30s, instead of --runs.",
    ),
    click.option(
        "--precision",
        type=Percent(),
        default="1%",
        show_default=True,
        help="With --budget: stop when half the interval's width is below this.",
    ),
    click.option("--warmup", default=3, show_default=True, help="Inferences before timing."),
    click.option("--processes", default=5, show_default=True, help="Restarts of every runner."),
    click.option("--evidence/--no-evidence", default=True, help="Sample the machine code, too."),
    click.option("--runner", default="wheel", show_default=True, help="wheel, native or python."),
    click.option(
        "--target",
        default="host",
        show_default=True,
        help="Where it runs: host, qemu[:CPU], android[:SERIAL] or ssh:HOST.",
    ),
    click.option(
        "--power",
        default="",
        help="Put an Android device into a mode for the run: boost or developer.",
    ),
    click.option(
        "--timeout", "timeout_s", default=120.0, show_default=True, help="Seconds for one answer."
    ),
)


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

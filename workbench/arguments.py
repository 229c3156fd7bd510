"""What arguments of the command line may look like."""

from __future__ import annotations

import math
import re

import click


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

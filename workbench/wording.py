"""Numbers with their units, and sentences, as text."""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

#: Shown for a number that is missing or not finite.
MISSING = "\N{EN DASH}"


class Column(NamedTuple):
    """A column of a table: its name, its head with the unit, its cells as text, what it means."""

    name: str
    head: str
    cells: tuple[str, ...]
    is_number: bool = False
    meaning: str = ""


class Grid(NamedTuple):
    """The cells of a table; ``links`` has addresses of pages by the text that leads there."""

    columns: tuple[Column, ...]
    caption: str = ""
    links: Mapping[str, str] = {}

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The cells, row by row."""
        return list(zip(*(column.cells for column in self.columns), strict=True))


def plural(number: int, noun: str) -> str:
    """``1 process``, ``2 processes``."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith(('x', 'ss')) else 's'}"


def format_ms(ms: float) -> str:
    """Milliseconds with three figures and their unit; small ones in microseconds."""
    return format_range(ms)[0]


def format_range(*times: float) -> list[str]:
    """Times in ms with three figures, all in the unit of the longest: small ones in us."""
    scale, unit = _unit_of(max(filter(math.isfinite, times), key=abs, default=0.0))
    scaled = (scale * ms for ms in times)
    return [f"{format_figure(x)} {unit}" if math.isfinite(x) else MISSING for x in scaled]


def format_time(ms: float, error: float) -> str:
    """A time with half the width of its interval, both in one unit: ``4.31 ± 0.06 ms``."""
    if not (math.isfinite(ms) and math.isfinite(error)):
        return format_ms(ms)
    scale, unit = _unit_of(ms)
    # Three figures, and a fourth where the error is smaller than the third.
    least, most = (decimals_of(scale * ms, figures) for figures in (3, 4))
    decimals = max(least, min(most, decimals_of(scale * error, 1)))
    texts = (format_number(scale * value, decimals) for value in (ms, error))
    return f"{' ± '.join(texts)} {unit}"


def format_estimate(whole_ms: float, ms: float, low: float, high: float) -> list[str]:
    """A part of some time and the ends of its interval, with no more digits than that allows."""
    scale, unit = _unit_of(whole_ms)
    decimals = fit_decimals(scale * ms, scale * (high - low) / 2)
    return [f"{format_number(scale * x, decimals)} {unit}" for x in (ms, low, high)]


def fit_decimals(value: float, error: float, figures: int = 3) -> int:
    """How many decimals show at most so many figures, down to the first one of the error.

    Of an error that begins with a 1, two are shown: a step of the last one would be all of it.
    """
    if not value:
        return 0
    most, least = decimals_of(value, figures), decimals_of(value, 1)
    return max(least, min(most, decimals_of(error / 2, 1))) if error > 0 else most


def format_size(size_bytes: float) -> str:
    """A size in MB with three figures; below a kilobyte, in bytes."""
    if abs(size_bytes) < 1000:
        return f"{size_bytes:.0f} B"
    return f"{format_figure(size_bytes / 1e6)} MB"


def shorten_source(source: str) -> str:
    """A source line without its folders, as a reader needs it: ``net.py:77``."""
    return re.sub(r"^.*/(?=[^/]+\.py:\d+$)", "", source)


def _unit_of(ms: float) -> tuple[int, str]:
    return (1000, "µs") if 0 < abs(ms) < 0.1 else (1, "ms")


def format_share(share: float, decimals: int | None = None) -> str:
    """A share in per cent: below 10 % with one decimal, unless it says how many."""
    if decimals is None:
        decimals = int(abs(share) < 0.0995)
    return f"{format_number(100 * share, decimals)} %" if math.isfinite(share) else MISSING


def begin_sentence(text: str) -> str:
    """The text with a capital letter, unless a name such as ``avx512`` or ``a.b`` begins it."""
    named = not text.partition(" ")[0].replace("-", "").isalpha()
    return text if named else text[:1].upper() + text[1:]


def format_number(value: float, decimals: int, sign: str = "-") -> str:
    """A number with a true minus, and none before a zero; ``sign`` as in a format, "+" or "-".

    Five and more digits before the point are in groups of three.
    """
    if not math.isfinite(value):
        return MISSING
    text = f"{value:{sign}.{decimals}f}"
    if not float(text):
        return text.lstrip("+-")
    if abs(value) >= 10_000:
        text = f"{value:{sign},.{decimals}f}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    return text.replace("-", "\N{MINUS SIGN}")


def format_figure(value: float) -> str:
    """A number with three figures, as tables have it."""
    return format_number(value, decimals_of(value) if math.isfinite(value) and value else 0)


def format_ratio(value: float) -> str:
    """A speed-up without its ``x``: two decimals, and no more than three figures from 10 on."""
    return f"{value:.2f}" if value < 10 else format_figure(value)


def decimals_of(value: float, figures: int = 3) -> int:
    """How many decimals show so many figures of a value."""
    return max(0, figures - 1 - math.floor(math.log10(abs(value)) + 1e-9)) if value else 2

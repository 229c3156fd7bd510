"""Bars of categories as HTML that needs no script or style sheet: in pages, e-mails and cells."""

import html
from collections.abc import Mapping

import pandas as pd

from workbench.analysis.describe import describe_interval, describe_latency, describe_time
from workbench.analysis.run import Measurement
from workbench.emulation import EMULATED
from workbench.plots.tables import COLORS, Table, pick_ink, to_html, to_markdown
from workbench.wording import format_ratio, format_share

_LEAST = 0.11  #: Part of a bar that has room for its share on a phone.
_SEGMENT = "display:inline-block;vertical-align:top;overflow:hidden;text-align:center;color:{};"
_SEGMENT += "height:1.5em;line-height:1.5em;white-space:nowrap;background-color:{};width:{:.2f}%;"
_SEGMENT += "box-shadow:inset 0 0 0 1px #8884"
_CHIP = "display:inline-block;width:.8em;height:.8em;margin-right:.35em;border:1px solid #8888;"
_CHIP += "background-color:"
#: Translucent, with the ink of the page: pale in a light theme, and dim in a dark one.
_PALE = "66"
_PRINTED = "print-color-adjust:exact;-webkit-print-color-adjust:exact"


def show_bars(sides: Mapping[str, Measurement], ratios: Mapping[str, float] = {}) -> Table:
    """The latency of each measurement with a bar of its categories, and a legend.

    A bar is as long as the time. That of a busy machine is pale, and a share that is not known is
    not written. ``ratios`` are speed-ups of categories, for the legend.
    """
    times, note = _describe_latencies(sides)
    parts = {name: m.categories.set_index("category")["mean_ms"] for name, m in sides.items()}
    longest = max((float(part.sum()) for part in parts.values()), default=0.0)
    page, lines = "", []
    for name, part in parts.items():
        whole, use = float(part.sum()) or 1.0, sides[name].use
        page += f"<div><strong>{to_html(name)}</strong> {to_html(times[name])}</div>"
        scale = whole / longest if longest else 1.0
        page += draw_shares(part / whole, scale, pale=use.pale, blank=use.blank)
        texts = (f"{name} {format_share(ms / whole)}" for name, ms in part.items() if ms > 0)
        shares = "shares unknown" if use.blank else ", ".join(texts)
        lines.append(f"- {to_markdown(name)}: {to_markdown(times[name])}; {shares}")
    speedups = {name: f", {format_ratio(ratio)}x" for name, ratio in ratios.items()}
    faster = "; ".join(f"{name}{text}" for name, text in speedups.items())
    lines += [f"\n{to_markdown(text)}" for text in (faster, note) if text]
    pale, blank = all(m.use.pale for m in sides.values()), any(m.use.blank for m in sides.values())
    page += draw_chips(_list_chips(parts, speedups, blank=blank), note, pale=pale)
    return Table(f'<div class="bars">{page}</div>', "\n".join(lines))


def _describe_latencies(sides: Mapping[str, Measurement]) -> tuple[dict[str, str], str]:
    """The latency of each measurement; what all intervals are, if that is the same."""
    intervals = {describe_interval(m.statistics) for m in sides.values()}
    describe = describe_time if len(intervals) == 1 else describe_latency
    times = {name: describe(m.statistics) for name, m in sides.items()}
    for name, m in sides.items():
        times[name] += " (all extensions of this CPU)" * (m.name == "native")
        times[name] = EMULATED if m.emulated else times[name]
    if len(intervals) != 1 or any(m.emulated for m in sides.values()):
        return times, ""
    has_one = any(m.statistics["restarts"].iloc[0] > 1 for m in sides.values())
    return times, "\N{PLUS-MINUS SIGN}: " * has_one + intervals.pop()


def draw_shares(
    shares: Mapping[str, float],
    scale: float = 1.0,
    *,
    least: float = _LEAST,
    pale: bool = False,
    blank: bool = False,
    colors: Mapping[str, str] = COLORS,
) -> str:
    """One bar of shares, ``scale`` of the width that there is, as HTML; its text lists them.

    Parts of the width below ``least`` have no label; a ``blank`` bar has none, as its shares are
    not known.
    """
    parts = {name: share for name, share in shares.items() if share and share > 0}
    figures = {name: "" if blank else format_share(share) for name, share in parts.items()}
    text = ", ".join(f"{name} {share}".strip() for name, share in figures.items())
    segments = ""
    for name, share in parts.items():
        color, part = colors.get(name, COLORS["Other"]), figures[name]
        fill, ink = (color + _PALE, "inherit") if pale else (color, pick_ink(color))
        label = part if part and share * scale >= least else "&nbsp;"
        style = _SEGMENT.format(ink, fill, 100 * share * scale)
        title = html.escape(f"{name} {part}".strip(), quote=True)
        segments += f'<span style="{style}" title="{title}">{label}</span>'
    style = f"white-space:nowrap;margin:.1em 0 .5em;font-size:.85em;{_PRINTED}"
    return f'<div role="img" aria-label="{html.escape(text)}" style="{style}">{segments}</div>'


def _list_chips(
    times: Mapping[str, pd.Series], ratios: Mapping[str, str], *, blank: bool
) -> dict[str, str]:
    """Every category with its shares of the sides and its speed-up, where known; its colour."""
    chips: dict[str, str] = {}
    for category, color in COLORS.items():
        shares = [part.get(category, 0.0) / (part.sum() or 1.0) for part in times.values()]
        figures = [format_share(share).removesuffix(" %") for share in shares]
        text = category if blank else f"{category} {' → '.join(figures)} %"
        chips[text + ratios.get(category, "")] = color
    return chips


def draw_chips(colors: Mapping[str, str], note: str = "", *, pale: bool = False) -> str:
    """A legend: texts with their colours, as pale as the bars, and a note after them, as HTML."""
    chips = ""
    for text, color in colors.items():
        chips += f'<span style="display:inline-block;margin-right:1.1em"><span style="{_CHIP}'
        chips += f'{color}{_PALE * pale};{_PRINTED}"></span>{to_html(text)}</span>'
    note = f'<span style="white-space:nowrap">{to_html(note)}</span>' if note else ""
    return f'<div style="font-size:.9em;margin-bottom:.6em">{chips}{note}</div>'

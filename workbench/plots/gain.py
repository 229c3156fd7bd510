"""What a program could gain, as one bar: today's latency, what was tried, the machine's floor."""

from collections.abc import Iterator
from typing import NamedTuple

from workbench.analysis.findings.text import describe_outcome
from workbench.analysis.measurement import Measurement
from workbench.analysis.potential import Potential
from workbench.plots.bars import draw_chips, draw_shares
from workbench.plots.tables import Table, show_note, to_html, to_markdown, typeset
from workbench.wording import format_range, format_ratio

_TITLE = "What you could gain"
#: By kind; gains are green, further ones paler.
_COLORS = {"floor": "#56606b", "rest": "#b9c2cc"}
_NAMES = {"floor": "least at the peaks of this machine (estimate)", "rest": "the rest"}
_GREENS = ("#009465", "#4fb894", "#8fd3bb", "#c3e8db")
_OVERLAP = "They may overlap, and were not tried together: the total is unknown. "
_OVERLAP += "`run.apply()`, or `workbench findings RUN --check together`, tries that."


class Bar(NamedTuple):
    """What is drawn of a gain: sentences, and of the parts of the bar by name share and colour."""

    texts: list[str]
    shares: dict[str, float]
    colors: dict[str, str]

    @property
    def plain(self) -> list[str]:
        """The sentences as a page shows them, without markup."""
        return [typeset(text).replace("`", "") for text in self.texts]


def outline_gain(m: Measurement) -> Bar | None:
    """The bar of what a measured program could gain; None if nothing is known."""
    if m.emulated or not ((potential := m.potential).alone or potential.floor_ms > 0):
        return None
    segments = potential.segments
    times = format_range(*(each.ms for each in segments))
    called = [_NAMES.get(each.kind, each.name) for each in segments]
    names = [f"{name} {time}" for name, time in zip(called, times, strict=True)]
    # The last gain has the strongest green.
    greens = iter(_GREENS + _GREENS[-1:] * len(segments))
    colors = [_COLORS.get(each.kind) or next(greens) for each in reversed(segments)][::-1]
    shares = [each.ms / potential.latency_ms for each in segments]
    return Bar(
        describe_potential(potential),
        dict(zip(names, shares, strict=True)),
        dict(zip(names, colors, strict=True)),
    )


def show_gain(m: Measurement, top: int = 0) -> Iterator[Table]:
    """One bar of what a measured program could gain, with what is known of it in words."""
    bar = outline_gain(m)
    if bar is None:
        yield show_note("What could be gained is unknown: no remedy was tried here.")
        return
    first, *details = bar.texts
    page = f"<p><strong>{_TITLE}:</strong> {to_html(first)}</p>"
    page += draw_shares(bar.shares, pale=m.use.pale, blank=m.use.blank, colors=bar.colors)
    page += draw_chips(bar.colors, pale=m.use.pale)
    page += "".join(f"<p>{to_html(text)}</p>" for text in details)
    lines = [f"**{_TITLE}:** {to_markdown(first)}", f"- {to_markdown('; '.join(bar.shares))}"]
    yield Table(
        f'<div class="bars">{page}</div>', "\n\n".join([*lines, *map(to_markdown, details)])
    )


def describe_potential(potential: Potential) -> list[str]:
    """What is known of a program's gain: how much, then what it is made of."""
    texts, gains = [_describe_gain(potential)], potential.gains
    if len(gains) > 1:
        times = format_range(*gains.values())
        each = ", ".join(f"{name} {ms}" for name, ms in zip(gains, times, strict=True))
        if potential.gain:
            texts.append(f"Alone they gain {each}: the bar divides their gain in proportion.")
        else:
            tried = potential.together and f"Together: {describe_outcome(potential.together)}."
            texts.append(f"Alone they gain {each}. {tried or _OVERLAP}")
    return texts


def _describe_gain(potential: Potential) -> str:
    gain, latency_ms = potential.known, potential.latency_ms
    if not potential.alone:
        return f"no remedy was shown to help; today's latency is {format_range(latency_ms)[0]}."
    today, after, low, high = format_range(
        latency_ms, potential.after_ms, latency_ms - gain.high, latency_ms - gain.low
    )
    names = [*potential.gains]
    how = f"with {names[0]}, the best one alone"
    if potential.gain:
        how = f"with {', '.join(names)}" + ", tried together" * (len(names) > 1)
    ratio = format_ratio(latency_ms / potential.after_ms)
    return f"{today} -> {after} ({ratio}x), between {low} and {high}, {how}."

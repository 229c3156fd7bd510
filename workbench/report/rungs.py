"""The ISA ladder, level by level."""

from __future__ import annotations

import ipywidgets as widgets
import pandas as pd

from workbench.analyze import compare_categories
from workbench.emulation import mark_emulated
from workbench.report.analysis import Analysis, find_noise, pick
from workbench.report.axes import codes_of
from workbench.report.notes import show_note
from workbench.show import Sheet, explore, plot_rung, show_table


def explore_ladder(analysis: Analysis, *, headless: bool = False) -> object:
    """A slider over the ISA levels of a run: what each of them bought, and where.

    Where a run measured several thread counts, these are to choose from, too.

    Parameters
    ----------
    headless
        Nobody is there to move it: the highest level.
    """
    if analysis.ladder is None:
        return show_note("One toggle was measured; `--isa-ladder` measures every ISA level.")
    levels = list(dict.fromkeys(analysis.ladder["level"]))
    # The figure's title is the read-out: a slider's own has room for short words only.
    slider = widgets.SelectionSlider(
        options=levels,
        value=levels[-1],
        description="ISA level",
        continuous_update=False,
        readout=False,
    )
    counts = list(dict.fromkeys(analysis.ladder["threads"]))
    several = {"threads": counts} if len(counts) > 1 else {}
    return explore(
        lambda level, threads=counts[0]: show_rung(analysis, level, threads),
        headless=headless,
        level=slider,
        **several,
    )


def show_rung(analysis: Analysis, level: str, threads: int) -> Sheet:
    """One level of the ladder against the lowest: figure, what it reveals, and its categories."""
    ladder = analysis.ladder[analysis.ladder["threads"] == threads].reset_index(drop=True)
    lowest = ladder["level"].iloc[0]
    changes = _compare(analysis, lowest, level, threads)
    bars = {name: analysis.select(analysis.categories, name, threads) for name in (lowest, level)}
    figure = plot_rung(ladder, level, bars, changes)
    if level == lowest:
        return Sheet(figure, show_note(f"{level} is what all others are compared with."))
    place = list(ladder["level"]).index(level)
    found = (
        f"{level} has {ladder.at[place, 'reveals']}, which {ladder.at[place - 1, 'level']} hides."
    )
    if analysis.evidence is not None:
        found += f" Samples of its machine code: {codes_of(analysis, ladder)[place]}."
    columns = ["name", "baseline_ms", "candidate_ms", "speedup", "low", "high", "outcome"]
    caption = f"{level} against {lowest}; typical times, and the speed-up's 95 % interval"
    return Sheet(figure, show_note(found), show_table(changes, columns, caption=caption))


def _compare(analysis: Analysis, lowest: str, level: str, threads: int) -> pd.DataFrame:
    """The categories of a level against those of the lowest, with the noise of the control."""
    sides = (pick(analysis.ledger, name, threads) for name in (lowest, level))
    noise = find_noise(analysis.run.plan, lowest, analysis.ledger, threads)
    changes = compare_categories(*sides, **noise)
    return mark_emulated(changes.assign(outcome="emulated")) if analysis.run.emulated else changes

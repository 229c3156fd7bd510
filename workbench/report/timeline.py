"""The timeline of a run: baseline above candidate, with what is known of each operator."""

from __future__ import annotations

from workbench.emulation import EMULATED
from workbench.errors import StoreError
from workbench.records import Pair
from workbench.report.analysis import Analysis
from workbench.report.exchange import describe_spans
from workbench.show import Page, Timeline, draw_timeline
from workbench.trace import read_etdump


def show_timeline(
    analysis: Analysis, pair: Pair | None = None, threads: int | None = None, *, headless: bool
) -> Timeline | Page:
    """Draw the first traces of a pair's experiments, the baseline above the candidate.

    Parameters
    ----------
    analysis
        The run.
    pair, threads
        Which comparison of it; the first one if not given.
    headless
        Nobody is there to point: a figure, which a report turns into a timeline.

    Raises
    ------
    StoreError
        An experiment of the pair has no trace.
    """
    pair = pair or analysis.run.plan.pairs[0]
    threads = threads or analysis.comparisons[0].threads
    paths = {
        name: analysis.run_dir / session.etdump
        for name in (pair.baseline, pair.candidate)
        for session in analysis.run.sessions[::-1]
        if (session.experiment, session.threads) == (name, threads) and session.etdump
    }
    if len(paths) < len({pair.baseline, pair.candidate}):
        raise StoreError("an experiment has no trace", where=analysis.run_dir)
    traces = {name: describe_spans(read_etdump(path)) for name, path in paths.items()}
    about = analysis.select(analysis.operators, pair.candidate, threads)
    note = EMULATED if analysis.run.emulated else ""
    return draw_timeline(traces, about, headless=headless, note=note)

"""Two experiments of a run compared by their latencies alone."""

import pandas as pd

from workbench.analysis.comparison_tables import compare_restarts
from workbench.analysis.statistics import clock_of, pick_timed, restart_latencies


def compare_latencies(
    latencies: pd.DataFrame,
    baseline: str,
    candidate: str,
    *,
    control: str | None = None,
    control_of: str | None = None,
    threads: int | None = None,
) -> pd.DataFrame:
    """Compare E2E latencies of two experiments from interleaved rounds.

    Within a round each experiment is measured twice, in mirrored order (A B C C B A), so that
    linear drift affects all alike, and each process restart measures all of them. The noise floor
    comes from ``control``, a repetition of the baseline or of ``control_of``: the end of its
    interval that is further from 1.

    One row of ``frames.COMPARISON``; the times are those of `tabulate_statistics`, over the
    restarts that both have.
    """
    timed = pick_timed(latencies)
    timed = timed if threads is None else timed[timed["threads"] == threads]
    clock = clock_of(timed)
    restarts = {name: restart_latencies(part, clock) for name, part in timed.groupby("experiment")}
    repeated = [] if control is None else [restarts[control_of or baseline], restarts[control]]
    sides = [restarts[baseline]], [restarts[candidate]]
    return compare_restarts([candidate], *sides, control=repeated, separate=False)

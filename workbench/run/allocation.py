"""How a run spends its seconds: how many restarts, and how many rounds in each."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from workbench.records.runs import Batch, Plan, RunRecord, Session

#: Restarts that run whatever the budget: fewer give no useful interval.
MIN_RESTARTS = 3
#: Restarts where neither their number nor a budget is given: so many at least, and at most.
LEAST_RESTARTS, MOST_RESTARTS = 5, 40
#: Seconds on a free core for each experiment and thread count, without a budget: what five
#: long restarts took (`tests/benchmarks/decide.py`).
EXPERIMENT_S = 2.0
#: Restarts that decide most operators. A run takes up to `LONGER` times its seconds for them if
#: that buys at least half of them: models of 10 to 50 ms need these (`tests/benchmarks/decide.py`:
#: vit_tiny, 8 restarts, 81 %; 18, 95 %), and the operators of longer ones scatter less.
ENOUGH_RESTARTS, LONGER = 20, 2
#: Seconds after which a run without a budget does with `MIN_RESTARTS` instead of `LEAST_RESTARTS`:
#: inferences of more than some 200 ms scatter little, and five restarts would take a minute.
LONG_S = 30.0
#: Rounds of a restart, at most, without a budget.
MOST_ROUNDS = 12
#: The variance within a restart of the mean of a round, over that between restarts, until three
#: restarts show it, and the range in which what these show is believed.
SCATTER, LEAST_SCATTER, MOST_SCATTER = 0.25, 0.05, 4.0


def seconds_of(plan: Plan, threads: int) -> float:
    """The seconds that a plan's restarts at one thread count may take."""
    if plan.budget_s:
        return plan.budget_s / len(plan.threads)
    return EXPERIMENT_S * len(plan.experiments)


def clock_at(threads: int) -> Literal["cpu_ns", "wall_ns"]:
    """The clock that latencies are read from at a thread count."""
    return "cpu_ns" if threads == 1 else "wall_ns"


def preempted_share(sessions: Sequence[Session]) -> float:
    """The part of the wall time of untraced runs with one thread in which others had the core."""
    alone = [s for s in sessions if s.complete and not s.traced and s.threads == 1]
    batches = [batch for session in alone for batch in session.batches]
    wall, cpu = (sum(sum(getattr(b, clock)) for b in batches) for clock in ("wall_ns", "cpu_ns"))
    return max(0.0, 1 - cpu / wall) if wall else math.nan


def count_measured(run: RunRecord) -> int:
    """The restarts of a run so far in which everything was timed."""
    plan, sessions = run.plan, [s for s in run.sessions if s.complete and not s.traced]
    return min((sum(s.experiment == e.name and s.threads == n for s in sessions)
                for n in plan.threads for e in plan.experiments), default=0)  # fmt: skip


def project_restarts(run: RunRecord, done: int) -> int:
    """How many restarts a run will have, by what those ``done`` took; 0 before the first.

    A given number, or as many as fit into the seconds, on a core of their own: where other
    programs take half of the core, a run without a budget takes twice as long.
    """
    plan = run.plan
    if plan.processes and not plan.budget_s:
        return plan.processes
    if not done:
        return 0
    if plan.budget_s:
        return max(MIN_RESTARTS, done, int(plan.budget_s * done / max(run.spent_s, 1e-3)))
    each_s = max(run.spent_s, 1e-3) / done * (1 - np.nan_to_num(preempted_share(run.sessions)))
    fitting = sum(seconds_of(plan, threads) for threads in plan.threads) / each_s
    longer = min(ENOUGH_RESTARTS, LONGER * fitting)
    wanted = max(fitting, longer) if longer >= ENOUGH_RESTARTS / 2 else fitting
    least = min(LEAST_RESTARTS, max(MIN_RESTARTS, int(LONG_S / each_s)))
    return max(least, done, min(MOST_RESTARTS, int(wanted)))


def count_rounds(
    plan: Plan, threads: int, fixed_s: float, round_s: float, scatter: float = SCATTER
) -> int:
    """The rounds of a restart that costs ``fixed_s`` without any, and ``round_s`` for each.

    N restarts of r rounds take N (f + r c) seconds, and their mean has the variance
    (between + within / r) / N. For given seconds, that is least at r = sqrt(f / c * within /
    between) (W. G. Cochran, "Sampling Techniques", 1977, chapter 10); ``scatter`` is within /
    between. A given number of restarts, or the most that a run has, fills the seconds with rounds.
    """
    best = math.sqrt(fixed_s / round_s * scatter)
    restart_s = seconds_of(plan, threads) / (plan.processes or MOST_RESTARTS)
    fill = (restart_s - fixed_s) / round_s
    if not plan.budget_s:
        best, fill = min(best, MOST_ROUNDS), min(fill, MOST_ROUNDS)
    return max(1, round(best), int(fill))


def measure_scatter(run: RunRecord, threads: int) -> float:
    """The variance of the mean of a round within a restart, over that between restarts.

    Of the logarithms of times, between experiments: what a restart does to all of them alike
    cancels in a comparison. `SCATTER` until three restarts of two experiments show it.
    """
    timed: dict[str, dict[int, tuple[Batch, ...]]] = {}
    for session in run.sessions:
        if session.complete and not session.traced and session.threads == threads:
            timed.setdefault(session.experiment, {})[session.process] = session.batches
    restarts = set.intersection(*map(set, timed.values())) if timed else set[int]()
    if len(restarts) < MIN_RESTARTS or len(timed) < 2:
        return SCATTER
    means, within, rounds = [], [], []
    for by_restart in timed.values():
        batches = [by_restart[restart] for restart in sorted(restarts)]
        times = [[ns for b in each for ns in getattr(b, clock_at(threads))] for each in batches]
        values = [np.log(np.maximum(1, each)) for each in times]
        if min(map(len, values)) < 2:
            return SCATTER
        means.append([np.median(each) for each in values])
        within += [each.var(ddof=1) / len(each) for each in values]
        rounds += [len({b.round for b in each}) for each in batches]
    shared = np.array(means) - np.mean(means, axis=0)
    total = shared.var(axis=1, ddof=1).mean() * len(timed) / (len(timed) - 1)
    one_round = float(np.mean(within) * np.mean(rounds))
    between = max(float(total - np.mean(within)), 1e-12)
    return min(MOST_SCATTER, max(LEAST_SCATTER, one_round / between))

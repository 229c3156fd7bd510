"""What a run that goes on can say so far: its first verdict, and which changes it will find."""

import contextlib
import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from workbench.analysis.compare import compare_latencies
from workbench.analysis.findings.rules import find_bottlenecks
from workbench.analysis.run import Run
from workbench.analysis.speedup import MARGIN, Speedup
from workbench.analysis.statistics import tabulate_latencies
from workbench.analysis.verdict import reach_verdict
from workbench.errors import WorkbenchError
from workbench.options import MeasureOptions
from workbench.progress import SO_FAR
from workbench.records.pairing import find_control
from workbench.records.runs import RunRecord
from workbench.run.allocation import (
    LEAST_RESTARTS,
    MIN_RESTARTS,
    PILOT_RESTARTS,
    count_further,
    count_measured,
    project_restarts,
)
from workbench.wording import format_share, plural

#: More restarts than this are not suggested.
MOST_RESTARTS = 200


def _compare_pairs(record: RunRecord) -> pd.DataFrame:
    """The E2E latencies of all pairs of a run that goes on: ``frames.COMPARISON``."""
    latencies, rows = tabulate_latencies(record), []
    for pair, threads in itertools.product(record.plan.pairs, record.plan.threads):
        repeated, control = find_control(record.plan, pair.baseline)
        rows.append(
            compare_latencies(
                latencies, pair.baseline, pair.candidate,
                control=control, control_of=repeated, threads=threads,
            )
        )  # fmt: skip
    return pd.concat(rows)


def count_needed(record: RunRecord, find: float = 0.0) -> float:
    """How many restarts must follow the pilot for the plan's precision, or to find a change.

    They suffice for all pairs, by how far the restarts of the pilot scatter (`count_further`).
    """
    if not record.plan.pairs:
        return math.inf
    pilot = tuple(s for s in record.sessions if s.process < PILOT_RESTARTS)
    rows = _compare_pairs(replace(record, sessions=pilot))
    widths, wanted = np.log(rows["high"] / rows["low"]) / 2, record.plan.precision
    if find:  # beyond what the control differs by, which falls, too, or else beyond the margin
        margin = np.log1p(rows["margin"]).where(rows["floor"] == 0, 0.0)
        widths, wanted = np.log1p(rows["detectable"]) - margin, np.log1p(find) - margin
        wanted = wanted.clip(lower=0.0)
    return float(count_further(widths / wanted).max())


def _judge_so_far(record: RunRecord) -> str:
    """The first verdict of a run that goes on."""
    ab = Run(Path(), record, find_bottlenecks).compare()
    verdict = reach_verdict("", ab.label, ab.latency, emulated=ab.emulated, wrong=ab.wrong)
    return f"{SO_FAR}{verdict.text}"


def _warn(text: str) -> list[str]:
    """A text if it is a warning."""
    return [text] * text.startswith("warning")


def judge_restarts(record: RunRecord, options: MeasureOptions) -> list[str]:
    """What a run that goes on can say so far: its first verdict, and what it will find."""
    done = count_measured(record)
    # Of long restarts there are few: what cannot be decided is known from the second.
    is_long = not (options.budget_s or options.processes)
    is_long = is_long and project_restarts(record, done) <= LEAST_RESTARTS
    if done < (2 if is_long else MIN_RESTARTS) or not record.plan.pairs:
        return []
    texts = list[str]()
    with contextlib.suppress(WorkbenchError):  # times that cannot be compared
        texts.append(_judge_so_far(record))
        if options.find or record.plan.programs:
            texts.append(foresee(record, options.find))
        elif is_long:
            texts += _warn(foresee(record, _difference_so_far(record)))
    return texts


def _difference_so_far(record: RunRecord) -> float:
    """The least difference (ratio - 1) of a run's speed-ups, or the margin: what is to be found."""
    speedups = _compare_pairs(record)["speedup"]
    return max(MARGIN, float(np.expm1(np.abs(np.log(speedups)).min())))


def foresee(record: RunRecord, find: float = 0.0) -> str:
    """Which changes a run will find after its first restarts, and what finds smaller ones."""
    plan, done = record.plan, count_measured(record)
    least = float(_compare_pairs(record)["detectable"].max())
    step_s = record.spent_s / done
    planned = project_restarts(record, done)
    change = Speedup.project(least, done, planned)
    text = f"{plural(planned, 'restart')} will show changes above {format_share(change, 1)}"
    if change <= find or not find:
        return text
    counts = range(planned, MOST_RESTARTS + 1)
    needed = next((n for n in counts if Speedup.project(least, done, n) <= find), 0)
    more = f"--budget {math.ceil(step_s * needed)}s" if plan.budget_s else f"--processes {needed}"
    hint = f"{more}, about {step_s * needed / 60:.1f} minutes" if needed else "stop other programs"
    return f"warning: {text}; for {format_share(find, 1)}: {hint}"

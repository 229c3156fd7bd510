"""How good a measurement is, from A to C, and whether its numbers can be trusted."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from workbench.analysis.dtypes import describe_dtypes
from workbench.analysis.foreign import Recording
from workbench.analysis.statistics import blocks_of, half_width
from workbench.emulation import EMULATED
from workbench.frames import QUALITY, SOURCE
from workbench.records.exports import Export
from workbench.records.pairing import BY_ORDER
from workbench.records.runs import Agreement, Proof, RunRecord
from workbench.run.allocation import preempted_share
from workbench.wording import format_share, plural

if TYPE_CHECKING:
    from workbench.analysis.operator_times import Times

GRADES = "ABC"
#: Other programs that took more than this part of the time make a grade worse than an A.
BUSY = 0.10
#: A tracer that costs more than this moves the shares it measures.
TRACER_LIMIT = 0.05
#: A latency whose interval reaches further, as a part of it, shows nothing; a caveat says how far
#: shares may be off if that is further (chosen, not benchmarked).
USELESS = (0.5, 0.05)
#: Parts below zero that take more than this of the whole, together, are not rounding.
IMPOSSIBLE = 0.03


class Criterion(NamedTuple):
    """What makes a measurement better or worse: its largest values for an A and a B.

    ``unit`` is ``%`` of a fraction, or ``of 5`` for what is missing to five; ``remedy`` raises the
    grade, and names no options: not every command that states a grade has them.
    """

    limits: tuple[float, float]
    unit: str
    remedy: str
    source: str


_QUIET = "stop other programs"
CRITERIA = {
    "half width of the interval": Criterion(
        (0.01, 0.02), "%", "measure longer",
        "latencies within 2 % of each other are called unchanged",
    ),
    "A/A control": Criterion(
        (0.02, 0.05), "%", _QUIET,
        "how far two equal experiments differed; within 2 % is called unchanged",
    ),
    "restarts": Criterion(
        (0, 2), "of 5", "measure five restarts or more",
        "an interval is ± 1.2 standard deviations of five restarts, 2.5 of three, 9.0 of two",
    ),
    "time taken by other programs": Criterion(
        (BUSY, 0.50), "%", _QUIET,
        "in trials, no verdict was false while others took more than half: both sides are "
        "interleaved, in CPU time",
    ),
    "tracer overhead": Criterion(
        (0.02, TRACER_LIMIT), "%", "measure a larger input",
        "what tracing takes beyond what is known of it; it may move shares, not latencies",
    ),
    "throttling events": Criterion(
        (0, 0), "", "let the device cool down first", "the kernel's count, or Android's status"
    ),
    "emulated": Criterion(
        (0, 0), "", "measure on real hardware", "an emulator's times do not show speed"
    ),
}  # fmt: skip
#: What other programs can make worse: if they took much of the time, they are the cause.
DISTURBED = {"half width of the interval", "A/A control", "time taken by other programs"}


def grade_run(
    record: RunRecord,
    statistics: pd.DataFrame,
    comparisons: pd.DataFrame,
    tracer_overhead: float = math.nan,
) -> pd.DataFrame:
    """Every criterion that a run can be judged by, the worst first: ``frames.QUALITY``.

    The interval is that of speed-ups; of a run that compares nothing, that of its latencies.
    """
    floors = comparisons["floor"]
    widths = np.log(comparisons["high"] / comparisons["low"]) / 2
    if comparisons.empty:
        widths = statistics["high"] / statistics["latency"] - 1
    values = {
        "half width of the interval": float(widths.fillna(math.inf).max()),
        "A/A control": float(floors[np.isfinite(floors) & (floors > 0)].max()),
        "restarts": max(0, 5 - int(statistics["restarts"].max())),
        "time taken by other programs": preempted_share(record.sessions),
        "tracer overhead": tracer_overhead,
        "throttling events": _count_throttling(record),
        # Of another tool's recording, it is unknown.
        "emulated": int(record.emulated) if record.runner else math.nan,
    }
    rows = [_row(name, value) for name, value in values.items() if not math.isnan(value)]
    table = pd.DataFrame(rows, columns=QUALITY.names)
    table = table.sort_values("grade", ascending=False, kind="stable").reset_index(drop=True)
    return QUALITY.check(table)


def is_disturbed(quality: pd.DataFrame) -> bool:
    """Whether a grade of C comes from what other programs can make worse."""
    return bool(quality["criterion"][quality["grade"] == "C"].isin(DISTURBED).any())


def describe_quality(quality: pd.DataFrame, *, busy: bool = False) -> str:
    """The grade in one line: ``measurement quality B: restarts 4 of 5 (5 of 5 for an A)``.

    A C with what raises it. Of a ``busy`` machine, `workbench.analysis.use.describe_use`
    has the cause and the remedy: the line has what else there is.
    """
    grade = quality["grade"].iloc[0]
    worst = quality[quality["grade"] == grade]
    if busy:
        worst = worst[~worst["criterion"].isin(DISTURBED)]
    if grade == "A" or worst.empty:
        return f"measurement quality {grade}"
    why = [f"{row.criterion} {row.value} ({row.limit} for an A)" for row in worst.itertuples()]
    remedies = dict.fromkeys(CRITERIA[criterion].remedy for criterion in worst["criterion"])
    raised = f"; to raise it: {'; '.join(remedies)}" if grade == "C" else ""
    return f"measurement quality {grade}: {', '.join(why)}{raised}"


def find_impossible(operators: pd.DataFrame) -> str:
    """Why the times of parts cannot be true: some are below zero by more than rounding explains."""
    total, ms = operators["mean_ms"].sum(), operators["mean_ms"]
    negative = -ms[ms < 0].sum()
    if not negative > IMPOSSIBLE * max(total, 0.0):
        return ""
    row = operators.loc[ms.idxmin()]
    return (
        f"the parts are too short to be told apart: {row['operator']} would take "
        f"{1e3 * row['mean_ms']:.2g} us of {1e3 * total:.3g}"
    )


def bound_shares(runs: pd.DataFrame, fastest: pd.Series, longer: float) -> float:
    """How far a share of the traced time may be off, at most, by tracing and other programs.

    ``runs`` has the times of the parts by restart and run, and ``fastest`` those without
    interference, which tracing lengthens by ``longer``, as a part of the latency. Any one part may
    have taken that much. The scatter over the restarts counts if it is larger.
    """
    blocks, longer = blocks_of(runs), max(longer, 0.0)
    scatter = half_width(blocks.div(blocks.sum(axis=1), axis=0).to_numpy())
    shares = runs.mean() / runs.mean().sum()
    most = fastest.reindex(shares.index, fill_value=0.0) / fastest.sum() * (1 + longer)
    ends = most.clip(upper=1.0) - shares, shares - (most - longer).clip(lower=0.0)
    return float(np.nanmax([*ends, scatter]))


def _count_throttling(run: RunRecord) -> float:
    """The kernel's events during a run, and Android's readings of some; NaN if unknown."""
    counts = [reading.throttled for reading in run.readings if reading.throttled is not None]
    statuses = [r.thermal_status for r in run.readings if r.thermal_status is not None]
    if not (counts or statuses):
        return math.nan
    events = max(counts, default=0) - min(counts, default=0)
    return events + sum(status > 0 for status in statuses)


def _row(name: str, value: float) -> tuple[str, str, str, str, str]:
    limits, unit, _, source = CRITERIA[name]
    grade = GRADES[sum(abs(value) > limit for limit in limits)]
    text = _text(value, unit) + (", less than the noise" if unit == "%" and value < 0 else "")
    return name, text, grade, _text(limits[0], unit), source


def _text(value: float, unit: str) -> str:
    if math.isinf(value):
        return "unknown"
    if unit == "of 5":
        return f"{5 - value:g} of 5"
    return format_share(value, 1) if unit == "%" else f"{value:g}"


#: With fewer undisturbed traced runs than this, the shares are blurred.
UNDISTURBED_LEAST = 0.6
#: With a lower ratio of signal to noise, in dB, the error is more than a tenth of the output.
LOW_SQNR = 20.0

#: What was checked, ``ok``, ``note`` or ``fail``, and the evidence.
Row = tuple[str, str, str]


def check_criteria(quality: pd.DataFrame) -> Iterator[Row]:
    """The criteria of ``frames.QUALITY`` as checks; a C is worth a note."""
    for row in quality.itertuples():
        status = "note" if row.grade == "C" else "ok"
        if row.criterion != "emulated":
            yield row.criterion, status, f"{row.value} ({row.limit} for an A)"
        elif status == "note":
            yield row.criterion, "fail", EMULATED


def check_state(record: RunRecord, recording: Recording | None) -> Iterator[Row]:
    """Whether all was measured, by which runner, and how baselines were chosen."""
    clocks = ", ".join(sorted({session.clock for session in record.sessions}))
    if recording:
        yield "recorded by", "note", recording.source
        yield "not recorded", "note", ", ".join(recording.missing)
        for name, problem in recording.unreadable.items():
            yield name, "fail", f"left out: {problem}"
        if not record.runner:
            text = f"unknown; an iteration is {clocks}, and not cross-checked"
            yield "runner", "note", text
    else:
        done = len({(s.threads, s.process, s.traced) for s in record.sessions if s.complete})
        planned = 2 * len(record.plan.threads) * record.plan.processes
        # Where the seconds decide, the number of restarts is not known in advance.
        counted = record.plan.processes and not record.plan.budget_s
        steps = f"{done} of {planned} steps" if counted else f"{done} steps"
        status = "ok" if record.state == "complete" else "note"
        yield "run is complete", status, f"{record.state}, {steps} measured"
        yield "runner", "ok", f"{record.runner.get('kind')} runner; an iteration is {clocks}"
    for name, consequence in record.missing.items():
        yield name, "note", consequence
    if how := record.plan.direction:
        yield "baseline", "note" if how == BY_ORDER else "ok", how


def describe_noise(export: Export | None) -> str:
    """How large the errors of a quantised program are; empty if they are small or unknown."""
    ratio = export.sqnr_db if export else None
    if ratio is None or ratio >= LOW_SQNR:
        return ""
    error = format_share(10 ** (-ratio / 20))
    return f"outputs differ from the PyTorch model's by {error} (RMS; SQNR {ratio:.1f} dB)"


def check_program(
    subject: str, export: Export | None, dtypes: pd.DataFrame | None
) -> Iterator[Row]:
    """Whether an exported program computes what its model does, and in the dtype asked for."""
    name = f"outputs of {subject}"
    ratio = export.sqnr_db if export else None
    if export and export.problem:
        yield name, "fail", export.problem
    elif ratio is not None:
        status = "note" if (noise := describe_noise(export)) else "ok"
        yield name, status, noise or f"SQNR against eager at least {ratio:.1f} dB"
    elif export and export.fidelity:
        yield name, "ok", "outputs equal"
    if export and export.differences:
        yield f"changes of {subject}", "note", "; ".join(export.differences)
    if dtypes is not None:
        status = "note" if dtypes["reason"].any() else "ok"
        yield f"dtype of {subject}", status, describe_dtypes(dtypes)
    if export and export.missing:
        missing = "; ".join(f"{name}: {reason}" for name, reason in export.missing.items())
        yield "parts of the export", "note", f"without {missing}"


def check_toggle_effect(
    hidden: Collection[str], renamed: int, proof: Proof | None, lack: str
) -> tuple[str, str]:
    """Whether hiding CPU features changed which code ran.

    ``renamed`` operators log another kernel; ``lack`` says why there is no ``proof``.
    """
    if not hidden:
        return "fail", "no CPU feature was hidden from the baseline"
    names = f"; {plural(renamed, 'operator')} with another kernel" if renamed else ""
    status = "ok"
    if proof is None:  # no objection
        code = lack
    elif proof.outcome == "not shown":
        status = "note"
        code = f"not shown: {sum(proof.samples)} samples are too few to tell the code apart"
    else:
        sides = " against ".join(
            ", ".join(f"{100 * share:.0f} % {code}" for code, share in [*side.items()][:2])
            for side in (proof.after, proof.before)
        )
        code = (
            f"{100 * proof.appeared:.0f} % of its time is in functions that the baseline did not "
            f"run ({sides}; {sum(proof.samples)} samples)"
        )
    return status, f"hidden from the baseline: {', '.join(sorted(hidden))}{names}; {code}"


def check_outputs(agreements: Sequence[Agreement], models: str = "") -> tuple[str, str]:
    """Whether the outputs of two sides agree; ``models`` speaks against their being of one."""
    note = "" if agreements else "no outputs recorded"
    if note := next((a.note for a in agreements if a.note), note):
        return "note", f"not compared: {note}"
    worst = max(agreements, key=lambda a: (not a.agree, (a.max_abs or 0) / (a.scale or 1)))
    if worst.scale == 0:
        return "note", "every output is zero: nothing to compare"
    apart = "at different places" if worst.max_abs is None else f"{worst.max_abs:.2g}"
    evidence = (
        f"largest difference {apart}, largest value {worst.scale:.3g}, "
        f"tolerated {worst.tolerance:g} of that ({worst.dtype})"
    )
    if worst.sqnr_db is not None:
        evidence = f"SQNR {worst.sqnr_db:.1f} dB, at least {worst.least_sqnr_db:.0f} expected"
    if all(a.agree for a in agreements):
        return "ok", evidence
    if models:
        return "note", f"{evidence}; {models}"
    return "fail", evidence


def check_ledger(ledger: pd.DataFrame, closed: Sequence[np.ndarray]) -> Row:
    """Whether the rows of every traced run add up to ``Method::execute``."""
    runs, open_runs = sum(map(len, closed)), sum(int((~part).sum()) for part in closed)
    if open_runs:
        text = f"the rows of {open_runs} of {plural(runs, 'run')} do not add up"
        return "ledger closes", "fail", text
    lowest = ledger["duration_ns"].min() / 1e3
    rounding = f"; lowest row {lowest:.1f} us, from rounding" if lowest < 0 else ""
    return "ledger closes", "ok", f"{plural(runs, 'run')}, rows sum to Method::execute{rounding}"


def check_traces(ledger: pd.DataFrame, times: Sequence[Times]) -> Row:
    """Whether most traced runs, without warm-up, were undisturbed; unknown without CPU times."""
    used = ledger.groupby([*SOURCE, "run"], sort=False).ngroups
    traced = sum(len(each.inferences) for each in times)
    if not any(each.is_timed for each in times):
        text = f"not known without CPU times: the middle half is used, {used} of {traced} runs"
        return "traces are undisturbed", "note", text
    status = "ok" if used / traced > UNDISTURBED_LEAST else "note"
    return "traces are undisturbed", status, f"{used} of {traced} traced runs were used"

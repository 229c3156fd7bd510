"""How good a measurement is, from A to D, and whether its numbers can be trusted."""

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import pandas as pd

from workbench.analysis.dtypes import describe_dtypes
from workbench.analysis.foreign import Recording
from workbench.analysis.statistics import (
    blocks_of,
    clock_of,
    half_width,
    pick_timed,
    restart_latencies,
)
from workbench.emulation import EMULATED
from workbench.frames import QUALITY, SOURCE
from workbench.records.exports import Export
from workbench.records.pairing import BY_ORDER
from workbench.records.runs import Agreement, Proof, RunRecord, Session
from workbench.wording import format_ratio, format_share, plural

GRADES = "ABCD"
NO_WIN = "D"  #: The grade of a measurement whose speed-up does not count.
#: Other programs that took more than this part of the time make a grade worse than an A.
BUSY = 0.10
#: A tracer that costs more than this moves the shares it measures.
TRACER_LIMIT = 0.05
#: A latency whose interval reaches further, as a part of it, shows nothing; a caveat says how far
#: shares may be off if that is further (chosen, not benchmarked).
USELESS = (0.5, 0.05)
#: Parts below zero that take more than this of the whole, together, are not rounding.
IMPOSSIBLE = 0.03


#: What makes a measurement better or worse: the largest values for grades A, B and C, their unit
#: (``%`` of a fraction, ``of 5`` for what is missing to five), and where these limits come from.
CRITERIA = {
    "half width of the interval": (
        (0.01, 0.02, 0.05), "%", "latencies within 2 % of each other are called unchanged",
    ),
    "A/A control": (
        (0.02, 0.05, 0.10), "%",
        "how far two equal experiments differed; within 2 % is called unchanged",
    ),
    "interval of the latency": (
        (0.025, 0.06, 0.12), "%",
        "half of its width: of five restarts 1.24 times their standard deviation. What the core "
        "and the moment of a restart do to all experiments alike cancels in a speed-up",
    ),
    "restarts": (
        (0, 2, 3), "of 5",
        "an interval is ± 1.2 standard deviations of five restarts, 2.5 of three, 9.0 of two",
    ),
    "drift within a restart": (
        (0.02, 0.05, 0.10), "%", "steady drift cancels in a speed-up; the limits are a judgement",
    ),
    "time taken by other programs": (
        (BUSY, 0.50, 0.90), "%",
        "in trials, no verdict was false while others took more than half: both sides are "
        "interleaved, in CPU time",
    ),
    "tracer overhead": (
        (0.02, TRACER_LIMIT, 0.10), "%",
        "what tracing takes beyond what is known of it; it may move shares, not latencies",
    ),
    "spread of the clock frequency": (
        (0.05, 0.10, 0.20), "%", "what all experiments share cancels in a speed-up",
    ),
    "throttling events": ((0, 0, 10), "", "the kernel's count, or Android's status"),
    "latency only from traces": ((0, 1, 1), "", "custom runners report no untraced latency"),
    "emulated": ((0, 0, 0), "", "an emulator's times do not show speed"),
}  # fmt: skip
#: What raises the grade. Options are not named: not every command that states a grade has them.
REMEDIES = {
    "half width of the interval": "measure longer",
    "restarts": "measure five restarts or more",
    "drift within a restart": "warm up longer, and let the machine cool down first",
    "tracer overhead": "measure a larger input",
    "spread of the clock frequency": "fix the clock (the governor `performance`)",
    "throttling events": "let the device cool down first",
    "latency only from traces": "measure with the workbench's own runner",
    "emulated": "measure on real hardware",
} | dict.fromkeys(
    ("A/A control", "interval of the latency", "time taken by other programs"),
    "stop other programs",
)
#: What other programs can make worse: if they took much of the time, they are the cause.
DISTURBED = frozenset(
    {name for name, remedy in REMEDIES.items() if remedy == "stop other programs"}
    | {"half width of the interval", "drift within a restart"}
)


def grade_run(
    record: RunRecord,
    latencies: pd.DataFrame,
    comparisons: pd.DataFrame,
    tracer_overhead: float = math.nan,
) -> pd.DataFrame:
    """Every criterion that a run can be judged by, the worst first: ``frames.QUALITY``."""
    timed = pick_timed(latencies)
    floors = comparisons["floor"]
    widths = np.log(comparisons["high"] / comparisons["low"]) / 2
    values = {
        "half width of the interval": float(widths.max(skipna=False)) if len(widths) else math.nan,
        "A/A control": float(floors[np.isfinite(floors) & (floors > 0)].max()),
        "interval of the latency": _typical_width(timed),
        "restarts": max(0, 5 - timed["process"].nunique()),
        "drift within a restart": measure_drift(timed),
        "time taken by other programs": preempted_share(record.sessions),
        "tracer overhead": tracer_overhead,
        "latency only from traces": int(bool(timed["traced"].all())),
        "emulated": int(record.emulated),
        **dict(_of_readings(record)),
    }
    if not record.runner:  # of another tool's recording, it is unknown
        values["emulated"] = math.nan
    notes = {"interval of the latency": compare_cores(record.sessions, timed)}
    if tracer_overhead < 0:
        notes["tracer overhead"] = "less than the noise"
    rows = [
        _row(name, value, notes.get(name, ""))
        for name, value in values.items()
        if not math.isnan(value)
    ]
    if math.isnan(values["half width of the interval"]):
        rows.append(_row("half width of the interval", math.inf))
    table = pd.DataFrame(rows, columns=QUALITY.names)
    table = table.sort_values("grade", ascending=False, kind="stable").reset_index(drop=True)
    return QUALITY.check(table)


def is_disturbed(quality: pd.DataFrame) -> bool:
    """Whether a grade of C or D comes from what other programs can make worse."""
    poor = quality["grade"].isin(["C", "D"])
    return bool((poor & quality["criterion"].isin(DISTURBED)).any())


def summarize_quality(quality: pd.DataFrame, *, busy: bool = False) -> str:
    """The grade in one line: ``measurement quality B: restarts 4 of 5 (5 of 5 for an A)``.

    From C on, with what raises it. Of a ``busy`` machine, `workbench.analysis.use.describe_use`
    has the cause and the remedy: the line has what else there is.
    """
    grade = quality["grade"].iloc[0]
    worst = quality[quality["grade"] == grade]
    if busy:
        worst = worst[~worst["criterion"].isin(DISTURBED)]
    if grade == "A" or worst.empty:
        return f"measurement quality {grade}"
    why = [f"{row.criterion} {row.value} ({row.limit} for an A)" for row in worst.itertuples()]
    remedies = dict.fromkeys(REMEDIES[criterion] for criterion in worst["criterion"])
    raised = f"; to raise it: {'; '.join(remedies)}" if grade in "CD" else ""
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


def _relative_restarts(timed: pd.DataFrame) -> pd.DataFrame:
    """The latency of every restart over the mean of all, by process and measurement."""
    parts = timed.groupby(["experiment", "threads"])
    restarts = pd.DataFrame({key: restart_latencies(part) for key, part in parts})
    return restarts / restarts.mean()


def _typical_width(timed: pd.DataFrame) -> float:
    """Half the width of the latency's 95 % interval, as a part of it: the median of all sides."""
    widths = half_width(_relative_restarts(timed).to_numpy())
    return float(np.median(widths)) if widths.size else math.nan


def compare_cores(sessions: Sequence[Session], timed: pd.DataFrame) -> str:
    """The slowest core against the fastest, if the cores explain the scatter; else empty.

    They do if nine tenths of the variance between restarts is between cores, which by chance
    happens in 1.4 % of five restarts on two cores.
    """
    cores = {s.process: s.core for s in sessions if s.complete and s.core is not None}
    restarts = _relative_restarts(timed[timed["threads"] == 1]).mean(axis=1)
    restarts = restarts[restarts.index.isin(list(cores))]
    core = restarts.index.map(cores)
    by_core = restarts.groupby(core).agg(["mean", "size"])
    if len(by_core) < 2 or len(restarts) < len(by_core) + 3:
        return ""
    between = restarts.groupby(core).transform("mean").var(ddof=0)
    if not between > 0.9 * restarts.var(ddof=0):
        return ""
    slow, fast = by_core["mean"].idxmax(), by_core["mean"].idxmin()
    ratio = by_core["mean"].max() / by_core["mean"].min()
    return f"core {slow} takes {format_ratio(ratio)}x as long as core {fast}"


def measure_drift(timed: pd.DataFrame) -> float:
    """How far latency wandered from the first to the last third of a restart's rounds.

    The median over restarts and experiments of the distance of the two thirds' medians, as a
    fraction; NaN where there are fewer than three rounds.
    """
    drifts = []
    for _, part in timed.groupby(["experiment", "threads", "process"]):
        rounds = part.groupby("round")[clock_of(part)].median()
        third = len(rounds) // 3
        if third:
            first, last = rounds.iloc[:third].median(), rounds.iloc[-third:].median()
            drifts.append(abs(math.log(last / first)) if first > 0 and last > 0 else math.nan)
    return float(np.median(drifts)) if drifts else math.nan


def preempted_share(sessions: Sequence[Session]) -> float:
    """The part of the wall time of untraced runs with one thread in which others had the core."""
    alone = [s for s in sessions if s.complete and not s.traced and s.threads == 1]
    batches = [batch for session in alone for batch in session.batches]
    wall, cpu = (sum(sum(getattr(b, clock)) for b in batches) for clock in ("wall_ns", "cpu_ns"))
    return max(0.0, 1 - cpu / wall) if wall else math.nan


def _of_readings(run: RunRecord) -> Iterator[tuple[str, float]]:
    clocks = [reading.mhz for reading in run.readings if reading.mhz]
    if len(clocks) > 1:
        yield "spread of the clock frequency", max(clocks) / min(clocks) - 1
    counts = [reading.throttled for reading in run.readings if reading.throttled is not None]
    statuses = [r.thermal_status for r in run.readings if r.thermal_status is not None]
    if counts or statuses:
        events = max(counts, default=0) - min(counts, default=0)
        yield "throttling events", events + sum(status > 0 for status in statuses)


def _row(name: str, value: float, note: str = "") -> tuple[str, str, str, str, str]:
    limits, unit, source = CRITERIA[name]
    grade = GRADES[sum(abs(value) > limit for limit in limits)]
    shown = _text(value, unit) + (f", {note}" if note else "")
    return name, shown, grade, _text(limits[0], unit), source


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
    """The criteria of ``frames.QUALITY`` as checks; grades C and D are worth a note."""
    for row in quality.itertuples():
        status = "note" if row.grade in "CD" else "ok"
        if row.criterion != "emulated":
            yield row.criterion, status, f"{row.value} ({row.limit} for an A)"
        elif status == "note":
            yield row.criterion, "fail", EMULATED


def is_foreign(record: RunRecord) -> bool:
    """Whether only traces are known, as of custom runners and other tools' recordings."""
    return record.runner.get("kind") in (None, "executor_runner")


def check_state(record: RunRecord, recording: Recording | None) -> Iterator[Row]:
    """Whether all was measured, by which runner, and how baselines were chosen."""
    foreign = is_foreign(record)
    if recording:
        yield "recorded by", "note", recording.source
        yield "not recorded", "note", ", ".join(recording.missing)
        for name, problem in recording.unreadable.items():
            yield name, "fail", f"left out: {problem}"
    else:
        done = len({(s.threads, s.process, s.traced) for s in record.sessions if s.complete})
        planned = (1 if foreign else 2) * len(record.plan.threads) * record.plan.processes
        # Where the seconds decide, the number of restarts is not known in advance.
        counted = record.plan.processes and not record.plan.budget_s
        steps = f"{done} of {planned} steps" if counted else f"{done} steps"
        status = "ok" if record.state == "complete" else "note"
        yield "run is complete", status, f"{record.state}, {steps} measured"
    clocks = ", ".join(sorted({session.clock for session in record.sessions}))
    if foreign:
        kind = "custom runners" if record.runner else "unknown"
        yield "runner", "note", f"{kind}; an iteration is {clocks}, and not cross-checked"
    else:
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
    return f"SQNR against eager at least {ratio:.1f} dB: the error is {error} of the output (RMS)"


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


def check_traces(ledger: pd.DataFrame, traced: int, *, is_timed: bool) -> Row:
    """Whether most traced runs, without warm-up, were undisturbed; unknown without CPU times."""
    used = ledger.groupby([*SOURCE, "run"], sort=False).ngroups
    if not is_timed:
        text = f"not known without CPU times: the middle half is used, {used} of {traced} runs"
        return "traces are undisturbed", "note", text
    status = "ok" if used / traced > UNDISTURBED_LEAST else "note"
    return "traces are undisturbed", status, f"{used} of {traced} traced runs were used"

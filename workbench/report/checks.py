"""Whether the numbers of a run can be trusted: one row per check, with its evidence."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from workbench.analyze import clock_of, grade_run, pick_timed, summarize_quality
from workbench.emulation import EMULATED
from workbench.records import Run, count_threads
from workbench.report.analysis import Analysis, Comparison
from workbench.report.evidence import explain_lack, is_toggled
from workbench.report.notes import show_note
from workbench.show import Sheet, format_share, show_table

#: A tracer that costs more than this moves the shares it measures.
TRACER_LIMIT = 0.05
#: More inferences than this were interrupted by another program.
PREEMPTED_LIMIT = 0.10
#: With fewer undisturbed traced runs than this, the shares are blurred.
QUIET_LEAST = 0.6


def check_run(analysis: Analysis) -> pd.DataFrame:
    """Look at everything that could make the numbers of a run wrong.

    Returns
    -------
    DataFrame
        ``check``, ``status`` (``ok``, ``note`` or ``fail``), ``evidence``.
    """
    rows = [
        _state(analysis),
        *_platform(analysis),
        *_export(analysis),
        *(row for comparison in analysis.comparisons for row in _comparison(analysis, comparison)),
        *_outputs(analysis),
        _ledger(analysis),
        *_tracer(analysis),
        _quiet(analysis),
        _preemption(analysis),
    ]
    return pd.DataFrame(rows, columns=["check", "status", "evidence"])


Row = tuple[str, str, str]


def is_foreign(run: Run) -> bool:
    """Whether runners of one's own were measured, of which only the traces tell."""
    return run.runner.get("kind") == "executor_runner"


def _state(analysis: Analysis) -> Row:
    run = analysis.run
    passes = 1 if is_foreign(run) else 2
    steps = passes * len(run.plan.threads) * run.plan.processes
    done = len({(s.threads, s.process, s.traced) for s in run.sessions if s.complete})
    status = "ok" if run.state == "complete" else "note"
    return "run is complete", status, f"{run.state}, {done} of {steps} steps measured"


def _platform(analysis: Analysis) -> Iterator[Row]:
    run = analysis.run
    if run.emulated:
        yield "real silicon", "fail", EMULATED
    clocks = ", ".join(sorted({session.clock for session in run.sessions}))
    if is_foreign(run):
        yield "runner", "note", f"runners of one's own; a lap is {clocks}, and not checked against"
    elif run.runner.get("kind") == "python":
        reason = run.runner.get("reason", "")
        yield "runner", "note", f"Python runner ({reason}), a lap is {clocks}"
    else:
        yield "runner", "ok", f"{run.runner.get('kind')} runner, a lap is {clocks}"


def _export(analysis: Analysis) -> Iterator[Row]:
    """Whether the exported program computed what the model does, where that was looked at."""
    export = analysis.run.export
    name = "the program computes what the model does"
    if export and export.problem:
        yield name, "fail", export.problem
    elif export and export.fidelity:
        found = [f.sqnr_db for f in export.fidelity if f.sqnr_db is not None]
        evidence = f"SQNR against eager at least {min(found):.0f} dB" if found else "outputs equal"
        yield name, "ok", evidence


def _comparison(analysis: Analysis, comparison: Comparison) -> Iterator[Row]:
    pair, row = comparison.pair, comparison.latency.iloc[0]
    name = f"{pair.candidate} against {pair.baseline}, {comparison.text_threads}"
    if math.isfinite(row["floor"]) and row["floor"] > 0:
        status = "ok" if row["floor"] < 0.05 else "note"
        evidence = f"A/A control differs by at most {format_share(row['floor'], 1)}"
        yield f"noise floor of {name}", status, evidence
    yield f"toggle took effect in {name}", *_toggle(analysis, comparison)


def _toggle(analysis: Analysis, comparison: Comparison) -> tuple[str, str]:
    pair = comparison.pair
    runners = {e.name: e.runner for e in analysis.run.plan.experiments}
    if runners[pair.baseline] != runners[pair.candidate]:
        return _by_names(comparison)
    if not is_toggled(analysis.run, pair):
        return "ok", "none wanted: both sides are the same"
    hidden = _masked(analysis, pair.baseline) - _masked(analysis, pair.candidate)
    if not hidden:
        return "fail", "no CPU feature was hidden from the baseline"
    if comparison.verdict.unchanged:
        # That a rung brings nothing to a model is what a ladder is climbed to find out.
        status = "fail" if analysis.ladder is None else "note"
        return status, f"no: {comparison.verdict.unchanged}"
    renamed = count_renamed(comparison)
    names = f"; {renamed} operators log another kernel" if renamed else ""
    code, proven = _code(analysis, comparison)
    evidence = f"hidden from the baseline: {', '.join(sorted(hidden))}{names}; {code}"
    return "ok" if proven else "note", evidence


def _code(analysis: Analysis, comparison: Comparison) -> tuple[str, bool]:
    """What the samples say of the machine code of both sides, and whether it is proven to differ.

    Without any evidence, nothing is held against the run.
    """
    proof = comparison.proof
    if proof is None:
        return explain_lack(analysis.run), True
    if proof.outcome == "not shown":
        return f"not shown: {sum(proof.samples)} samples are too few to tell the code apart", False
    sides = " against ".join(
        ", ".join(f"{100 * share:.0f} % {code}" for code, share in [*side.items()][:2])
        for side in (proof.after, proof.before)
    )
    return (
        f"{100 * proof.appeared:.0f} % of its time is in functions that the baseline did not run "
        f"({sides}; {sum(proof.samples)} samples)",
        True,
    )


def _by_names(comparison: Comparison) -> tuple[str, str]:
    """What the logged names say of two runners, of which nothing else is known."""
    if renamed := count_renamed(comparison):
        return "ok", f"{renamed} operators log another kernel"
    return "note", "two runners, and not one operator logs another kernel"


def count_renamed(comparison: Comparison) -> int:
    """How many operators bear another logged name in the candidate."""
    both = comparison.operators.dropna(subset=["candidate_ms", "baseline_ms"])
    return int((both["name"] != both["candidate_name"]).sum())


def _masked(analysis: Analysis, experiment: str) -> set[str]:
    """Features that were hidden in every process of an experiment."""
    masks = [set(s.masked) for s in analysis.run.sessions if s.experiment == experiment]
    return set.intersection(*masks) if masks else set()


def _outputs(analysis: Analysis) -> Iterator[Row]:
    for pair, threads in ((c.pair, c.threads) for c in analysis.comparisons):
        found = [
            a
            for a in analysis.run.agreements
            if (a.baseline, a.candidate, a.threads) == (pair.baseline, pair.candidate, threads)
        ]
        name = f"outputs of {pair.candidate} and {pair.baseline} agree, {count_threads(threads)}"
        if not found:
            yield name, "note", "not compared"
            continue
        worst = max(found, key=lambda a: (not a.agree, (a.max_abs or 0) / (a.scale or 1)))
        apart = "at different places" if worst.max_abs is None else f"{worst.max_abs:.2g}"
        evidence = (
            f"largest difference {apart}, largest value {worst.scale:.3g}, "
            f"tolerated {worst.tolerance:g} of that ({worst.dtype})"
        )
        if worst.scale == 0:
            yield name, "note", "every output is zero: nothing to compare"
        else:
            yield name, "ok" if all(a.agree for a in found) else "fail", evidence


def _ledger(analysis: Analysis) -> Row:
    runs = analysis.ledger.groupby(["experiment", "threads", "process", "run"], sort=False)
    lowest = analysis.ledger["duration_ns"].min() / 1e3
    rounding = f"; lowest row {lowest:.1f} us, from rounding" if lowest < 0 else ""
    return "ledger closes", "ok", f"{runs.ngroups} runs, rows sum to Method::execute{rounding}"


def _quiet(analysis: Analysis) -> Row:
    runs = analysis.ledger.groupby(["experiment", "threads", "process", "run"], sort=False)
    traced = int(analysis.latencies["traced"].sum())
    share = runs.ngroups / traced
    status = "ok" if share > QUIET_LEAST else "note"
    return "traces are quiet", status, f"{runs.ngroups} of {traced} traced runs were used"


def _tracer(analysis: Analysis) -> Iterator[Row]:
    for (experiment, threads), cost in tracer_overhead(analysis).items():
        status = "ok" if cost < TRACER_LIMIT else "note"
        yield (
            f"tracing {experiment} is cheap, {count_threads(threads)}",
            status,
            f"{format_share(cost, 1)} latency",
        )


def tracer_overhead(analysis: Analysis) -> dict[tuple[str, int], float]:
    """How much longer traced inferences take, as a fraction, by experiment and thread count."""
    found = {}
    for (experiment, threads), part in analysis.latencies.groupby(["experiment", "threads"]):
        median = part.groupby("traced")[clock_of(part)].median()
        if experiment in analysis.experiments and {True, False} <= set(median.index):
            found[experiment, threads] = median[True] / median[False] - 1
    return found


def grade_quality(analysis: Analysis) -> pd.DataFrame:
    """How good the measurement is, as ``schema.QUALITY``; the first row's grade is the run's."""
    rows = [c.latency for c in analysis.comparisons]
    latencies = pd.concat(rows, ignore_index=True)
    overhead = max(tracer_overhead(analysis).values(), default=math.nan)
    return grade_run(analysis.run, analysis.latencies, latencies, overhead)


def describe_quality(analysis: Analysis) -> str:
    """The grade in one line, with what keeps it from being better."""
    return summarize_quality(grade_quality(analysis))


def show_quality(analysis: Analysis) -> Sheet:
    """The grade of a measurement in a sentence, and every criterion."""
    quality = grade_quality(analysis)
    grade = f"{summarize_quality(quality)}."
    return Sheet(show_note(grade[0].upper() + grade[1:]), show_table(quality))


def _preemption(analysis: Analysis) -> Row:
    if is_foreign(analysis.run):
        return (
            "machine was quiet",
            "note",
            "unknown: these runners do not tell who interrupted them",
        )
    share = (pick_timed(analysis.latencies)["preempted"] > 0).mean()
    status = "ok" if share < PREEMPTED_LIMIT else "note"
    return (
        "machine was quiet",
        status,
        f"{format_share(share, 1)} of the inferences were interrupted",
    )

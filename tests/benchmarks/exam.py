"""Are the known performance problems of ExecuTorch found, and do their fixes gain what is promised?

Every case of ``_exam.py`` is exported with its cause and with its fix; both are measured
interleaved in one run. Promises of remedies are tried. The table has the rank of the finding, the
gain that it promises with its interval, and what the fix brought, with Student's 95 % interval over
the restarts. Where the finding has another remedy than the fix, its promise is held against what
that brings. Another remedy that was tried and gains as much is an answer, too; a fix that brings
less than 1 % need not be named.

    python tests/benchmarks/exam.py [--folder FOLDER] [--write PAGE] [NAME...]

With ``--folder``, exports and runs stay there, and the next call resumes. Exits with 1 if fewer
than 90 % are found in the first three, or fewer than 80 % of the intervals overlap.
"""

import argparse
import math
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from _exam import ANSWERS, CASES
from _pages import read_sections, write_section
from _runs import resume

import workbench as wb
from workbench.analysis.findings.finding import LEAST_SHARE
from workbench.analysis.findings.text import describe_action
from workbench.errors import ExportError
from workbench.remedies import REMEDIES

LEAST_FOUND, LEAST_INSIDE = 0.9, 0.8
#: Ranks of findings, or what else is an answer.
ANSWERED = (1, 2, 3, "the error", "refused", "gains nothing")


def build(case, fixed=False):
    """The network of a case and its inputs, with its cause or with its fix."""
    torch.manual_seed(0)
    module, inputs = (case.after if fixed and case.after else case.before)()
    return module.eval(), inputs


def export(case, folder, name="", fixed=False, **options):
    """The program of a case, with its cause, with its fix, or with other options."""
    module, inputs = build(case, fixed)
    name = "_".join(filter(None, ("".join(c if c.isalnum() else "_" for c in case.name), name)))
    options = wb.ExportOptions(**case.options | options)
    quiet = lambda text, fraction: None  # noqa: E731
    return wb.export_model(module, inputs, options, name=name, root=folder, progress=quiet)


def measure(case, folder, options):
    """Both sides of a case, the findings about the first one, and both sides of the promise."""
    before, after = export(case, folder), export(case, folder, "fixed", fixed=True, **case.fix)
    one, other = case.threads
    options = replace(options, threads=tuple(sorted({one, other})))
    if one != other:
        run = resume(folder, [before], options)
        sides = run[run.subject.name, one], run[run.subject.name, other]
        return sides, sides[0].opportunities, sides
    sides = measure_sides(folder, [before, after], options)
    alone = resume(folder / "alone", [before], options)
    wb.check_findings(alone, *build(case))
    findings = wb.open_run(alone.path).subject.opportunities
    remedies = [each.remedy for each in findings if names(case, each)]
    remedies += [each.remedy for each in findings if each.gain.basis == "checked"]
    remedy = remedies[0] if remedies else ""
    if remedy not in REMEDIES or case.fix.get("rewrite") == (remedy,):
        return sides, findings, sides
    changed = export(case, folder, remedy, rewrite=(remedy,))
    return sides, findings, measure_sides(folder / remedy, [before, changed], options)


def measure_sides(folder, programs, options):
    """Two programs side by side."""
    run = resume(folder, programs, options)
    return tuple(run[experiment.name, 1] for experiment in run.record.plan.experiments[:2])


def describe_fix(case):
    """The options that fix a case; who applies them, if not the user."""
    if not case.fix:
        return "fewer threads" if case.threads[0] > case.threads[1] else "change the model"
    (name, value), *_ = case.fix.items()
    words = " ".join(value) if isinstance(value, tuple) else "" if value is True else str(value)
    return f"`--{name.replace('_', '-')} {words}".rstrip() + "`"


def describe_promise(finding):
    """The gain of a finding in words, with its interval or its bound."""
    gain = finding.gain
    if math.isnan(gain.ms):
        return f"at most {gain.high:.3g}"
    return f"{gain.ms:.3g} [{gain.low:.3g}, {gain.high:.3g}]"


def scale_gain(gain, scale):
    """A gain at a moment at which all takes so many times as long."""
    return replace(gain, ms=scale * gain.ms, low=scale * gain.low, high=scale * gain.high)


def names(case, finding):
    """Whether a finding, or one that it explains, names the cause of a case."""
    if case.remedy:
        return finding.remedy == case.remedy
    if any(names(case, other) for other in finding.also):
        return True
    if (finding.remedy,) == case.fix.get("rewrite"):
        return True
    said = case.word in finding.cause or case.word in describe_action(finding)
    return said and (finding.rule == case.rule or (finding.rule == "remedy" and case.word != ""))


def read_gain(before, after):
    """What one side gains over another in ms, between which values, and the time before."""
    row = wb.compare(before, after, across=["program", "threads"]).latency.iloc[0]
    ms = float(row["baseline_ms"])
    return *(ms * (1 - 1 / float(row[end])) for end in ("speedup", "low", "high")), ms


def judge(case, sides, findings, promised):
    """One row of the table: what was promised, and what came of it."""
    gain, low, high, ms = read_gain(*sides)
    result = {
        "issue": case.issue,
        "thread": case.thread,
        "fix": describe_fix(case),
        "latency ms": f"{ms:.3g}",
        "measured ms": f"{gain:.3g} [{low:.3g}, {high:.3g}]",
    }
    ranks = [rank for rank, finding in enumerate(findings, 1) if names(case, finding)]
    ranks = ranks or [
        rank
        for rank, finding in enumerate(findings, 1)
        if finding.gain.basis == "checked" and finding.gain.high >= low > 0
    ]
    if not ranks and high < LEAST_SHARE * ms:
        return result | {"rank": "gains nothing"}
    if not ranks:
        first = findings[0].cause[:60] if findings else ""
        return result | {"rank": "not found", "first": first}
    finding, trial = findings[ranks[0] - 1], findings[ranks[0] - 1].trial
    if promised != sides:
        gain, low, high, _ = read_gain(*promised)
        result["with the remedy ms"] = f"{gain:.3g} [{low:.3g}, {high:.3g}]"
    if trial and trial.answer in ("loses", "not shown"):
        return result | {
            "rank": "refused" if trial.answer == "loses" else ranks[0],
            "promised ms": f"{trial.answer} [{trial.low_ms:.3g}, {trial.high_ms:.3g}]",
            "overlap": "yes" if low <= max(trial.high_ms, LEAST_SHARE * ms) else "no",
        }
    # A promise is a part of the latency, which may be another one at the moment of both sides.
    now = replace(finding, gain=scale_gain(finding.gain, ms / finding.latency_ms))
    ends = np.nan_to_num(now.gain.low), now.gain.high
    if finding.gain.basis == "refused":
        ends = 0.0, LEAST_SHARE * ms
    return result | {
        "rank": ranks[0],
        "promised ms": describe_promise(now),
        "overlap": "yes" if low <= ends[1] and high >= ends[0] else "no",
        "where": finding.place,
    }


def judge_error(case, text, folder):
    """The row of a network that ExecuTorch does not run: whether the error names what does."""
    export(case, folder, "fixed", fixed=True, **case.fix)
    row = {"issue": case.issue, "thread": case.thread, "fix": describe_fix(case)}
    given = re.search(r"--rewrite (\S+) may avoid it", text)
    named = given is not None and set(case.fix["rewrite"]) <= set(given[1].split(","))
    return row | {"measured ms": "it runs", "rank": "the error" if named else "not found"}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--write", type=Path, help="the page whose tables are replaced")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    options = wb.MeasureOptions(
        toggle="none", runs=given.runs, processes=given.processes, evidence=False, cold_start=False
    )
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for case in CASES:
            if given.names and case.name not in given.names:
                continue
            folder = (given.folder or Path(scratch)) / case.name.replace(" ", "_")
            try:
                rows.append(judge(case, *measure(case, folder, options)))
            except ExportError as error:  # ExecuTorch does not run it, and the error is the answer
                rows.append(judge_error(case, str(error), folder))
            print(case.name, rows[-1], flush=True)
    table = pd.DataFrame(rows)
    print(table.to_markdown(index=False))
    first = table["rank"].isin(ANSWERED).mean()
    inside = (table["overlap"].dropna() == "yes").mean()
    print(f"{100 * first:.0f} % in the first three, {100 * inside:.0f} % of the intervals overlap")
    if given.write:
        columns = ["issue", "thread", "command", "answer"]
        answers = [(*a[:2], f"`{a[2]}`", a[3]) for a in ANSWERS]
        asked = pd.DataFrame(answers, columns=columns).to_markdown(index=False)
        kept = table.drop(columns=["first", "where", "overlap"], errors="ignore").fillna("")
        head = read_sections(given.write)[""].partition("\n| ")[0].strip()
        write_section(given.write, "", f"{head}\n\n{kept.to_markdown(index=False)}")
        write_section(given.write, "Other questions", asked)
    raise SystemExit(int(first < LEAST_FOUND or inside < LEAST_INSIDE))


if __name__ == "__main__":
    main()

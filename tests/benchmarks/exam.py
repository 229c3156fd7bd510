"""Are the known performance problems of ExecuTorch found, and do their fixes gain what is promised?

Every case of ``_exam.py`` is exported with its cause and with its fix; both are measured
interleaved in one run. Promises of remedies are tried. The table has the rank of the finding, the
gain that it promises with its interval, and what the fix brought, with Student's 95 % interval over
the restarts. Another remedy that was tried and gains as much is an answer, too; a fix that brings
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

LEAST_FOUND, LEAST_INSIDE = 0.9, 0.8
#: Ranks of findings, or what else is an answer.
ANSWERED = (1, 2, 3, "the error", "refused", "gains nothing")


def export(case, fixed, folder):
    """The program of a case, with its cause or with its fix."""
    torch.manual_seed(0)
    network = case.after if fixed and case.after else case.before
    module, inputs = network()
    name = "".join(c if c.isalnum() else "_" for c in case.name) + ("_fixed" if fixed else "")
    options = wb.ExportOptions(**case.options | (case.fix if fixed else {}))
    quiet = lambda text, fraction: None  # noqa: E731
    return wb.export_model(module.eval(), inputs, options, name=name, root=folder, progress=quiet)


def measure(case, folder, options):
    """The measurements of both sides of a case, and the findings about the first one.

    Where a rewrite is the fix, the program is also measured alone, and its promises are tried.
    """
    before, after = (export(case, fixed, folder) for fixed in (False, True))
    one, other = case.threads
    programs = [before] if one != other else [before, after]
    options = replace(options, threads=tuple(sorted({one, other})))
    run = resume(folder, programs, options)
    names = [experiment.name for experiment in run.record.plan.experiments]
    sides = run[names[0], one], run[names[one == other], other]
    if "rewrite" not in case.fix:
        return *sides, sides[0].opportunities
    alone = resume(folder / "alone", [before], options)
    torch.manual_seed(0)
    module, inputs = case.before()
    wb.check_findings(alone, module.eval(), inputs)
    return *sides, wb.open_run(alone.path).subject.opportunities


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


def names(case, finding):
    """Whether a finding, or one that it explains, names the cause of a case."""
    if case.remedy:
        return finding.remedy == case.remedy
    if any(names(case, other) for other in finding.also):
        return True
    return finding.rule in (case.rule, "remedy") and (
        case.word in finding.cause or case.word in describe_action(finding)
    )


def judge(case, before, after, findings):
    """One row of the table: what was promised, and what came of it."""
    row = wb.compare(before, after, across=["program", "threads"]).latency.iloc[0]
    ms = float(row["baseline_ms"])
    gain, low, high = (ms * (1 - 1 / float(row[end])) for end in ("speedup", "low", "high"))
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
    if trial and trial.answer in ("loses", "not shown"):
        return result | {
            "rank": "refused" if trial.answer == "loses" else ranks[0],
            "promised ms": f"{trial.answer} [{trial.low_ms:.3g}, {trial.high_ms:.3g}]",
            "overlap": "yes" if low <= max(trial.high_ms, LEAST_SHARE * ms) else "no",
        }
    ends = (
        (0.0, LEAST_SHARE * ms)
        if finding.gain.basis == "refused"
        else (np.nan_to_num(finding.gain.low), finding.gain.high)
    )
    return result | {
        "rank": ranks[0],
        "promised ms": describe_promise(finding),
        "overlap": "yes" if low <= ends[1] and high >= ends[0] else "no",
        "where": finding.place,
    }


def judge_error(case, text, folder):
    """The row of a network that ExecuTorch does not run: whether the error names what does."""
    export(case, True, folder)
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

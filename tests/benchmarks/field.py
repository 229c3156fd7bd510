"""Is the product right about networks that strangers deploy, and do its remedies keep their word?

Each network of ``_field.py`` is exported and measured, and the remedies of its findings are tried
on their parts. The first of them that helps is applied to the whole network, and both are measured
interleaved. A row is right if the cause stands in the first three findings, with one of its lines
and a remedy that was expected; or if the error names it where ExecuTorch has no kernel; or if
nothing false was promised.

    python tests/benchmarks/field.py [--folder FOLDER] [--write PAGE] [NAME...]

With ``--folder``, rows stay there, and the next call adds those that are not there yet: one network
at a time, ``--only-new 1``. Exits with 1 if more than two networks are answered wrongly, fewer than
90 % of the intervals of promise and measurement overlap, or a promise is false.
"""

import argparse
import json
import math
import re
import tempfile
import warnings
from pathlib import Path

import _field
import pandas as pd
import torch
from _pages import write_section

import workbench as wb
from workbench.analysis.findings.text import describe_gain
from workbench.errors import WorkbenchError
from workbench.remedies import REMEDIES

LEAST_OVERLAP, MOST_WRONG = 0.9, 2
LINES = Path(_field.__file__).read_text().splitlines()
#: Columns that are true or false.
JUDGED = ("right", "overlap", "false")
SECTION = "Networks after public threads"
ABOUT = """Networks written after public threads, and the last seven with a planted cause
(`tests/benchmarks/field.py`). Promised is what `findings --check` measured on the parts that the
remedy changes; measured is the whole network with and without it, interleaved. Lines are those of
`tests/benchmarks/_field.py`. AMD EPYC, one of two shared cores, nothing else running.
"""


def brief(seconds):
    return wb.MeasureOptions(
        budget_s=seconds, toggle="none", evidence=False, cold_start=False, roof=False
    )


def find_lines(text):
    """The lines of ``_field.py`` that a text names, and whether one of them is a cause."""
    numbers = [int(number) for number in re.findall(r"_field\.py:(\d+)", text)]
    return numbers, any(_field.MARK in LINES[number - 1] for number in numbers)


def export(case, root, **changes):
    torch.manual_seed(0)
    module, inputs = case.make().eval(), case.inputs()
    settings = {"dtype": case.dtype, **changes}
    if case.options.get("dynamic"):
        batch = torch.export.Dim("batch", min=1, max=15)
        module.get_dynamic_shapes = lambda: (({0: batch},),)
    quiet = lambda text, fraction: None  # noqa: E731
    options = wb.ExportOptions(**settings)
    program = wb.export_model(module, inputs, options, name="net", root=root, progress=quiet)
    return program, module, inputs


def choose(case, findings):
    """The finding of a case's cause; else the first one with a remedy that was shown to help."""
    for rank, finding in enumerate(findings[:3], 1):
        if finding.remedy in case.remedies or (case.word and case.word in finding.cause):
            return rank, finding
    helping = [pair for pair in enumerate(findings, 1) if pair[1].gain.basis == "checked"]
    return helping[0] if helping else (0, None)


def apply(case, finding, program, folder):
    """What the remedy of a finding brings to the whole network: ms, gain and its ends, SQNR."""
    remedy = finding.remedy
    changes = {"rewrite": (remedy,)} if remedy in REMEDIES else {"dtype": remedy}
    better, *_ = export(case, folder / "better", **changes)
    run = wb.measure([program, better], options=brief(5), root=folder, progress=lambda *_: None)
    row = run.compare().latency.iloc[0]
    ms = float(row["baseline_ms"])
    return ms, *(ms * (1 - 1 / float(row[end])) for end in ("speedup", "low", "high")), better


def sum_promises(findings, remedy):
    """The gain of all findings with a remedy, and its ends."""
    gains = [each.gain for each in findings if each.remedy == remedy]
    gains = [gain for gain in gains if gain.basis == "checked"]
    gain = sum(each.ms for each in gains)
    half = math.sqrt(sum(((each.high - each.low) / 2) ** 2 for each in gains))
    return gain, gain - half, gain + half


def show(gain, low, high):
    return f"{gain:.3g} [{low:.3g}, {high:.3g}]"


def judge(case, folder):
    """One row of the table."""
    row = {"network": case.name, "thread": case.thread, "dtype": case.dtype}
    try:
        program, module, inputs = export(case, folder)
    except WorkbenchError as error:
        text = str(error)
        numbers, is_cause = find_lines(text)
        right = bool(case.error) and case.error in text and is_cause
        where = ", ".join(map(str, numbers[:2]))
        return row | {"cause": f"not exported: {text}", "line": where, "right": right}
    run = wb.measure(program, options=brief(4), root=folder, progress=lambda *_: None)
    checks = wb.check_findings(run, module, inputs, top=3, progress=lambda *_: None)
    findings = wb.open_run(run.path).opportunities
    rank, finding = choose(case, findings)
    row |= {"ms": f"{run.subject.latency_ms:.3g}", "checks": [vars(each) for each in checks]}
    row["findings"] = [f"{each.cause} | {describe_gain(each)}" for each in findings[:5]]
    if finding is None:
        return row | {"cause": "none", "right": not (case.remedies or case.word or case.error)}
    numbers, is_cause = find_lines(finding.place)
    row |= {
        "rank": rank, "cause": finding.cause, "remedy": finding.remedy,
        "line": ", ".join(map(str, numbers[:2])),
    }  # fmt: skip
    expected = not (case.remedies or case.word) or (rank <= 3 and is_cause)
    row["right"] = bool(expected and not case.error)
    if finding.gain.basis != "checked":
        return row
    ms, gain, low, high, better = apply(case, finding, program, folder)
    # A promise is a part of the latency, which may be another one at the moment of both sides.
    scale = ms / run.subject.latency_ms
    promised = [scale * end for end in sum_promises(findings, finding.remedy)]
    return row | {
        "promised ms": show(*promised),
        "measured ms": show(gain, low, high),
        "faster": f"{ms / (ms - gain):.2f}x",
        "overlap": bool(low <= promised[2] and high >= promised[1]),
        "false": bool(promised[1] > high),
        "outputs dB": None if better.export.sqnr_db is None else round(better.export.sqnr_db),
    }


def write(page, table):
    """Put the table into a page."""
    shown = table.drop(columns=["checks", "findings"], errors="ignore")
    cause = shown["cause"].str.replace(r"^(not exported: )\S+:\d* ", r"\1", regex=True)
    words = {column: shown[column].map({True: "yes", False: "no"}) for column in JUDGED}
    rank = shown["rank"].map("{:.0f}".format).where(shown["rank"].notna())
    cause = cause.str.slice(0, 90).str.replace("|", "/")
    shown = shown.assign(**words, rank=rank, cause=cause).fillna("")
    write_section(page, SECTION, f"{ABOUT}\n{shown.to_markdown(index=False)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only-new", type=int, default=len(_field.CASES), metavar="N")
    parser.add_argument("--write", type=Path, help="the page that gets the table")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    rows, new = [], 0
    with tempfile.TemporaryDirectory() as scratch:
        for case in _field.CASES:
            if given.names and case.name not in given.names:
                continue
            folder = (given.folder or Path(scratch)) / re.sub(r"\W+", "_", case.name)
            kept = folder / "row.json"
            if not kept.is_file() and new < given.only_new:
                new += 1
                row = judge(case, folder)
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps(row, default=str))
                print({k: v for k, v in row.items() if k not in ("checks", "findings")}, flush=True)
            if kept.is_file():
                rows.append(json.loads(kept.read_text()))
    table = pd.DataFrame(rows)
    wrong = int((~table["right"].astype(bool)).sum())
    tried = table.reindex(columns=["overlap", "false"]).dropna()
    overlap, false = tried["overlap"].astype(bool), int(tried["false"].astype(bool).sum())
    print(f"{len(table) - wrong} of {len(table)} right, {overlap.sum()} of {len(tried)} overlap")
    print(f"{false} promises were false")
    if given.write:
        write(given.write, table)
    share = overlap.mean() if len(tried) else 1.0
    raise SystemExit(int(wrong > MOST_WRONG or share < LEAST_OVERLAP or false > 0))


if __name__ == "__main__":
    main()

"""What the product says of published architectures with random weights, and what comes of it.

    python tests/benchmarks/architectures.py [--folder FOLDER] [--write PAGE] [NAME...]

Each network of ``_architectures.py`` is profiled as a user does; the remedies of its findings are
tried, those that were shown to help are applied together, and measured beside the network. Where
an expert's edit is known, it is measured beside the network, too. A row is right if one of the
known causes is named in the first three findings, and no promise lies above what was measured.
With ``--folder``, rows stay there, and the next call adds those that are missing. Needs timm and
transformers. Exits with 1 if more than four networks are answered wrongly.
"""

import argparse
import json
import tempfile
import time
import warnings
from pathlib import Path

import pandas as pd
import torch
from _architectures import ARCHITECTURES
from _pages import write_section

import workbench as wb
from workbench.analysis.findings.text import abridge_gain
from workbench.errors import WorkbenchError

MOST_WRONG = 4
SECTION = "Architectures"
ABOUT = """Published architectures with random weights and few layers
(`tests/benchmarks/architectures.py`): latency, the first three findings, what the remedies that
were shown to help promise together and what they bring to the whole network, what an expert's edit
brings, and the seconds of `wb.profile` and of trying. One of two shared cores of a virtual machine.
"""
BRIEF = wb.MeasureOptions(budget_s=5, toggle="none", evidence=False, cold_start=False, roof=False)


def quiet(*_):
    pass


def build(make):
    torch.manual_seed(0)
    return make()


def compare(run):
    """How many times faster the second side of a run is, with its interval."""
    row = run.compare().latency.iloc[0]
    return f"{row['speedup']:.3g}x [{row['low']:.3g}, {row['high']:.3g}]", float(row["high"])


def measure_hand(case, folder):
    """What an expert's edit brings; nothing if none is known."""
    if case.hand is None:
        return ""
    options, programs = wb.ExportOptions(**case.options), []
    for make in (case.make, case.hand):
        module, inputs = build(make)
        place = folder / ("as_written", "by_hand")[len(programs)]
        programs.append(wb.export_model(module, inputs, options, root=place, progress=quiet))
    return compare(wb.measure(programs, options=BRIEF, root=folder, progress=quiet))[0]


def judge(name, case, folder):
    """One row of the table."""
    module, inputs = build(case.make)
    options = wb.ExportOptions(**case.options)
    start = time.monotonic()
    try:
        run = wb.profile(
            module, inputs, export=options, measure=wb.MeasureOptions(toggle="none"),
            root=folder, progress=quiet,
        )  # fmt: skip
        profiled = time.monotonic()
        wb.check_findings(run, module, inputs, progress=quiet)
    except WorkbenchError as error:
        right = bool(case.error) and case.error in str(error)
        return {"network": name, "findings": [f"error: {error}"], "right": right}
    checked = time.monotonic()
    subject = wb.open_run(run.path).subject
    findings = subject.opportunities
    row = {
        "network": name,
        "ms": f"{subject.latency_ms:.3g}",
        "seconds": f"{profiled - start:.0f} + {checked - profiled:.0f}",
        "findings": [
            f"{each.remedy or each.rule}: {each.cause} ({abridge_gain(each)}); "
            f"{each.trial.answer if each.trial else 'not tried'}"
            for each in findings[:6]
        ],
    }
    helping = [each for each in findings if each.helps]
    row["applied"] = ", ".join(dict.fromkeys(each.remedy for each in helping))
    false = False
    if helping:
        potential = subject.potential  # of several, what they gained together
        row["promised"] = f"{potential.latency_ms / potential.after_ms:.3g}x"
        row["measured"], most = compare(
            wb.open_run(run.path).apply(None, module, inputs, measure=BRIEF, progress=quiet)
        )
        false = potential.latency_ms / (potential.latency_ms - potential.known.low) > most
    row["by hand"] = measure_hand(case, folder)
    named = {each.remedy for each in findings[:3]} | {each.rule for each in findings[:3]}
    row["right"] = bool(not false and (not case.remedies or named & set(case.remedies)))
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--write", type=Path, help="the page that gets the table")
    parser.add_argument("names", nargs="*", default=list(ARCHITECTURES))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in given.names:
            folder = (given.folder or Path(scratch)) / name.replace(" ", "_")
            kept = folder / "row.json"
            if not kept.is_file():
                row = judge(name, ARCHITECTURES[name], folder)
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps(row))
                print(json.dumps(row, indent=1, ensure_ascii=False), flush=True)
            rows.append(json.loads(kept.read_text()))
    table = pd.DataFrame(rows).fillna("")
    right = int(table["right"].sum())
    print(f"{right} of {len(table)} right")
    if given.write:
        first = table["findings"].map(lambda texts: "; ".join(texts[:3]).replace("|", "/"))
        shown = table.assign(findings=first, right=table["right"].map({True: "yes", False: "no"}))
        write_section(given.write, SECTION, f"{ABOUT}\n{shown.to_markdown(index=False)}")
    raise SystemExit(int(len(table) - right > MOST_WRONG))


if __name__ == "__main__":
    main()

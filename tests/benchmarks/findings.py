"""Do the findings name a planted cause, and is the promised gain correct?

Each model of ``_planted.py`` has one planted cause of slowness: an undelegated operator, forty
needless transposes, memory-bound weights, or compute-bound matmuls. The model and the fixed model
are measured ten times each. The first finding must be the planted cause every time, and the
promised gain must match the measured one within the errors of both. The benchmark also prints how
often the measured gain lies within the promised interval alone.

    python tests/benchmarks/findings.py [--runs 10] [--folder FOLDER] [NAME...]

With ``--folder``, exports and runs stay there, and the next call resumes.
"""

import argparse
import json
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import _planted as planted

from workbench.analysis.run import open_run
from workbench.export.artifact import export_model
from workbench.models.loader import LoadedModel
from workbench.options import ExportOptions, MeasureOptions
from workbench.workflow import measure, measure_roof


@dataclass(frozen=True)
class Case:
    """A planted model, the rule that must find the cause, and the model with the cause fixed."""

    name: str
    rule: str
    fixed: str
    dtype: str = "fp32"


CASES = (
    Case("product", "undelegated", "product_fixed"),
    Case("transposes", "needless transposes", "transposes_fixed"),
    Case("wide", "memory-bound", "wide", dtype="int8dyn"),
    Case("deep", "compute-bound", "deep", dtype="int8"),
)


def export(name, dtype, root):
    """The program of a planted model; an existing one is reused."""
    pte = root / "artifacts" / f"{name}_xnnpack_{dtype}.pte"
    if pte.with_name(f"{pte.name}.export.json").is_file():
        return pte
    module, inputs = getattr(planted, name)()
    return export_model(
        LoadedModel(name, module.eval(), inputs), ExportOptions(dtype=dtype), root=root
    )


def measure_alone(pte, root):
    return measure(pte, MeasureOptions(toggle="none", runs=20, evidence=False), root=root).path


def measure_once(case, folder):
    """The folders of two new runs: of the planted model, and of the fixed one."""
    # Separate folders: a run looks for other dtypes of its model beside it.
    sides = folder / "before", folder / "after"
    before = measure_alone(export(case.name, "fp32", sides[0]), sides[0])
    measure_roof(before)
    after = measure_alone(export(case.fixed, case.dtype, sides[1]), sides[1])
    return [str(run.relative_to(folder)) for run in (before, after)]


def latency(measurement):
    """Median untraced latency in ms, and half the width of its interval."""
    row = measurement.statistics.iloc[0]
    return float(row["median"]), float(row["high"] - row["low"]) / 2


def judge(case, before, after):
    """Whether the cause is first, the gain as promised, and within the promised interval alone."""
    measured = open_run(before).subject
    found = measured.findings
    (was, was_error), (now, now_error) = latency(measured), latency(open_run(after).subject)
    gain, error = was - now, math.hypot(was_error, now_error)
    first = found.iloc[0]
    text = f"{case.name}: first: {first['title']}\n  {was:.3f} ms; "
    rows = found[found["rule"] == case.rule]
    if rows.empty:
        return False, False, False, f"{text} NOT FOUND"
    typical, low, high = rows.iloc[0][["gain_ms", "low_ms", "high_ms"]]
    correct = low - error <= gain <= high + error
    text += (
        f"promised {typical:.3f} ({low:.3f} to {high:.3f}), measured {gain:.3f} +- {error:.3f} ms: "
        f"{'correct' if correct else 'WRONG'}"
    )
    return first["rule"] == case.rule, correct, low <= gain <= high, text


def try_case(case, runs, folder):
    """Measure and judge all runs of one case; existing runs are reused."""
    log = folder / f"{case.name}.jsonl"
    done = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    while len(done) < runs:
        done.append(measure_once(case, folder))
        with log.open("a") as file:
            file.write(json.dumps(done[-1]) + "\n")
    judged = []
    for pair in done[:runs]:
        judged.append(judge(case, *(folder / name for name in pair)))
        print(judged[-1][-1], flush=True)
    found, correct, within = (sum(column) for column in list(zip(*judged, strict=True))[:3])
    print(
        f"{case.name}: first in {found} of {runs} runs; gain correct in {correct}, within the "
        f"promised interval alone in {within}",
        flush=True,
    )
    return found == correct == runs


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    cases = [case for case in CASES if not options.names or case.name in options.names]
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        good = [try_case(case, options.runs, folder / case.name) for case in cases]
    raise SystemExit(0 if all(good) else 1)


if __name__ == "__main__":
    main()

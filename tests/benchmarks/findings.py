"""Do the findings name a planted cause, and is what they promise true?

Each model of ``_planted.py`` has one cause of slowness that was put there: an operator that no
delegate takes, forty needless transposes, weights that wait for memory, products that wait for
arithmetic. Ten times over the model is measured, then the model with what the finding suggests
done to it. The first finding has to be the planted cause every time; and the gain that it promised
has to be what was measured, within the error of both. Printed is also how often the measured gain,
as if it had no error of its own, lies within what was promised.

    python tests/benchmarks/findings.py [--runs 10] [--folder FOLDER] [NAME...]

With a folder exports and runs stay there, and the next call goes on where one stopped.
"""

import argparse
import json
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import _planted as planted

from workbench.analysis.compat import analyze_run, find_next_steps
from workbench.analysis.statistics import describe_latencies
from workbench.export.artifact import export_model
from workbench.models.loader import LoadedModel
from workbench.options import ExportOptions, MeasureOptions
from workbench.workflow import measure, measure_roof


@dataclass(frozen=True)
class Case:
    """A planted model, the rule that has to find it, and the model with the cause removed."""

    name: str
    rule: str
    mended: str
    dtype: str = "fp32"


CASES = (
    Case("product", "undelegated", "product_mended"),
    Case("transposes", "needless transposes", "transposes_mended"),
    Case("wide", "memory-bound", "wide", dtype="int8dyn"),
    Case("deep", "compute-bound", "deep", dtype="int8"),
)


def export(name, dtype, root):
    """The program of a planted model; one that lies there is taken."""
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
    """The folders of two new runs: of the model as it was planted, and of what is left of it."""
    # Apart from one another: a run looks for its model in other dtypes beside it.
    sides = folder / "before", folder / "after"
    before = measure_alone(export(case.name, "fp32", sides[0]), sides[0])
    measure_roof(before)
    after = measure_alone(export(case.mended, case.dtype, sides[1]), sides[1])
    return [str(run.relative_to(folder)) for run in (before, after)]


def latency(analysis):
    """Median untraced latency in ms, and half of its interval."""
    table = describe_latencies(analysis.latencies).set_index("experiment")
    row = table.loc[analysis.comparisons[0].pair.candidate]
    return float(row["median"]), float(row["high"] - row["low"]) / 2


def judge(case, before, after):
    """Whether the cause came first, the gain was as promised, and that even without its error."""
    analysis = analyze_run(before)
    found = find_next_steps(analysis)
    (was, was_error), (now, now_error) = latency(analysis), latency(analyze_run(after))
    gain, error = was - now, math.hypot(was_error, now_error)
    first = found.iloc[0]
    text = f"{case.name}: first: {first['title']}\n  {was:.3f} ms; "
    rows = found[found["rule"] == case.rule]
    if rows.empty:
        return False, False, False, f"{text} NOT FOUND"
    typical, low, high = rows.iloc[0][["gain_ms", "low_ms", "high_ms"]]
    kept = low - error <= gain <= high + error
    text += (
        f"promised {typical:.3f} ({low:.3f} to {high:.3f}), measured {gain:.3f} +- {error:.3f} ms: "
        f"{'kept' if kept else 'NOT KEPT'}"
    )
    return first["rule"] == case.rule, kept, low <= gain <= high, text


def try_case(case, runs, folder):
    """All runs of one case; what was measured before is not measured again."""
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
    found, kept, within = (sum(column) for column in list(zip(*judged, strict=True))[:3])
    print(
        f"{case.name}: first in {found} of {runs} runs; the promise was kept in {kept}, in "
        f"{within} even if the measured gain had no error",
        flush=True,
    )
    return found == kept == runs


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

"""Do the findings name a planted cause, and is what they promise true?

Each model of ``_planted.py`` has one cause of slowness that was put there: an operator that no
delegate takes, forty needless transposes, weights that wait for memory, products that wait for
arithmetic. Ten times over the model is measured, then the model with what the finding suggests
done to it. The first finding has to be the planted cause every time; and the gain that it promised
has to be what was measured, within the error of both. Printed is also how often the measured gain,
as if it had no error of its own, lies within what was promised.

    python tests/benchmarks/findings.py [--runs 10] [--folder FOLDER] [NAME...]

With a folder the exports and the results stay there, and the next call goes on where one stopped.
"""

import argparse
import json
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import _planted as planted

from workbench.analyze import describe_latencies
from workbench.export import export_model
from workbench.models import LoadedModel
from workbench.report import analyze_run, find_next_steps, measure_program, measure_roof


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
    return export_model(LoadedModel(name, module.eval(), inputs), dtype=dtype, root=root)


def measure(pte, root):
    return measure_program(pte, root=root, toggle="none", runs=30, processes=3)


def latency(analysis):
    """Median, low and high of the untraced latency in ms."""
    table = describe_latencies(analysis.latencies).set_index("experiment")
    row = table.loc[analysis.comparisons[0].pair.candidate]
    return [float(row[name]) for name in ("median", "low", "high")]


def try_once(case, folder):
    """Measure one case once: what was found and promised, and what doing it brought."""
    run_dir = measure(export(case.name, "fp32", folder), folder)
    measure_roof(run_dir)
    analysis = analyze_run(run_dir)
    found = find_next_steps(analysis)
    after = analyze_run(measure(export(case.mended, case.dtype, folder), folder))
    row = found[found["rule"] == case.rule].head(1).to_dict("records")
    promised = [row[0][name] for name in ("gain_ms", "low_ms", "high_ms")] if row else None
    first = {name: found[name].iloc[0] for name in ("rule", "title")}
    return {**first, "promised": promised, "before": latency(analysis), "after": latency(after)}


def judge(case, result):
    """Whether the cause came first, the gain was as promised, and that even without its error."""
    (was, was_low, was_high), (now, now_low, now_high) = result["before"], result["after"]
    gain, error = was - now, math.hypot(was_high - was_low, now_high - now_low) / 2
    found = result["rule"] == case.rule
    if result["promised"] is None:
        return found, False, False, f"first: {result['rule']}; nothing promised"
    typical, low, high = result["promised"]
    kept = low - error <= gain <= high + error
    text = (
        f"first: {result['rule']}; {was:.3f} ms; promised {typical:.3f} ({low:.3f} to {high:.3f}), "
        f"measured {gain:.3f} +- {error:.3f} ms: {'kept' if kept else 'NOT KEPT'}"
    )
    return found, kept, low <= gain <= high, text


def try_case(case, runs, folder):
    """All runs of one case; what is there already is not measured again."""
    log = folder / f"{case.name}.jsonl"
    done = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    for result in done[:runs]:
        print(f"{case.name}: {judge(case, result)[-1]}", flush=True)
    for _ in range(len(done), runs):
        done.append(try_once(case, folder))
        with log.open("a") as file:
            file.write(json.dumps(done[-1]) + "\n")
        print(f"{case.name}: {judge(case, done[-1])[-1]}", flush=True)
    judged = [judge(case, result) for result in done[:runs]]
    found, kept, within = (sum(column) for column in list(zip(*judged, strict=True))[:3])
    print(
        f"{case.name}: {done[0]['title']}\n  first in {found} of {runs} runs; promise kept in "
        f"{kept}, in {within} even if the measured gain had no error",
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
        folder.mkdir(parents=True, exist_ok=True)
        good = [try_case(case, options.runs, folder) for case in cases]
    raise SystemExit(0 if all(good) else 1)


if __name__ == "__main__":
    main()

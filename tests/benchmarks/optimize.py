"""What does `workbench optimize` find, against single precision and the best single dtype?

Searches for a faster program of each network within a budget, and prints one row per network: the
best single dtype and the recommended variant, both measured interleaved in the last round, with
SQNR and size; how many variants were exported and measured; and how many measured gains are within
the predicted intervals, given the errors of the measurement. Inputs are random: the errors are of
these inputs.

    python tests/benchmarks/optimize.py [--folder FOLDER] [--budget 1800] [--dtype DTYPE] NETWORK...

With ``--folder``, studies stay there, and the next call resumes; ``--show`` prints the table of
those that are there. Exits with 1 if a recommended program is below the least SQNR, or slower than
the best single dtype.
"""

import argparse
import math
import sys
import tempfile
from pathlib import Path

import pandas as pd

import workbench as wb
from workbench.analysis.run import Comparison
from workbench.models.registry import parse_name
from workbench.optimize.search import fastest
from workbench.store import safe_name


def describe(variant):
    """``int8: 2.1x [2.0, 2.2], 25 dB, 2.7 MB``."""
    interval = f"[{variant.speedup_low:.2f}, {variant.speedup_high:.2f}]"
    error = "no error" if variant.sqnr_db is None else f"{variant.sqnr_db:.1f} dB"
    speed = f"{variant.speedup:.2f}x {interval}" if variant.speedup else "1x"
    return f"{variant.options.dtype}: {speed}, {error}, {variant.size_bytes / 1e6:.1f} MB"


def row_of(name, place):
    """One row of the table, and whether its recommendation holds."""
    study = wb.read_study(place)
    base = study.variants[0]
    int8 = next((v for v in study.variants if v.whole and v.options.dtype == "int8"), base)
    row = {"network": name, "fp32 ms": f"{base.latency_ms:.3g}"}
    row["int8"] = describe(int8) if int8.speedup else int8.reason or "-"
    row["best single dtype"] = describe(study[study.whole]) if study.whole else "none allowed"
    measured = [v for v in study.variants if v.state == "measured"]
    graded = [v for v in measured if v.predicted and v.gain]
    inside = sum(
        v.gain.low_ms <= v.predicted.high_ms and v.gain.high_ms >= v.predicted.low_ms
        for v in graded
    )
    row["recommended"], holds = "nothing helped", True
    if study.best:
        best = study[study.best]
        row["recommended"] = f"{describe(best)} ({best.change})"
        holds = best.sqnr_db is None or best.sqnr_db >= study.options.min_sqnr_db
        last = study.rounds[-1]
        if study.whole and study.whole != study.best and study.best in last.variants:
            run = wb.open_run(place / "optimize" / last.run_dir)
            sides = [fastest(run, last.variants.index(n)) for n in (study.whole, study.best)]
            ab = Comparison(*sides).latency.iloc[0]
            row["over it"] = f"{ab['speedup']:.2f}x [{ab['low']:.2f}, {ab['high']:.2f}]"
            holds &= not ab["high"] < 1
    row["variants"] = f"{len(measured)} of {len(study.variants)}"
    row["predicted"] = f"{inside} of {len(graded)} inside" if graded else ""
    row["minutes"] = f"{study.spent_s / 60:.0f}"
    return row, holds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--budget", type=float, default=1800.0)
    parser.add_argument("--dtype", action="append", default=[])
    parser.add_argument("--show", action="store_true")
    parser.add_argument("networks", nargs="*")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch)
        options = wb.OptimizeOptions(budget_s=given.budget, dtypes=tuple(given.dtype))
        for spec in () if given.show else given.networks:
            root = folder / f"out_{safe_name(parse_name(spec).label)}"
            with wb.show_progress() as progress:
                wb.optimize(spec, options=options, root=root, progress=progress)
        places = sorted(path.parents[1] for path in folder.glob("out_*/optimize/optimize.json"))
        found = [row_of(place.name.removeprefix("out_"), place) for place in places]
    table = pd.DataFrame([row for row, _ in found]).fillna("")
    print(table.to_markdown(index=False))
    sys.exit(not all(holds for _, holds in found) or math.isclose(len(found), 0))


if __name__ == "__main__":
    main()

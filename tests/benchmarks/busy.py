"""Are the shares of a busy machine those of an idle one, and stated as well as they are known?

Registered models are measured alone, then beside busy loops, twice each. The table has the largest
move of a category's and of an operator's share of the time, in points, and how far the run says
that shares may be off. Exits 1 if a category moves further than both runs say, and 2 points.

    python tests/benchmarks/busy.py [--loops 4] [MODEL...]
"""

import argparse
import os
import sys
import tempfile

import pandas as pd
from _runs import busy_loops

import workbench as wb

MODELS = ["toy_cnn", "mobilenet_v3_small", "unet_small", "vit_tiny"]
#: What runs of the same program at different times may differ by, without other programs.
POINTS = 2.0


def measure(program, folder, loops):
    """A run beside so many busy loops."""
    options = wb.MeasureOptions(evidence=False, cold_start=False, roof=False)
    with busy_loops(loops):
        return wb.measure(program, options=options, root=folder, progress=lambda *_: None)


def move(before, after, table, name):
    """The most by which a share differs between two measurements, in points."""
    shares = [getattr(m, table).set_index(name)["share"] for m in (before, after)]
    return 100 * float(pd.concat(shares, axis=1).fillna(0).diff(axis=1).iloc[:, 1].abs().max())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--loops", type=int, default=4)
    options = parser.parse_args()
    failed = False
    print("| model | ms | loops | load | taken by others | category moved | operator | stated |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder:
            program = wb.export_model(model, root=folder)
            alone = measure(program, folder, 0)
            for loops in (0, options.loops, options.loops):
                run = measure(program, folder, loops)
                load = os.getloadavg()[0]
                for before, after in zip(alone.measurements, run.measurements, strict=True):
                    moved = move(before, after, "categories", "category")
                    most = move(before, after, "operators", "key")
                    stated = 100 * (before.share_error + after.share_error)
                    print(
                        f"| {model} {after.name} | {after.latency_ms:.3g} | {loops} | {load:.1f} | "
                        f"{after.use.taken:.0%} | {moved:.2f} | {most:.2f} | {stated:.2f} |",
                        flush=True,
                    )
                    failed |= moved > max(stated, POINTS)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

"""What does `workbench optimize` find, against single precision and the best single dtype?

Searches for a faster program of each network within a budget, and prints one row per network: the
best single dtype and the recommended variant, both measured interleaved in the last round, with
SQNR and size; and how many variants were exported and measured. Inputs are random: the errors are
of these inputs.

    python tests/benchmarks/optimize.py [--folder FOLDER] [--budget 1800] [--dtype DTYPE] NETWORK...

With ``--enumerate``, each network is also exported and measured with every assignment of int8 and
fp32 to its convolutions and linear layers (up to 6), with and without the rewrites of what the
search recommends, and interleaved with that: is it within 5 % of the best one, with at most a third
of the programs measured?

    python tests/benchmarks/optimize.py --enumerate [--min-sqnr 45] [--budget 300] toy_cnn

With ``--folder``, studies stay there, and the next call resumes; ``--show`` prints the table of
those that are there. Exits with 1 if a recommended program is below the least SQNR, or slower than
the best single dtype; with ``--enumerate``, also if the answer is no.
"""

import argparse
import itertools
import math
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pandas as pd
from torch import nn

import workbench as wb
from workbench.analysis.run import Comparison
from workbench.models.loader import load_model
from workbench.models.registry import parse_name
from workbench.progress import show_progress
from workbench.store import safe_name

#: What `--enumerate` gives either dtype, and the programs of one measurement.
LAYERS, GROUP = (nn.Conv2d, nn.Linear), 8


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
    row["recommended"], holds = "nothing helped", True
    if study.best:
        best = study[study.best]
        row["recommended"] = f"{describe(best)} ({best.change})"
        holds = best.sqnr_db is None or best.sqnr_db >= study.options.min_sqnr_db
    row["variants"] = f"{len(measured)} of {len(study.variants)}"
    row["minutes"] = f"{study.spent_s / 60:.0f}"
    return row, holds


def enumerate_mixes(spec, study, place):
    """A row about all mixes of int8 and fp32 against the search, and whether it found the best."""
    layers = [key.partition(":")[2] for key in study.layers if key.startswith("int8:")]
    module = load_model(spec).module
    layers = [name for name in layers if isinstance(module.get_submodule(name), LAYERS)]
    assert 0 < len(layers) <= 6, layers
    found = study[study.best] if study.best else study.variants[0]
    programs, below = {}, 0
    plain = [replace(v.options, module_dtypes=(), dtype="fp32") for v in (study.variants[0], found)]
    forms = list(dict.fromkeys(plain))
    for number, form in itertools.product(range(2 ** len(layers)), forms):
        floats = [layer for bit, layer in enumerate(layers) if not number >> bit & 1]
        kept = tuple((layer, "fp32") for layer in floats if number)
        dtype = "int8" if number else "fp32"
        options = replace(form, dtype=dtype, module_dtypes=kept)
        name = f"{number:b}{'r' * forms.index(form)}"
        pte = wb.export_model(
            spec,
            options=options,
            root=place / f"every/{name}",
            progress=lambda text, fraction: None,
        ).path
        if (wb.open_program(pte).export.sqnr_db or math.inf) >= study.options.min_sqnr_db:
            programs[name] = pte
        else:
            below += 1
    base, times = study.variants[0].pte, {}
    names = list(programs)
    for start in range(0, len(names), GROUP):
        part = names[start : start + GROUP]
        times |= speed_ups(base, [programs[name] for name in part], part, place)
    best = sorted(times, key=times.get)[-3:]
    last = [*(programs[name] for name in best), found.pte]
    final = speed_ups(base, last, [*best, "found"], place)
    ratio = final["found"] / max(final[name] for name in best)
    tried = sum(v.state == "measured" for v in study.variants)
    row = {
        "network": spec,
        "layers": len(layers),
        "programs": 2 ** len(layers) * len(forms),
        "below the SQNR": below,
        "measured by the enumeration": len(times),
        "measured by the search": tried,
        "best of all": f"{max(final[name] for name in best):.3f}x",
        "found": f"{final['found']:.3f}x",
        "found / best": f"{ratio:.3f}",
    }
    return row, ratio >= 0.95 and tried <= len(times) / 3


def speed_ups(base, ptes, names, place):
    """The speed-ups of programs over the baseline, measured interleaved."""
    options = wb.MeasureOptions(
        toggle="none", against=tuple(map(str, ptes)), budget_s=10.0 * len(ptes), evidence=False
    )
    run = wb.measure(base, options=options, root=place / "every", artifacts=False)
    first, *others = [m for m in run.traced if not m.experiment.control]
    return {
        name: float(Comparison(first, other).latency.iloc[0]["speedup"])
        for name, other in zip(names, others, strict=True)
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--budget", type=float, default=1800.0)
    parser.add_argument("--dtype", action="append", default=[])
    parser.add_argument("--enumerate", action="store_true")
    parser.add_argument("--min-sqnr", type=float, default=20.0)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("networks", nargs="*")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch)
        dtypes = ("int8",) if given.enumerate else tuple(given.dtype)
        options = wb.OptimizeOptions(given.budget, min_sqnr_db=given.min_sqnr, dtypes=dtypes)
        every = []
        for spec in () if given.show else given.networks:
            root = folder / f"out_{safe_name(parse_name(spec).label)}"
            with show_progress() as progress:
                study = wb.optimize(spec, options=options, root=root, progress=progress)
            if given.enumerate:
                every.append(enumerate_mixes(spec, study, root))
        places = sorted(path.parents[1] for path in folder.glob("out_*/optimize/optimize.json"))
        found = [row_of(place.name.removeprefix("out_"), place) for place in places]
    table = pd.DataFrame([row for row, _ in found]).fillna("")
    print(table.to_markdown(index=False))
    if every:
        print(pd.DataFrame([row for row, _ in every]).to_markdown(index=False))
        found += every
    sys.exit(not all(holds for _, holds in found) or math.isclose(len(found), 0))


if __name__ == "__main__":
    main()

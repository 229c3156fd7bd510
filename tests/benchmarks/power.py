"""Power to find a slower program: measured side by side in one run, and in separate runs.

A matrix product with 3200 columns of weights is compared with those of 3200, 3232, 3264, 3360 and
3520 columns, which by their arithmetic are 0, 1, 2, 5 and 10 % slower. *Side by side* is
``workbench run A.pte --against B.pte``; *separate* is ``workbench run`` of each program, then
``workbench compare``, both with as many restarts and inferences. Both take the untraced half of a
run, with a shorter plan.

Run ``python tests/benchmarks/power.py --folder DIR --trials 20`` on an idle machine; a second call
continues in the same folder, and ``--minutes`` ends one early (0 only reports). ``--together``
leaves out separate runs. The load is printed, ``--processes`` and ``--batch-ms`` say how long.
``--joined 3,10`` also judges so many successive trials as one longer run.
Exits 1 if side by side finds fewer than 9 of 10 programs that are 10 % slower, fewer of any size
than separate runs, or if more than 5 % of its verdicts on equal programs are wrong.

``--position`` instead measures 40 copies of one program side by side, each of which is first
equally often, and exits 1 if the first place, or the program that is named first, differs from the
others by more than 1 %, and by more than its 95 % interval.
"""

import argparse
import itertools
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from latencies import compare_latencies
from null import measure
from planned import make_plan

import workbench as wb
from workbench.analysis.comparison_tables import compare_restarts
from workbench.analysis.statistics import half_width, restart_latencies
from workbench.run import execute

#: By how many per cent they are slower: multiples of 32, the columns of the widest microkernel.
COLUMNS = {0: 3200, 1: 3232, 2: 3264, 5: 3360, 10: 3520}
COPIES = 40
#: What programs are called in the tables of times.
BASELINE, CONTROL, ALONE = "baseline", "control", "alone "


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="keeps results, to continue with")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--batch-ms", type=float, default=5.0)
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--joined", default="", help="trials that are judged as one, such as 3,10")
    parser.add_argument("--position", action="store_true")
    options = parser.parse_args()

    end = time.monotonic() + 60 * options.minutes
    place = options.folder or Path(tempfile.mkdtemp(prefix="power-"))
    programs = export_programs(place / "programs")
    if options.position:
        return compare_places(programs[-1], options, place / "copies")
    for number in range(options.trials):
        path = place / f"trial{number}.csv.gz"
        if path.exists():
            continue
        if time.monotonic() > end:
            break
        with tempfile.TemporaryDirectory() as folder:
            start = time.monotonic()
            times = run_trial(programs, options, Path(folder))
        times.assign(seconds=time.monotonic() - start, load=os.getloadavg()[0]).to_csv(
            path, index=False
        )
    paths = [path for n in range(options.trials) if (path := place / f"trial{n}.csv.gz").exists()]
    trials = [pd.read_csv(path, dtype={"experiment": str}) for path in paths]
    for count in filter(None, options.joined.split(",")):
        size = int(count)
        starts = range(0, len(trials) - size + 1, size)
        report([join(trials[start : start + size]) for start in starts])
    return report(trials) if trials else 1


def join(trials: list[pd.DataFrame]) -> pd.DataFrame:
    """Successive trials as one, with as many restarts as all of them."""
    shifts = itertools.accumulate((t["process"].max() + 1 for t in trials[:-1]), initial=0)
    moved = (t.assign(process=t["process"] + s) for t, s in zip(trials, shifts, strict=True))
    whole = pd.concat(moved)
    return whole.assign(seconds=sum(t["seconds"].iloc[0] for t in trials))


def export_programs(folder: Path) -> dict[int, Path]:
    """The baseline under -1, and the others by how much slower they are in per cent."""
    paths = {-1: folder / "baseline.pte"} | {s: folder / f"slower{s}.pte" for s in COLUMNS}
    folder.mkdir(parents=True, exist_ok=True)
    for slowdown, path in paths.items():
        if not path.exists():
            torch.manual_seed(0)
            product = torch.nn.Linear(512, COLUMNS[max(slowdown, 0)])
            made = wb.export_model(product, torch.randn(64, 512), root=folder).path
            path.write_bytes(made.read_bytes())
    return paths


def run_trial(programs, options, folder: Path) -> pd.DataFrame:
    """The times of every program beside the baseline, its control and the others, and alone."""
    runner = wb.find_runner()
    baseline, *others = programs.values()

    def time_plan(name, pte, against=()):
        asked = wb.MeasureOptions(
            toggle="none", runs=1, processes=options.processes, against=tuple(map(str, against))
        )
        plan = replace(make_plan(pte, asked, runner), batch_ms=options.batch_ms)
        if not against:
            plan = replace(plan, experiments=plan.experiments[:1], pairs=())
        return plan, measure(plan, runner, folder / name)

    plan, together = time_plan("together", baseline, others)
    pairs = zip(COLUMNS, plan.pairs, strict=True)
    names = {plan.experiments[0].name: BASELINE, plan.experiments[-1].name: CONTROL}
    names |= {pair.candidate: str(slowdown) for slowdown, pair in pairs}
    tables = [together.replace({"experiment": names})]
    for slowdown, pte in () if options.together else programs.items():
        name = f"{ALONE}{slowdown}"
        tables.append(time_plan(f"alone{slowdown}", pte)[1].assign(experiment=name))
    return pd.concat(tables, ignore_index=True)


def report(trials: list[pd.DataFrame]) -> int:
    """Print the table; the exit code."""
    rows, found = [], {}
    loads = pd.concat([trial["load"] for trial in trials])
    seconds = np.median([trial["seconds"].iloc[0] for trial in trials])
    print(f"{len(trials)} trials of {seconds:.0f} s, load {loads.min():.1f} to {loads.max():.1f}")
    for slowdown, columns in COLUMNS.items():
        row = {"columns": f"{COLUMNS[0]} against {columns}", "true": f"{1 + slowdown / 100:.2f}x"}
        wanted = ("slower",) if slowdown else ("faster", "slower")
        for way, judge in (("side by side", judge_together), ("separate", judge_alone)):
            verdicts = [v for trial in trials if (v := judge(trial, slowdown)) is not None]
            if not verdicts:
                continue
            found[way, slowdown] = sum(verdict["outcome"] in wanted for verdict in verdicts)
            estimates = [1 / verdict["speedup"] for verdict in verdicts]
            row |= {
                f"{way}: found": f"{found[way, slowdown]} of {len(verdicts)}",
                f"{way}: estimates": f"{np.median(estimates):.3f}x "
                f"({min(estimates):.3f} to {max(estimates):.3f})",
            }
        rows.append(row)
    print(pd.DataFrame(rows).to_markdown(index=False))
    together, apart = (
        [found.get((way, s), 0) for s in COLUMNS] for way in ("side by side", "separate")
    )
    enough = together[-1] >= 0.9 * len(trials) and together[0] <= 0.05 * len(trials)
    return 0 if enough and all(a >= b for a, b in zip(together[1:], apart[1:], strict=True)) else 1


def judge_together(times: pd.DataFrame, slowdown: int) -> pd.Series:
    """The verdict on a program that was measured beside the baseline."""
    beside = times[~times["experiment"].str.startswith(ALONE)]
    return compare_latencies(beside, BASELINE, str(slowdown), control=CONTROL).iloc[0]


def judge_alone(times: pd.DataFrame, slowdown: int) -> pd.Series | None:
    """The verdict on a program that was measured without the baseline, if it was."""
    names = f"{ALONE}-1", f"{ALONE}{slowdown}"
    sides = [restart_latencies(times[times["experiment"] == name]).to_list() for name in names
             if (times["experiment"] == name).any()]  # fmt: skip
    return compare_restarts([""], *[[side] for side in sides]).iloc[0] if sides else None


def compare_places(pte: Path, options, folder: Path) -> int:
    """Whether the first place of a round, or being the baseline, changes the time."""
    folder.mkdir(parents=True, exist_ok=True)
    copies = [folder / f"copy{number}.pte" for number in range(COPIES - 1)]
    for copy in copies:
        copy.write_bytes(pte.read_bytes())
    runner = wb.find_runner()
    asked = wb.MeasureOptions(
        toggle="none", runs=1, processes=options.processes, against=tuple(map(str, copies[:-1]))
    )
    plan = replace(make_plan(pte, asked, runner), batch_ms=options.batch_ms)
    # Forty rounds in all: each experiment is first once.
    rounds = COPIES // options.processes
    load = os.getloadavg()[0]
    fixed = mock.patch.object(execute, "count_rounds", lambda *_: rounds)
    with tempfile.TemporaryDirectory() as root, fixed:
        times = measure(plan, runner, Path(root) / "run")
    batches = times.groupby(["process", "round", "batch", "experiment"])["cpu_ns"].median()
    relative = (batches / batches.groupby(["process", "round"]).transform("mean")).reset_index()
    firsts = relative[relative["batch"] == 0]
    print(f"first once each: {sorted(firsts['experiment'].value_counts().unique())}")
    named = relative[relative["experiment"] == plan.experiments[0].name]
    held = True
    for what, part in (("the first place", firsts), ("the first program", named)):
        restarts = part.groupby("process")["cpu_ns"].mean().to_numpy() - 1
        mean, half = restarts.mean(), float(half_width(restarts))
        held &= abs(mean) <= max(0.01, half)
        print(f"{what}: {100 * mean:+.2f} % ± {100 * half:.2f} %, load {load:.1f}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())

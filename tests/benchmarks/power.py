"""Power to find a slower program: measured side by side in one run, and in separate runs.

Networks of 100 equal blocks are compared with those of 100, 102, 105 and 110 blocks, which by
their arithmetic are 0, 2, 5 and 10 % slower. *Side by side* is ``workbench run A.pte --against
B.pte``; *separate* is ``workbench run`` of each program, then ``workbench compare``, both with as
many restarts and inferences. Both take the untraced half of a run, with a shorter plan.

Run ``python tests/benchmarks/power.py --folder DIR --trials 20`` on an idle machine; a second call
continues in the same folder, and ``--minutes`` ends one early (0 only exports). Exits 1 if side by
side finds fewer than 9 of 10 programs that are 10 % slower, fewer of any size than separate runs,
or if more than 5 % of its verdicts on equal programs are wrong.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from null import measure
from planned import make_plan

import workbench as wb
from workbench.analysis.compare import compare_latencies, compare_restarts
from workbench.analysis.statistics import restart_latencies

BLOCKS = {0: 100, 2: 102, 5: 105, 10: 110}
WAYS = ("side by side", "separate")
RESULTS = "results.jsonl"


class Blocks(torch.nn.Module):
    """Equal convolutions in a row."""

    def __init__(self, count: int):
        super().__init__()
        self.blocks = torch.nn.Sequential(
            *(torch.nn.Conv2d(32, 32, 3, padding=1) for _ in range(count))
        )

    def forward(self, x):
        return self.blocks(x)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="keeps results, to continue with")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--batch-ms", type=float, default=5.0)
    options = parser.parse_args()

    end = time.monotonic() + 60 * options.minutes
    place = options.folder or Path(tempfile.mkdtemp(prefix="power-"))
    programs, results = export_programs(place / "programs"), place / RESULTS
    results.touch()
    for _ in range(len(results.read_text().splitlines()), options.trials):
        if time.monotonic() > end:
            break
        with tempfile.TemporaryDirectory() as folder:
            found = run_trial(programs, options, Path(folder))
        with open(results, "a") as file:
            file.write(json.dumps(found) + "\n")
    trials = [json.loads(line) for line in results.read_text().splitlines()]
    return report(trials) if trials else 1


def export_programs(folder: Path) -> dict[int, Path]:
    """The baseline under -1, and the others by how much slower they are in per cent."""
    paths = {-1: folder / "baseline.pte"} | {s: folder / f"slower{s}.pte" for s in BLOCKS}
    folder.mkdir(parents=True, exist_ok=True)
    for slowdown, path in paths.items():
        if not path.exists():
            torch.manual_seed(0)
            count = BLOCKS[max(slowdown, 0)]
            wb.register_model(f"blocks{count}", blocks_model(count))
            made = wb.export_model(f"blocks{count}", root=folder).path
            path.write_bytes(made.read_bytes())
    return paths


def blocks_model(count: int) -> type:
    class Model(wb.EagerModelBase):
        def get_eager_model(self):
            return Blocks(count)

        def get_example_inputs(self):
            return (torch.randn(1, 32, 12, 12),)

    return Model


def run_trial(programs, options, folder: Path) -> dict[str, dict[str, list]]:
    """Verdict and speed-up of every candidate side by side, and restarts of every program alone."""
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
    control, side_by_side = plan.experiments[-1].name, {}
    for slowdown, pair in zip(BLOCKS, plan.pairs, strict=True):
        row = compare_latencies(together, pair.baseline, pair.candidate, control=control).iloc[0]
        side_by_side[slowdown] = [row["outcome"], float(row["speedup"])]
    alone = {
        slowdown: restart_latencies(time_plan(f"alone{slowdown}", pte)[1]).to_list()
        for slowdown, pte in programs.items()
    }
    return dict(zip(WAYS, (side_by_side, alone), strict=True))


def report(trials: list[dict]) -> int:
    """Print the table; the exit code."""
    rows, found = [], {}
    for slowdown, blocks in BLOCKS.items():
        row = {"blocks": f"{BLOCKS[0]} against {blocks}", "true": f"{blocks / BLOCKS[0]:.2f}x"}
        apart = [[trial[WAYS[1]][key] for trial in trials] for key in ("-1", str(slowdown))]
        judged = [compare_restarts([""], [a], [b]).iloc[0] for a, b in zip(*apart, strict=True)]
        verdicts = {
            WAYS[0]: [trial[WAYS[0]][str(slowdown)] for trial in trials],
            WAYS[1]: [(row["outcome"], row["speedup"]) for row in judged],
        }
        wanted = ("slower",) if slowdown else ("faster", "slower")
        for way, each in verdicts.items():
            found[way, slowdown] = sum(outcome in wanted for outcome, _ in each)
            estimates = [1 / speedup for _, speedup in each]
            row |= {
                f"{way}: found": f"{found[way, slowdown]} of {len(trials)}",
                f"{way}: estimates": f"{np.median(estimates):.3f}x "
                f"({min(estimates):.3f} to {max(estimates):.3f})",
            }
        rows.append(row)
    print(pd.DataFrame(rows).to_markdown(index=False))
    together, apart = ([found[way, s] for s in BLOCKS] for way in WAYS)
    enough = together[-1] >= 0.9 * len(trials) and together[0] <= 0.05 * len(trials)
    return 0 if enough and all(a >= b for a, b in zip(together[1:], apart[1:], strict=True)) else 1


if __name__ == "__main__":
    sys.exit(main())

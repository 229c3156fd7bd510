"""How far an estimated speed-up scatters: experiments in turns against one after the other.

Both protocols take the same number of inferences of the same two experiments, while other programs
come and go on this machine. Exits 1 if taking turns is not the steadier one.
"""

import argparse
import contextlib
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

import workbench as wb
from workbench.analyze.statistics import midmean
from workbench.run.interleave import batch_size, interleave
from workbench.run.isa import resolve_toggle
from workbench.run.measure import Step
from workbench.run.runner import find_runner, open_runner


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="toy_cnn")
    parser.add_argument("--toggle", default="auto")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--quiet", action="store_true", help="no other programs")
    options = parser.parse_args()

    runner = find_runner()
    switch = resolve_toggle(options.toggle, wb.read_isa(runner.command))
    load = contextlib.nullcontext() if options.quiet else other_programs()
    with tempfile.TemporaryDirectory() as folder, load:
        pte = wb.export_model(options.model, root=Path(folder))
        protocols = {"in turns": in_turns, "one after the other": one_after_the_other}
        estimates = {(name, clock): [] for name in protocols for clock in ("cpu_ns", "wall_ns")}
        for repeat in range(options.repeats):
            for name, protocol in protocols.items():
                off, on = protocol(runner, pte, (switch.off, switch.on), options.rounds, repeat)
                for clock in ("cpu_ns", "wall_ns"):
                    estimates[name, clock].append(speedup(off[clock], on[clock]))
    table = pd.DataFrame(
        [(*key, statistics.mean(e), 100 * statistics.stdev(e) / statistics.mean(e),
          100 * (max(e) / min(e) - 1)) for key, e in estimates.items()],
        columns=["protocol", "clock", "mean speed-up", "std dev (%)", "max / min - 1 (%)"],
    )  # fmt: skip
    print(f"{options.model}, {switch.name} on against off, {options.repeats} repeats, "
          f"{'quiet' if options.quiet else 'other programs running'}")  # fmt: skip
    print(table.to_markdown(index=False, floatfmt=".3f"))
    spread = table.set_index(["protocol", "clock"])["std dev (%)"]
    ratio = spread["one after the other", "wall_ns"] / spread["in turns", "cpu_ns"]
    print(f"taking turns, by CPU time, scatters {ratio:.1f} times less than one after the other")
    return 0 if ratio > 1 else 1


def in_turns(runner, pte, levels, rounds, repeat):
    """Two live processes that alternate on one core in batches of 20 ms: a value per round."""
    core = Step(threads=1, process=repeat, traced=False).core
    with contextlib.ExitStack() as stack:
        sessions = {level: stack.enter_context(start(runner, pte, level, core)) for level in levels}
        sizes = {level: warm(session) for level, session in sessions.items()}
        taken = {level: {"cpu_ns": [], "wall_ns": []} for level in levels}
        for order in interleave(list(levels), rounds):
            values = {level: {"cpu_ns": [], "wall_ns": []} for level in levels}
            for level in order:
                laps = sessions[level].run(sizes[level])
                for clock, batches in values[level].items():
                    batches.append(midmean(np.array(getattr(laps, clock))))
            for level, clocks in values.items():
                for clock, batches in clocks.items():
                    taken[level][clock].append(statistics.mean(batches))
    return [taken[level] for level in levels]


def one_after_the_other(runner, pte, levels, rounds, repeat):
    """One process after the other: all inferences of a side in one go."""
    taken = []
    for level in levels:
        with start(runner, pte, level) as session:
            laps = session.run(2 * rounds * warm(session))
            clocks = ("cpu_ns", "wall_ns")
            taken.append({clock: [np.median(getattr(laps, clock))] for clock in clocks})
    return taken


def start(runner, pte, level, core=None):
    flags = ["--model_path", str(pte), "--cpu_threads", "1", "--isa", level]
    flags += [] if core is None else ["--cpus", str(core)]
    return open_runner(runner, flags, timeout_s=120)


def warm(session) -> int:
    session.run(3)
    return batch_size(statistics.median(session.run(3).wall_ns), 20.0)


def speedup(off, on) -> float:
    return float(np.exp(midmean(np.log(np.array(off) / np.array(on)))))


@contextlib.contextmanager
def other_programs():
    """As many bursty programs as there are cores."""
    processes = [
        multiprocessing.Process(target=come_and_go, args=(seed,), daemon=True)
        for seed in range(multiprocessing.cpu_count())
    ]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


def come_and_go(seed: int) -> None:
    rng = random.Random(seed)
    while True:
        end = time.monotonic() + rng.uniform(0.05, 1.5)
        while time.monotonic() < end:
            sum(range(1000))
        time.sleep(rng.uniform(0.05, 1.5))


if __name__ == "__main__":
    sys.exit(main())

"""Coverage of the workbench's intervals, and its false discovery rate.

    python tests/benchmarks/intervals.py [--repeats 2000]

Simulated are log-normal scatter, disturbed inferences and batches, drift, differences between
restarts, and times in whole microseconds. The benchmark prints

- how often the 95 % interval of a speed-up from interleaved rounds covers the truth: Student's t
  over the restarts, which the workbench uses, and a bootstrap over restarts and rounds;
- the same for single operators, from traces in whole microseconds;
- how many operators are falsely called faster or slower, and how many changes are found;
- how often a minimum detectable change is detected.

Exits 1 if Student's interval covers less than 93 % or more than 97 % (only the lower limit counts
for operators near the clock's resolution), or if more than 5 % of the discoveries are false (plus
twice the error of the simulation).
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from simulate import bootstrap_interval, simulate_operators, simulate_ratios

from workbench.analysis.compare import tabulate_comparison
from workbench.analysis.speedup import Speedup, speedup_of_pairs, speedup_of_runs

COVERAGE = (0.93, 0.97)
MAX_FALSE = 0.05
RESTARTS = (3, 5, 8, 20)
SCATTER = (0, 0.003, 0.01, 0.03)
#: The speed-up of operators; the clock's resolution blurs shorter ones.
TRUE, SHORT_US = 1.1, 300
#: XNNPACK logs whole microseconds, as in ``analysis.compare``.
RESOLUTION_MS = 1e-3 / np.sqrt(12)


def main() -> int:
    """Run all simulations; returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=2000)
    repeats = parser.parse_args().repeats
    rng = np.random.default_rng(0)
    held = [
        cover_latency(rng, repeats),
        cover_operators(rng, repeats),
        count_false_discoveries(rng, max(20, repeats // 10)),
        detect(rng, 10 * repeats),
    ]
    return 0 if all(held) else 1


def cover_latency(rng, repeats: int) -> bool:
    """Coverage of the E2E speed-up, by restarts and their scatter."""
    print(f"E2E speed-up, 8 rounds, {repeats} repetitions: % of intervals that cover the truth")
    print("restarts  " + "".join(f"{100 * s:>12.1f} % scatter" for s in SCATTER))
    held = True
    for restarts in RESTARTS:
        found = []
        for scatter in SCATTER:
            ratios = simulate_ratios(rng, repeats, restarts, 8, scatter)
            sides = np.exp(ratios).transpose(1, 2, 0)
            speedup = speedup_of_pairs(list(sides), list(np.ones_like(sides)))
            student = np.mean((speedup.low <= 1) & (speedup.high >= 1))
            few = ratios[: max(100, repeats // 5)]
            ends = [bootstrap_interval(rng, one) for one in few]
            bootstrap = np.mean([low <= 0 <= high for low, high in ends])
            held &= COVERAGE[0] <= student <= COVERAGE[1]
            found.append(f"t {100 * student:.1f}, bootstrap {100 * bootstrap:.0f}")
        print(f"{restarts:>8}  " + "".join(f"{text:>22}" for text in found))
    return held


def cover_operators(rng, repeats: int) -> bool:
    """Coverage of operator speed-ups from 5 restarts of 10 traced inferences."""
    print("\noperator speed-ups, 5 restarts of 10 traced inferences, 1 % scatter")
    held = True
    for us in (3, 10, 30, 100, 300, 1000):
        # Independent operators: each one is its own experiment.
        times = us * rng.uniform(0.8, 1.2, repeats)
        sides = [independent(rng, t, 5, 10, 0.01) for t in (times, times / TRUE)]
        resolution = np.sqrt(1 + TRUE**2) * RESOLUTION_MS / (times / 1e3)
        speedup = speedup_of_runs(*sides, resolution=resolution)
        covered = np.mean((speedup.low <= TRUE) & (speedup.high >= TRUE))
        width = np.median(speedup.high / speedup.low) - 1
        held &= COVERAGE[0] <= covered and (us < SHORT_US or covered <= COVERAGE[1])
        print(f"{us:>8} us: {100 * covered:.1f} %, interval {100 * width:.1f} % wide")
    return held


def independent(rng, times, restarts, runs, scatter):
    """As `simulate_operators`, but restarts shift each operator independently."""
    levels = np.exp(rng.normal(0, scatter, (restarts, times.size)))
    return [simulate_operators(rng, times * level, 1, runs, 0.0)[0] for level in levels]


def count_false_discoveries(rng, repeats: int) -> bool:
    """The false discovery rate with 0, 5 and 40 of 100 operators changed."""
    print(f"\n100 operators, {repeats} repetitions, without a noise floor")
    held = True
    for changed in (0, 5, 40):
        false, found, single = [], [], []
        for _ in range(repeats):
            before = rng.lognormal(4, 1, 100)
            factor = np.ones(100)
            factor[:changed] = np.exp(rng.uniform(0.02, 0.5, changed))
            sides = [simulate_operators(rng, t, 5, 10, 0.005) for t in (before, before / factor)]
            resolution = np.hypot(1, factor) * RESOLUTION_MS / (before / 1e3)
            speedup = speedup_of_runs(*sides, resolution=resolution)
            table = tabulate_comparison(
                "operator", [*map(str, range(100))], (before, before), speedup, 0.0, 0.0
            )
            called = table["outcome"].isin(["faster", "slower"]).to_numpy()
            false.append(called[changed:].sum() / max(1, called.sum()))
            found.append(called[:changed].mean() if changed else np.nan)
            single.append(np.mean(speedup.p[changed:] < 0.05))
        error = np.std(false) / np.sqrt(repeats)
        held &= np.mean(false) <= MAX_FALSE + 2 * error
        power = f", {100 * np.mean(found):.0f} % of the changes found" if changed else ""
        print(
            f"{changed:>8} changed: {100 * np.mean(false):.1f} +- {100 * error:.1f} % of the "
            f"discoveries are false{power}; without correction, "
            f"{100 * np.mean(single):.0f} % of the unchanged would be called different"
        )
    return held


def detect(rng, repeats: int) -> bool:
    """How often a minimum detectable change is detected, with 5 restarts."""
    known = Speedup(np.zeros(1), np.full(1, 0.01 / np.sqrt(5)), np.full(1, 4.0))
    times = (1 + known.minimum_detectable_change()) * np.exp(rng.normal(0, 0.01, (5, 1, repeats)))
    shown = np.mean(speedup_of_pairs(list(times), list(np.ones_like(times))).low > 1)
    print(f"\na minimum detectable change is detected in {100 * shown:.0f} % of {repeats}")
    return 0.75 < shown < 0.85


if __name__ == "__main__":
    sys.exit(main())

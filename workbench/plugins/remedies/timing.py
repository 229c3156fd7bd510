"""Time two programs side by side until it is shown which one is faster, or a limit is reached."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.jobs import Runner
from workbench.pages import half_width

if TYPE_CHECKING:
    from workbench import Measurement
    from workbench.graphs import Lowered

#: Restarts of both sides before the first look at them, of long parts and of others, and at most.
LEAST_RESTARTS, RESTARTS, MOST_RESTARTS = 4, 5, 60
#: Seconds in which both sides are timed before the first look, and the fewest restarts are made
#: from; and the longest that one remedy is tried if nobody says how long.
SECONDS, FIRST_S, LIMIT_S = 0.5, 1.5, 10.0
#: Findings that are tried by default.
BEST = 3
#: Each trial is looked at twice, and the best of the first ones is told: a gain is shown if it is
#: in spite of both (Bonferroni).
LOOKS = 2
_QUANTILE = 1 - 0.025 / (LOOKS * BEST)
#: From these seconds on, the first inference of a process tells how long one takes.
_LONG_S = 0.02
_TIMEOUT_S = 60.0

Interval = tuple[float, float, float]


def time_sides(
    before: Lowered, after: Lowered, measurement: Measurement, runner: Runner, *,
    margins: tuple[float, float], budget_s: float = LIMIT_S,
) -> np.ndarray:  # fmt: skip
    """The time of an inference in ms of both programs, a row for each restart.

    They run at the ISA level and thread count of a measurement, by the clock of its latency. If
    the first restarts leave open which side is faster, as many follow as seem necessary, unless
    these are more than fit into the budget; ``margins`` are those of `conclude`.
    """
    experiment = measurement.experiment
    flags = ["--cpu_threads", str(measurement.threads), "--isa", experiment.isa]
    with tempfile.TemporaryDirectory() as scratch, runner.lock():
        sides = [
            [*_write(lowered, Path(scratch) / name), *flags]
            for name, lowered in (("before", before), ("after", after))
        ]
        blocks: list[tuple[float, float]] = []
        started = time.monotonic()

        def restart(wanted: int, seconds: float, least: int) -> np.ndarray:
            while len(blocks) < wanted:
                if len(blocks) >= least and time.monotonic() - started > seconds:
                    break
                # Of two cores, one may have less time for this machine.
                core = runner.target.core(measurement.threads, len(blocks))
                bound = [] if core is None else ["--cpus", str(core)]
                both = [[*side, *bound] for side in sides]
                blocks.append(_restart(both, runner, measurement.clock))
            return np.array(blocks)

        first = restart(RESTARTS, min(FIRST_S, budget_s), LEAST_RESTARTS)
        needed = count_needed(first, margins, round(MOST_RESTARTS * max(1.0, budget_s / LIMIT_S)))
        return restart(needed, budget_s, len(first)) if needed > len(first) else first


def conclude(blocks: np.ndarray, margins: tuple[float, float]) -> Interval:
    """The gain in ms of both sides' times, a row for each restart, and its 95 % interval.

    What slows a restart down slows both sides: the gain is that of the median time before, by the
    mean share that the restarts saved. The margins are how much less and more a remedy may gain in
    the program, as parts of the time before.
    """
    before, savings = typical_time(blocks), _list_savings(blocks)
    saved, half = float(savings.mean()), float(half_width(savings, _QUANTILE))
    low, high = saved - half - margins[0], saved + half + margins[1]
    return before * saved, before * low, before * high


def typical_time(blocks: np.ndarray) -> float:
    """The time before in ms, of the restart in the middle."""
    return float(np.median(blocks[:, 0]))


def _list_savings(blocks: np.ndarray) -> np.ndarray:
    """Which part of the time before each restart saved."""
    return 1 - blocks[:, 1] / blocks[:, 0]


def count_needed(
    blocks: np.ndarray, margins: tuple[float, float], most: int = MOST_RESTARTS
) -> int:
    """How many restarts show a gain or loss like that of these, as far as they tell.

    As many as these if nothing is open, or if more than the ``most`` would be needed.
    """
    _, low, high = conclude(blocks, margins)
    savings = _list_savings(blocks)
    saved = float(savings.mean())
    room = abs(saved) - margins[0 if saved > 0 else 1]
    if low > 0 or high < 0 or room <= 0:
        return len(blocks)
    from scipy.special import stdtrit  # which takes a tenth of a second to import

    quantile = float(stdtrit(2 * RESTARTS, _QUANTILE))
    needed = math.ceil((quantile * float(savings.std(ddof=1)) / room) ** 2)
    return max(2 * len(blocks), needed) if needed <= most else len(blocks)


def _write(lowered: Lowered, folder: Path) -> list[str]:
    folder.mkdir()
    return lowered.write(folder)


def _restart(sides: Sequence[Sequence[str]], runner: Runner, clock: str) -> tuple[float, float]:
    """The median time in ms of one process for each side, which take turns."""
    with ExitStack() as stack:
        sessions = [
            stack.enter_context(runner.open(flags, timeout_s=_TIMEOUT_S)) for flags in sides
        ]
        counts = [_count_inferences(session) for session in sessions]
        times: tuple[list[int], list[int]] = ([], [])
        for turn in range(4 if max(counts) > 1 else 2):
            for place in (0, 1) if turn % 2 == 0 else (1, 0):
                batch = sessions[place].run(counts[place], traced=False)
                times[place].extend(getattr(batch, clock))
        before, after = (float(np.median(each)) / 1e6 for each in times)
        return before, after


def _count_inferences(session: Any) -> int:
    """How many inferences fit into the turn of one side, after a warm-up."""
    nanoseconds = min(session.run(1, traced=False).wall_ns)
    if nanoseconds < 1e9 * _LONG_S:
        nanoseconds = min(session.run(3, traced=False).wall_ns)
    seconds = SECONDS / RESTARTS / 8
    return int(np.clip(seconds * 1e9 / max(nanoseconds, 1), 1, 2000))

"""In which order experiments are measured, so that drift of the machine hits all alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

#: Fewer rounds than this per process leave the bootstrap nothing to resample.
MIN_ROUNDS = 6


def interleave(names: Sequence[str], rounds: int) -> Iterator[list[str]]:
    """The order of the batches in each round: there and back again, starting one further each time.

    A palindrome (A B C C B A) gives every experiment the same mean time of measurement within the
    round, which cancels linear drift; the rotation gives every experiment every place.

    Examples
    --------
    >>> [" ".join(order) for order in interleave(["A", "B"], 2)]
    ['A B B A', 'B A A B']
    """
    for number in range(rounds):
        first = number % len(names)
        order = [*names[first:], *names[:first]]
        yield order + order[::-1]


def batch_size(latency_ns: float, batch_ms: float) -> int:
    """How many inferences fill one batch of ``batch_ms``; at least one."""
    return max(1, round(batch_ms * 1e6 / max(latency_ns, 1.0)))


def batch_within(size: int, runs: int, processes: int) -> int:
    """A batch no larger than makes ``runs`` inferences in one round of two batches a process."""
    return min(size, math.ceil(runs / (2 * processes)))


def rounds_needed(runs: int, processes: int, smallest_batch: int, least: int = 1) -> int:
    """Rounds per process until every experiment has ``runs`` inferences, two batches a round."""
    return max(least, math.ceil(runs / (2 * processes * smallest_batch)))

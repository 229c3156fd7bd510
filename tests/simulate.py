"""Measurements with known answers, many at a time, to see how often an interval is right."""

import numpy as np

from workbench.analysis.statistics import midmean

#: Single inferences scatter log-normally; so many of them are disturbed, by so much on average.
NOISE, DISTURBED, BY = 0.015, 0.05, 0.3


def simulate_ratios(rng, repeats, restarts, rounds, restart, batch=3):
    """Log ratios of two equal experiments, (repeats, restarts, rounds), measured A B B A.

    Inferences and whole batches are disturbed now and then, both sides drift together, and each
    restart has a level of its own that scatters by ``restart``.
    """
    walk = rng.normal(0, 0.01, (repeats, restarts, 4 * rounds)).cumsum(axis=-1)
    walk = walk.reshape(repeats, restarts, rounds, 4)
    logs = []
    for places in ((0, 3), (1, 2)):
        level = rng.normal(0, restart, (repeats, restarts, 1, 1, 1))
        times = level + walk[..., places, None]
        times = times + noise(rng, (repeats, restarts, rounds, 2, batch))
        shape = (*times.shape[:-1], 1)
        times = times + rng.exponential(0.15, shape) * (rng.random(shape) < 0.06)
        logs.append(np.log(midmean(np.exp(times), axis=-1).mean(axis=-1)))
    return logs[0] - logs[1]


def simulate_operators(rng, true_us, restarts, runs, restart):
    """Logged times in ms of operators of these true ones: ``restarts`` arrays (runs, operators).

    XNNPACK logs whole microseconds. Every restart has a level that all operators share, and one
    for each of them.
    """
    true_us = np.asarray(true_us, float)
    sides = []
    for _ in range(restarts):
        level = rng.normal(0, restart) + rng.normal(0, restart / 2, true_us.size)
        times = true_us * np.exp(level + noise(rng, (runs, true_us.size)))
        sides.append(np.floor(times + rng.random(times.shape)) / 1e3)
    return sides


def noise(rng, shape):
    """Logarithms of what scatter and other programs make of a time."""
    return rng.normal(0, NOISE, shape) + rng.exponential(BY, shape) * (
        rng.random(shape) < DISTURBED
    )


def bootstrap_interval(rng, ratios, draws=400):
    """The percentile interval when restarts, and the rounds within them, are drawn anew."""
    restarts, rounds = ratios.shape
    chosen = rng.integers(0, restarts, (draws, restarts, 1))
    drawn = ratios[chosen, rng.integers(0, rounds, (draws, restarts, rounds))]
    return np.percentile(midmean(drawn, axis=-1).mean(axis=-1), [2.5, 97.5])

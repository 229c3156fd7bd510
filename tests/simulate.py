"""Measurements with known answers, many at a time, to see how often an interval is right."""

import numpy as np

from workbench.analysis.statistics import midmean

#: Single inferences scatter log-normally; so many of them are disturbed, by so much on average.
NOISE, DISTURBED, BY = 0.015, 0.05, 0.3


def simulate_restarts(rng, repeats, restarts, rounds, restart, machine=0.0, batch=3):
    """Midmeans of two equal experiments, each (restarts, repeats), measured A B B A.

    Inferences and whole batches are disturbed now and then, both sides drift together, and each
    restart has a level of its own that scatters by ``restart``; ``machine`` is the scatter between
    restarts that both sides share.
    """
    walk = rng.normal(0, 0.01, (repeats, restarts, 4 * rounds)).cumsum(axis=-1)
    walk = walk.reshape(repeats, restarts, rounds, 4)
    walk = walk + rng.normal(0, machine, (repeats, restarts, 1, 1))
    sides = []
    for places in ((0, 3), (1, 2)):
        level = rng.normal(0, restart, (repeats, restarts, 1, 1, 1))
        times = level + walk[..., places, None]
        times = times + noise(rng, (repeats, restarts, rounds, 2, batch))
        shape = (*times.shape[:-1], 1)
        times = times + rng.exponential(0.15, shape) * (rng.random(shape) < 0.06)
        sides.append(midmean(np.moveaxis(np.exp(times).reshape(repeats, restarts, -1), -1, 0)).T)
    return sides


def simulate_operators(rng, true_us, restarts, runs, restart):
    """Midmeans in ms of operators of these true times: (restarts, operators).

    Every restart has a level that all operators share, and one for each of them.
    """
    true_us = np.asarray(true_us, float)
    sides = []
    for _ in range(restarts):
        level = rng.normal(0, restart) + rng.normal(0, restart / 2, true_us.size)
        times = true_us * np.exp(level + noise(rng, (runs, true_us.size)))
        sides.append(midmean(times / 1e3))
    return np.array(sides)


def noise(rng, shape):
    """Logarithms of what scatter and other programs make of a time."""
    return rng.normal(0, NOISE, shape) + rng.exponential(BY, shape) * (
        rng.random(shape) < DISTURBED
    )

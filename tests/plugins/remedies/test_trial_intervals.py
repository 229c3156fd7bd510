"""Whether the intervals of trials hold for the best of those that are told."""

import numpy as np
import pytest

from workbench.plugins.remedies.timing import BEST, MOST_RESTARTS, RESTARTS, conclude, count_needed

#: What a gain may be less and more in the program, as parts of the time before.
MARGIN = 0.01


def measure(rng, scatter, gain, margin=MARGIN):
    """Restarts of two sides of a millisecond, as many as a trial makes."""
    blocks = np.exp(rng.normal(0, scatter / np.sqrt(2), (MOST_RESTARTS, 2))) - (0.0, gain)
    return blocks[: count_needed(blocks[:RESTARTS], (margin, margin))]


@pytest.mark.parametrize("scatter", [0.02, 0.1])
def test_the_best_of_the_trials_of_useless_remedies_is_shown_to_help_in_one_of_twenty(scatter):
    """Each is looked at twice, and a remedy may gain no less than in its trial."""
    rng = np.random.default_rng(0)
    tried = [[measure(rng, scatter, 0.0) for _ in range(BEST)] for _ in range(2000)]
    best = [max(each, key=lambda blocks: np.diff(-blocks).mean()) for each in tried]
    lows = np.array([conclude(blocks, (0.0, 0.0))[1] for blocks in best])
    assert (lows > 0).mean() < 0.05


def test_a_gain_that_matters_is_shown_in_five_restarts():
    rng = np.random.default_rng(0)
    blocks = [measure(rng, 0.03, 0.2) for _ in range(200)]
    assert np.mean([conclude(each, (MARGIN, MARGIN))[1] > 0 for each in blocks]) > 0.95
    assert np.mean([len(each) == RESTARTS for each in blocks]) > 0.95


def test_a_small_gain_is_shown_with_more_restarts():
    """Four hundredths, of which restarts scatter by half: rarely in five, nearly always in time."""
    rng = np.random.default_rng(0)
    blocks = [measure(rng, 0.02, 0.04) for _ in range(200)]
    assert np.mean([conclude(each, (MARGIN, MARGIN))[1] > 0 for each in blocks]) > 0.9
    assert np.mean([len(each) > RESTARTS for each in blocks]) > 0.5

"""The order and size of batches."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from workbench.run import measure
from workbench.run.measure import batch_size, interleave, rounds_needed

names = st.lists(st.text(min_size=1), min_size=1, max_size=5, unique=True)


@given(names, st.integers(1, 20))
def test_linear_drift_cancels_in_every_round(names, rounds):
    for order in interleave(names, rounds):
        assert Counter(order) == dict.fromkeys(names, 2)
        places = {name: [i for i, n in enumerate(order) if n == name] for name in names}
        assert {sum(place) for place in places.values()} == {len(order) - 1}


@given(names)
def test_every_experiment_takes_every_position(names):
    firsts = [order[0] for order in interleave(names, len(names))]
    assert sorted(firsts) == sorted(names)


@given(st.floats(0, 1e12), st.floats(0.1, 1000))
def test_a_batch_has_at_least_one_inference_and_not_too_many_to_keep(latency, batch_ms):
    assert 1 <= batch_size(latency, batch_ms) <= measure.MAX_BATCH


@given(st.integers(1, 1000), st.integers(1, 5), st.integers(1, 100))
def test_enough_inferences_are_timed(runs, processes, smallest):
    assert rounds_needed(runs, processes, smallest) * 2 * processes * smallest >= runs

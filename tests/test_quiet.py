import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workbench.analysis.statistics import STOLEN_LIMIT, find_undisturbed_runs

times = st.lists(st.tuples(st.integers(1, 10**9), st.integers(0, 10**9)), min_size=1, max_size=40)


def test_an_interrupted_run_is_left_out():
    wall, cpu = np.array([100, 100, 300, 100]), np.array([99, 100, 100, 99])
    assert find_undisturbed_runs(wall, cpu, 1).tolist() == [True, True, False, True]


def test_with_several_threads_cpu_time_does_not_tell():
    assert find_undisturbed_runs(np.array([100, 300]), np.array([200, 100]), 2).all()


@given(times)
def test_half_is_always_kept_and_none_louder_than_one_left_out(pairs):
    wall, cpu = map(np.array, zip(*pairs, strict=True))
    keep = find_undisturbed_runs(wall, cpu, 1)
    stolen = 1 - cpu / wall
    assert keep.sum() >= len(pairs) / 2
    assert (stolen[~keep] > STOLEN_LIMIT).all()
    if keep.any() and (~keep).any():
        assert stolen[keep].max() <= stolen[~keep].min() + 1e-12

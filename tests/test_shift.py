import pytest
from run_folder import open_made_run
from scipy.special import stdtrit

CATEGORIES = ("Convolution", "GEMM", "Data Movement", "Elementwise", "Other")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A made run: convolutions take half the time on the candidate's side."""
    folder, factors = tmp_path_factory.mktemp("shift") / "run", {"on": {"Convolution": 0.5}}
    return open_made_run(folder, {"off": None, "on": None}, factors=factors, processes=5, traced=4)


def restarts_of(measurement):
    """Milliseconds of every category (columns) in every restart (rows)."""
    ledger = measurement.ledger
    sums = ledger.groupby(["process", "run", "category"])["duration_ns"].sum() / 1e6
    return sums.unstack(fill_value=0).groupby(level="process").mean()


def test_a_category_has_the_interval_of_its_mean_over_the_restarts(run):
    table = run["off"].categories.set_index("category")
    for category, blocks in restarts_of(run["off"]).items():
        half = stdtrit(4, 0.975) * blocks.sem()
        ends = blocks.mean() - half, blocks.mean() + half
        assert tuple(table.loc[category, ["low_ms", "high_ms"]]) == pytest.approx(ends)


def test_a_change_has_its_interval_over_the_restarts(run):
    bounded = run.compare().shift.set_index("category")
    change = restarts_of(run["on"]) - restarts_of(run["off"])
    for category, changes in change.items():
        half = stdtrit(4, 0.975) * changes.sem()
        delta = bounded.at[category, "delta_ms"]
        ends = bounded.loc[category, ["low_ms", "high_ms"]]
        assert tuple(ends) == pytest.approx((delta - half, delta + half))
    assert bounded.at["Convolution", "delta_ms"] == bounded["delta_ms"].min()


def test_parts_of_a_change_that_may_be_noise_are_not_stated(tmp_path):
    run = open_made_run(tmp_path, {"off": None, "on": None}, traced=4)
    shift = run.compare().shift
    assert shift["contribution"].isna().all() and shift["delta_ms"].notna().all()


def test_contributions_sum_to_the_change(run):
    shift = run.compare().shift
    change = shift["candidate_ms"].sum() - shift["baseline_ms"].sum()
    assert shift["delta_ms"].sum() == pytest.approx(change)
    assert shift[["share_before", "share_after", "contribution"]].sum().to_list() == pytest.approx(
        [1, 1, 1]
    )
    for side in ("rank_before", "rank_after"):
        assert sorted(shift[side]) == list(range(1, len(shift) + 1))


def test_of_one_restart_a_change_has_no_interval(tmp_path):
    run = open_made_run(tmp_path / "run", {"off": 6, "on": 3}, processes=1)
    assert run.compare().shift[["low_ms", "high_ms"]].isna().all(axis=None)

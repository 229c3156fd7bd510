"""Operators by layer: nothing is lost, nothing counts twice."""

import numpy as np
import pytest
from recorded import recorded

samples = pytest.mark.parametrize("sample", ["mobilenet_v3_small", "vit_tiny", "squeezesam"])


@samples
def test_times_add_up(sample):
    for measurement in recorded(sample).traced:
        layers, operators = measurement.layers, measurement.operators
        total = operators["mean_ms"].sum()
        assert layers["own_ms"].sum() == pytest.approx(total)
        top = layers[layers["depth"] == 0]
        assert top["total_ms"].sum() == pytest.approx(total)
        assert top["share"].sum() == pytest.approx(1)
        assert top["operators"].sum() == len(operators)
        known = (operators["flops"] * operators["calls"]).sum()
        assert top["flops"].sum() == pytest.approx(known)
        assert layers["module"].is_unique
        own = operators.groupby("module")["mean_ms"].sum()
        assert layers.set_index("module")["own_ms"][own.index].to_numpy() == pytest.approx(own)


@samples
def test_each_module_is_followed_by_those_in_it_the_slowest_first(sample):
    layers = recorded(sample).subject.layers
    assert layers["module"].iloc[0] == ""
    assert layers["module"].iloc[-1:].isna().all(), "what is in no layer comes last"
    named = layers.dropna(subset="module")
    assert named["depth"].tolist() == [
        (path and path.count(".") + 1) or 0 for path in named["module"]
    ]
    for row, module in enumerate(named.itertuples()):
        after = named.iloc[row + 1 :]
        inside = after[(after["depth"] <= module.depth).cumsum() == 0]
        prefix = f"{module.module}." if module.module else ""
        assert inside["module"].str.startswith(prefix).all()
        children = inside[inside["depth"] == module.depth + 1]
        assert module.total_ms == pytest.approx(module.own_ms + children["total_ms"].sum())
        assert children["total_ms"].is_monotonic_decreasing


def test_intervals_are_those_of_the_sums_of_every_restart():
    """What one operator loses and another gains cancels, because they are summed first."""
    from scipy.stats import t

    on = recorded()["avx512_on"]
    layers = on.layers.set_index("module")
    for module in ("", "features.0", "classifier"):
        inside = on.ledger["layer"].astype(str).str.startswith(module)
        inside &= ~on.ledger["layer"].isin(["(no layer)"])
        sums = on.ledger[inside].groupby(["process", "run"])["duration_ns"].sum() / 1e6
        means = sums.groupby("process").mean()
        half = t.ppf(0.975, len(means) - 1) * means.std() / np.sqrt(len(means))
        row = layers.loc[module]
        assert (row["high_ms"] - row["total_ms"]) == pytest.approx(
            half,
        ), module
        assert row["low_ms"] == pytest.approx(2 * row["total_ms"] - row["high_ms"])

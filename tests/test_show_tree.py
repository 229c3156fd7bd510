import numpy as np
import pandas as pd
import pytest
from scipy import stats

import workbench as wb
from workbench.plots.layers import lay_out, plot_tree
from workbench.plots.text import count_outcomes

TREE = pd.DataFrame(
    [
        ("", 0, 1.0, 9.0),
        ("b", 1, 0.5, 6.0),
        ("b.1", 2, 3.5, 3.5),
        ("b.0", 2, 2.0, 2.0),
        ("a", 1, 2.0, 2.0),
        ("a.idle", 2, 0.0, 0.0),
        (None, 0, 1.0, 1.0),
    ],
    columns=["module", "depth", "own_ms", "total_ms"],
).assign(
    share=lambda tree: tree["total_ms"] / 10,
    low_ms=lambda tree: 0.98 * tree["total_ms"],
    high_ms=lambda tree: 1.02 * tree["total_ms"],
)


@pytest.fixture(scope="module", params=["mobilenet_v3_small", "vit_tiny"])
def analysis(request):
    return wb.analyze_run(wb.sample_run(request.param))


def layers_of(analysis):
    return analysis.select(analysis.layers, analysis.comparisons[0].pair.candidate, 1)


def test_boxes_lie_below_the_module_that_they_are_in():
    boxes = lay_out(TREE).set_index("name")
    assert boxes["left"].to_dict() == {
        "(the model)": 0,
        "b": 0,
        "1": 0,
        "0": 3.5,
        "a": 6,
        "(no layer)": 9,
    }
    assert boxes["width"].to_dict()["b"] == 6


def test_widths_of_recorded_trees_are_their_times(analysis):
    layers = layers_of(analysis)
    boxes = lay_out(layers)
    assert boxes.loc[boxes["depth"] == 0, "width"].sum() == pytest.approx(layers["own_ms"].sum())
    ends = boxes.set_index("module")
    for box in boxes[boxes["depth"] > 0].itertuples():
        parent = ends.loc[box.module.rpartition(".")[0]]
        assert parent["left"] - 1e-9 <= box.left
        assert box.left + box.width <= parent["left"] + parent["width"] + 1e-9
    for _, level in boxes.groupby("depth"):
        edges = level.sort_values("left")
        assert (np.diff(edges["left"]) >= edges["width"].to_numpy()[:-1] - 1e-9).all()


def test_a_tree_is_one_collection_as_wide_as_e2e(analysis):
    layers = layers_of(analysis)
    figure = plot_tree(layers)
    (axis,) = figure.axes
    boxes, _ = axis.collections
    corners = np.concatenate([path.vertices for path in boxes.get_paths()])
    assert corners[:, 0].max() == pytest.approx(layers["own_ms"].sum())
    assert not axis.patches
    shallow = plot_tree(layers, depth=1)
    assert len(shallow.axes[0].collections[0].get_paths()) < len(boxes.get_paths())
    assert "(the model)" in figure.alt_text


def test_the_interval_of_e2e_is_that_of_its_runs(analysis):
    layers = layers_of(analysis)
    assert layers[["low_ms", "high_ms"]].notna().all(axis=None)
    ledger = analysis.select(analysis.ledger, analysis.comparisons[0].pair.candidate, 1)
    inside = ledger[ledger["layer"] != "(no layer)"]
    restarts = (
        inside.groupby(["process", "run"])["duration_ns"].sum().groupby(level="process").mean()
    )
    count = len(restarts)
    half = stats.t.ppf(0.975, count - 1) * restarts.std() / np.sqrt(count) / 1e6
    top = layers.iloc[0]
    assert (top["high_ms"] - top["low_ms"]) / 2 == pytest.approx(half)
    assert top["total_ms"] == pytest.approx(restarts.mean() / 1e6, rel=0.01)


def test_boxes_bear_their_intervals():
    figure = plot_tree(TREE)
    _, bars = figure.axes[0].collections
    ends = [tuple(segment[:, 0]) for segment in bars.get_segments()]
    assert pytest.approx((8.82, 9.18)) in ends
    assert pytest.approx((5.88, 6.12)) in ends
    assert "9.00 ± 0.18 ms" in figure.alt_text
    bare = plot_tree(TREE.assign(low_ms=np.nan, high_ms=np.nan))
    assert not bare.axes[0].collections[1].get_segments()
    assert "±" not in bare.alt_text


def test_an_empty_tree_is_an_empty_figure():
    assert not plot_tree(TREE[:0]).axes[0].collections[0].get_paths()


def test_layers_come_with_the_line_of_their_dearest_operator(analysis):
    pair = analysis.comparisons[0].pair
    text = str(wb.show_layers(analysis, pair.candidate, 1, rows=5))
    operators = analysis.select(analysis.operators, pair.candidate, 1)
    dearest = layers_of(analysis).sort_values("own_ms", ascending=False)["module"].iloc[0]
    source = operators.loc[operators["module"] == dearest, "source"].iloc[0]
    assert dearest in text and source in text


def test_speedups_say_how_many_were_shown(analysis):
    comparison = analysis.comparisons[0]
    text = str(wb.show_speedups(comparison, rows=3))
    shown = int((comparison.operators["outcome"] == "faster").sum())
    assert f"{len(comparison.operators)} operators: " in text
    assert f"{shown} faster" in text
    assert "At most 5 % of those" in text


def test_nothing_shown_needs_no_word_on_false_discoveries():
    parts = pd.DataFrame({"outcome": ["equivalent"] * 3, "detectable": [0.1] * 3})
    assert count_outcomes(parts, "layers") == "3 layers: 3 equivalent."

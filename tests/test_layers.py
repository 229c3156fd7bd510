"""Operators by layer, and the tree of modules: nothing is lost, nothing counts twice."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import recorded

import workbench as wb
from workbench.analysis.layers import add_layers, build_model_tree, summarize_layers
from workbench.errors import StoreError
from workbench.frames import ATTRIBUTION, LAYER_TYPES, LAYERS, OPERATORS, TREE, check
from workbench.records.layers import Layers, Method

paths = st.lists(st.sampled_from("abc"), max_size=3).map(".".join)
rows = st.lists(
    st.tuples(st.none() | paths, st.floats(0, 100), st.none() | st.floats(0, 1e9)), max_size=20
)


def operators_of(rows, calls=1.0):
    """An operators frame with layers, from module, milliseconds and operations."""
    count = len(rows)
    text = {
        column.name: ["x"] * count
        for column in (*OPERATORS.columns, *ATTRIBUTION.columns)
        if column.kind == "text"
    }
    return pd.DataFrame(
        {
            **text,
            "key": [str(n) for n in range(count)],
            "calls": np.full(count, calls),
            "mean_ms": np.array([row[1] for row in rows], float),
            "std_ms": np.zeros(count),
            "share": np.zeros(count),
            "module": pd.Series([row[0] for row in rows], dtype=object),
            "flops": np.array([np.nan if row[2] is None else row[2] for row in rows], float),
            "bytes": np.zeros(count),
        }
    )


def layers_of(**modules):
    return Layers("0", (Method("forward", (), {}, (), modules=modules),))


@given(rows)
def test_times_add_up(rows):
    table = check(summarize_layers(operators_of(rows), layers_of()), LAYERS)
    total = sum(ms for _, ms, _ in rows)
    assert table["own_ms"].sum() == pytest.approx(total, abs=1e-6)
    top = table[table["depth"] == 0]
    assert top["total_ms"].sum() == pytest.approx(total, abs=1e-6)
    assert top["operators"].sum() == len(rows)
    named = table.dropna(subset="module")
    assert named["module"].is_unique
    for module in named.itertuples():
        inside = named[
            (named["depth"] == module.depth + 1)
            & named["module"].str.startswith(f"{module.module}." if module.module else "")
        ]
        assert module.total_ms == pytest.approx(module.own_ms + inside["total_ms"].sum(), abs=1e-6)


def test_each_module_is_followed_by_those_in_it_the_slowest_first():
    rows = [("b.x", 1, 5), ("a", 2, 7), ("b.y", 3, None), ("", 0.5, 1), (None, 9, None)]
    table = summarize_layers(operators_of(rows, calls=2.0), layers_of(b="Block"))
    assert table["module"].tolist() == ["", "b", "b.y", "b.x", "a", None]
    assert table["depth"].tolist() == [0, 1, 2, 2, 1, 0]
    assert table["own_ms"].tolist() == [0.5, 0, 3, 1, 2, 9]
    assert table["total_ms"].tolist() == [6.5, 4, 3, 1, 2, 9]
    assert table["flops"].tolist() == [26, 10, 0, 10, 14, 0]
    assert table["module_class"].tolist() == ["x", "Block", "x", "x", "x", ""]
    assert table["share"].iloc[0] == pytest.approx(6.5 / 15.5)


def test_layers_are_added_by_key():
    operators = operators_of([("a", 1, 1), ("b", 2, 2)])
    attribution = operators[ATTRIBUTION.names].iloc[::-1]
    added = add_layers(operators[OPERATORS.names], attribution)
    assert added["module"].tolist() == ["a", "b"]
    with pytest.raises(StoreError, match="'confidence' is missing"):
        add_layers(operators[OPERATORS.names], attribution.drop(columns="confidence"))


placements = st.lists(
    st.tuples(st.none() | paths, st.floats(0, 100), st.none() | st.floats(0, 1e9)), max_size=20
)


@given(placements)
def test_inclusive_is_exclusive_and_what_lies_within(rows):
    tree = check(build_model_tree(operators_of(rows)), TREE)
    total = sum(ms for _, ms, _ in rows) * 1e6
    assert tree["exclusive_ns"].sum() == pytest.approx(total)
    assert tree.loc[tree["depth"] == 0, "inclusive_ns"].sum() == pytest.approx(total)
    assert tree["path"].is_unique
    named = tree[tree["path"].notna()]
    assert set(named["parent"].dropna()) <= set(named["path"])
    for module in named.itertuples():
        within = named.loc[named["parent"] == module.path, "inclusive_ns"].sum()
        assert module.inclusive_ns == pytest.approx(module.exclusive_ns + within)
    for path, group in operators_of(rows).groupby("module"):
        own = named.loc[named["path"] == path, "exclusive_ns"].item()
        assert own == pytest.approx(group["mean_ms"].sum() * 1e6)


def test_a_tree_reads_from_the_model_down_the_slowest_first():
    rows = [("b.x", 1, 5), ("a", 2, 7), ("b.y", 3, None), ("", 0.5, 1), (None, 9, None)]
    tree = build_model_tree(operators_of(rows, calls=2.0), {"": "Net", "b": "Block"})
    assert tree["path"].tolist() == ["", "b", "b.y", "b.x", "a", None]
    assert tree["parent"].tolist() == [None, "", "b", "b", "", None]
    assert tree["class"].tolist() == ["Net", "Block", "x", "x", "x", ""]
    assert tree["exclusive_ns"].tolist() == [5e5, 0, 3e6, 1e6, 2e6, 9e6]
    assert tree["inclusive_ns"].tolist() == [6.5e6, 4e6, 3e6, 1e6, 2e6, 9e6]
    assert tree["operators"].tolist() == [4, 2, 1, 1, 1, 1]


def test_time_of_no_layer_alone():
    tree = build_model_tree(operators_of([(None, 2, None)]))
    assert len(tree) == 1
    assert pd.isna(tree["path"].iloc[0])
    assert tree["share"].tolist() == [1.0]


def runs_of(rows, restarts=5, count=4):
    """Runs whose restarts shift ``a`` and ``b.x`` together, and ``b.y`` the other way."""
    shift = np.linspace(-0.2, 0.2, restarts)
    signs = {"a": 1, "b.x": 1, "b.y": -1}
    index = pd.MultiIndex.from_product([range(restarts), range(count)], names=["process", "run"])
    times = [ms + signs.get(module, 0) * np.repeat(shift, count) for module, ms, _ in rows]
    return pd.DataFrame(np.transpose(times), index, [str(n) for n in range(len(rows))])


def test_intervals_are_those_of_the_sums_of_every_restart():
    rows = [("b.x", 1, 5), ("a", 2, 7), ("b.y", 3, None), ("", 0.5, 1), (None, 9, None)]
    tree = check(build_model_tree(operators_of(rows), runs=runs_of(rows)), TREE)
    half = (tree["high_ns"] - tree["low_ns"]) / 2e6
    widths = dict(zip(tree["path"].fillna("none"), half, strict=True))
    one = 2.7764 * np.linspace(-0.2, 0.2, 5).std(ddof=1) / np.sqrt(5)  # t, 4 degrees of freedom
    for path in ("a", "b.x", "b.y", ""):
        assert widths[path] == pytest.approx(one, rel=1e-4)
    assert widths["b"] == pytest.approx(0, abs=1e-9), "what one lost the other won"
    assert widths["none"] == pytest.approx(0, abs=1e-9)
    assert (tree["low_ns"] + tree["high_ns"]).to_numpy() == pytest.approx(
        2 * tree["inclusive_ns"].to_numpy()
    )


def test_where_nothing_was_repeated_there_is_no_interval():
    rows = [("a", 2, 7), (None, 9, None)]
    assert build_model_tree(operators_of(rows))["low_ns"].isna().all()
    once = build_model_tree(operators_of(rows), runs=runs_of(rows, 1, 1))
    assert once["high_ns"].isna().all()
    runs = runs_of(rows, 1, 4) * np.array([[0.9], [1.1], [1.0], [1.0]])
    assert build_model_tree(operators_of(rows), runs=runs)["high_ns"].gt(0).all()


def test_types_of_layers_split_into_categories_and_sum_to_the_latency():
    on = recorded()["avx512_on"]
    types = check(on.layer_types, LAYER_TYPES)
    assert types["mean_ms"].sum() == pytest.approx(on.categories["mean_ms"].sum())
    assert types["operators"].sum() == len(on.operators)
    by_category = types.groupby("category")["mean_ms"].sum()
    assert by_category.to_dict() == pytest.approx(
        dict(zip(on.categories["category"], on.categories["mean_ms"], strict=True))
    )
    whole = types.groupby("module_class", sort=False)["mean_ms"].sum()
    assert list(whole) == sorted(whole, reverse=True)
    as_gemm = types[(types["module_class"] == "Conv2d") & (types["category"] == "GEMM")]
    pointwise = on.operators[
        on.operators["operator"].str.startswith("Fully Connected")
        & (on.operators["module_class"] == "Conv2d")
    ]
    assert len(pointwise)
    assert as_gemm["mean_ms"].item() == pytest.approx(pointwise["mean_ms"].sum())
    assert as_gemm["layers"].item() == pointwise["module"].nunique()
    assert types["low_ms"].le(types["mean_ms"]).all()
    assert types["high_ms"].ge(types["mean_ms"]).all()
    assert "Conv2d" in wb.plot_layer_types(types).alt_text

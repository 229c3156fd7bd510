"""Operators roll up the tree of modules: nothing is lost, nothing counts twice."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.analysis.layers import add_layers, summarize_layers
from workbench.errors import StoreError
from workbench.frames import ATTRIBUTION, LAYERS, OPERATORS, check
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


@settings(deadline=None)
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

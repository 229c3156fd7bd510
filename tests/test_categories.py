from pathlib import Path

import pandas as pd
import pytest

from workbench.analysis.categories import (
    CATEGORIES,
    KINDS,
    RULES,
    add_categories,
    categorize,
    tabulate_rules,
)
from workbench.errors import UsageError

GOLDEN = [
    tuple(line.split("\t"))
    for line in (Path(__file__).parent / "data" / "op_names.txt").read_text().splitlines()
    if not line.startswith("#")
]
UNKNOWN = {"Invalid", "17", "conv_relu_fused", "native_call_my_custom_op.out"}


@pytest.mark.parametrize(("kind", "name", "category", "family"), GOLDEN)
def test_every_known_name_has_its_place(kind, name, category, family):
    placed = categorize(name, kind)
    assert (placed.category, placed.family) == (category, family)
    assert (family == "unknown") == (name in UNKNOWN)


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("Convert (NC, F32, QD8) #2", "Data Movement"),
        ("Resize Bilinear (NHWC) #1", "Other"),
        ("Fully Connected (NC, PF32) GEMM #7", "GEMM"),
        ("Copy (NC, X32) #1", "Data Movement"),
        ("Copy Sign (ND)", "Elementwise"),
        ("Convolution (NHWC, F32) DWConv #12", "Convolution"),
        ("Convolution-like thing", "Other"),
    ],
)
def test_names_that_mislead(name, category):
    assert categorize(name).category == category


def test_a_portable_name_may_carry_its_namespace():
    assert categorize("aten::add.out", "portable") == categorize("native_call_add.out", "portable")


def test_arithmetic_on_sizes_is_not_arithmetic_on_tensors():
    assert categorize("native_call_add.Scalar", "portable").family == "scalar"
    assert categorize("native_call_add.Scalar_out", "portable").family == "elementwise"


@pytest.mark.parametrize("name", ["", " ", "#3", "(", "a (b", "a\nb", "x" * 10_000])
@pytest.mark.parametrize("kind", KINDS)
def test_any_name_has_a_place(name, kind):
    assert categorize(name, kind).category in CATEGORIES


def test_a_kind_that_the_ledger_does_not_have():
    with pytest.raises(UsageError, match="did you mean 'portable'"):
        categorize("x", "portabel")


def test_the_table_is_sound():
    table = tabulate_rules()
    assert list(table.columns) == ["name", "kind", "pattern", "category", "family", "why"]
    assert table["name"].is_unique
    assert set(table["category"]) == set(CATEGORIES)
    assert table["why"].str.len().gt(0).all()
    families = table.groupby("family")["category"].nunique()
    assert families.eq(1).all(), "a family belongs to one category"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_is_reached(rule):
    fallback = rule.family == "unknown"
    assert fallback or any(categorize(name, kind).rule == rule.name for kind, name, *_ in GOLDEN)


def test_add_categories_keeps_the_rows():
    ledger = pd.DataFrame(
        {
            "operator": ["Add (ND)", "Method::execute", "Add (ND)", "Clamp (NC)"],
            "kind": ["delegated", "framework", "delegated", "delegated"],
            "duration_ns": [4, 3, 2, 1],
        }
    )
    placed = add_categories(ledger)
    assert list(placed["duration_ns"]) == [4, 3, 2, 1]
    assert list(placed["category"]) == ["Elementwise", "Other", "Elementwise", "Elementwise"]
    assert list(placed["rule"]) == ["elementwise", "framework", "elementwise", "activation"]
    assert "category" not in ledger
    pd.testing.assert_frame_equal(add_categories(placed), placed)

"""Tables and sentences."""

import math

import pandas as pd
import pytest
from matplotlib.figure import Figure
from recorded import recorded
from synthetic import synthetic_latencies, synthetic_ledger

from workbench.analysis.compare import compare_latencies
from workbench.analysis.operators import label_operator, summarize_operators
from workbench.analysis.statistics import describe_latencies
from workbench.datasets import load_case_study
from workbench.errors import UsageError
from workbench.frames import MISSING
from workbench.plots.tables import show, show_table
from workbench.plots.text import (
    add_up_operators,
    count_outcomes,
    show_kernels,
    show_latencies,
    show_layers,
    show_operators,
    show_speedups,
    show_sweeps,
)


@pytest.fixture(scope="module")
def ledgers():
    return synthetic_ledger(), synthetic_ledger({"Convolution": 4, "GEMM": 3}, seed=1)


@pytest.fixture(scope="module")
def latencies():
    return synthetic_latencies({"off": 6.0, "on": 3.0, "again": 6.0})


@pytest.fixture(scope="module", params=["mobilenet_v3_small", "vit_tiny"])
def run(request):
    return recorded(request.param)


def test_a_table_has_units_and_sensible_digits(ledgers):
    text = show_table(
        summarize_operators(ledgers[0]), ["name", "mean_ms", "share", "calls"]
    ).markdown
    assert text.splitlines()[0] == "| name | mean (ms) | share (%) | calls |"
    assert text.splitlines()[2] == "| Convolution (NHWC, F32) IGEMM #3 | 2.142 | 31.9 | 1 |"


def test_the_interval_of_a_speedup_is_a_ratio_that_of_a_median_is_a_time(latencies):
    ratio = show_table(compare_latencies(latencies, "off", "on"), ["speedup", "low"]).markdown
    assert ratio.splitlines()[0] == "| speedup | low |"
    assert ratio.count("x |") == 2
    time = show_table(describe_latencies(latencies), ["median", "low"]).markdown
    assert time.splitlines()[0] == "| median (ms) | low (ms) |"


def test_shares_of_samples_have_their_interval_in_the_same_unit():
    frame = pd.DataFrame({"share": [0.97], "low": [0.9], "high": [0.99], "q": [0.0]})
    text = str(show_table(frame))
    assert "| share (%) | low (%) | high (%) | q |" in text
    assert "| 97.0 | 90.0 | 99.0 | &lt; 0.001 |" in text


def test_a_column_has_three_figures_of_its_smallest_value_and_large_numbers_are_grouped():
    frame = {"ms": [2.483, 12.1], "small_ms": [0.0123456, 2.0], "flops": [10838016, 5]}
    text = str(show_table(pd.DataFrame(frame)))
    assert "| 2.48 | 0.012 | 10 838 016 |" in text and "| 12.10 | 2.000 | 5 |" in text


def test_sizes_and_ratios_have_units_and_long_names_may_be_broken():
    frame = pd.DataFrame(
        {"size_mb": [1.5], "sqnr_db": [40.0], "file": ["models/of/a/transformer.py:20"]}
    )
    table = show_table(frame)
    assert "| size (MB) | sqnr (dB) | file |" in str(table)
    assert "models/<wbr>of/<wbr>a/<wbr>transformer.py:20" in table.html
    assert "wbr" not in str(table)


def test_what_a_frame_holds_is_never_markup():
    frame = pd.DataFrame({"<i>": ["<script>alert(1)</script> | x\ny"], "n": [math.nan]})
    table = show_table(frame, caption="a <b> & c")
    for text in (table.html, table.markdown, table._repr_html_(), str(table)):
        assert "<script>" not in text and "<i>" not in text and "<b>" not in text
    assert table.markdown.splitlines()[-1].count("\\|") == 1
    assert table.markdown.splitlines()[-1].endswith(f"| {MISSING} |")


def test_a_table_may_be_cut(ledgers):
    operators = summarize_operators(ledgers[0])
    assert len(show_table(operators, top=3).markdown.splitlines()) == 5
    with pytest.raises(UsageError, match="did you mean 'mean_ms'"):
        show_table(operators, ["mean"])


def test_the_case_study_has_a_table_without_operators():
    study = load_case_study("squeezesam")
    text = show_table(study.categories["FP16, SME2 off"]).markdown
    assert "| Data Movement | 139.00 | 12.0 |" in text
    assert f"| {MISSING} |" in text


def test_a_stack_is_its_parts():
    table = show_table(pd.DataFrame({"a": [1]}))
    stack = show(Figure(), table, "note")
    assert str(stack) == f"{table}\n\nnote"
    assert len(stack.parts) == 3


def test_latencies_and_operators_are_those_of_the_run(run):
    text = str(show_latencies(run))
    assert all(name in text for name in run.statistics["experiment"])
    *_, single, _ = lines = str(show_operators(run.subject, top=2)).splitlines()
    first = run.subject.operators.iloc[0]
    assert single.startswith(f"| {label_operator(first['name'], first['module'])} |")
    assert lines.index("By layer") < lines.index("Single operators")


def test_operators_are_added_up_by_type_and_layer():
    """As of an LSTM: each step calls the same product, and all products have one name."""
    rows = [
        ("lstm", "GEMM", 3.0),
        ("lstm", "GEMM", 2.0),
        ("head", "GEMM", 1.0),
        ("lstm", "Add", 4.0),
    ]
    operators = pd.DataFrame(rows, columns=["module", "operator", "mean_ms"])
    operators = operators.assign(category=operators["operator"], calls=1.0, share=0.1)
    types = add_up_operators(operators, [])
    columns = ["operator", "operators", "calls", "mean_ms"]
    assert types[columns].to_numpy().tolist() == [["GEMM", 3, 3.0, 6.0], ["Add", 1, 1.0, 4.0]]
    layers = add_up_operators(operators, ["module"])
    columns = ["module", "operator", "mean_ms"]
    wanted = [["lstm", "GEMM", 5.0], ["lstm", "Add", 4.0], ["head", "GEMM", 1.0]]
    assert layers[columns].to_numpy().tolist() == wanted


def test_operators_without_layers_are_not_added_up_by_layer(ledgers):
    text = str(show_operators(summarize_operators(ledgers[0]), top=1))
    assert "By type of operator" in text and "Single operators" in text
    assert "By layer" not in text and "module class" not in text


def test_layers_come_with_the_line_of_their_slowest_operator(run):
    on = run.subject
    text = str(show_layers(on, top=5))
    slowest = on.layers.sort_values("own_ms", ascending=False)["module"].iloc[0]
    source = on.operators.loc[on.operators["module"] == slowest, "source"].iloc[0]
    assert slowest in text and source in text


def test_speedups_say_how_many_were_shown(run):
    ab = run.compare()
    text = str(show_speedups(ab, top=3))
    shown = int((ab.operators["outcome"] == "faster").sum())
    assert f"{len(ab.operators)} operators: " in text
    assert f"{shown} faster" in text
    assert "At most 5 % of the faster" in text


def test_nothing_shown_needs_no_word_on_false_discoveries():
    parts = pd.DataFrame({"outcome": ["equivalent"] * 3, "detectable": [0.1] * 3})
    assert count_outcomes(parts, "layers") == "3 layers: 3 equivalent."


def test_a_run_with_one_toggle_says_how_to_measure_more():
    assert "--isa-ladder" in str(show_sweeps(recorded()))


def test_a_microkernel_stands_beside_the_layer_of_its_operator():
    text = str(show_kernels(recorded("toy_cnn").compare(), top=1))
    assert "| conv2 | Convolution (NHWC, " in text

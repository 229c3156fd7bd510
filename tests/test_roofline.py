"""The roofline: nothing lies above it, and what cannot be told is not told."""

import math
from dataclasses import replace

import pandas as pd
import pytest
from findings_table import tabulate
from hypothesis import given
from hypothesis import strategies as st
from made_models import exported
from program_builder import Delegate, Kernel, Node, changed, make_roof, measured
from recorded import recorded

import workbench as wb

NEAR_ROOF = 1 / 3
MB = 2**20


def test_the_roof_is_what_the_probes_reached():
    roof = make_roof()
    assert roof.peaks == pytest.approx({"fp32": 100, "int8": 400})
    assert roof.call_ms == pytest.approx(0.001)
    assert [size for size, _ in roof.bandwidths] == [MB, 16 * MB]
    assert [rate for _, rate in roof.bandwidths] == pytest.approx([100, 10], rel=0.01)
    assert roof.spread == pytest.approx(0.05)
    assert math.isnan(roof.peak("bf16"))


@given(st.floats(1, 1e10))
def test_bandwidth_never_grows_with_the_footprint(size):
    roof = make_roof()
    assert roof.bandwidth(2 * size) <= roof.bandwidth(size) <= roof.bandwidth(1)


def test_a_slow_probe_of_a_small_footprint_does_not_lower_the_roof():
    assert make_roof(read=(MB // 2, 1.0)).bandwidth(MB // 2) == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize("without", ["gemm", "stream", "call", "program", "times"])
def test_ceilings_without_a_probe_are_refused(without):
    with pytest.raises(Exception, match="measure them again"):
        make_roof(without=without)


@pytest.mark.parametrize(
    ("operator", "program", "dtype"),
    [
        ("Convolution (NHWC, F32) IGEMM", "fp16", "fp32"),
        ("Convolution (NHWC, PF16) IGEMM", "fp32", "fp16"),
        ("Fully Connected (NC, QD8, F32, QC8W) GEMM", "fp32", "int8"),
        ("Fully Connected (NC, QP8, F32, QC4W) GEMM", "fp32", "int8"),
        ("Fully Connected (NC, BF16, F32) GEMM", "fp32", "bf16"),
        ("Multiply (ND)", "fp16", "fp16"),
        ("native_call_mul.out", "int8", "fp32"),
    ],
)
def test_the_dtype_is_that_of_the_name(operator, program, dtype):
    facts = measured(Delegate([Node("Clamp", "x", "y", 1.0)]), export=exported(program))
    named = changed(facts, operators=facts.operators.assign(operator=operator), roof=make_roof())
    assert named.roofline["dtype"].iloc[0] == dtype


def placed(node, ms=1.0, **facts):
    facts = measured(Delegate([replace(node, ms=ms)]), roof=make_roof(), **facts)
    return facts.roofline.set_index("operator")


def test_what_computes_much_is_bound_by_arithmetic():
    conv = Node("Conv2d", "x W", "y", 0, flops=5 * 10**7)
    row = placed(conv).loc["Convolution (NHWC, F32) IGEMM"]
    assert row["bound"] == "compute"
    assert row["roof_share"] == pytest.approx(0.5)
    assert row["gflops"] == pytest.approx(50)
    assert row["least_ms"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("shape", "rate", "ms"), [((MB // 4,), 100, 0.04), ((32 * MB // 4,), 10, 20.0)]
)
def test_what_moves_much_is_bound_by_memory_at_its_footprint(shape, rate, ms):
    row = placed(Node("Clamp", "x", "y", 0, flops=1), ms, shapes={"x": shape, "y": shape})
    row = row.loc["Clamp (NC)"]
    size = 8 * shape[0]
    assert row["bound"] == "memory"
    assert row["roof_gbps"] == pytest.approx(rate, rel=0.01)
    assert row["roof_share"] == pytest.approx(size / rate / 1e6 / ms, rel=0.01)


def test_what_does_next_to_nothing_is_bound_by_its_call():
    row = placed(Node("Clamp", "x", "y", 0), 0.002, shapes={"x": (4,), "y": (4,)})
    assert row.loc["Clamp (NC)", "bound"] == "overhead"


def test_of_a_call_shorter_than_the_log_counts_nothing_is_told():
    row = placed(Node("Clamp", "x", "y", 0), 0.004).loc["Clamp (NC)"]
    assert math.isnan(row["roof_share"])


def test_without_a_peak_of_its_dtype_nothing_is_told():
    clamp = Node("Clamp", "x", "y", 1.0, flops=10)
    table = measured(Delegate([clamp]), roof=make_roof(int8=400.0)).roofline
    assert table["bound"].tolist() == ["unknown"]
    assert table["roof_share"].isna().all()


def test_overhead_and_unknown_costs_have_no_place():
    kernel = Kernel("sort", "y", "z", 1.0, flops=float("nan"))
    facts = measured(Delegate([Node("Clamp", "x", "y", 1.0)]), kernel, roof=make_roof())
    assert facts.roofline["operator"].tolist() == ["Clamp (NC)"]
    assert changed(facts, operators=facts.operators.iloc[:0]).roofline.empty
    assert changed(facts, operators=facts.operators.drop(columns="flops")).roofline is None


@pytest.fixture(scope="module")
def sample():
    return recorded()


def test_no_operator_of_the_sample_is_above_the_roof(sample):
    for experiment in ("avx512_on", "avx512_off"):
        table = sample[experiment].roofline
        timed = table.dropna(subset="roof_share")
        assert len(timed) > 30
        assert timed["roof_share"].max() < 1.05
        assert (timed["roof_share"] > 0).all()


def test_the_figure_says_what_it_draws(sample):
    table, said = sample.subject.roofline, wb.plot_roofline(sample).alt_text
    shown = table[(table["flops"] > 0) & table["roof_share"].notna()]
    slowest = shown.nlargest(1, "mean_ms").iloc[0]
    assert f"{sample.subject.roof.peaks['fp32']:.0f} GFLOP/s" in said and "GB/s" in said
    assert f"1 {slowest['module']} · " in said and f"{100 * slowest['roof_share']:.0f} %" in said
    assert f"shown: {100 * shown['share'].sum():.0f} % of the time" in said


def test_without_ceilings_the_report_says_how_to_get_them(sample, tmp_path):
    bare = replace(sample, path=tmp_path)
    assert bare.subject.roofline is None
    assert "wb.measure_roof" in str(wb.plot_roofline(bare))
    assert "No roofline" in str(wb.show(bare, "roofline"))


def test_the_table_of_ceilings_has_units(sample):
    assert set(sample.ceilings["unit"]) == {"GFLOP/s", "GB/s"}
    assert (sample.ceilings["value"] > 0).all() and sample.ceilings["spread"].notna().all()


def bound_facts(node, ms, size_of, **more):
    facts = measured(Delegate([replace(node, ms=ms)]), shapes=size_of)
    return changed(facts, roof=make_roof(), **more)


def test_large_weights_at_the_roof_of_memory_are_found():
    linear = Node("FullyConnected", "x W", "y", 0, flops=2 * 4096 * 4096)
    sizes = {"x": (1, 4096), "W": (4096, 4096), "y": (1, 4096)}
    table = tabulate(bound_facts(linear, 8.0, sizes))
    first = table.iloc[0]
    assert first["rule"] == "memory-bound"
    assert first["gain_ms"] == pytest.approx(0.75 * 8.0, rel=0.01)
    assert first["low_ms"] < first["gain_ms"] < first["high_ms"]
    # A quarter of 64 MB comes at the 10 GB/s of its own footprint, at best.
    assert first["high_ms"] == pytest.approx(8.0 - 16.8 / 10, rel=0.01)
    slow = tabulate(bound_facts(linear, 50.0, sizes))
    assert "memory-bound" not in set(slow["rule"])
    assert "no known remedy" in set(slow["rule"])


def test_quantised_weights_at_the_roof_of_memory_need_more_work_per_read():
    linear = Node("FullyConnected", "x W", "y", 8.0, flops=2 * 8192 * 8192)
    sizes = {"x": (1, 8192), "W": (8192, 8192), "y": (1, 8192)}
    facts = measured(Delegate([linear]), shapes=sizes, dtypes={"W": "qint8"})
    roof = make_roof()
    facts = changed(facts, roof=roof)
    first = tabulate(facts).iloc[0]
    assert first["rule"] == "memory-bound"
    assert first["cause"].startswith("memory limits 1 operator with quantised weights: 67.2 MB are")
    assert math.isnan(first["gain_ms"])
    assert "tokens" in first["action"]
    slow = measured(Delegate([replace(linear, ms=50.0)]), shapes=sizes, dtypes={"W": "qint8"})
    slow = changed(slow, roof=roof)
    assert "memory-bound" not in set(tabulate(slow)["rule"])


def test_products_at_the_roof_of_arithmetic_are_found():
    conv = Node("Conv2d", "x W", "y", 0, flops=9 * 10**8)
    table = tabulate(bound_facts(conv, 10.0, {}))
    first = table.iloc[0]
    assert first["rule"] == "compute-bound"
    assert "4.0 times" in first["cause"]
    assert first["gain_ms"] == pytest.approx(10 * (1 - 1 / 4 / 0.75), rel=0.01)


def test_what_an_extension_left_alone_gains_no_more_than_the_roof_leaves():
    """A product of activations at 90 % of the peak, of which int8 gains nothing."""
    product = Node("BatchMatrixMultiply", "x W", "y", 0, flops=9 * 10**8)
    facts = bound_facts(product, 10.0, {}, toggle="avx512")
    rows = facts.operators[facts.operators["family"] == "bmm"]
    sides = dict.fromkeys(("candidate_ms", "baseline_ms"), rows["mean_ms"])
    changes = pd.DataFrame({"key": rows["key"], "name": rows["operator"], **sides})
    changes = changes.assign(speedup=1.0, low=0.97, high=1.03, outcome="unchanged")
    table = tabulate(changed(facts, changes=changes)).set_index("rule")
    assert table.loc["no speed-up", "high_ms"] == pytest.approx(1.0, abs=0.5)


@pytest.mark.parametrize(
    ("kind", "attributes", "found"),
    [
        ("Conv2d", {"group_input_channels": 3}, False),
        ("Conv2d", {"group_input_channels": 32}, True),
        ("DepthwiseConv2d", {"groups": 64, "kernel_height": 3, "kernel_width": 3}, False),
        ("BatchMatrixMultiply", {}, False),
    ],
    ids=["first convolution", "convolution", "depthwise", "product of activations"],
)
def test_int8_is_promised_only_to_what_it_accelerates(kind, attributes, found):
    node = Node(kind, "x W", "y", 0, attributes, flops=9 * 10**8)
    rules = set(tabulate(bound_facts(node, 10.0, {}))["rule"])
    assert ("compute-bound" in rules) is found


def test_what_is_far_from_every_roof_is_bound_by_neither():
    conv = Node("Conv2d", "x W", "y", 0, flops=5 * 10**7)
    for ms, bound in ((1.4, "compute"), (1.6, "neither"), (10.0, "neither")):
        row = placed(conv, ms).loc["Convolution (NHWC, F32) IGEMM"]
        assert row["bound"] == bound
        assert (row["roof_share"] >= NEAR_ROOF) == (bound == "compute")
    facts = bound_facts(conv, 10.0, {})
    assert facts.needed["roof_share"].tolist() == [pytest.approx(0.05, rel=0.01)]
    assert facts.needed["reason"].tolist() == [""]
    assert "no remedy is known" in tabulate(facts).set_index("rule").at["no known remedy", "cause"]


def test_weights_that_are_read_at_the_speed_of_main_memory_are_bound_by_it():
    """In a small layer of a large model, whose weights leave the caches between inferences."""
    linear = Node("FullyConnected", "x W", "y", 0, flops=2 * 256 * 256)
    sizes = {"x": (1, 256), "W": (256, 256), "y": (1, 256)}
    for ms, bound in ((0.05, "memory"), (0.09, "neither")):  # 5 and 3 of the 10 GB/s
        row = placed(linear, ms, shapes=sizes).iloc[0]
        assert row["bound"] == bound
        assert (row["roof_share"] >= NEAR_ROOF) == (bound == "memory"), "one bandwidth"
        assert row["roof_share"] == pytest.approx(row["gbps"] / row["roof_gbps"])
    clamp = placed(Node("Clamp", "x", "y", 0, flops=1), 0.05, shapes=sizes | {"y": (256, 256)})
    assert clamp.iloc[0]["bound"] == "neither"


def test_a_finding_and_the_table_name_the_same_bound():
    """Also where other programs disturbed a restart, which lengthens what the table shows."""
    linear = Node("FullyConnected", "x W", "y", 0, flops=2 * 4096 * 4096)
    sizes = {"x": (1, 4096), "W": (4096, 4096), "y": (1, 4096)}
    facts = bound_facts(linear, 8.0, sizes)
    assert "memory-bound" in set(tabulate(facts)["rule"])
    rows = facts.operators
    disturbed = changed(facts, operators=rows.assign(mean_ms=rows["mean_ms"] * 20))
    vars(disturbed)["use"] = facts.use
    assert disturbed.roofline["bound"].tolist() == ["neither"]
    assert "memory-bound" not in set(tabulate(disturbed)["rule"])

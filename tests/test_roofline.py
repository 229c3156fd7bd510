"""The roofline: nothing lies above it, and what cannot be told is not told."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from program_builder import Delegate, Kernel, Node, changed, measured
from recorded import recorded

import workbench as wb
from workbench.analysis.roofline import (
    NEAR_ROOF,
    build_roof,
    dtype_of,
    place_layers,
    place_operators,
    tabulate_ceilings,
)
from workbench.errors import StoreError, UsageError
from workbench.frames import ROOFLINE, check
from workbench.records.codec import from_json, to_json
from workbench.records.runs import Ceilings, Probe
from workbench.store import load_run, save_run

MB = 2**20


def ceilings(**peaks):
    """100 GB/s up to 1 MB, 10 GB/s from 16 MB on; 100 GFLOP/s; a call of 1 µs."""
    peaks = peaks or {"fp32": 100.0, "int8": 400.0}
    program_ms, call_ms = 0.01, 0.001
    probes = [
        Probe("gemm", dtype, 10**9, 0, 1, ms=1e9 / rate / 1e6, spread=0.02)
        for dtype, rate in peaks.items()
    ]
    probes += [
        Probe("stream", "fp32", 0, size, 8,
              ms=8 * (size / rate / 1e6 + call_ms) + program_ms, spread=0.05)
        for size, rate in ((MB, 100.0), (16 * MB, 10.0))
    ]  # fmt: skip
    probes.append(Probe("call", "fp32", 0, 0, 100, ms=100 * call_ms))
    probes.append(Probe("program", "fp32", 0, 0, 1, ms=program_ms + call_ms))
    return Ceilings("cpu", "runner", "native", 1, "2026-11-21T00:00:00+00:00", tuple(probes))


def test_the_roof_is_what_the_probes_reached():
    roof = build_roof(ceilings())
    assert roof.peaks == pytest.approx({"fp32": 100, "int8": 400})
    assert roof.call_ms == pytest.approx(0.001)
    assert [size for size, _ in roof.bandwidths] == [MB, 16 * MB]
    assert [rate for _, rate in roof.bandwidths] == pytest.approx([100, 10], rel=0.01)
    assert roof.spread == pytest.approx(0.05)
    assert math.isnan(roof.peak("bf16"))


@given(st.floats(1, 1e10))
def test_bandwidth_never_grows_with_the_footprint(size):
    roof = build_roof(ceilings())
    assert roof.bandwidth(2 * size) <= roof.bandwidth(size) <= roof.bandwidth(1)


def test_a_slow_probe_of_a_small_footprint_does_not_lower_the_roof():
    probes = list(ceilings().probes)
    probes.append(Probe("read", "fp32", 0, MB // 2, 1, ms=1.0))
    roof = build_roof(replace(ceilings(), probes=tuple(probes)))
    assert roof.bandwidth(MB // 2) == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize("without", ["gemm", "stream", "call", "program"])
def test_ceilings_without_a_probe_are_refused(without):
    probes = tuple(p for p in ceilings().probes if p.kind != without)
    with pytest.raises(StoreError, match="measure them again"):
        build_roof(replace(ceilings(), probes=probes))


def test_ceilings_that_were_not_measured_are_refused():
    probes = tuple(replace(p, ms=0.0) for p in ceilings().probes)
    with pytest.raises(StoreError):
        build_roof(replace(ceilings(), probes=probes))


def test_ceilings_go_to_json_and_back():
    assert from_json(Ceilings, to_json(ceilings()), "x") == ceilings()


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
    assert dtype_of(operator, program) == dtype


def placed(node, ms=1.0, **facts):
    facts = measured(Delegate([replace(node, ms=ms)]), **facts)
    table = place_operators(facts.operators, build_roof(ceilings()))
    return check(table, ROOFLINE).set_index("operator")


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
    facts = measured(Delegate([Node("Clamp", "x", "y", 1.0, flops=10)]))
    table = place_operators(facts.operators, build_roof(ceilings(int8=400.0)))
    assert table["bound"].tolist() == ["unknown"]
    assert table["roof_share"].isna().all()


def test_overhead_and_unknown_costs_have_no_place():
    kernel = Kernel("sort", "y", "z", 1.0, flops=float("nan"))
    facts = measured(Delegate([Node("Clamp", "x", "y", 1.0)]), kernel)
    table = place_operators(facts.operators, build_roof(ceilings()))
    assert table["operator"].tolist() == ["Clamp (NC)"]
    assert place_operators(facts.operators.iloc[:0], build_roof(ceilings())).empty
    with pytest.raises(StoreError, match="cost"):
        place_operators(facts.operators.drop(columns="flops"), build_roof(ceilings()))


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


def test_layers_add_up_their_operators(sample):
    table = sample.subject.roofline
    layers = place_layers(table, sample["avx512_on", 1].layers)
    known = table[table["module"].notna()]
    assert layers["mean_ms"].sum() == pytest.approx(known["mean_ms"].sum())
    assert layers["least_ms"].sum() == pytest.approx(known["least_ms"].sum())
    work = (known["gflops"] * known["mean_ms"]).sum()
    assert (layers["gflops"] * layers["mean_ms"]).sum() == pytest.approx(work)


def test_the_figure_shows_each_operator_where_it_is(sample):
    table, roof = sample.subject.roofline, sample.subject.roof
    figure = wb.plot_roofline(sample)
    (axis,) = figure.axes
    (dots,) = (c for c in axis.collections if len(c.get_offsets()) > 1)
    shown = table[(table["flops"] > 0) & table["roof_share"].notna()]
    assert np.allclose(dots.get_offsets(), shown[["intensity", "gflops"]].to_numpy())
    areas = dots.get_sizes()
    assert areas.argmax() == shown["mean_ms"].to_numpy().argmax()
    assert f"{roof.peaks['fp32']:.0f} GFLOP/s" in figure.alt_text
    assert "GB/s" in figure.alt_text
    part = 100 * shown["share"].sum()
    assert f"shown: {part:.0f} % of the time" in figure.alt_text
    assert axis.get_ylim()[1] > roof.peaks["fp32"]


def test_without_ceilings_the_report_says_how_to_get_them(sample, tmp_path):
    bare = replace(sample, path=tmp_path)
    assert bare.subject.roofline is None
    assert "workbench roofline" in str(wb.plot_roofline(bare))
    assert "No roofline" in str(wb.show(bare, "roofline"))


def test_the_table_of_ceilings_has_units():
    table = tabulate_ceilings([ceilings()])
    assert table["unit"].tolist() == ["GFLOP/s", "GFLOP/s", "GB/s", "GB/s"]
    assert table["spread"].tolist() == pytest.approx([0.02, 0.02, 0.05, 0.05])


def test_an_emulated_run_has_no_ceilings(tmp_path):
    run = replace(load_run(wb.sample_run()), emulated=True)
    save_run(run, tmp_path)
    with pytest.raises(UsageError, match="no ceilings"):
        wb.measure_roof(tmp_path)


def test_the_ceilings_of_another_machine_are_not_measured_here(tmp_path, monkeypatch, own_cache):
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_cache))
    monkeypatch.setattr("workbench.run.ceilings.find_probes", lambda progress: (tmp_path, ()))
    run = load_run(wb.sample_run())
    save_run(replace(run, host={**run.host, "cpu": "Another One"}), tmp_path)
    with pytest.raises(UsageError, match="Another One"):
        wb.measure_roof(tmp_path)


def bound_facts(node, ms, size_of, **more):
    facts = measured(Delegate([replace(node, ms=ms)]), shapes=size_of)
    return changed(facts, roof=build_roof(ceilings()), **more)


def test_large_weights_at_the_roof_of_memory_are_found():
    linear = Node("FullyConnected", "x W", "y", 0, flops=2 * 4096 * 4096)
    sizes = {"x": (1, 4096), "W": (4096, 4096), "y": (1, 4096)}
    table = bound_facts(linear, 8.0, sizes).findings
    first = table.iloc[0]
    assert first["rule"] == "memory-bound"
    assert first["gain_ms"] == pytest.approx(0.75 * 8.0, rel=0.01)
    assert first["low_ms"] < first["gain_ms"] < first["high_ms"]
    # A quarter of 64 MB comes at the 10 GB/s of its own footprint, at best.
    assert first["high_ms"] == pytest.approx(8.0 - 16.8 / 10, rel=0.01)
    slow = bound_facts(linear, 50.0, sizes).findings
    assert "memory-bound" not in set(slow["rule"])
    assert "far from the roof" in set(slow["rule"])


def test_quantised_weights_at_the_roof_of_memory_need_more_work_per_read():
    linear = Node("FullyConnected", "x W", "y", 8.0, flops=2 * 8192 * 8192)
    sizes = {"x": (1, 8192), "W": (8192, 8192), "y": (1, 8192)}
    facts = measured(Delegate([linear]), shapes=sizes, dtypes={"W": "qint8"})
    roof = build_roof(ceilings())
    facts = changed(facts, roof=roof)
    first = facts.findings.iloc[0]
    assert first["rule"] == "weight bandwidth"
    assert first["title"].startswith("memory limits 1 operator with quantised weights: 67 MB are")
    assert math.isnan(first["gain_ms"])
    assert "tokens" in first["action"]
    slow = measured(Delegate([replace(linear, ms=50.0)]), shapes=sizes, dtypes={"W": "qint8"})
    slow = changed(slow, roof=roof)
    assert "weight bandwidth" not in set(slow.findings["rule"])


def test_products_at_the_roof_of_arithmetic_are_found():
    conv = Node("Conv2d", "x W", "y", 0, flops=9 * 10**8)
    table = bound_facts(conv, 10.0, {}).findings
    first = table.iloc[0]
    assert first["rule"] == "compute-bound"
    assert "4.0 times" in first["action"]
    assert first["gain_ms"] == pytest.approx(10 * (1 - 1 / 4 / 0.75), rel=0.01)


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
    rules = set(bound_facts(node, 10.0, {}).findings["rule"])
    assert ("compute-bound" in rules) is found


def test_a_slow_product_gains_what_its_twins_reach():
    size, flops = (1, 64, 32, 32), 9 * 10**7
    nodes = [Node("Conv2d", f"a{n} W", f"a{n + 1}", 1.2, flops=flops) for n in range(4)]
    slow = Node("Conv2d", "a4 W", "y", 6.0, flops=flops)
    for shape, channels in ((size, False), ((1, 32, 32, 60), True)):
        facts = measured(Delegate([*nodes, slow]), shapes={"y": shape})
        table = changed(facts, roof=build_roof(ceilings())).findings
        row = table[table["rule"] == "far from the roof"].iloc[0]
        assert (row["gain_ms"], row["basis"]) == (pytest.approx(6.0 - 1.2, rel=0.02), "twin")
        assert ("64 output channels" in row["action"]) is channels


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_probes_are_exported_measured_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("workbench.run.ceilings.SECONDS", 0.02)
    run_dir = tmp_path / "run"
    run = load_run(wb.sample_run())
    runner = wb.find_runner()
    host = runner.target.describe()
    save_run(replace(run, host=host, runner=runner.description), run_dir)
    peaks = wb.measure_roof(run_dir)
    assert [each.isa for each in peaks] == ["avx2", "native"]
    for each in peaks:
        roof = build_roof(each)
        assert set(roof.peaks) == {"fp32", "fp16", "int8"}
        assert min(roof.peaks.values()) > 1
        assert roof.call_ms < 0.01
        assert (run_dir / f"ceilings_{each.isa}_t1.json").is_file()
    assert wb.measure_roof(run_dir) == peaks, "kept, not measured again"


def test_what_is_far_from_every_roof_is_bound_by_neither():
    conv = Node("Conv2d", "x W", "y", 0, flops=5 * 10**7)
    for ms, bound in ((1.4, "compute"), (1.6, "neither"), (10.0, "neither")):
        row = placed(conv, ms).loc["Convolution (NHWC, F32) IGEMM"]
        assert row["bound"] == bound
        assert (row["roof_share"] >= NEAR_ROOF) == (bound == "compute")
    found = bound_facts(conv, 10.0, {}).findings.set_index("rule")
    title = found.at["far from the roof", "title"]
    assert "reaches 5 % of this core's fp32 peak" in title
    assert "bound" not in title


def test_weights_that_are_read_at_the_speed_of_main_memory_are_bound_by_it():
    """In a small layer of a large model, whose weights leave the caches between inferences."""
    linear = Node("FullyConnected", "x W", "y", 0, flops=2 * 256 * 256)
    sizes = {"x": (1, 256), "W": (256, 256), "y": (1, 256)}
    for ms, bound in ((0.05, "memory"), (0.09, "neither")):  # 5 and 3 of the 10 GB/s
        row = placed(linear, ms, shapes=sizes).iloc[0]
        assert row["roof_share"] < NEAR_ROOF
        assert row["bound"] == bound
    clamp = placed(Node("Clamp", "x", "y", 0, flops=1), 0.05, shapes=sizes | {"y": (256, 256)})
    assert clamp.iloc[0]["bound"] == "neither"

import functools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import recorded

import workbench as wb
from workbench.analysis import compare_runs as comparison
from workbench.analysis.compare_runs import (
    align_measurements,
    align_runs,
    compare_many,
    judge_rows,
    list_others,
)
from workbench.analysis.layers import Unit, match_layers
from workbench.analysis.operators import summarize_operators
from workbench.cli import main
from workbench.errors import ComparisonError, UsageError
from workbench.frames import ALIGNED, check
from workbench.plots.speedups import plot_heatmap
from workbench.report.gate import show_aligned

UNET = f"{wb.sample_run('unet_small')}"
SETUPS = [f"{UNET}:{isa}:{threads}" for threads in (1, 2) for isa in ("avx512_off", "avx512_on")]

# (path, class, shapes, floating-point operations, milliseconds, also)
NET = [
    ("stem", "Conv2d", "1x8x8x3 -> 1x8x8x8", 1e5, 0.5, ""),
    ("block.0", "Conv2d", "1x8x8x8 -> 1x8x8x8", 3e5, 1.0, ""),
    ("block.1", "BatchNorm2d", "1x8x8x8 -> 1x8x8x8", 1e3, 0.2, ""),
    ("block.2", "ReLU", "1x8x8x8 -> 1x8x8x8", 5e2, 0.1, ""),
    ("head", "Linear", "1x8 -> 1x10", 160.0, 0.3, ""),
]


def traced(layers, noise=0.002, seed=0):
    """Four restarts of five runs of a network, one operator to a layer."""
    rng = np.random.default_rng(seed)
    rows = [
        {
            "process": process,
            "run": run,
            "row": place,
            "kind": "portable",
            "name": kind,
            "operator": kind,
            "key": f"{place}/{path}",
            "instruction": place,
            "duration_ns": int(1e6 * ms * rng.lognormal(0, noise)),
            "layer": path,
        }
        for process in range(4)
        for run in range(5)
        for place, (path, kind, _, _, ms, _) in enumerate(layers)
    ]
    ledger = pd.DataFrame(rows)
    facts = pd.DataFrame(
        [
            {
                "key": f"{place}/{path}",
                "module": path,
                "module_class": kind,
                "shapes": shapes,
                "flops": flops,
                "also": also,
            }
            for place, (path, kind, shapes, flops, _, also) in enumerate(layers)
        ]
    )
    return ledger, summarize_operators(ledger).merge(facts, on="key")


def times_of(aligned):
    return aligned.pivot(index="name", columns="run", values="time_ms")


def renamed(layers, **names):
    return [(names.get(path.replace(".", "_"), path), *rest) for path, *rest in layers]


def test_the_same_network_keeps_its_rows():
    aligned = check(align_runs({"old": traced(NET), "new": traced(NET, seed=1)}), ALIGNED)
    assert list(aligned["name"]) == [path for path, *_ in NET for _ in range(2)]
    assert list(aligned["run"][:2]) == ["old", "new"]
    assert (aligned["known_as"] == aligned["name"]).all()
    assert list(aligned["outcome"][:2]) == ["first", "inconclusive"], "separate runs vary"
    assert aligned["time_ms"].to_numpy() == pytest.approx(
        np.repeat([ms for *_, ms, _ in NET], 2), rel=0.01
    )


def test_a_renamed_layer_keeps_its_row():
    new = renamed(NET, stem="encoder.stem", block_0="encoder.conv")
    aligned = align_runs({"old": traced(NET), "new": traced(new)})
    known = aligned[aligned["run"] == "new"].set_index("name")["known_as"]
    assert known["stem"] == "encoder.stem"
    assert known["block.0"] == "encoder.conv"
    assert times_of(aligned).notna().all(axis=None)


def test_an_inserted_layer_moves_the_others_and_has_a_row_of_its_own():
    names = ["block.0", "block.1", "block.2", "block.3", "head"]
    extra = ("block.0", "Conv2d", "1x8x8x3 -> 1x8x8x3", 7e4, 0.4, "")
    new = [extra, *renamed(NET, stem="block.1", block_0="block.2", block_1="bn", block_2="act")]
    assert [path for path, *_ in new][:3] == names[:3]
    aligned = align_runs({"old": traced(NET), "new": traced(new)})
    known = aligned[aligned["run"] == "new"].set_index("name")["known_as"]
    assert (known["stem"], known["block.0"], known["block.1"]) == ("block.1", "block.2", "bn")
    times = times_of(aligned)
    assert np.isnan(times.loc["block.0 (new)", "old"])
    assert times.loc["block.0 (new)", "new"] == pytest.approx(0.4, rel=0.01)
    assert aligned["name"].iloc[0] == "block.0 (new)"


def test_layers_that_one_run_fuses_share_a_row_in_all():
    conv = ("block.0", "Conv2d", "1x8x8x8 -> 1x8x8x8", 3e5, 0.9, "block.1, block.2")
    fused = [NET[0], conv, NET[4]]
    for runs in ({"apart": NET, "fused": fused}, {"fused": fused, "apart": NET}):
        aligned = align_runs({name: traced(layers) for name, layers in runs.items()})
        times = times_of(aligned)
        joined = next(name for name in times.index if "block" in name)
        assert joined == "block.0 + block.1 + block.2"
        assert times.loc[joined, "apart"] == pytest.approx(1.3, rel=0.01)
        assert times.loc[joined, "fused"] == pytest.approx(0.9, rel=0.01)
        assert len(times) == 3


def test_what_no_run_runs_by_itself_joins_nothing():
    conv = ("block.0", "Conv2d", "1x8x8x8 -> 1x8x8x8", 3e5, 0.9, "block.1, block.2")
    aligned = align_runs({"a": traced([NET[0], conv]), "b": traced([NET[0], conv])})
    assert list(times_of(aligned).index) == ["block.0", "stem"]


def test_three_runs_are_all_compared_with_the_first():
    fast = [(*layer[:4], layer[4] / 2, layer[5]) for layer in NET]
    aligned = align_runs({"a": traced(NET), "b": traced(fast), "c": traced(NET[:-1], seed=2)})
    found = aligned.set_index(["run", "name"])
    assert (found.loc["b", "outcome"] == "faster").all()
    assert found.loc["b", "speedup"].to_numpy() == pytest.approx(2, rel=0.01)
    assert np.isnan(found.loc[("c", "head"), "time_ms"])
    assert len(aligned) == 3 * len(NET)


layers = st.lists(
    st.builds(
        Unit,
        st.sampled_from("abcdefgh"),
        st.sampled_from(["Conv2d", "ReLU"]),
        st.sampled_from(["", "1x2"]),
        st.sampled_from([1.0, 2.0, float("nan")]),
    ),
    unique_by=lambda layer: layer.name,
)


@given(layers, layers)
def test_every_layer_has_at_most_one_partner_of_its_class_and_order_is_kept(one, other):
    pairs = match_layers(one, other)
    assert len(set(pairs.values())) == len(pairs)
    kinds = {layer.name: layer.kind for layer in other}
    places = {layer.name: place for place, layer in enumerate(other)}
    if {layer.name for layer in one} != set(places):
        partners = [places[pairs[layer.name]] for layer in one if layer.name in pairs]
        assert partners == sorted(partners)
        assert all(kinds[pairs[layer.name]] == layer.kind for layer in one if layer.name in pairs)
    assert set(match_layers(one, one)) == {layer.name for layer in one}


def test_mistakes_are_named():
    with pytest.raises(ComparisonError, match="name a second run"):
        align_runs({"a": traced(NET)})
    ledger, operators = traced(NET)
    blind = ledger.drop(columns="layer"), operators
    with pytest.raises(ComparisonError, match="b: its layers are unknown -> compare by category"):
        align_runs({"a": traced(NET), "b": blind})


# Recorded runs, each analysed once.

read_once = functools.cache(wb.open_run)


@pytest.fixture(autouse=True)
def analysed_once(monkeypatch):
    monkeypatch.setattr(comparison, "open_run", read_once)


@pytest.fixture(scope="module")
def sweep():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "open_run", read_once)
        return align_measurements(SETUPS, across=["threads"])


def test_layers_of_a_sweep_sum_to_e2e_in_every_setup(sweep):
    check(sweep, ALIGNED)
    analysis = read_once(UNET)
    for setup in SETUPS:
        _, experiment, threads = setup.rsplit(":", 2)
        rows = sweep[(sweep["run"] == setup) & (sweep["level"] == "layer")]
        categories = analysis[experiment, int(threads)].categories
        # Typical times against means, of ten runs: two spoilt ones of a layer are left out.
        assert rows["time_ms"].sum() == pytest.approx(categories["mean_ms"].sum(), rel=0.15)


def test_the_skips_of_the_unet_are_slower_with_two_threads(sweep):
    """Concatenation does not scale: it is memory that it waits for."""
    found = sweep.set_index(["name", "run"])
    assert found.loc[("(the model itself)", SETUPS[2]), "outcome"] == "slower"
    assert found.loc[("E2E", SETUPS[3]), "outcome"] == "faster"
    held = judge_rows(list_others(sweep), 0.05)
    slower = held.rows[held.rows["gate"] == "failed"]
    assert set(slower["subject"].str.split(" in ").str[-1]) <= {SETUPS[2], SETUPS[3]}
    assert slower["subject"].str.startswith("(the model itself)").any()
    assert judge_rows(list_others(sweep), 1.5).passed


def test_the_table_has_a_column_per_run(sweep):
    text = str(show_aligned(sweep, top=3))
    assert f"[4] {SETUPS[3]}" in text
    assert len(text.splitlines()) == 2 + 2 + 1 + 3
    assert "| E2E | 41.0 ms |" in text


def test_cells_are_coloured_where_a_change_was_shown(sweep):
    figure = plot_heatmap(sweep, top=6)
    (axis,) = figure.axes
    (cells,) = axis.collections
    shown = sweep[sweep["name"].isin([label.get_text() for label in axis.get_yticklabels()])]
    assert len(cells.get_paths()) == len(shown) == 24
    pale = [tuple(color[:3]) for color in cells.get_facecolors()]
    told = shown["outcome"].isin(["faster", "slower"]).to_numpy()
    assert len({color for color, is_told in zip(pale, told, strict=True) if not is_told}) == 1
    assert pale[0] not in [color for color, is_told in zip(pale, told, strict=True) if is_told]
    assert "3.14x (3.12 to 3.15)" in figure.alt_text.replace("\n", " ")


def run_cli(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        main(["compare", *arguments])
    return stopped.value.code, capsys.readouterr()


def test_the_command_line_compares_any_number(capsys):
    code, output = run_cli(capsys, *SETUPS, "--across", "threads")
    assert code == 0
    assert "| layer | [1] | [2] | [3] | [4] |" in output.out
    code, output = run_cli(capsys, *SETUPS)
    assert (code, output.out) == (1, "")
    assert "the two differ in threads: 1 against 2 -> add --across threads" in output.err
    code, output = run_cli(capsys, SETUPS[0])
    assert code == 2 and "two or more measurements" in output.err
    code, output = run_cli(capsys, SETUPS[0], f"{UNET}:avx512_on:7")
    assert code == 2 and "unknown thread count '7' -> valid: 1, 2" in output.err


def test_the_gate_looks_at_the_parts_that_were_asked_for():
    one, two = f"{UNET}:avx512_on:1", f"{UNET}:avx512_on:2"
    found = compare_many([one, two], across=["threads"], fail_above=0.05)
    assert "faster" in found.verdicts[0] and found.passed
    found = compare_many([one, two], across=["threads"], by="layer", fail_above=0.05)
    assert "(the model itself)" in str(show_aligned(found.aligned)) and not found.passed


def test_parts_are_categories_and_operators_too():
    pair = SETUPS[:2]
    categories = align_measurements(pair, by="category")
    assert list(categories["name"][::2]) == ["E2E", "Convolution", "GEMM", "Data Movement", "Other"]
    operators = align_measurements(pair, by="operator")
    assert set(operators["level"]) == {"e2e", "operator"}
    with pytest.raises(UsageError, match="unknown part 'kernel'"):
        align_measurements(pair, by="kernel")
    other = f"{wb.sample_run('mobilenet_v3_small')}:avx512_on"
    with pytest.raises(ComparisonError, match="differ in program"):
        align_measurements([pair[0], other])
    found = align_measurements([pair[0], other], across=["program", "build"], by="operator")
    times = found[(found["run"] == other) & (found["level"] == "operator")]["time_ms"]
    candidate = recorded("mobilenet_v3_small")["avx512_on"].operators
    assert times.notna().sum() == len(candidate), "each operator of the other program has a row"
    assert times.sum() == pytest.approx(candidate["mean_ms"].sum(), rel=0.1)

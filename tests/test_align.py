"""The same layers in several measurements: of a sweep, and of programs with other names."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from recorded import recorded

import workbench as wb

UNET = f"{wb.sample_run('unet_small')}"
SETUPS = [f"{UNET}:{isa}:{threads}" for threads in (1, 2) for isa in ("avx512_off", "avx512_on")]


def sides(*setups):
    run = recorded("unet_small")
    return {f"{isa}:{count}": run[isa, count] for isa, count in setups}


@pytest.fixture(scope="module")
def sweep():
    setups = [(isa, count) for count in (1, 2) for isa in ("avx512_off", "avx512_on")]
    return wb.combine_runs(sides(*setups), across=["threads"]).align()


@pytest.mark.whole
def test_layers_of_a_sweep_sum_to_e2e_in_every_setup(sweep):
    run = recorded("unet_small")
    assert sweep["outcome"].iloc[0] == "first"
    for setup, rows in sweep[sweep["level"] == "layer"].groupby("run"):
        experiment, threads = setup.split(":")
        categories = run[experiment, int(threads)].categories
        # Typical times against means, of ten runs: two spoilt ones of a layer are left out.
        assert rows["time_ms"].sum() == pytest.approx(categories["mean_ms"].sum(), rel=0.15)
        assert (rows["known_as"] == rows["name"]).all()


def test_the_skips_of_the_unet_are_slower_with_two_threads(sweep):
    """Concatenation does not scale: it is memory that it waits for."""
    rows = sweep.set_index(["name", "run"])
    assert rows.loc[("(the model itself)", "avx512_off:2"), "outcome"] == "slower"
    assert rows.loc[("E2E", "avx512_on:2"), "outcome"] == "faster"


def test_cells_have_the_speed_up_where_a_change_was_shown(cli):
    code, out, _ = cli("compare", *SETUPS, "--by", "layer", "--across", "threads")
    assert code == 0 and re.search(r"\(\d\.\d\dx\)", out)


@pytest.fixture(scope="module")
def renamed(tmp_path_factory):
    """A copy of a run in whose program the blocks have other names."""
    folder = tmp_path_factory.mktemp("renamed") / "run"
    shutil.copytree(wb.sample_run(), folder)
    path = folder / "layers.json"
    content = json.loads(path.read_text())
    for method in content["methods"]:
        for origin in method["origins"]:
            origin["module"] = origin["module"].replace("features", "encoder.blocks")
        method["modules"] = {
            name.replace("features", "encoder.blocks"): kind
            for name, kind in method["modules"].items()
        }
    path.write_text(json.dumps(content))
    return wb.open_run(folder)


@pytest.mark.parametrize("by", ["layer", "category", "operator"])
def test_the_verdict_on_a_part_is_that_of_the_comparison(by):
    """One correction and one control for both, whichever way the sides are put together."""
    ab = recorded().compare()
    aligned = wb.combine_runs([ab.baseline, ab.candidate.run], across=()).align(by)
    last = aligned["run"].iloc[-1]
    rows = aligned[(aligned["run"] == last) & (aligned["level"] == by)]
    parts = {"layer": ab.layers, "category": ab.categories, "operator": ab.operators}[by]
    wanted = parts.set_index("key" if by == "operator" else "name")["outcome"]
    assert rows.set_index("name")["outcome"].to_dict() == wanted.to_dict()


def test_renamed_layers_keep_their_rows(renamed):
    pair = {"old": recorded()["avx512_on"], "new": renamed["avx512_on"]}
    aligned = wb.combine_runs(pair, across=()).align()
    layers = aligned[aligned["level"] == "layer"]
    new = layers[layers["run"] == "new"].set_index("name")
    assert new["time_ms"].notna().all(), "each layer of the old one has a partner"
    known = new["known_as"].str.replace("encoder.blocks", "features")
    assert (known == new.index).all()
    assert (new["known_as"] != new.index).sum() > 30
    assert new["speedup"].dropna().to_numpy() == pytest.approx(1)
    comparison = wb.compare(*pair.values())
    assert comparison.layers["speedup"].dropna().to_numpy() == pytest.approx(1)


def test_three_runs_are_all_compared_with_the_first():
    run = recorded()
    aligned = wb.combine_runs({m.name: m for m in run.traced}, across=()).align("category")
    assert list(aligned["run"].unique()) == [m.name for m in run.traced]
    rows = aligned.set_index(["run", "name"])["speedup"]
    for name in ("avx512_on", "control"):
        compared = run.compare("avx512_off", name).categories.set_index("name")["speedup"]
        assert rows[name].drop("E2E").to_dict() == pytest.approx(compared.to_dict(), nan_ok=True)


@pytest.mark.whole
def test_the_command_line_compares_any_number(cli):
    code, out, _ = cli("compare", *SETUPS, "--across", "threads", "--by", "layer")
    assert code == 0
    assert "E2E" in out and "[4]" in out
    code, out, _ = cli("compare", *SETUPS, "--across", "threads")
    assert code == 0 and out.count("| faster |") == len(SETUPS) - 1
    code, out, err = cli("compare", *SETUPS)
    assert (code, out) == (2, "")
    assert "the two differ in threads: 1 against 2 -> compare anyway: --across threads" in err
    code, _, err = cli("compare", SETUPS[0])
    assert code == 2 and "two or more measurements" in err
    code, _, err = cli("compare", SETUPS[0], f"{UNET}:avx512_on:7")
    assert code == 2 and "unknown thread count '7' -> valid: 1, 2" in err


@pytest.mark.whole
def test_the_gate_looks_at_the_parts_that_were_asked_for(cli):
    pair = [SETUPS[1], SETUPS[3], "--across", "threads", "--fail-above", "5%", "--json"]
    code, out, _ = cli("compare", *pair)
    assert code == 0 and "faster" in json.loads(out)["verdicts"][0]
    code, out, _ = cli("compare", *pair, "--by", "layer")
    rows = pd.DataFrame(json.loads(out)["rows"])
    failed = rows[rows["gate"] == "failed"]["subject"]
    assert code == 1 and failed.str.startswith("(the model itself)").any()
    loose = [*pair[:-3], "--by", "layer", "--fail-above", "150%"]
    assert cli("compare", *loose)[0] == 0


def test_parts_are_categories_and_operators_too():
    pair = sides(("avx512_off", 1), ("avx512_on", 1))
    categories = wb.combine_runs(pair, across=()).align("category")
    assert list(categories["name"][::2]) == ["E2E", "Convolution", "GEMM", "Data Movement", "Other"]
    assert set(wb.combine_runs(pair, across=()).align("operator")["level"]) == {"e2e", "operator"}
    with pytest.raises(Exception, match="unknown part 'kernel'"):
        wb.combine_runs(pair, across=()).align("kernel")
    other = recorded("mobilenet_v3_small")["avx512_on"]
    first = pair["avx512_off:1"]
    with pytest.raises(Exception, match="differ in program"):
        wb.combine_runs({"a": first, "b": other}, across=()).align()
    with pytest.raises(Exception, match="two or more measurements"):
        wb.combine_runs({"a": first}, across=()).align()
    aligned = wb.combine_runs({"a": first, "b": other}, across=["program", "build"]).align(
        "operator"
    )
    times = aligned[(aligned["run"] == "b") & (aligned["level"] == "operator")]["time_ms"]
    assert times.notna().sum() == len(other.operators), "each of the other program has a row"
    assert times.sum() == pytest.approx(other.operators["mean_ms"].sum(), rel=0.1)


def test_where_layers_are_unknown_the_hint_is_to_compare_by_category(tmp_path):
    folder = shutil.copytree(wb.sample_run("toy_cnn"), tmp_path / "run")
    (folder / "layers.json").unlink()
    run = wb.open_run(shutil.copytree(wb.sample_run(), tmp_path / "blind"))
    (run.path / "layers.json").unlink()
    with pytest.raises(Exception, match="its layers are unknown -> compare by category"):
        wb.combine_runs({m.name: m for m in run.traced}, across=()).align()
    assert np.isfinite(run.compare().latency["speedup"].item())

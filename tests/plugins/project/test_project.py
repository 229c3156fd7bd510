"""Projections from an atlas, and from published figures: bounded, marked, and never a verdict."""

import json
import math
import shutil
import zipfile
from dataclasses import replace

import pandas as pd
import pytest
from explored import by_key, document_of, read_data
from recorded import recorded

import workbench as wb
from workbench.plugins.project.atlas import Atlas, atlas_path, describe_operators
from workbench.plugins.project.published import cross_validate, estimate, read_figures
from workbench.records.codec import to_json
from workbench.run.ceilings import device_of


@pytest.fixture(scope="module")
def sample():
    return recorded("toy_cnn")


@pytest.fixture
def atlas(tmp_path, monkeypatch):
    """An atlas of the sample's own operators: those with AVX-512 take half of the time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run = recorded()
    rows = pd.concat([describe_operators(run["avx512_off"])] * 3).fillna(0.0)
    columns = ["m", "n", "k", "flops", "bytes"]
    sizes = tuple(tuple(row) for row in rows[columns].to_numpy(float).tolist())
    before = tuple(rows["ms"])
    device = device_of(run.record.host, run.record.runner)
    ms = {"avx2": before, "native": tuple(time / 2 for time in before)}
    known = Atlas(device["cpu"], device["runner"], "", "", tuple(rows["kind"]), sizes, ms)
    path = atlas_path(device)
    path.parent.mkdir(parents=True)
    path.write_text(to_json(known))
    return path, known


@pytest.fixture
def run_dir(tmp_path):
    """A copy of a recorded run."""
    return shutil.copytree(recorded().path, tmp_path / "run")


@pytest.mark.whole
def test_a_projection_is_that_of_the_atlas_bounded_and_marked(cli, atlas, run_dir):
    run = recorded()
    table = wb.project(run["avx512_off"]).table
    model, operators = table.iloc[0], table[1:]
    known = operators[operators["projected_ms"].notna() & (operators["measured_ms"] > 0)]
    assert len(known) > 60
    delegated = known[~known["kind"].str.startswith("native_call_")]
    ratio = delegated["projected_ms"] / delegated["measured_ms"]
    assert ratio.between(0.5 - 1e-9, 0.5 + 1e-9).mean() > 0.9
    assert (delegated["projected_low_ms"] < delegated["projected_ms"]).mean() > 0.9
    portable = known[known["kind"].str.startswith("native_call_")]
    assert (portable["projected_ms"] == portable["measured_ms"]).all()
    ends = model[["projected_low_ms", "projected_ms", "projected_high_ms", "measured_ms"]]
    assert ends.is_monotonic_increasing
    # What is copied out of the frame says that it is projected.
    assert "projected, not measured" in str(operators[["key", "basis"]].head())
    assert all(
        "projected" in name for name in table if name.endswith("_ms") and name != "measured_ms"
    )
    code, out, _ = cli("project", run_dir, "--json")
    record = json.loads(out)
    assert code == 0 and record["projected"] is True
    assert not {"passed", "comparisons", "latency_ms"} & record.keys()
    assert "projected, not measured" in cli("project", run_dir)[1]
    assert "projected, not measured: " in (run_dir / "explore.html").read_text()


@pytest.mark.whole
def test_no_gate_takes_a_projection(cli, atlas, tmp_path, run_dir):
    path = tmp_path / "projection.json"
    path.write_text(cli("project", run_dir, "--json")[1])
    code, _, err = cli("compare", recorded().path, "--baseline", path, "--fail-above", "5%")
    assert code not in (0, 1) or "error" in err
    assert err.count("error:") == 1 and "Traceback" not in err


def edit(known, **changes):
    return json.dumps({**json.loads(to_json(known)), **changes})


@pytest.mark.whole
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            None,
            "its device has no atlas -> `workbench atlas` there, or --device m4-like or c1-like",
        ),
        (lambda known: replace(known, kinds=("other",) * len(known.kinds)), "has no basis"),
        (lambda known: '{"kinds": 1}', "atlas"),
        (lambda known: to_json(known).replace("native", "sme2"), "unknown ISA level 'native'"),
        (lambda known: to_json(known).replace('"kinds": [', '"kinds": ["x", ', 1), "do not fit"),
        (lambda known: edit(known, kinds=[], sizes=[], ms={}), "do not fit"),
        (lambda known: edit(known, ms={"native": [1e-300] * len(known.kinds)}), "do not fit"),
        (lambda known: edit(known, device=1), "expected str"),
        (lambda known: "[" * 10**5, "not JSON"),
        (lambda known: " " * 2**21, "too large"),
        (
            lambda known: edit(
                known, kinds=["x"] * 3000, sizes=[[1] * 5] * 3000, ms={"native": [1] * 3000}
            ),
            "too many operators",
        ),
    ],
    ids=[
        *("none", "other kinds", "malformed", "no such level", "columns", "no level", "times"),
        *("type", "nested", "large", "many"),
    ],
)
def test_what_an_atlas_does_not_cover_is_refused_in_one_line(cli, atlas, change, words):
    path, known = atlas
    if change is None:
        path.unlink()
    else:
        changed = change(known)
        path.write_text(changed if isinstance(changed, str) else to_json(changed))
    code, _, err = cli("project", recorded().path, "--level", "native")
    assert code != 0 and err.count("\n") == 1 and words in err, err
    if change is not None:
        (line,) = (row for row in cli("atlas", "--list")[1].splitlines() if path.name in row)
        valid = words in ("has no basis", "unknown ISA level 'native'")
        assert valid == ("invalid: " not in line)


def test_published_products_are_projected_from_those_of_other_shapes():
    table = cross_validate(read_figures("m4-like"))
    shapes = table[["m", "n", "k"]].drop_duplicates()
    assert len(shapes) >= 12 and table["source"].notna().all()
    assert table["error"].abs().median() <= 0.25
    single = table[(table["m"] == 1) & (table["dtype"] == "fp32")].iloc[0]
    assert math.isclose(single["projected"], 4 * 4096**2 / 109e6), "as memory is read"


@pytest.mark.parametrize("experiment", ["FP16", "INT8"])
def test_published_times_of_squeezesam_are_within_20_percent(experiment):
    published = pd.read_csv(wb.sample_file("squeezesam.csv"))
    off, on = (
        published[published["experiment"] == f"{experiment}, SME2 {s}"] for s in ("off", "on")
    )
    matrix = off["category"].isin(["Convolution", "GEMM"])
    kernels = matrix.map({True: "sme2_mopa", False: "no product"})
    rows = off.assign(kernel_on=kernels, dtype=experiment.lower(), ms=off["mean_ms"])
    ends, _ = estimate(rows, "c1-like", "sme2", {"machine": "aarch64"})
    assert abs(ends["projected_ms"].sum() / on["mean_ms"].sum() - 1) <= 0.2
    low, high = ends["projected_low_ms"].sum(), ends["projected_high_ms"].sum()
    assert low < on["mean_ms"].sum() < high


@pytest.mark.whole
def test_a_run_is_projected_to_published_figures_with_wide_intervals(cli, run_dir):
    run = recorded()
    tables = [wb.project(run["avx512_off"], level, "m4-like").table for level in ("nosme", "sme2")]
    off, on = (table[1:].set_index("key") for table in tables)
    gains = (off["projected_ms"] / on["projected_ms"])[on["basis"] == "published products"]
    assert len(gains) > 20 and gains.between(0.5, 15.2).all() and gains.max() > 3
    assert (on["projected_high_ms"] / on["projected_low_ms"]).min() >= 4
    depthwise = on["kind"].str.contains("DWConv")
    assert (on.loc[depthwise, "basis"] == "as measured").all()
    text = cli("project", run_dir, "--device", "m4-like")[1]
    assert "on m4-like at nosme" in text and "on m4-like at sme2" in text
    text = str(wb.show(tables[1], columns=tables[1].columns.drop("key"), top=5))
    assert "projected, not measured: m4-like at sme2" in text
    code, _, err = cli("project", run.path, "--device", "c1-like")
    assert code != 0 and err.count("\n") == 1 and "x86_64" in err


@pytest.mark.whole
def test_gains_are_projected_from_a_run_of_an_arm_cpu(cli, tmp_path):
    folder = shutil.copytree(recorded().path, tmp_path / "arm")
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"x86_64"', '"aarch64"'))
    table = wb.project(wb.open_run(folder)["avx512_off"], device="c1-like").table[1:]
    ratio = (table["measured_ms"] / table["projected_ms"]).groupby(table["basis"]).mean()
    assert math.isclose(ratio["published gain"], 9.27)
    assert 0.33 < ratio["published loss"] < 0.72 and ratio["as measured"] == 1
    emulated = shutil.copytree(recorded("toy_cnn").path, tmp_path / "sme2")
    manifest = emulated / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"emulated": true', '"emulated": false'))
    run = wb.open_run(emulated)
    assert wb.project(run["sme2_off"], device="c1-like").table.loc[0, "projected_ms"] > 0
    with pytest.raises(wb.WorkbenchError, match="sme2_on ran with SME2 -> project its side"):
        wb.project(run["sme2_on"], device="c1-like")
    code, _, err = cli("project", folder, "--device", "c1-like", "--level", "nosme")
    assert code != 0 and err.count("\n") == 1 and "unknown ISA level 'nosme'" in err


def test_what_cannot_be_projected_is_refused_in_one_line(cli, sample):
    with pytest.raises(wb.WorkbenchError, match="its times are emulated -> measure it on a CPU"):
        wb.project(sample.subject)
    with pytest.raises(wb.WorkbenchError, match="it has several threads -> measure it"):
        wb.project(recorded("unet_small")["avx512_on", 2], device="m4-like")
    code, _, err = cli("project", recorded().path, "--device", "m5-like")
    assert code != 0 and err == (
        "error: m5-like: unknown device -> m4-like, c1-like, or the file of an atlas\n"
    )


def test_a_ratio_of_another_device_is_used_if_its_operators_are_the_same(atlas, tmp_path):
    _, known = atlas
    other = tmp_path / "phone.json"
    ms = {"native": tuple(3 * time for time in known.ms["avx2"])}
    other.write_text(to_json(replace(known, device="phone", ms=ms)))
    table = wb.project(recorded()["avx512_off"], device=other).table
    assert math.isclose(
        (table["projected_ms"] / table["measured_ms"])[1:].median(), 3, rel_tol=0.01
    )
    other.write_text(to_json(replace(known, programs="others", ms=ms)))
    with pytest.raises(wb.WorkbenchError, match="different operators"):
        wb.project(recorded()["avx512_off"], device=other)


@pytest.mark.cases
def test_an_atlas_is_measured_resumed_listed_and_projects(cli, monkeypatch, tmp_path, conv_pte):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    programs = tmp_path / "programs.zip"
    with zipfile.ZipFile(programs, "w") as archive:
        archive.write(conv_pte, "atlas_conv.pte")
    for module in ("workflow", "run.ceilings"):
        monkeypatch.setattr(f"workbench.{module}.SHIPPED", programs)
    code, out, err = cli("atlas", "--out", tmp_path)
    assert code == 0, err
    path = tmp_path / "atlas.json"
    assert str(path) in out and path.stat().st_size < 100_000
    (run,) = (tmp_path / "runs").iterdir()
    assert cli("atlas", "--out", tmp_path)[0] == 0
    assert [*(tmp_path / "runs").iterdir()] == [run], "measured again"
    assert "operators" in cli("atlas", "--list")[1]
    code, _, err = cli("project", run)
    assert code == 0 or "no basis" in err


def test_a_projection_has_the_times_of_its_frame_and_no_verdict():
    run = recorded("mobilenet_v3_small")
    projection = wb.project(run["avx512_off"], device="m4-like")
    frame, document = projection.table, read_data(run, projections=[projection])
    side, ab = document["measurements"].pop(), document["comparisons"].pop()
    assert document == document_of("mobilenet_v3_small")
    shown, operators = frame.set_index("key"), frame[1:]
    for column, values in (("candidate_ms", "projected_ms"), ("baseline_ms", "measured_ms")):
        found = by_key(document, side, ab["operators"][column])
        assert found == pytest.approx(operators.set_index("key")[values].to_dict(), abs=1e-6)
    assert ab["latency"]["candidate_ms"] == shown.loc["", "projected_ms"]
    # An operator has one time, beside a projection and in a measured pair.
    first = run["avx512_off"].operators.iloc[0]
    assert shown.loc[first["key"], "measured_ms"] == first["mean_ms"]
    measured = run.compare().categories.set_index("name").loc["GEMM", "baseline_ms"]
    (gemm,) = (row for row in ab["categories"] if row["name"] == "GEMM")
    assert gemm["baseline_ms"] == pytest.approx(measured)
    assert ab["latency"]["baseline_ms"] == run["avx512_off"].latency_ms
    e2e = sum(row["mean_ms"] for row in side["categories"])
    assert e2e == pytest.approx(sum(filter(None, side["mean_ms"])), abs=1e-3)
    assert operators["projected_ms"].sum() < e2e <= shown.loc["", "projected_ms"] * (1 + 1e-9)
    assert {ab["outcome"], *ab["outcomes"]["values"]} == {"projected"}
    assert all(row["outcome"] == "projected" for row in ab["categories"])
    with pytest.raises(wb.WorkbenchError, match="no projection of a side of this run"):
        wb.explore(recorded("toy_cnn"), projections=[projection])


def test_a_projection_has_the_parts_of_the_latency():
    run = recorded()
    projections = [wb.project(run["avx512_off"], device="m4-like")]
    sides = read_data(run, projections=projections)["measurements"]
    (side,) = (side for side in sides if "projected" in side)
    for parts in (side["mean_ms"], [row["mean_ms"] for row in side["categories"]]):
        times = [time for time in parts if time is not None]
        assert sum(times) == pytest.approx(side["latency"]["latency"], rel=1e-6)
        assert max(times) <= side["latency"]["latency"]


def test_its_commands_are_completed(cli, monkeypatch):
    monkeypatch.setenv("_WORKBENCH_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "workbench pro")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert cli()[1] == "plain,profile\nplain,project\n"

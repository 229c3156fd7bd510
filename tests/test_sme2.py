"""What Arm SME2 would change, predicted from a program; and projections from an atlas."""

import json
import math
import shutil
import warnings
import zipfile
from dataclasses import replace

import pandas as pd
import pytest
from changed_runs import with_record
from exporting import LoadedModel
from recorded import recorded
from torch import nn, randn

import workbench as wb
from workbench.analysis.atlas import Atlas, atlas_path, describe_operators
from workbench.analysis.published import cross_validate, estimate, read_figures
from workbench.analysis.sme2 import predict_program
from workbench.records.codec import to_json
from workbench.run.ceilings import device_of


@pytest.fixture(scope="module")
def sample():
    return recorded("toy_cnn")


def test_the_recorded_samples_agree_with_the_prediction(sample):
    table = sample.compare().sme2
    products = table[table["m"].notna()]
    for state in ("off", "on"):
        executed = products[products[f"executed_{state}"] != ""]
        assert len(executed) == 4
        assert (executed[f"executed_{state}"] == executed[f"kernel_{state}"]).all()
    linear = products.set_index("operator").loc["linear"]
    assert (linear["kernel_off"], linear["kernel_on"]) == ("neon", "sme2_mla")
    assert "one row" in linear["reason"]
    text = str(wb.show(sample, "sme2"))
    assert "emulated" in text and "sme2_mopa" in text and "not how fast" in text


def test_a_run_on_another_cpu_has_the_prediction_only():
    run = recorded()
    table = run.subject.sme2.set_index("operator")
    assert not {"executed_on", "executed_off"} & set(run.compare().sme2)
    depthwise = table.loc["DepthwiseConv2d"]
    assert (depthwise["kernel_on"] == "neon").all()
    assert depthwise["k"].isin([9, 25]).all()
    pointwise = table.loc["1x1 convolution"]
    assert set(pointwise.loc[pointwise["m"] == 1, "kernel_on"]) == {"sme2_mla"}
    assert set(pointwise.loc[pointwise["m"] > 1, "kernel_on"]) == {"sme2_mopa"}


class Net(nn.Module):
    """A 1x1 convolution, a grouped one, and linear layers of one row and of 64."""

    def __init__(self):
        super().__init__()
        self.pointwise, self.grouped = nn.Conv2d(32, 64, 1), nn.Conv2d(64, 64, 3, groups=16)
        self.one, self.many = nn.Linear(64, 32), nn.Linear(64, 64)

    def forward(self, image, rows):
        return self.one(self.grouped(self.pointwise(image)).mean((2, 3))), self.many(rows)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("dtype", "kernels", "remedies"),
    [
        ("fp16", {"pointwise": "fp16", "grouped": "sme2_mopa", "one": "sme2_dot"}, {"fp16w"}),
        pytest.param(
            "8da4w", {"many": "i8mm", "one": "dotprod"}, {"8da4c"}, marks=pytest.mark.slow
        ),
        pytest.param(
            "8da4c", {"many": "sme2_mopa", "one": "sme2_sdot"}, set(), marks=pytest.mark.slow
        ),
    ],
)
def test_what_is_not_on_sme2_names_the_dtype_that_brings_it_there(
    cli, tmp_path, dtype, kernels, remedies
):
    model = LoadedModel("net", Net().eval(), (randn(1, 32, 8, 8), randn(64, 64)))
    program = wb.export_model(model, options=wb.ExportOptions(dtype), root=tmp_path)
    code, out, _ = cli("sme2", program.path, "--json")
    assert code == 0
    ((name, rows),) = json.loads(out)["kernels"].items()
    assert f"net, {dtype}, SQNR " in name
    by_module = {row["module"]: row for row in rows if row["m"] is not None}
    assert {module: by_module[module]["kernel_on"] for module in kernels} == kernels
    named = {row["remedy"].removeprefix("--dtype ") for row in rows if "--dtype" in row["remedy"]}
    assert named == remedies
    assert "tiles (m = 36, n = 4)" in by_module["grouped"]["reason"]
    text = str(wb.show(program, "sme2"))
    assert all(kernel in text for kernel in kernels.values())


class Depthwise(nn.Module):
    """Depthwise convolutions of 25 taps, and of 27 and 49, for which there is no such kernel."""

    def __init__(self):
        super().__init__()
        self.five = nn.Conv2d(8, 8, 5, groups=8)
        self.wide = nn.Conv2d(8, 8, (3, 9), groups=8)
        self.twice = nn.Conv2d(8, 16, 7, groups=8)

    def forward(self, image):
        return self.twice(self.wide(self.five(image).relu()).relu())


@pytest.mark.ci
def test_depthwise_convolutions_of_more_than_25_taps_run_as_products(tmp_path):
    """As executed under QEMU, with SME2 and without."""
    model = LoadedModel("net", Depthwise().eval(), (randn(1, 8, 24, 24),))
    program = wb.export_model(model, options=wb.ExportOptions("int8"), root=tmp_path)
    (table,) = predict_program(program).values()
    rows = table[table["m"].notna()].set_index("module")
    kernels = rows.loc[["five", "wide", "twice"], ["kernel_off", "kernel_on"]].to_numpy().tolist()
    assert kernels == [["neon"] * 2, ["i8mm"] * 2, ["i8mm"] * 2]
    assert "49 filter taps: 2-column products" in rows.at["twice", "reason"]


def test_a_version_that_was_not_checked_is_named(sample):
    assert "Not checked" not in str(wb.show(sample, "sme2"))
    other = with_record(sample, versions={**sample.record.versions, "executorch": "9.9.0"})
    text = str(wb.show(other, "sme2"))
    assert "Not checked: executorch 9.9.0 is not among the tested versions" in text


def test_a_program_without_products_or_layers_has_empty_texts(tmp_path):
    class Unnamed(nn.Module):
        def forward(self, x):
            return x + 1

    with warnings.catch_warnings(action="ignore"):
        program = wb.export_model(LoadedModel("net", Unnamed(), (randn(4, 4),)), root=tmp_path)
    with warnings.catch_warnings(action="error"):
        (table,) = predict_program(program).values()
    texts = table[["module", "reason", "remedy"]].to_numpy().tolist()
    assert texts and all(row == ["", "", ""] for row in texts)


def test_a_program_of_unknown_operators_is_refused_in_one_line(cli, tmp_path):
    path = tmp_path / "broken.pte"
    path.write_bytes(b"no program")
    code, _, err = cli("sme2", path)
    assert code == 1 and err.count("\n") == 1 and "broken.pte" in err


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


@pytest.mark.ci
def test_a_projection_is_that_of_the_atlas_bounded_and_marked(cli, atlas, run_dir):
    run = recorded()
    table = run["avx512_off"].project()
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


@pytest.mark.ci
def test_no_gate_takes_a_projection(cli, atlas, tmp_path, run_dir):
    path = tmp_path / "projection.json"
    path.write_text(cli("project", run_dir, "--json")[1])
    code, _, err = cli("compare", recorded().path, "--baseline", path, "--fail-above", "5%")
    assert code not in (0, 1) or "error" in err
    assert err.count("error:") == 1 and "Traceback" not in err


def edit(known, **changes):
    return json.dumps({**json.loads(to_json(known)), **changes})


@pytest.mark.ci
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
        assert path.name in cli("atlas", "--list")[1]
        valid = words in ("has no basis", "unknown ISA level 'native'")
        code, out, err = cli("validate", path)
        assert code == (0 if valid else 1) and valid == out.startswith("ok"), (out, err)


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


@pytest.mark.ci
def test_a_run_is_projected_to_published_figures_with_wide_intervals(cli, run_dir):
    run = recorded()
    tables = [run["avx512_off"].project(level, "m4-like") for level in ("nosme", "sme2")]
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
    assert "projected, not measured" in str(wb.show(run, "sme2")).lower()
    code, _, err = cli("project", run.path, "--device", "c1-like")
    assert code != 0 and err.count("\n") == 1 and "x86_64" in err


@pytest.mark.ci
def test_gains_are_projected_from_a_run_of_an_arm_cpu(cli, tmp_path):
    folder = shutil.copytree(recorded().path, tmp_path / "arm")
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"x86_64"', '"aarch64"'))
    table = wb.open_run(folder)["avx512_off"].project(device="c1-like")[1:]
    ratio = (table["measured_ms"] / table["projected_ms"]).groupby(table["basis"]).mean()
    assert math.isclose(ratio["published gain"], 9.27)
    assert 0.33 < ratio["published loss"] < 0.72 and ratio["as measured"] == 1
    emulated = shutil.copytree(recorded("toy_cnn").path, tmp_path / "sme2")
    manifest = emulated / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"emulated": true', '"emulated": false'))
    run = wb.open_run(emulated)
    assert run["sme2_off"].project(device="c1-like").loc[0, "projected_ms"] > 0
    with pytest.raises(wb.WorkbenchError, match="sme2_on ran with SME2 -> project its side"):
        run["sme2_on"].project(device="c1-like")
    code, _, err = cli("project", folder, "--device", "c1-like", "--level", "nosme")
    assert code != 0 and err.count("\n") == 1 and "unknown ISA level 'nosme'" in err


def test_what_cannot_be_projected_is_refused_in_one_line(cli, sample):
    with pytest.raises(wb.WorkbenchError, match="its times are emulated -> measure it on a CPU"):
        sample.subject.project()
    with pytest.raises(wb.WorkbenchError, match="it has several threads -> measure it"):
        recorded("unet_small")["avx512_on", 2].project(device="m4-like")
    code, _, err = cli("project", recorded().path, "--device", "m5-like")
    assert code != 0 and err == (
        "error: m5-like: unknown device -> m4-like, c1-like, or the file of an atlas\n"
    )


def test_a_ratio_of_another_device_is_used_if_its_operators_are_the_same(atlas, tmp_path):
    _, known = atlas
    other = tmp_path / "phone.json"
    ms = {"native": tuple(3 * time for time in known.ms["avx2"])}
    other.write_text(to_json(replace(known, device="phone", ms=ms)))
    table = recorded()["avx512_off"].project(device=other)
    assert math.isclose(
        (table["projected_ms"] / table["measured_ms"])[1:].median(), 3, rel_tol=0.01
    )
    other.write_text(to_json(replace(known, programs="others", ms=ms)))
    with pytest.raises(wb.WorkbenchError, match="different operators"):
        recorded()["avx512_off"].project(device=other)


@pytest.mark.slow
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

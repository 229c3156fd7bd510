"""Combined reports: platforms and versions of a model side by side, emulated ones without times."""

import json
import re
import shutil

import numpy as np
import pytest
from needed import needs

import workbench as wb

READY, TRAINED = str(wb.sample_run("Ready")), str(wb.sample_run("AsTrained"))


def copy_as(folder, platform, **facts):
    """The recorded run, as if it had been made elsewhere."""
    run_dir = shutil.copytree(READY, folder / "runs" / platform)
    path = run_dir / "manifest.json"
    manifest = json.loads(path.read_text()) | {"platform": platform} | facts
    manifest["host"]["cpu"] = f"<b>CPU|{platform}</b>"
    path.write_text(json.dumps(manifest))
    return str(run_dir)


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    return copy_as(tmp_path_factory.mktemp("q"), "qemu-aarch64", emulated=True)


@pytest.fixture(scope="module")
def combined(emulated):
    return wb.combine_runs([emulated, READY, TRAINED])


@pytest.mark.whole
def test_a_name_says_what_differs(emulated):
    runs = wb.combine_runs([READY, f"{READY}:avx512_off", emulated]).runs["run"].tolist()
    assert runs == ["linux, avx512_on", "linux, avx512_off", "qemu-aarch64, avx512_on"]


def test_silicon_comes_first_and_emulation_has_no_times(combined):
    assert list(combined.runs["emulated"]) == [False, False, True]
    assert combined.runs["latency_ms"].isna().tolist() == [False, False, True]
    marked = combined.layers[combined.layers["run"] == combined.runs["run"].iloc[-1]]
    assert marked[["time_ms", "speedup", "low", "high"]].isna().all(axis=None)
    assert set(marked["outcome"]) == {"emulated"}
    assert (marked["operators"] != "").all()


def test_latencies_are_against_the_first_silicon(combined):
    (row,) = combined.latencies.to_dict("records")
    assert row["name"] == "linux, AsTrained"
    assert row["outcome"] == "slower"
    medians = combined.runs.set_index("run")["latency_ms"]
    assert row["speedup"] == pytest.approx(medians.iloc[0] / medians.iloc[1], rel=0.05)


def test_bars_are_as_long_as_the_latencies(combined, emulated, cli, tmp_path):
    """The traced inferences of both runs take more than twice as long."""
    assert cli("report", emulated, READY, TRAINED, "--out", tmp_path / "out")[0] == 0
    page = (tmp_path / "out" / "combined_report.html").read_text()
    bars = re.findall(r'<div role="img".*?</div>', page)[:2]
    widths = [sum(map(float, re.findall(r"width:([\d.]+)%", bar))) for bar in bars]
    latencies = combined.runs["latency_ms"].dropna().to_numpy()
    assert np.array(widths) / max(widths) == pytest.approx(latencies / max(latencies), rel=0.005)


def test_a_layer_has_one_row_per_run(combined):
    wide = combined.layers.pivot(index="name", columns="run", values="operators")
    assert wide.shape[1] == 3
    head = wide.loc["head.1"]
    assert "native_call_elu.out" in head["linux, AsTrained"]
    assert "Exp (NC)" in head["linux, Ready"]
    assert head["linux, Ready"] == head["qemu-aarch64, Ready"]


@pytest.mark.whole
def test_runs_without_layers_are_not_aligned(tmp_path, cli):
    bare = copy_as(tmp_path, "linux")
    (tmp_path / "runs" / "linux" / "layers.json").unlink()
    combined = wb.combine_runs([READY, bare])
    assert combined.layers is None and "layers are unknown" in combined.problem
    assert cli("report", READY, bare, "--out", "out")[0] == 0
    assert "Not aligned" in (tmp_path / "out" / "combined_report.md").read_text()


@pytest.mark.cases
def test_two_experiments_of_one_run_are_aligned(tmp_path):
    combined = wb.combine_runs([f"{READY}:avx512_off", f"{READY}:avx512_on"])
    assert list(combined.runs["run"]) == ["avx512_off", "avx512_on"]
    assert combined.latencies["outcome"].tolist() == ["faster"]


@pytest.mark.whole
def test_the_page_the_text_and_the_summary_say_the_same(cli, emulated, tmp_path):
    code, out, _ = cli("report", emulated, READY, TRAINED, "--out", "out")
    files = [tmp_path / line for line in out.splitlines()]
    assert code == 0 and len(files) == 7
    page, text = files[0].read_text(), files[1].read_text()
    assert "qemu-aarch64, Ready: emulated" in page
    linked = set(re.findall(r'(?:src|href)="(?!data:|#)([^"]+)', page))
    assert linked == {file.name for file in files[4:]}
    assert all(f"]({name})" in text for name in linked)
    assert "<b>CPU" not in page and "&lt;b&gt;CPU|qemu" in page
    assert "## Code of each layer" in text and "Exp (NC)" in text
    assert "emulated: which code runs, not how fast" in text
    assert "CPU\\|qemu" in text and "<b>" not in text
    assert files[3].read_text() in text
    content = json.loads(files[2].read_text())
    assert [run["emulated"] for run in content["runs"]] == [False, False, True]
    assert np.isfinite(content["latencies"][0]["speedup"])


@pytest.mark.parametrize("names", [[READY], [READY, READY]])
def test_a_combination_needs_two_runs(names):
    with pytest.raises(wb.WorkbenchError, match="two or more measurements"):
        wb.combine_runs(names)


@needs("explorer")
@pytest.mark.whole
def test_the_command_writes_the_page_and_the_explorer_of_each_run(cli, tmp_path):
    code, out, _ = cli("report", f"{READY}:avx512_off", READY, "--json")
    assert code == 0
    written = [tmp_path / name for name in json.loads(out)["files"]]
    assert [path.parent.name for path in written] == ["combined_Ready"] * 5
    assert all(path.stat().st_size for path in written)
    code, _, err = cli("report", READY, "--out", "x")
    assert code == 2 and "needs several runs" in err


@pytest.mark.whole
def test_before_and_after_have_their_names(cli, tmp_path):
    """The labels are heads; what changed is a sentence, and findings went, stayed or are new."""
    assert cli("report", TRAINED, READY, "--out", "out")[0] == 0
    text = (tmp_path / "out" / "combined_report.md").read_text()
    changed = next(line for line in text.splitlines() if "What changed in Ready" in line)
    assert "58 operators, 216 in AsTrained" in changed and "16 index" in changed
    assert "| finding | AsTrained | Ready |" in text
    rows = [
        line.strip("| ").split(" | ") for line in text.splitlines() if "utside the delegate" in line
    ]
    assert [(gain, "gone") for _, gain, end in rows if end == "gone"] and any(
        {"gone", "not there"}.isdisjoint(row) for row in rows
    )
    assert "| layer | AsTrained | Ready |" in text

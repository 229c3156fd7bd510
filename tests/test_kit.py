"""The scripts of Arm's profiling kit work on our folders and print our numbers."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from changed_runs import change_manifest
from needed import needs

import workbench as wb
from workbench.jobs import write_artifacts

pytestmark = needs("convert")
#: A run like those of the kit, with the sides named as it expects them.
NAMES = {"avx512_off": "linux_sme2_off", "avx512_on": "linux_sme2_on"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A copy of the sample with the kit's names, its files written anew."""
    run_dir = tmp_path_factory.mktemp("kit") / "out_net" / "runs" / "linux"
    shutil.copytree(wb.sample_run(), run_dir)
    text = (run_dir / "manifest.json").read_text()
    for ours, theirs in NAMES.items():
        text = text.replace(ours, theirs)
        (run_dir / ours).rename(run_dir / theirs)
    for path in (p for p in run_dir.rglob("*") if p.is_file()):
        renamed = path.name
        for ours, theirs in NAMES.items():
            renamed = renamed.replace(ours, theirs)
        path.rename(path.with_name(renamed))
    (run_dir / "manifest.json").write_text(text)
    for path in [*run_dir.rglob("*.csv"), run_dir / "metrics.json"]:
        path.unlink(missing_ok=True)
    write_artifacts(wb.open_run(run_dir))
    return run_dir


@pytest.fixture(scope="module")
def kit(profiling_kit):
    """Runs a script of the checkout of Arm's profiling kit that PROFILING_KIT names."""
    scripts = profiling_kit / "model_profiling"

    def run(script, *arguments):
        command = [sys.executable, str(scripts / script), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=profiling_kit)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def read_rows(report, heading):
    """The rows of the Markdown table below a heading: its first cell, and the numbers of others."""
    part = report.split(heading, 1)[1].split("\n#", 1)[0]
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", part, re.MULTILINE)
    return {name: [float(n) for n in re.findall(r"\d+\.\d+", cells)] for name, cells in rows}


def sides_of(folder):
    run = wb.open_run(folder, categories="kit")
    return run["linux_sme2_on"], run["linux_sme2_off"]


@pytest.mark.whole
def test_files_have_the_keys_of_the_kit(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["model"].endswith("mobilenet_v3_small_xnnpack_fp32.pte")
    assert isinstance(manifest["executorch"], dict)
    assert {r["experiment"] for r in manifest["results"]} == {*NAMES.values(), "control"}
    metrics = json.loads((folder / "metrics.json").read_text())
    for result in metrics["results"]:
        found = result["metrics"]
        assert len(found["latency_ms"]) == found["runs"] > 0
        assert found["min_ms"] <= found["median_ms"] <= found["max_ms"]
        (row,) = (r for r in metrics["latencies"] if r["experiment"] == result["experiment"])
        assert (found["clock"], row["load_clock"]) == (row["clock"], "wall_ns")
        assert found["median_ms"] == pytest.approx(row["median"])
        assert (folder / found["etdump"]).is_file()
    assert {r["experiment"] for r in metrics["results"]} == {*NAMES.values(), "control"}
    summary = json.loads((folder / "analysis_summary.json").read_text())
    assert isinstance(summary["category_totals_ms"], dict)
    assert isinstance(summary["per_etdump"], list)


@pytest.mark.whole
def test_statistics_are_per_inference_as_in_the_kit(folder):
    """Its count is that of operators, its total the time of one inference."""
    table = pd.read_csv(next(folder.glob("linux_sme2_on/*_ops_stats.csv")))
    on, _ = sides_of(folder)
    traces = [wb.build_ledger(wb.read_etdump(folder / s.etdump)) for s in on.sessions]
    ledger = pd.concat(traces, keys=range(len(traces)), names=["process", "row"]).reset_index(0)
    own = ledger[ledger["kind"].isin(["delegated", "portable"])]["duration_ns"].sum()
    inferences = len(ledger[["process", "run"]].drop_duplicates())
    assert table["runs"].unique().tolist() == [inferences]
    assert table["total_ms"].sum() == pytest.approx(own / inferences / 1e6, rel=0.01)
    operators = on.operators[on.operators["kind"].isin(["delegated", "portable"])]
    assert table["count"].sum() == pytest.approx(operators["calls"].sum())
    assert (table["total_ms"] / table["count"]).to_numpy() == pytest.approx(table["avg_ms"])


def test_its_validator_passes(kit, folder, tmp_path):
    assert "❌" not in kit("scripts/validate_results.py", "--results", folder)


def test_its_report_prints_our_numbers_and_the_model(kit, folder, tmp_path):
    kit("scripts/generate_report.py", "--run-dir", folder, "--out", tmp_path / "report.md")
    report = (tmp_path / "report.md").read_text()
    assert f"Profiling Report: {wb.open_run(folder).record.plan.stem}" in report
    latency = read_rows(report, "## Latency Comparison")
    table = pd.read_csv(next(folder.glob("linux_sme2_on/*_all_runs_timeline.csv")))
    traced = table.loc[table["name"] == "Method::execute", "duration_ms"]
    assert latency["Median Latency"][0] == pytest.approx(traced.median(), abs=1e-3)
    shown = read_rows(report, "### Operator Category Breakdown")
    for place, side in enumerate(sides_of(folder)):
        stats = pd.read_csv(next(folder.glob(f"{side.name}/*_ops_stats.csv")))
        place_of = side.run.scheme.place
        placed = [
            place_of(name, "portable" if backend == "portable" else "delegated")[0]
            for name, backend in zip(stats["name"], stats["delegate_backend"], strict=True)
        ]
        ours = stats.groupby(placed)["total_ms"].sum()
        theirs = {name: cells[place] for name, cells in shown.items()}
        assert ours.to_dict() == pytest.approx(theirs, abs=1e-3)


def test_its_combined_report_prints_our_numbers(kit, folder, tmp_path):
    out = tmp_path / "combined.md"
    sides = ["--mac-dir", folder, "--android-dir", folder]
    kit("scripts/generate_combined_report.py", *sides, "--out", out, "--model-name", "net")
    rows = dict(re.findall(r"^\| macOS \| (\w+) \| ([\d.]+) \|", out.read_text(), re.MULTILINE))
    assert rows.keys() == {*NAMES.values(), "control"}
    medians = {}
    for name, median in rows.items():
        table = pd.read_csv(next(folder.glob(f"{name}/*_all_runs_timeline.csv")))
        traced = table.loc[table["name"] == "Method::execute", "duration_ms"]
        medians[name] = traced.median()
        assert float(median) == pytest.approx(medians[name], abs=0.006)
    gain = re.search(r"^\| macOS \| \**([\d.]+)x", out.read_text(), re.MULTILINE)
    assert gain
    speedup = medians["linux_sme2_off"] / medians["linux_sme2_on"]
    assert float(gain[1]) == pytest.approx(speedup, abs=0.006)


def test_its_analysis_reads_our_traces_and_the_run_stays_readable(kit, folder, tmp_path):
    later = shutil.ignore_patterns("*_p?.etdump", "*_sampled.etdump")  # it takes seconds for each
    copy = Path(shutil.copytree(folder, tmp_path / "linux", ignore=later))
    kit("scripts/analyze_results.py", "--run-dir", copy, "--quiet")
    theirs = json.loads((copy / "analysis_summary.json").read_text())
    assert theirs["etdump_count"] == len(theirs["per_etdump"]) == len([*copy.rglob("*.etdump")])
    for ours in copy.rglob("*_t1_all_runs_timeline.csv"):
        exec_csv = ours.with_name(ours.name.replace("_t1_all", "_t1_exec_all"))
        first, second = (
            t.loc[t["name"] == "Method::execute", "duration_ms"].to_list()
            for t in (pd.read_csv(ours), pd.read_csv(exec_csv))
        )
        assert len(first) > len(second) > 1, "all restarts"
        assert second == pytest.approx(first[: len(second)], abs=1e-5)
    kept = shutil.ignore_patterns("analysis_summary.json")
    shutil.copytree(folder, copy, ignore=kept, dirs_exist_ok=True)
    write_artifacts(wb.open_run(copy))  # its summary replaced ours
    again, before = (json.loads((f / "analysis_summary.json").read_text()) for f in (copy, folder))
    assert again == before | {"run_dir": again["run_dir"]}


@pytest.mark.parametrize(
    "script", ["tools/robust_latency_analysis.py", "tools/analyze_etdump_csv.py"]
)
def test_its_analyses_read_our_timelines(kit, folder, tmp_path, script):
    on, off = (next(folder.glob(f"{s.name}/*_all_runs_timeline.csv")) for s in sides_of(folder))
    arguments = ["--timeline-csv", on, "--compare", off, "--output-dir", tmp_path, "--verbose"]
    said = kit(script, *arguments)
    table = pd.read_csv(on)
    traced = table.loc[table["name"] == "Method::execute", "duration_ms"]
    assert f"{traced.mean():.3f} ms" in said


@pytest.mark.whole
def test_warm_up_is_in_no_table(folder, tmp_path):
    """A custom runner traces its warm-up too; the manifest says how many inferences it is."""
    run = wb.open_run(folder)
    traced = [replace(s, batches=(), skipped=1) for s in run.record.sessions if s.etdump]
    copy = Path(shutil.copytree(folder, tmp_path / "out_net" / "runs" / "linux"))
    change_manifest(copy, sessions=tuple(traced))
    write_artifacts(wb.open_run(copy))
    before, after = (r["linux_sme2_on"] for r in (run, wb.open_run(copy)))
    methods = before.events.query("kind == 'method' and run >= 0")["duration_ns"]
    kept = after.events.query("kind == 'method' and run >= 0")
    assert kept["duration_ns"].tolist() == methods.tolist()[1:]
    assert kept["run"].tolist() == list(range(len(methods) - 1))
    assert after.spans["key"].notna().any()
    rows = pd.read_csv(next(copy.glob("linux_sme2_on/*_all_runs_timeline.csv")))
    rows = rows.query("name == 'Method::execute'")
    in_table = (rows["duration_ms"] * 1e6).round().astype(int).tolist()
    assert in_table[: len(kept)] == methods.tolist()[1:]
    traced = sum(len(events.query("kind == 'method'")) for events in after.read_processes())
    assert len(in_table) == traced > len(kept)
    assert rows["run_index"].tolist() == list(range(len(rows)))
    assert len(after.times.inferences.query("process == 0")) == len(kept)
    assert after.ledger["run"].min() == 1

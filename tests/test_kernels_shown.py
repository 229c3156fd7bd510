"""Kernel evidence as a reader sees it, from the recorded sample; and toggles without effect."""

import json
import shutil
from pathlib import Path

import pytest
from recorded import recorded

import workbench as wb


@pytest.fixture(scope="module")
def sample():
    return recorded("toy_cnn")


@pytest.fixture
def run_dir(tmp_path):
    folder = tmp_path / "runs" / "qemu-aarch64"
    return Path(shutil.copytree(wb.sample_run("toy_cnn"), folder))


def change_manifest(run_dir, **changes):
    path = run_dir / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def samplings(run_dir):
    return json.loads((run_dir / "manifest.json").read_text())["samplings"]


def toggle_check(analysis):
    checks = analysis.checks
    return checks[checks["check"].str.startswith("toggle took effect")].iloc[0]


def test_sme2_kernels_are_named_with_the_toggle_on_only(sample):
    functions = {name: sample[name, 1].machine_code for name in ("sme2_on", "sme2_off")}
    assert functions["sme2_on"]["function"].str.contains("sme2_mopa").any()
    assert not functions["sme2_off"]["function"].str.contains("sme").any()
    assert not set(functions["sme2_off"]["code"]) & {"sme", "sme2"}
    assert sample.comparisons[0].proof.outcome == "changed"
    check = toggle_check(sample)
    assert check["status"] == "ok"
    assert "% sme2" in check["evidence"]


def test_the_tables_say_it(sample):
    comparison = sample.comparisons[0]
    table = str(wb.show(comparison, "kernels"))
    assert "sme2_mopa" in table
    assert "conv2" in table
    assert "emulated" in table
    lines = table.splitlines()
    off = next(n for n, line in enumerate(lines) if "sme2_off" in line)
    assert "sme2_on" in lines[off + 1] and "sme2_mopa" in lines[off + 1]
    assert "neon" in lines[off] and "PF32" in lines[off + 1]
    proof = str(wb.show(comparison, "code"))
    assert "changed; share" in proof and "emulated" in proof
    assert "| sme2_off | 2697 | 100 % neon |" in proof


def test_the_summary_has_kernels_with_their_share(run_dir, cli):
    assert cli("analyze", run_dir)[0] == 0
    summary = json.loads((run_dir / "analysis_summary.json").read_text())
    details = {d["name"]: d for d in summary["operator_details"]}
    convolution = details["Convolution (NHWC, PF32) IGEMM"]
    assert convolution["kernel_hint"].endswith("sme2_mopa")
    assert convolution["kernel_evidence"]["code"] == "sme2"
    assert 0.9 < convolution["kernel_evidence"]["share"] <= 1
    assert summary["comparisons"][0]["code"]["outcome"] == "changed"
    # Caught too rarely: the hint is what the name says.
    assert details["Transpose (ND, X32)"]["kernel_evidence"] is None
    assert details["Transpose (ND, X32)"]["kernel_hint"] == "ND, X32"


def spoil(run_dir):
    """The same samples on both sides: as if the toggle did nothing."""
    before, after = samplings(run_dir)
    fake = after | {name: before[name] for name in ("samples", "etdump")}
    change_manifest(run_dir, samplings=[before, fake])


def test_a_toggle_without_effect_is_no_speedup(run_dir):
    spoil(run_dir)
    analysis = wb.open_run(run_dir)
    comparison = analysis.comparisons[0]
    assert comparison.proof.outcome == "same"
    assert "toggle had no effect with sme2: the same machine code" in comparison.text
    assert "XNNPACK has no sme, sme2, sme2p1 kernel" in comparison.text
    assert "1.0" not in comparison.text
    check = toggle_check(analysis)
    assert (check["status"], check["evidence"][:3]) == ("fail", "no:")


def test_too_few_samples_are_not_shown(run_dir):
    for path in run_dir.glob("*/*.samples"):
        content = json.loads(path.read_text())
        for name in ("time_ns", "cpu_ns", "thread", "module", "address"):
            content[name] = content[name][:5]
        path.write_text(json.dumps(content))
    analysis = wb.open_run(run_dir)
    assert analysis.comparisons[0].proof.outcome == "not shown"
    check = toggle_check(analysis)
    assert check["status"] == "note"
    assert "too few" in check["evidence"]
    assert "no effect" not in analysis.comparisons[0].text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"samplings": ()}, "not sampled"),
    ],
)
def test_without_evidence_the_report_says_why(run_dir, changes, says):
    change_manifest(run_dir, **changes)
    analysis = wb.open_run(run_dir)
    comparison = analysis.comparisons[0]
    assert comparison.proof is None
    assert says in str(wb.show(comparison, "kernels"))
    assert says in str(wb.show(comparison, "code"))
    assert says in toggle_check(analysis)["evidence"]


def test_what_the_runner_said_is_why(run_dir):
    failed = samplings(run_dir)[0] | {"samples": "", "etdump": "", "problem": "no timers"}
    change_manifest(run_dir, samplings=[failed])
    analysis = wb.open_run(run_dir)
    assert "no evidence: no timers" in toggle_check(analysis)["evidence"]


def test_samples_outside_the_folder_are_not_read(run_dir):
    bad = samplings(run_dir)[0] | {"samples": "../../../etc/passwd"}
    change_manifest(run_dir, samplings=[bad])
    with pytest.raises(Exception, match="outside its folder"):
        wb.open_run(run_dir)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"operators": [["0/x/0", "x"]]}, "lack key, operator or kind"),
        ({"operators": 1}, "lack key, operator or kind"),
        ({"operators": []}, "in operator .* of 0"),
        ({"sure": [1]}, "different lengths"),
    ],
)
def test_malformed_places_are_one_line(tmp_path, changes, says):
    run_dir = shutil.copytree(wb.sample_run("vit_tiny"), tmp_path / "run")
    for path in run_dir.glob("*/*.samples"):
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(wb.WorkbenchError, match=says):
        wb.open_run(run_dir).measurements[0].machine_code  # noqa: B018

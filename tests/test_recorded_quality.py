"""The recorded runs are good enough to teach with."""

import re
from pathlib import Path

import pytest
from recorded import recorded
from test_golden_runs import RUNS, mark_sample

import workbench as wb

PAGE = Path(__file__).resolve().parents[1] / "data" / "README.md"
EMULATED = {"toy_cnn"}  #: Shows which code runs, and has no times.


@pytest.mark.parametrize(
    "name",
    [*map(mark_sample, sorted(RUNS))],
)
def test_a_sample_has_a_good_grade_all_evidence_and_a_finding_with_a_gain(name):
    run = wb.open_run(RUNS[name])
    on, findings = run.subject, run.findings
    assert on.machine_code is not None
    assert run.emulated == (name in EMULATED)
    if run.emulated:
        return
    assert run.quality["grade"].max() in ("A", "B")
    assert on.roofline is not None and {"time", "memory"} <= {start.mode for start in on.starts}
    assert ((findings["of"] == "latency") & (findings["high_ms"] > 0)).any()
    assert "unmeasurable" not in set(findings["basis"])
    text = " ".join(str(wb.show(run, view)) for view in ("verdicts", "findings", "quality"))
    assert "not measurable" not in text and "not stated" not in text


def test_the_page_of_the_samples_has_their_grades():
    rows = re.findall(r"^\| (`out_.+?) \|.*\| ([A-D]) \|$", PAGE.read_text(), re.MULTILINE)
    grades = {name: grade for names, grade in rows for name in re.findall(r"out_(\w+)", names)}
    samples = {path.name.removeprefix("out_") for path in PAGE.parent.glob("samples/out_*")}
    assert grades.keys() == samples
    for name, grade in grades.items():
        assert recorded(name).quality["grade"].max() == grade, name

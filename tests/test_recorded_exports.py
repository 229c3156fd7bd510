"""The programs of the samples are those that the workbench exports today."""

import pytest

import workbench as wb

SAMPLES = wb.sample_file("exports").parent
#: The quickest; the others are further cases.
FIRST = "Ready"
RUNS = [folder.name.removeprefix("out_") for folder in sorted(SAMPLES.glob("out_*"))]


def export_again(recorded, root):
    spec = recorded.spec
    spec = str(SAMPLES.parents[1] / spec) if spec.startswith("data/") else spec
    options = wb.ExportOptions(dtype=recorded.dtype, rewrite=recorded.rewrite)
    return wb.export_model(spec, options=options, root=root)


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(name, marks=pytest.mark.whole if name == FIRST else pytest.mark.cases)
        for name in RUNS
    ],
)
def test_a_recorded_run_has_the_program_of_today(sample, tmp_path):
    (run_dir,) = (SAMPLES / f"out_{sample}" / "runs").iterdir()
    recorded = wb.open_run(run_dir).subject.export
    if recorded is None or not recorded.spec:
        pytest.skip("its model is in a cell of a notebook")
    assert export_again(recorded, tmp_path).sha256 == recorded.sha256


@pytest.mark.cases
@pytest.mark.parametrize("number", range(4))
def test_a_recorded_export_has_the_program_of_today(number, tmp_path):
    recorded = wb.read_exports(SAMPLES / "exports")[number]
    program = export_again(recorded, tmp_path)
    assert program.sha256 == recorded.sha256
    assert program.export.problem == recorded.problem


def test_the_default_half_precision_program_of_the_case_study_is_wrong_and_its_remedy_right():
    exports = wb.read_exports(wb.sample_file("exports"))
    wrong, right = (each for each in exports if each.dtype == "fp16")
    assert wrong.rewrite == () and right.rewrite == ("layer_norm",)
    assert wrong.sqnr_db < 0 < 30 < right.sqnr_db
    assert wrong.cause.operator == "layer_norm" and not right.problem

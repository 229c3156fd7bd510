"""What depends only on inputs that stay between calls is found, timed and tried."""

from dataclasses import replace

import pytest
from explored import read_data
from exported_runs import make_model
from needed import needs
from steps import decoder

import workbench as wb

pytestmark = pytest.mark.whole


def run_options(constant=()):
    return wb.MeasureOptions(
        toggle="none", runs=2, processes=3, evidence=False, cold_start=False, roof=False,
        constant=constant,
    )  # fmt: skip


def measure(root, constant=()):
    model = make_model("decoder", *decoder(width=256, layers=1))
    brief = run_options(constant)
    program = wb.export_model(model, root=root)
    return model, wb.measure(program, options=brief, root=root, artifacts=False)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    return measure(tmp_path_factory.mktemp("decoder"), ("states",))


def find(run):
    (finding,) = (each for each in run.opportunities if each.rule == "constant inputs")
    return finding


def test_the_time_of_what_depends_on_a_named_input_is_a_finding(measured):
    _, run = measured
    finding = find(run.subject)
    rows = run.subject.costs.loc[list(finding.operators)]
    assert {*rows["module"]} >= {"cross.0.k", "cross.0.v"}
    assert not {*rows["module"]} & {"own.0.k", "cross.0.q", "head"}
    assert finding.gain.basis == "removal"
    assert finding.gain.ms == pytest.approx(rows["mean_ms"].sum())
    assert "depend on `states` only" in finding.cause
    assert "steps.py" in finding.place
    assert not finding.command
    assert "guess" not in finding.cause


def test_a_guess_says_so_and_how_to_confirm_it(measured):
    _, run = measured
    plan = replace(run.record.plan, constant=())
    guessed = replace(run, record=replace(run.record, plan=plan)).subject
    finding = find(guessed)
    assert finding.cause.endswith("a guess")
    assert "--constant states" in finding.command
    assert finding.id == find(run.subject).id, "a trial holds for both"


def test_a_frame_says_what_each_operator_depends_on(measured):
    _, run = measured
    table = wb.open_program(run.subject.program.pte).dependence.set_index("module")
    assert {*table.loc["cross.0.k", "inputs"].split(", ")} == {"states"}
    assert table.loc["head", "inputs"] == "ids, states"
    assert "steps.py" in table.loc["cross.0.k", "source"]


def test_an_unknown_input_is_refused_with_the_known_ones(measured, tmp_path):
    _, run = measured
    program = wb.open_program(run.subject.program.pte)
    for names, words in ((("stats",), "states"), (("ids", "states"), "no input is left")):
        with pytest.raises(wb.WorkbenchError, match=words):
            wb.measure(program, options=wb.MeasureOptions(constant=names), root=tmp_path)


def test_the_explorer_has_what_each_operator_depends_on(measured):
    _, run = measured
    (program,) = read_data(run)["programs"]
    depends, modules = (program["texts"][name] for name in ("depends", "module"))
    shown = {
        modules["values"][module]: depends["values"][code]
        for module, code in zip(modules["codes"], depends["codes"], strict=True)
        if module >= 0 and code >= 0
    }
    assert shown["cross.0.k"] == "states"
    assert shown["head"] == "ids, states"


@pytest.mark.cases
@needs("remedies")
def test_the_rest_is_tried_against_the_whole(measured):
    model, run = measured
    finding = find(run.subject)
    (trial,) = wb.check_findings(run, model, finding=finding)
    assert trial.answer == "gains", trial.problem
    assert trial.whole
    assert trial.sqnr_db > 100
    removed = finding.gain.ms / run.subject.latency_ms
    assert trial.gain_ms / trial.before_ms > 0.8 * removed
    assert find(wb.open_run(run.path).subject).gain.basis == "checked"


@pytest.mark.cases
@needs("remedies")
def test_a_part_is_exported_with_the_layers_and_lines_of_the_whole(measured, tmp_path):
    model, _ = measured
    parts = wb.split(model, constant=("states",))
    program = wb.export_model(parts.each, root=tmp_path)
    assert program.model.endswith("_each")
    (method,) = program.layers.methods
    places = {origin.module: origin.source for origin in method.origins}
    assert "steps.py" in places["cross.0.q"]
    assert "cross.0.k" not in places


@needs("remedies")
def test_both_parts_are_measured_as_one_conversation(measured, tmp_path):
    model, run = measured
    parts = wb.split(model, constant=("states",))
    brief = replace(run_options(), processes=2)
    both = [parts.once, parts.each]
    calls = wb.measure(both, options=brief, root=tmp_path, artifacts=False).conversation
    first, second, tenth, _ = calls["ms"]
    assert calls["calls"].tolist() == [1, 2, 10, 100]
    assert second - first == pytest.approx(calls["each_ms"].iloc[0])
    assert tenth < 10 * first and (calls["low_ms"] < calls["ms"]).all()
    assert first == pytest.approx(run.subject.latency_ms, rel=1), "it does the work of the whole"
    assert run.conversation is None

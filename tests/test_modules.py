"""Modules of the user's own process: exported, seen to change, and named by their cells."""

import re
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest
import torch
from exporting import NET
from IPython.core.completer import provisionalcompleter
from needed import needs
from torch import nn

import workbench as wb
from workbench.jobs import write_command

PORTABLE = wb.ExportOptions(backend="portable")


class Net(nn.Module):
    """A linear layer and a constant."""

    def __init__(self, width=4, scale=2.0):
        super().__init__()
        self.linear, self.scale = nn.Linear(4, width), scale

    def forward(self, x, mask=None):
        x = self.linear(x) * self.scale
        return x if mask is None else x * mask


@pytest.fixture
def export(tmp_path):
    def export_once(module, inputs, **names):
        return wb.export_model(module, inputs, PORTABLE, root=tmp_path, **names)

    return export_once


@pytest.mark.whole
def test_an_edit_of_a_module_is_another_program_and_none_is_overwritten(export):
    torch.manual_seed(0)
    net, x = Net(), torch.ones(1, 4)
    first = export(net, x)
    assert first.path.name.startswith("Net-") and first.export.model == "Net"
    before = first.path.stat().st_mtime_ns
    assert export(net, x).path == first.path and first.path.stat().st_mtime_ns == before
    programs = {first.path, export(net, 2 * x).path}  # an input
    net.scale = 3.0  # a constant
    programs.add(export(net, x).path)
    with torch.no_grad():
        net.linear.weight[0, 0] = 0.5  # a weight
    programs.add(export(net, x).path)
    net.linear = nn.Sequential(net.linear, nn.ReLU())  # a layer
    programs.add(export(net, x).path)
    programs.add(export(net, {"x": x, "mask": x > 0}).path)
    assert len(programs) == 6 and all(path.exists() for path in programs)
    assert net.training, "only a copy is changed"


@pytest.mark.whole
def test_inputs_are_a_tensor_a_tuple_or_keywords(export):
    x = torch.ones(1, 4)
    for inputs in (x, (x,), {"x": x}):
        assert [tensor.shape for tensor in export(Net(), inputs).inputs] == [(1, 4)]
    assert export(Net(), x, name="mine").path.name.startswith("mine-")
    with pytest.raises(wb.WorkbenchError, match=r"no example inputs.*give them after"):
        export(Net(), None)
    with pytest.raises(wb.WorkbenchError, match="a function is no model"):
        export(lambda x: x, x)
    with pytest.raises(wb.WorkbenchError, match=r"type is no model -> give an instance: Net\("):
        export(Net, x)
    with pytest.raises(wb.WorkbenchError, match=r"test_modules.py:\d+: forward\(\) fails"):
        export(Net(), torch.ones(1, 5))


CELL = NET.replace("return self.fc(x)", "x = self.fc(x)\n        return x.relu()")


@pytest.mark.whole
def test_layers_of_a_cell_name_the_cell_and_its_line(shell, export):
    assert shell.run_cell(CELL, store_history=True).success
    net = shell.user_ns["Net"]()
    program = export(net, torch.ones(1, 4))
    lines = {o.operator: o.source for method in program.layers.methods for o in method.origins}
    cell = f"In [{shell.execution_count - 1}]"
    assert {line for line in lines.values() if line} == {f"{cell}:11", f"{cell}:12"}
    with pytest.raises(wb.WorkbenchError) as caught:
        export(net, torch.ones(1, 5))
    assert str(caught.value).startswith(f"{cell}:11: forward() fails on its inputs")


@pytest.fixture
def quick(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = wb.MeasureOptions(toggle="none", runs=2, processes=2)
    return {"export": PORTABLE, "effort": "quick", "measure": few}


@pytest.fixture
def next_step(cli):
    """What `workbench findings` says last of a run."""

    def find(folder):
        code, _, err = cli("findings", folder)
        assert code == 0
        return re.search("^next: (.*)$", err, re.MULTILINE)[1]

    return find


@needs("remedies")
def test_a_finding_of_a_cell_s_module_names_the_magic_and_the_next_step(next_step):
    run = wb.open_run(wb.sample_run("Net"))
    finding = run.opportunities[0]
    assert finding.command == "%workbench export net x --rewrite functions"
    assert next_step(run.path).startswith(f"run.apply('{finding.id}')")


@needs("remedies")
@pytest.mark.parametrize("place", ["In [1]:7", "net.py:7"])
def test_a_trial_that_showed_nothing_is_tried_again_where_the_module_is(tmp_path, place):
    folder = shutil.copytree(wb.sample_run("Net"), tmp_path / "runs" / "linux")
    run = wb.open_run(folder)
    trial = next(each for each in run.subject.trials if each.answer == "gains")
    run.keep(replace(trial, low_ms=-trial.high_ms))
    m = wb.open_run(folder).subject
    vars(m)["operators"] = m.operators.assign(source=place)
    finding = next(each for each in m.opportunities if each.id == trial.finding)
    if place.startswith("In"):
        assert re.fullmatch(rf"%workbench findings \S+ --check {finding.id} .*1m", finding.command)
    else:
        call = f'wb.check_findings(run, net, x, finding="{finding.id}", budget_s=60)'
        assert finding.command == call


@pytest.mark.whole
def test_the_next_step_has_the_names_that_a_notebook_uses(quick, shell, capsys, monkeypatch):
    net, image = Net(), torch.ones(1, 4)
    for name, thing in {"tiny": net, "image": image}.items():
        monkeypatch.setattr(sys.modules["__main__"], name, thing, raising=False)
    shell.user_ns["mine"] = wb.profile(net, image, **quick)
    shell.run_cell("%load_ext workbench\n%workbench findings mine\n%workbench analyze mine")
    out = capsys.readouterr().out
    first, second = re.findall("next: (.*)", out)
    assert first.startswith("mine.apply(") or first.endswith("wb.profile([tiny, changed], image)")
    assert second == "%workbench report mine"
    assert set(re.findall("%workbench (?:export|profile) (\\w+ \\w+)", out)) <= {"tiny image"}


@pytest.mark.whole
def test_the_next_step_of_a_lowered_program_names_it_and_its_inputs(next_step, monkeypatch):
    from executorch.exir import to_edge

    image = torch.ones(1, 4)
    whole = (torch.zeros(1, 4),)
    with warnings.catch_warnings(action="ignore"):
        manager = to_edge(torch.export.export(Net().eval(), (image,)))
    for name, thing in {"mine": manager, "image": image, "whole": whole}.items():
        monkeypatch.setattr(sys.modules["__main__"], name, thing, raising=False)
    measure = wb.MeasureOptions(toggle="none", runs=2, processes=2)
    for inputs, names in ((image, ", image"), (whole, ", whole"), (None, "")):
        run = wb.profile(manager, inputs, effort="quick", measure=measure)
        assert next_step(run.path).endswith(f"wb.profile([mine, changed]{names})")


def test_a_program_is_no_run(tmp_path):
    (tmp_path / "net.pte").write_bytes(b"")
    command = [sys.executable, "-m", "workbench", "compare", str(tmp_path / "net.pte")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "not measured yet -> workbench profile" in done.stderr


def test_the_next_step_of_a_registered_model_is_a_command(next_step):
    step = next_step(wb.sample_run())
    assert step.startswith("workbench findings ") and " --model mobilenet_v3_small" in step


@pytest.mark.cases
def test_before_and_after_an_edit_are_compared_apart_and_side_by_side(quick):
    x = torch.randn(1, 256)
    quick["measure"] = wb.MeasureOptions(toggle="none")
    before = wb.profile(nn.Sequential(nn.Linear(256, 2048), nn.ReLU()), x, name="net", **quick)
    after = wb.profile(nn.Sequential(nn.Linear(256, 256), nn.ReLU()), x, name="net", **quick)
    assert before.path.parent == after.path.parent != before.path
    assert not list(after.path.glob("report.*")), "only when somebody asks"
    apart = wb.compare(before, after)
    assert apart.text.startswith("net (after) against net (before): ") and apart.verdict.speedup > 2
    assert any("wb.profile([before, after])" in caveat for caveat in apart.caveats)
    call = write_command(before.subject, "profile", dtype="int8")
    assert call == "wb.profile(net, x, wb.ExportOptions(dtype='int8', backend='portable'))"
    options = wb.MeasureOptions(budget_s=2.0)
    both = wb.profile([before, after], measure=options, effort="quick")
    counted = wb.MeasureOptions(toggle="none", runs=4, processes=2)
    runs = [before, both, wb.profile(before, measure=counted, effort="quick")]
    assert [run.record.plan.budget_s for run in runs] == [3.0, 2.0, 0.0]
    assert not any(run.record.samplings for run in runs)
    assert both.compare().verdict.outcome == "faster"
    with pytest.raises(wb.WorkbenchError, match="unknown effort 'slow'"):
        wb.profile(nn.ReLU(), x, effort="slow")


@pytest.mark.cases
def test_every_verb_takes_a_module_a_name_a_program_and_a_run(quick):
    few = {"runs": 4, "processes": 2, "evidence": False, "cold_start": False, "roof": False}
    x, brief = torch.randn(1, 64), wb.MeasureOptions(toggle="none", **few)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    run = wb.measure(net, x, brief)
    again = [wb.measure(each, options=brief) for each in (run, str(run.subject.program.pte))]
    assert {each.subject.program.sha256 for each in again} == {run.subject.program.sha256}
    with pytest.raises(wb.WorkbenchError, match="pte: is exported already"):
        wb.measure(run, x)


@pytest.mark.whole
def test_magics_take_names_of_the_notebook_and_cells(shell, quick):
    options = (
        "--backend portable --toggle none --budget 1s --measure evidence=no --measure cold_start=no"
    )
    options += " --measure roof=no"
    for code in ("import torch; from torch import nn; x = torch.ones(1, 4)", "%load_ext workbench"):
        assert shell.run_cell(code).success
    assert shell.run_cell(
        f"run = get_ipython().run_cell_magic('workbench', 'profile x {options}', {CELL!r})"
    ).success
    run = shell.user_ns["run"]
    assert isinstance(run, wb.Run) and run.model == "Net"
    assert set(run.operators["source"].dropna()) == {
        f"In [{shell.execution_count}]:{n}" for n in (12, 13)
    }
    assert shell.run_cell("net = Net()").success
    assert (
        shell.run_line_magic("workbench", "export net x --backend portable").export.model == "Net"
    )
    assert shell.run_cell("fp16 = run").success  # also the value of an option
    program = shell.run_line_magic("workbench", "export net x --dtype fp16 --backend portable")
    assert program.export.dtype == "fp16"
    done = shell.run_cell("%workbench export net y --backend portable")
    assert "nothing called 'y' -> it has " in str(done.error_in_exec)
    done = shell.run_cell("%workbench compare nonsense")
    assert isinstance(done.error_in_exec, Exception)


def test_the_magic_completes_commands_options_and_names_of_the_notebook(
    shell, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "networks").mkdir()
    shell.run_cell("import torch; net = torch.nn.ReLU(); needle = torch.ones(1); nothing = 1")
    shell.run_cell("%load_ext workbench")

    def complete(line):
        with provisionalcompleter():  # as a kernel does
            return {found.text for found in shell.Completer.completions(line, len(line))}

    assert complete("%workbench prof") == {"profile"}
    assert {"profile", "doctor"} <= complete("%workbench ")
    assert complete("%workbench profile --dt") == {"--dtype"}
    options = complete("%workbench profile --")
    assert len(options) > 25 and all(text.startswith("--") for text in options)
    assert complete("%%workbench profile net --iso") == {"--iso"}, "and no name of Python"
    assert complete("%workbench profile ne") == {"net", "needle", "networks"}
    assert complete("x = 1\n%workbench profile nee") == {"needle"}
    assert complete("need") == {"needle"}, "other lines are completed as always"


def test_the_magic_names_a_word_that_the_notebook_lacks(shell):
    shell.run_cell("import torch; net = torch.nn.ReLU(); x = torch.ones(1)")
    shell.run_cell("%load_ext workbench")
    for line in ("profile nett x", "profile nett", "export nett x --dtype int8"):
        error = shell.run_cell(f"%workbench {line}").error_in_exec
        assert (
            str(error)
            == "this notebook has nothing called 'nett' -> did you mean 'net'? it has net, x"
        )


def test_an_unknown_model_is_refused_before_torch_is_imported():
    command = [sys.executable, "-X", "importtime", "-m", "workbench", "profile", "nosuch"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "unknown model 'nosuch'" in done.stderr
    assert "| torch\n" not in done.stderr.replace("|   ", "| ")


def test_an_error_is_one_line_in_a_notebook_and_its_traceback_can_be_asked_for(shell, capsys):
    shell.run_cell("import workbench as wb; wb.sample_run('nope')")
    first = capsys.readouterr().out
    assert "UsageError: unknown sample 'nope'" in first and len(first.splitlines()) <= 3
    shell.run_line_magic("tb", "")
    assert "in sample_run" in capsys.readouterr().out

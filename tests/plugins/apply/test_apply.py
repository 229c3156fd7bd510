"""Remedies that are applied: both programs side by side, and the lines to write."""

import ast
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from exported_runs import measure_briefly
from needed import needs

import workbench as wb
from workbench.analysis.findings.text import list_code
from workbench.export.rewriter import find_rewriter
from workbench.export.traced import trace_model
from workbench.export.write import Unwritable
from workbench.plugins.apply.edit import write_edit
from workbench.plugins.apply.finding_cards import FindingCards

#: A network with parts that have remedies: of lines that map to them, and of others.
SOURCE = """\
from torch import nn, ones
from torch.nn import functional as F


class Gate(nn.Module):
    def forward(self, x):
        half = x * 0.5
        return half * (1 + (x * 0.7071067811865476).erf())


class Padded(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3)

    def forward(self, x):
        return self.conv(F.pad(x, (1, 1, 1, 1), "reflect"))


class Shared(Padded):
    def forward(self, x):
        return self.conv(F.pad(x, (1, 1, 1, 1), mode="reflect"))


class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.gate = nn.Conv2d(3, 8, 3, stride=2, padding=1), Gate()
        self.twice, self.inside = Shared(8), nn.Sequential(nn.Conv2d(8, 8, 1), nn.ELU())
        self.pool, self.larger, self.smaller = nn.MaxPool2d(2), Padded(8), Padded(8)

    def forward(self, x):
        x = self.gate(self.stem(x))
        x = self.larger(self.inside(self.twice(self.twice(x))))
        x = F.pad(x, (3, 2, 0, 0), mode="reflect")
        return self.smaller(
            self.pool(F.pad(x,
                            (1, 0, 0, 0), mode="reflect") + 1.0)
        )


def get_example_inputs():
    return (ones(1, 3, 32, 32).cumsum(3) / 20,)
"""
DATA = Path(__file__).parents[2] / "data"
BRIEF = wb.MeasureOptions(
    toggle="none", runs=2, processes=2, evidence=False, cold_start=False, roof=False
)
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """The file of the network, and its run."""
    folder = tmp_path_factory.mktemp("planted")
    file = folder / "planted.py"
    file.write_text(SOURCE)
    return file, wb.open_run(measure_briefly(f"{file}:Planted", folder))


def find(run, remedy, node=""):
    """The finding with a remedy, of a part with an operator."""
    return next(
        each
        for each in run.opportunities
        if each.remedy == remedy and (not node or node in str(each.rewrite))
    )


def run_file(file):
    model = wb.load_model(f"{file}:Planted")
    with torch.no_grad():
        return model.module(*model.example_inputs)


@pytest.mark.whole
@needs("remedies")
def test_a_remedy_is_measured_beside_the_original_and_its_diff_applies(planted, tmp_path, cli):
    file, run = planted
    finding = find(run, "functions", "erf")
    after = run.apply(finding, f"{file}:Planted", measure=BRIEF)
    ab = after.compare()
    before, edited = ab.baseline.export, ab.candidate.export
    assert before.sha256 == run.subject.export.sha256
    assert edited.rewrite == ("functions",) and "functions" in ab.candidate.name
    assert edited.graph == before.graph and not ab.wrong
    assert [a.agree for a in ab.agreements] == [True]
    kept = wb.open_run(after.path).applied
    assert kept.findings == (finding.id,) and kept.remedies == ("functions",)
    assert kept.other, "another part has a function, too"
    assert "applied by its name" in str(wb.show(after))

    copy, told = shutil.copy(file, tmp_path / file.name), list[str]()
    patch = tmp_path / "edit.patch"
    patch.write_text(kept.diff)
    subprocess.run(["patch", copy, patch], check=True, capture_output=True)
    assert "erf" not in copy.read_text() and "import torch\n" in copy.read_text()
    torch.testing.assert_close(run_file(copy), run_file(file), rtol=1e-4, atol=1e-4)
    with pytest.raises(wb.WorkbenchError, match="has changed since it was exported"):
        run.apply(finding, f"{copy}:Planted", progress=lambda text, _: told.append(text))
    assert not any("export" in text for text in told), "the run's program stays as it is"


@pytest.mark.cases
@needs("remedies")
def test_what_helped_is_tried_together_on_the_whole_program(planted):
    file, run = planted
    run.findings.check(f"{file}:Planted")
    m = run.subject
    trial, helping = m.trials[-1], {each.remedy for each in m.opportunities if each.helps}
    assert trial.remedies == helping == {"functions", "matrices"}
    assert trial.whole and trial.answer == "gains" and trial.after_ms < trial.before_ms
    gain = m.potential.gain
    assert gain.low < gain.ms < gain.high
    assert "tried together" in str(wb.show(run, "gain"))
    assert all(each.seconds > 0 for each in m.trials), "what each trial took is kept"
    (again,) = wb.check_findings(run, f"{file}:Planted", finding="together", budget_s=1.0)
    assert again.whole and again.remedies == trial.remedies, "asked for again"
    code = "\n".join(code for each in m.opportunities for code in [*list_code(each)])
    assert code and ast.parse(code)


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    """Writes the lines for the part of a remedy that ends in an operator, or says why not."""
    file = tmp_path_factory.mktemp("written") / "planted.py"
    file.write_text(SOURCE)
    model = wb.load_model(f"{file}:Planted")

    def write(remedies, *results):
        trace = trace_model(model)
        parts = [
            replace(part, remedy=remedy, text="another way")
            for remedy in remedies.split(",")
            for part in find_rewriter().replace(trace.exported, remedy, "xnnpack")
        ]
        chosen = [part for part in parts if part.result in results]
        assert len(chosen) == len(results), [part.result for part in parts]
        try:
            return write_edit(model, trace, chosen)
        except Unwritable as error:
            return str(error)

    return write


#: By the remedy and the results of its parts, what is written.
EDITS = {
    ("functions", "mul_2"): r"(?s)-        return half.*\n\+        return use_functions\(x\)\n",
    ("functions", "elu"): "^no expression of yours computes it",
    ("matrices", "pad", "pad_1"): r"\n\+        return self.conv\(use_matrices\(x\)\)\n",
    (
        "matrices",
        "pad_2",
        "pad_5",
    ): "^the line computes it several times, each time in ",
    ("functions,matrices", "mul_2", "pad", "pad_1"): (
        r"(?s)\+ +return use_functions\(x\)\n.*\+ +return self.conv\(use_matrices\(x\)\)"
    ),
    ("matrices,matrices", "pad", "pad"): "^two remedies change the same operators: apply each",
    ("matrices", "pad_3"): "^the export computes a constant for it, of 21x16$",
    ("matrices", "pad_4"): r"\n\+            self.pool\(use_matrices\(x\) \+ 1.0\)\n",
}


@pytest.mark.whole
@needs("remedies")
@pytest.mark.parametrize("part", EDITS, ids=" ".join)
def test_lines_are_those_that_were_run_or_there_are_none(write, part):
    assert re.search(EDITS[part], write(*part))


@needs("remedies")
def test_what_cannot_be_applied_is_one_line_with_the_next_step(cli):
    run = wb.open_run(wb.sample_run("AsTrained"))
    able = [each.id for each in run.opportunities if each.is_option]
    near = f"unknown finding .* did you mean '{able[0]}'"
    with pytest.raises(wb.WorkbenchError, match=near):
        run.apply(able[0][:-1])
    code, _, err = cli("findings", run.path, "--apply", able[0][:-1])
    assert code and re.fullmatch(f"error: .*{near}.*\n", err)
    other = wb.open_run(wb.sample_run())
    lacking = next(each for each in other.opportunities if not each.is_option)
    with pytest.raises(wb.WorkbenchError, match=r"has no remedy .* -> these have one: "):
        other.apply(lacking)
    with pytest.raises(wb.WorkbenchError, match="no remedy was shown to help -> "):
        other.apply()
    given = wb.open_run(wb.sample_run("Net"))
    with pytest.raises(wb.WorkbenchError, match=r"the run's model was a module -> run\.apply"):
        given.apply()
    trace = wb.open_run(DATA / "etdump" / "mobilenet_v3_small.etdump")
    for name in (None, "nope"):
        with pytest.raises(wb.WorkbenchError, match="model is not known -> workbench profile"):
            trace.apply(name)


@pytest.fixture
def cards(monkeypatch):
    """What a live notebook shows of the findings of a recorded run, and what it keeps of that."""
    kept, run = [], wb.open_run(wb.sample_run("AsTrained"))
    monkeypatch.setenv("WORKBENCH_WIDGETS", "1")
    monkeypatch.setattr("workbench.plots.widgets._show_widget", lambda *shown: kept.append)
    shown = wb.show(run, "findings")
    cards = [(finding, finding.cause) for finding in shown.findings]
    widget = FindingCards(run, cards, shown, shown.notes)
    widget._ipython_display_()
    return widget, kept


def press(widget, name):
    widget.buttons[name].click()
    widget.wait(60)
    return widget.results.children[-1].value


@needs("remedies")
def test_a_button_applies_a_finding_and_its_bars_stay(cards, monkeypatch):
    widget, kept = cards
    applied, asked = wb.open_run(wb.sample_run("Edited")), []

    def apply(finding, progress):
        progress("measuring", 0.5)
        assert widget.buttons[finding].disabled and widget.bar.value == 0.5
        asked.append(finding)
        return applied

    monkeypatch.setattr(widget.run, "apply", apply)
    name = next(iter(widget.buttons))
    page = press(widget, name)
    assert asked == [name] and widget.applied == [applied]
    assert page.count('role="img"') == 2 and "faster" in page
    assert page in kept[-1].html and not widget.buttons[name].disabled


@needs("remedies")
def test_a_button_that_fails_or_is_stopped_says_so_in_a_line(cards, monkeypatch):
    widget, _ = cards
    name = next(iter(widget.buttons))
    assert re.fullmatch(r'<p role="alert">error: .* -&gt; .*</p>', press(widget, name))

    def apply(finding, progress):
        widget.stop_button.click()
        progress("measuring", 0.5)

    monkeypatch.setattr(widget.run, "apply", apply)
    assert "stopped" in press(widget, name) and widget.row.layout.display == "none"


@needs("remedies")
def test_without_a_front_end_findings_are_the_cards_alone():
    run = wb.open_run(wb.sample_run("AsTrained"))
    for shown in (run.findings, wb.show(run, "findings")):
        with pytest.raises(NotImplementedError):
            shown._ipython_display_()
        assert "<li" in shown._repr_html_() and "Apply" not in shown._repr_html_()

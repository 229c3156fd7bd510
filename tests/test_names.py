"""Names that people give: variables, labels and notes, on every surface, whatever they contain."""

import json
import shutil

import pytest
import torch
from changed_runs import edit_json
from needed import needs
from torch import nn

import workbench as wb


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 16)

    def forward(self, x):
        return self.second(self.first(x).relu())


SAMPLE, MARKUP = wb.sample_run("Ready"), "<b>no [reflect](x)|"


def keep_run(root, name, label="", **changes):
    """The recorded run with a label, in a folder of its own."""
    folder = shutil.copytree(SAMPLE, root / "out_x" / "runs" / name)

    def give(manifest):
        manifest["plan"]["label"] = label
        manifest.update(changes)

    edit_json(folder / "manifest.json", give)
    return folder


def test_lists_show_labels_and_notes_and_number_what_is_equal(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_WIDGETS", "1")  # a live front end
    days = [f"2026-01-0{day}T00:00:00" for day in range(1, 6)]
    labels = ["first", "", "", "first", MARKUP]
    folders = [
        keep_run(tmp_path, f"Ready-fp32-linux-2026010{n}-0000", label, started=day)
        for n, (label, day) in enumerate(zip(labels, days, strict=True))
    ]
    wb.open_run(folders[0]).note("without\nreflection")
    (menu,) = wb.pick_run(folder=tmp_path).children[0].children
    own = [name for name, path in dict(menu.options).items() if path in folders]
    named = [MARKUP, "first", "Ready, linux (2)", "Ready, linux", "first: without reflection"]
    assert own == named
    measurements, _ = wb.pick_measurements(tmp_path).children[0].children
    assert next(iter(dict(measurements.options))).startswith(f"{MARKUP}: avx512_off")


def test_labels_are_the_names_of_what_is_compared(tmp_path, cli):
    before, after = keep_run(tmp_path, "a", "first"), keep_run(tmp_path, "b", MARKUP)
    runs = [wb.open_run(before), wb.open_run(after)]
    assert wb.compare(*runs).verdict.subject == f"{MARKUP} against first"
    combined = wb.combine_runs([str(before), str(after)])
    assert list(combined.measurements) == ["first", MARKUP]
    assert runs[1].facts[0] == MARKUP
    assert cli("compare", before, after)[1].startswith(f"{MARKUP} against first: ")


def test_runs_without_labels_have_neither_times_nor_paths_as_names(tmp_path):
    folders = [keep_run(tmp_path, name, started=f"2026-01-01T0{name}:00") for name in "12"]
    combined = wb.combine_runs([*map(str, folders)])
    assert list(combined.measurements) == ["Ready", "Ready (2)"]


@needs("explorer")
def test_a_note_is_kept_and_shown_and_is_text(tmp_path):
    run = wb.open_run(keep_run(tmp_path, "a", MARKUP))
    run.note(" <i>first</i> ")
    run.note("second")
    again = wb.open_run(run.path)
    assert [note.text for note in again.notes] == ["<i>first</i>", "second"]
    shown = wb.show(again, "overview")
    page = shown._repr_html_()
    assert "Note: &lt;i&gt;first&lt;/i&gt;" in page and "<i>first" not in page
    assert "&lt;b&gt;no [reflect](x)|" in page and "<b>no" not in page
    assert "\\<i\\>first" in str(shown) or "&lt;i&gt;first" in str(shown)
    explored = wb.explore(again).text
    assert "\\u003ci>first" in explored and "<i>first" not in explored and "<b>no" not in explored


@pytest.mark.parametrize("text", ["", " ", "x" * 2001])
def test_a_note_is_bounded(tmp_path, text):
    run = wb.open_run(keep_run(tmp_path, "a"))
    with pytest.raises(wb.WorkbenchError, match="1 to 2000 letters"):
        run.note(text)
    assert run.notes == ()


@pytest.mark.parametrize("label", ["x" * 61, "two\nlines", "\x1b[31m", "\u202eright to left"])
def test_a_label_is_one_short_line(tmp_path, cli, label):
    code, _, err = cli("profile", "toy_cnn", "--label", label)
    assert code == 2 and "--label" in err and err.count("\n") == 1
    with pytest.raises(wb.WorkbenchError, match="its label"):
        wb.open_run(keep_run(tmp_path, "a", label))


@needs("history")
def test_a_history_shows_labels(tmp_path):
    folder = keep_run(tmp_path, "a", MARKUP)
    history = wb.read_history([tmp_path])
    assert set(history.rows["run"]) == {MARKUP}
    page = history.tables[0].html
    assert "&lt;b&gt;no" in page and str(folder) not in page and "2026" not in page


@pytest.mark.whole
def test_programs_are_called_as_the_variables_that_hold_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net, narrower = Two(), Two()
    x = torch.randn(8, 32)
    few = wb.MeasureOptions(runs=2, processes=2)
    run = wb.profile([net, narrower], x, measure=few, label="no reflect/ion", effort="quick")
    assert run.experiments == ["net", "narrower"]
    assert run.compare().verdict.subject == "narrower against net" or "net" in run.compare().text
    assert run.path.name == "no_reflect_ion" and run.label == "no reflect/ion"
    assert {file.name.split("_")[0] for file in run.path.rglob("*.etdump")} == {"net", "narrower"}
    assert json.loads((run.path / "manifest.json").read_text())["plan"]["stem"] == "net"
    alias = net
    pair = [alias, narrower]
    again = wb.measure(pair, x, wb.MeasureOptions(runs=1, processes=1, evidence=False))
    assert again.experiments[0].startswith("Two") and again.experiments[1] == "narrower"

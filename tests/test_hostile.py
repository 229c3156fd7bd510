"""Files of strangers: nothing outside of the run is touched, no code of theirs runs."""

import json
import shutil

import pytest

import workbench as wb
from workbench import store
from workbench.cli import main
from workbench.errors import StoreError, UsageError
from workbench.report.artifacts import write_artifacts
from workbench.workflow import measure_roof


@pytest.fixture
def change(tmp_path):
    """A recorded run whose manifest a function changes; returns its folder."""

    def change_run(edit):
        folder = tmp_path / "out" / "runs" / "linux"
        shutil.copytree(wb.sample_run("toy_cnn"), folder)
        content = json.loads((folder / store.MANIFEST).read_text())
        edit(content)
        (folder / store.MANIFEST).write_text(json.dumps(content))
        return folder

    return change_run


def edit_path(path, value):
    """A function that sets one value of a document, by its keys."""

    def edit(content):
        *way, last = path
        for key in way:
            content = content[key]
        content[last] = value

    return edit


UNSAFE = "../../../escaped"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("plan", "stem"), UNSAFE, "is no valid name"),
        (("plan", "stem"), "/tmp/x", "is no valid name"),
        (("plan", "stem"), "x" * 300, "is no valid name"),
        (("plan", "experiments", 0, "name"), UNSAFE, "is no valid name"),
        (("plan", "experiments", 0, "isa"), UNSAFE, "is no valid name"),
        (("plan", "pairs", 0, "candidate"), "nothing", "experiment 'nothing' is not in its plan"),
        (("sessions", 0, "experiment"), UNSAFE, "is not in its plan"),
        (("sessions", 0, "etdump"), "../../../x.etdump", "names a file outside its folder"),
        (("sessions", 0, "log"), "/etc/passwd", "names a file outside its folder"),
    ],
)
def test_a_name_in_a_manifest_cannot_lead_outside(change, tmp_path, path, value, words):
    folder = change(edit_path(path, value))
    before = {p for p in tmp_path.rglob("*") if not p.is_relative_to(folder)}
    for use in (lambda: write_artifacts(wb.open_run(folder)), lambda: wb.make_report(folder)):
        with pytest.raises(StoreError) as caught:
            use()
        assert words in str(caught.value)
    assert before == {p for p in tmp_path.rglob("*") if not p.is_relative_to(folder)}


def test_a_traced_process_without_a_trace_is_one_line(change):
    def edit(content):
        for session in content["sessions"]:
            session["etdump"] = ""

    with pytest.raises(StoreError, match="a traced process has no trace"):
        wb.open_run(change(edit))


@pytest.mark.parametrize("by", ["source", "model"])
def test_replay_runs_no_code_that_only_the_manifest_names(change, tmp_path, by):
    evil, mark = tmp_path / "evil.py", tmp_path / "ran"
    evil.write_text(f"open({str(mark)!r}, 'w')\n")

    def edit(content):
        content["export"]["model"] = "Net" if by == "source" else f"{evil}:Net"
        content["export"]["source"] = str(evil) if by == "source" else ""

    folder = change(edit)
    with pytest.raises(UsageError, match=r"is code in .*evil\.py.* -> if you trust it: --model"):
        wb.replay_layer(folder, "features.0")
    assert not mark.exists()


def test_a_host_is_contacted_only_if_the_user_names_it(change, monkeypatch, capsys):
    contacted = []
    monkeypatch.setattr("workbench.run.targets.open_target", contacted.append)

    def edit(content):
        content["plan"]["target"] = "ssh:evil.invalid"
        content["emulated"] = False

    folder = change(edit)
    for use in (lambda: measure_roof(folder, again=True), lambda: wb.replay_layer(folder, "x")):
        with pytest.raises(UsageError, match=r"made on ssh:evil\.invalid -> .*--target ssh:evil"):
            use()
    with pytest.raises(SystemExit):
        main(["roofline", str(folder)])
    assert "--target ssh:evil.invalid" in capsys.readouterr().err
    assert not contacted

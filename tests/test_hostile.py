"""Files of strangers: nothing outside of the run is touched, no code of theirs runs."""

import http.client
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import etdump_builder
import mistune
import pandas as pd
import pytest
import torch
from etdump_builder import Block, Profile, build_etdump
from PIL import Image
from planned import make_plan

import workbench as wb
from workbench import store
from workbench.analysis.roofline import build_roof
from workbench.cli import main
from workbench.errors import (
    ModelError,
    RunnerError,
    StoreError,
    TraceError,
    UsageError,
    WorkbenchError,
    printable,
)
from workbench.explorer.page import fill_page
from workbench.plots.tables import show_note
from workbench.portfolio.state import Storage, write_csv
from workbench.records.portfolio import Cell, Outcome, Row
from workbench.records.runs import Ceilings, Probe
from workbench.report.artifacts import write_artifacts
from workbench.report.html import Section, render_html, render_markdown
from workbench.run.ceilings import measure_roof
from workbench.run.config import plan_config, read_config
from workbench.store import load_run
from workbench.trace.writers import write_perfetto


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
    with pytest.raises(StoreError) as caught:
        write_artifacts(wb.open_run(folder))
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


@pytest.mark.parametrize("reader", [wb.read_etdump, wb.read_xnn_log])
def test_a_pipe_is_refused_instead_of_read(tmp_path, reader):
    os.mkfifo(tmp_path / "x.etdump")
    with pytest.raises(TraceError, match="is not a regular file"):
        reader(tmp_path / "x.etdump")


@pytest.mark.parametrize("timeout", [math.inf, math.nan, -1, 0])
def test_a_timeout_is_a_positive_number(conv_pte, timeout):
    with pytest.raises(UsageError, match="timeout must be above 0"):
        make_plan(conv_pte, wb.MeasureOptions(timeout_s=timeout), None)


def test_names_that_are_too_long_for_a_file_are_one_line(tmp_path):
    config = {"model": "m" * 5000, "experiments": [{"name": "a"}]}
    (tmp_path / "x.json").write_text(json.dumps(config))
    with pytest.raises(StoreError, match="no such file"):
        plan_config(read_config(tmp_path / "x.json"), tmp_path)
    (tmp_path / "model.py").write_text(f"import {'x' * 300}\n")
    with pytest.raises(ModelError, match="cannot be imported"):
        wb.load_model(f"{tmp_path}/model.py:Net")


def test_a_store_cannot_place_files_elsewhere(tmp_path, monkeypatch):
    storage = Storage("memory://portfolio")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = ["/portfolio/cells/a.json", "/portfolio/cells/../../../../escaped"]
    files = SimpleNamespace(find=lambda _: found, cat_file=lambda _: b"{}")
    monkeypatch.setattr(Storage, "_open", lambda self: (files, "/portfolio"))
    with pytest.raises(StoreError, match=r"memory://portfolio: has a file '.*escaped'"):
        storage.fetch("cells")
    assert not list(tmp_path.rglob("escaped"))


def test_names_that_collide_under_fixed_weights_take_no_longer(tmp_path):
    """Names were once compared by a hash that anybody could compute: many could be made alike."""
    code = "from workbench.trace.flatbuffer import _WEIGHTS as w; print(w[:4])"
    runs = [subprocess.check_output([sys.executable, "-c", code]) for _ in range(2)]
    assert runs[0] != runs[1]


def test_an_empty_trace_is_noticed_at_once(tmp_path):
    runner = tmp_path / "executor_runner"
    runner.write_text('#!/bin/sh\necho run >> "$0.log"\nwhile [ $# -gt 0 ]; do\n'
                      '[ "$1" = --etdump_path ] && : > "$2"\nshift; done\n')  # fmt: skip
    runner.chmod(0o755)
    (tmp_path / "x.pte").write_bytes(b"x")
    config = {"model": "x.pte", "experiments": [{"name": "a", "runner_path": str(runner)}]}
    (tmp_path / "x.json").write_text(json.dumps(config))
    with pytest.raises(RunnerError, match="wrote no ETDump"):
        wb.run_config(tmp_path / "x.json", root=tmp_path / "out")
    assert (tmp_path / "executor_runner.log").read_text() == "run\n"


def peak_mb(code, *arguments):
    """How many MB a piece of Python takes on top of what it imports first, and what it printed."""
    script = (
        "import resource, sys, torch, numpy, pandas, PIL.Image, workbench as wb\n"
        "from pathlib import Path\n"
        "from workbench.errors import WorkbenchError\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3\n"
        "before = peak()\n"
        f"try:\n    {code}\n    print('read')\n"
        "except WorkbenchError as error: print(error)\n"
        "print(peak() - before)"
    )
    done = subprocess.run([sys.executable, "-c", script, *map(str, arguments)], capture_output=True)
    *said, megabytes = done.stdout.decode().splitlines()
    return float(megabytes), said[-1]


def make_deflated_tensors(path):
    plain = path.with_suffix(".plain")
    torch.save(torch.zeros(300, 3, 224, 224), plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for entry in source.infolist():
            out.writestr(entry.filename, source.read(entry))
    plain.unlink()


def make_large_image(path):
    Image.new("RGBA", (9000, 9000)).save(path)


def make_deflated_record(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        text = '{"forward": [' + "[],[],[],[],[],[],[],[]," * 1_000_000 + "0]}"
        archive.writestr("debug_handle_map", text)
        archive.writestr("edge_dialect_exported_program/forward", text)
        archive.writestr("delegate_map", "{}")


def make_shared_events(path):
    """One event, listed more than a million times."""
    event, made = Profile("Method::execute", -1, 0, start=1, end=2), []
    original = etdump_builder._Writer.event

    def share(self, event):
        made or made.append(original(self, event))
        return made[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(etdump_builder._Writer, "event", share)
        path.write_bytes(build_etdump([Block("Execute", [event] * 1_500_000)]))


READ_INPUTS = (
    "from workbench.models.inputs import read_arrays, read_images; name = sys.argv[1]; "
    "read_images(name, (1, 3, 224, 224), (), ()) if name.endswith('png') else read_arrays(name)"
)
READ_RECORD = (
    "from workbench.export.etrecord import add_etrecord; "
    "from workbench.records.layers import Layers, Method; "
    "add_etrecord(Layers('', (Method('forward', (), {}, ()),)), Path(sys.argv[1]))"
)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("name", "make", "code", "words"),
    [
        slow("x.pt", make_deflated_tensors, READ_INPUTS, "it is compressed; write it with torch"),
        slow("x.png", make_large_image, READ_INPUTS, "more than 33554432; scale it down"),
        slow("x.etrecord", make_deflated_record, READ_RECORD, "is too large"),
        ("x.etdump", make_shared_events, "wb.read_etdump(sys.argv[1])", "overlap"),
    ],
)
def test_a_small_file_takes_little_memory(tmp_path, name, make, code, words):
    path = tmp_path / name
    make(path)
    megabytes, said = peak_mb(code, path)
    assert words in said
    assert megabytes < 300 + 10 * path.stat().st_size / 1e6


EVIL = "![p](http://x.invalid) [c](javascript:alert(1)) [r]: //x \x1b]0;t\x07 \u202eabc <b>"


def test_names_are_text_in_markdown_and_on_the_terminal(capsys):
    table = wb.show(pd.DataFrame({"name": [EVIL]}))
    note = show_note(EVIL)
    for text in (str(table), str(note)):
        assert not re.search(r"\](\(|:)", text)
        assert "\x1b" not in text
        assert "\u202e" not in text
        page = mistune.html(text)
        assert not re.search("<(img|a|b)[ >]", page)
    assert str(UsageError(EVIL)).isascii()
    assert "\x1b" not in str(UsageError(EVIL))


def test_pages_have_no_control_characters():
    evil = f"{EVIL}</script><img src=x>"
    sections = [Section(evil, items=[wb.show(pd.DataFrame({"name": [evil]}))])]
    pages = [render_html(evil, sections), fill_page(evil, json.dumps({"name": evil}))]
    for page in (*pages, render_markdown(evil, sections)):
        assert "abc" in page
        assert not {"\x1b", "\x07", "\u202e"} & {*page}
    for page in pages:
        assert "<img src=x>" not in page


def test_names_are_text_in_tables_traces_and_progress_lines(tmp_path, capsys):
    cell = Cell("=cmd()", "=cmd()", "fp32", "host", "auto", "x", "k")
    row = Row("on", "native", 1, n=5)
    table = write_csv([Outcome(cell, error=EVIL, problem="@x", rows=(row,))])
    assert ",'=cmd()," in f",{table.splitlines()[1]}"
    assert ",'@x," in table
    assert ",5," in table
    spans = wb.read_etdump(next(wb.sample_run("toy_cnn").rglob("*.etdump")))
    spans = spans.assign(name=pd.Categorical([f"{EVIL}\udc80"] * len(spans)))
    trace = write_perfetto({f"a\x1b{EVIL}": spans}, tmp_path / "x.json").read_bytes()
    with wb.show_progress() as progress:
        progress(EVIL, 0.5)
    for text in (table, trace.decode(errors="replace"), capsys.readouterr().err):
        assert "]0;t" in text
        assert "\u202e" not in text
    assert b"\x1b]" not in trace
    assert printable("a\u061c\ufffe\U000e0041\ufffd") == "a???\ufffd"


@pytest.mark.parametrize(
    "text", [b'{"export": {"schema_version": "1"}}', b'{"spent_s": 1' + b"0" * 400 + b"}",
             b"[" * 10**5, b'{"a": [' + b"{}," * 600_000 + b"0]}"]
)  # fmt: skip
def test_json_that_would_fail_deep_inside_is_one_line(tmp_path, text):
    (tmp_path / "manifest.json").write_bytes(text.replace(b"{", b'{"plan": 1, ', 1))
    with pytest.raises(WorkbenchError) as caught:
        load_run(tmp_path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("instructions", 0, "origin"), 10**6),
        (("instructions", 0, "outputs"), [10**6]),
        (("instructions", 0, "xnodes", 0, "origins"), [-1]),
        (("instructions", 0, "xnodes", 0, "borrows"), 99),
        (("instructions", 0, "xnodes", 0, "inputs"), [10**6]),
    ],
)
def test_a_sidecar_refers_only_to_what_it_has(tmp_path, path, value):
    folder = shutil.copytree(wb.sample_run("toy_cnn"), tmp_path / "run")
    content = json.loads((folder / "layers.json").read_text())
    edit_path(("methods", 0, *path), value)(content)
    (folder / "layers.json").write_text(json.dumps(content))
    with pytest.raises(StoreError, match="refers to an operator or tensor that it lacks"):
        _ = wb.open_run(folder).layers


def test_peaks_that_cannot_be_are_refused():
    kinds = ("gemm", "stream", "call", "program")
    probes = [Probe(kind, "fp32", 1, 1, 1, ms=1.0) for kind in kinds]
    build_roof(Ceilings("cpu", "wheel", "native", 1, "", tuple(probes)))
    for change in ({"ms": math.nan}, {"ms": math.inf}, {"operators": 0}):
        wrong = (*probes, replace(probes[0], **change))
        with pytest.raises(StoreError, match="measure them again"):
            build_roof(Ceilings("cpu", "wheel", "native", 1, "", wrong))


@pytest.mark.slow
def test_jupyterlab_answers_only_with_its_token_and_by_its_own_name(tmp_path):
    pytest.importorskip("jupyterlab", reason="jupyterlab, an extra, is not installed")
    options = ["--no-browser", "--allow-root", "--port=0"]
    settings = {"JUPYTER_CONFIG_DIR": str(tmp_path), "JUPYTERLAB_WORKSPACES_DIR": str(tmp_path)}
    address = re.compile(r"http://127\.0\.0\.1:(\d+)/lab\S*\?(token=\w+)")
    log = tmp_path / "log"
    with log.open("wb") as file:
        command = [sys.executable, "-m", "workbench", "lab", *options]
        server = subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | settings)
    try:
        deadline = time.monotonic() + 120
        while not (found := address.search(log.read_text())):
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        answers = []
        for query, host in (("", "localhost"), (found[2], "evil.invalid"), (found[2], "localhost")):
            connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=60)
            connection.request("GET", f"/api/contents?{query}", headers={"Host": host})
            answers.append(connection.getresponse().status)
            connection.close()
        assert answers == [403, 403, 200]
    finally:
        server.terminate()
        server.wait(30)


def test_rows_of_an_old_document_that_are_no_rows_are_refused(tmp_path):
    path = tmp_path / "study.json"
    path.write_text(json.dumps({"schema_version": 2, "ladder": ["sme2"]}))
    with pytest.raises(WorkbenchError):
        wb.read_study(path)

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
from pathlib import Path

import etdump_builder
import mistune
import pandas as pd
import pytest
import torch
from devices import Tools
from etdump_builder import Block, Profile, build_etdump, repeat_block
from exporting import slow
from needed import needs

import workbench as wb


@pytest.fixture
def change(tmp_path):
    """A recorded run whose manifest a function changes; returns its folder."""

    def change_run(edit):
        folder = tmp_path / "out" / "runs" / "linux"
        shutil.copytree(wb.sample_run("toy_cnn"), folder)
        content = json.loads((folder / "manifest.json").read_text())
        edit(content)
        (folder / "manifest.json").write_text(json.dumps(content))
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
    ],
)
def test_a_name_in_a_manifest_cannot_lead_outside(change, tmp_path, cli, path, value, words):
    folder = change(edit_path(path, value))
    before = {p for p in tmp_path.rglob("*") if not p.is_relative_to(folder)}
    code, _, err = cli("analyze", folder)
    assert code == 1
    assert words in err
    assert before == {p for p in tmp_path.rglob("*") if not p.is_relative_to(folder)}


def test_a_traced_process_without_a_trace_is_one_line(change):
    def edit(content):
        for session in content["sessions"]:
            session["etdump"] = ""

    with pytest.raises(wb.WorkbenchError, match="a traced process has no trace"):
        wb.open_run(change(edit))


def test_no_host_is_contacted_that_a_manifest_names(change, tmp_path, monkeypatch):
    tools = Tools(tmp_path / "bin")
    tools.write("ssh", "exit 1")
    monkeypatch.setenv("PATH", f"{tools.folder}{os.pathsep}{os.environ['PATH']}")

    def edit(content):
        content["plan"]["target"] = "ssh:evil.invalid"
        content["emulated"], content["host"]["cpu"] = False, "Another"

    with pytest.raises(wb.WorkbenchError, match=r"was made on .*Another"):
        wb.measure_roof(change(edit))
    assert tools.calls("ssh") == []


def test_a_pipe_is_refused_instead_of_read(tmp_path):
    os.mkfifo(tmp_path / "x.etdump")
    with pytest.raises(wb.WorkbenchError, match="is not a regular file"):
        wb.read_etdump(tmp_path / "x.etdump")


@pytest.mark.parametrize("timeout", [math.inf, math.nan, -1, 0])
def test_a_timeout_is_a_positive_number(tmp_path, timeout):
    (tmp_path / "x.pte").write_bytes(b"x")
    with pytest.raises(wb.WorkbenchError, match="timeout must be above 0"):
        wb.measure(tmp_path / "x.pte", options=wb.MeasureOptions(timeout_s=timeout), root=tmp_path)


def test_a_name_that_is_too_long_for_a_file_is_one_line(tmp_path):
    (tmp_path / "model.py").write_text(f"import {'x' * 300}\n")
    with pytest.raises(wb.WorkbenchError, match="cannot be imported"):
        wb.load_model(f"{tmp_path}/model.py:Net")


READER = """\
import os, resource, sys, torch, numpy, pandas, workbench as wb
from pathlib import Path

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3

for line in sys.stdin:
    code, path = line.rstrip().split("\\t")
    if not os.fork():
        before = peak()
        try:
            exec(code)
            print("read", end=" ")
        except wb.WorkbenchError as error:
            print(error, end=" ")
        print(peak() - before, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def peak_mb():
    """How many MB a piece of Python takes to read a path, and what it prints."""
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", READER], text=True, **pipes) as reader:

        def read(code, path):
            print(code, path, sep="\t", file=reader.stdin, flush=True)
            said, _, megabytes = reader.stdout.readline().rpartition(" ")
            return float(megabytes), said

        yield read


def make_deflated_record(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        text = '{"forward": [' + "[],[],[],[],[],[],[],[]," * 1_000_000 + "0]}"
        archive.writestr("debug_handle_map", text)
        archive.writestr("edge_dialect_exported_program/forward", text)
        archive.writestr("delegate_map", "{}")


def make_shared_events(path):
    """One event, listed many times."""
    event, made = Profile("Method::execute", -1, 0, start=1, end=2), []
    original = etdump_builder._Writer.event

    def share(self, event):
        made or made.append(original(self, event))
        return made[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(etdump_builder._Writer, "event", share)
        path.write_bytes(build_etdump([Block("Execute", [event] * 300_000)]))


def make_many_events(path):
    """Ten million, in 600 MB."""
    calls = [Profile("OPERATOR_CALL", 0, n, start=10 * n, end=10 * n + 9) for n in range(1, 1000)]
    run = [Profile("Method::execute", -1, 0, start=1, end=10_000), *calls]
    path.write_bytes(repeat_block(Block("Execute", run), 10_000))


def make_tensors(path, rows=600, method=zipfile.ZIP_DEFLATED, pickled=None):
    plain = path.with_suffix(".plain")
    torch.save(torch.zeros(rows, 3, 224, 224), plain)
    with (
        zipfile.ZipFile(plain) as source,
        zipfile.ZipFile(path, "w", method, compresslevel=1) as out,
    ):
        for entry in source.infolist():
            is_pickle = pickled and entry.filename.endswith("data.pkl")
            out.writestr(entry.filename, pickled if is_pickle else source.read(entry))
    plain.unlink()


def make_large_bytes(path):
    """`bytearray(2_000_000_000)`."""
    code = b"\x80\x02c__builtin__\nbytearray\nJ" + (2_000_000_000).to_bytes(4, "little") + b"\x85R."
    make_tensors(path, 0, zipfile.ZIP_STORED, code)


READ_ARRAYS = "from workbench.models.inputs import read_arrays; read_arrays(path)"
READ_STATE = "wb.load_model('toy_cnn', state_dict=path)"
READ_RECORD = (
    "from workbench.export.etrecord import add_etrecord; "
    "from workbench.records.layer_sidecar import Layers, Method; "
    "add_etrecord(Layers('', (Method('forward', (), {}),)), Path(path))"
)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "make", "code", "words"),
    [
        ("x.pt", make_tensors, READ_ARRAYS, "takes more than 3"),
        ("x.pt", make_large_bytes, READ_STATE, "takes more than 300 MB of memory"),
        slow("x.etrecord", make_deflated_record, READ_RECORD, "is too large"),
        ("x.etdump", make_shared_events, "wb.read_etdump(path)", "overlap"),
        slow("x.etdump", make_many_events, "assert len(wb.read_etdump(path)) == 10**7", "read"),
    ],
)
def test_a_file_takes_little_memory(peak_mb, tmp_path, name, make, code, words):
    path = tmp_path / name
    make(path)
    megabytes, said = peak_mb(code, path)
    assert words in said
    assert megabytes < 300 + 10 * path.stat().st_size / 1e6


EVIL = "![p](http://x.invalid) [c](javascript:alert(1)) [r]: //x \x1b]0;t\x07 \u202eabc <b>"


def test_names_are_text_in_markdown_and_on_the_terminal():
    text = str(wb.show(pd.DataFrame({"name": [EVIL]})))
    assert not re.search(r"\](\(|:)", text)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert not re.search("<(img|a|b)[ >]", mistune.html(text))
    error = str(wb.WorkbenchError(EVIL))
    assert error.isascii()
    assert "\x1b" not in error
    error = str(wb.WorkbenchError("a\u061c\ufffe\U000e0041\ufffd"))
    assert error == "a???\ufffd"


@needs("explorer")
@pytest.mark.cases
def test_pages_have_no_control_characters(tmp_path):
    folder = shutil.copytree(wb.sample_run(), tmp_path / "run")
    evil = f"{EVIL}</script><img src=x>"
    text = (folder / "layers.json").read_text()
    names = json.dumps(f"features{evil}")[1:-1]
    (folder / "layers.json").write_text(text.replace("features", names))
    pages = [path.read_text() for path in wb.make_report(folder)[:2]]
    pages.append((folder / "explore.html").read_text())
    for page in pages:
        assert "abc" in page
        assert not {"\x1b", "\x07", "\u202e"} & {*page}
    for page in (pages[0], pages[2]):
        assert "<img src=x>" not in page
    assert not re.search('(src|href)="?(http|javascript)', mistune.html(pages[1]))


@pytest.mark.parametrize(
    "text", [b'{"export": {"schema_version": "1"}}', b'{"spent_s": 1' + b"0" * 400 + b"}",
             b"[" * 10**5, b'{"a": [' + b"{}," * 600_000 + b"0]}"]
)  # fmt: skip
def test_json_that_would_fail_deep_inside_is_one_line(tmp_path, text):
    (tmp_path / "manifest.json").write_bytes(text.replace(b"{", b'{"plan": 1, ', 1))
    with pytest.raises(wb.WorkbenchError) as caught:
        wb.open_run(tmp_path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("instructions", 0, "origin"), 10**6),
        (("instructions", 0, "outputs"), [10**6]),
        (("instructions", 0, "xnodes", 0, "origins"), [-1]),
        (("instructions", 0, "xnodes", 0, "borrows"), 99),
        (("instructions", 0, "xnodes", 0, "inputs"), [10**6]),
        (("instructions", 0, "xnodes", 0, "inputs"), []),
        (("instructions", 0, "xnodes", 0, "outputs"), []),
    ],
)
def test_a_sidecar_refers_only_to_what_it_has(tmp_path, path, value):
    folder = shutil.copytree(wb.sample_run("toy_cnn"), tmp_path / "run")
    content = json.loads((folder / "layers.json").read_text())
    edit_path(("methods", 0, *path), value)(content)
    (folder / "layers.json").write_text(json.dumps(content))
    with pytest.raises(wb.WorkbenchError, match="refers to an operator or tensor that it lacks"):
        _ = wb.open_run(folder).layers


@pytest.mark.parametrize(("key", "value"), [("ms", math.nan), ("ms", math.inf), ("operators", 0)])
def test_peaks_that_cannot_be_are_refused(tmp_path, key, value):
    folder = shutil.copytree(wb.sample_run(), tmp_path / "run")
    for path in folder.glob("ceilings_*.json"):
        content = json.loads(path.read_text())
        content["probes"][0][key] = value
        path.write_text(json.dumps(content))
    run = wb.open_run(folder)
    with pytest.raises(wb.WorkbenchError, match=r"measure them again|not JSON"):
        _ = run.subject.roofline


@pytest.mark.cases
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


def test_every_attack_of_the_table_has_its_test():
    sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))
    import attacks

    assert [attack for attack, tests in attacks.find_tests().items() if not tests] == []
    passed, skipped = ("passed", ""), ("skipped", "no mcp")
    assert attacks.describe_ends([passed]) == "refused"
    assert attacks.describe_ends([passed, skipped]) == "refused; 1 of 2 not tried: no mcp"
    assert attacks.describe_ends([skipped]) == "1 of 1 not tried: no mcp"
    assert attacks.describe_ends([("failure", "x"), passed]) == "1 succeeded"


@pytest.mark.whole
@pytest.mark.parametrize("name", ["\ud800", ""])
def test_layers_that_no_page_can_show_end_in_no_traceback(tmp_path, cli, name):
    run = shutil.copytree(wb.sample_run("toy_cnn"), tmp_path / "run")
    layers = json.loads((run / "layers.json").read_text())
    layers["methods"] = [method | {"name": name} for method in layers["methods"] if name]
    (run / "layers.json").write_text(json.dumps(layers))
    code, out, err = cli("report", run)
    assert bool(code) == ("not JSON" in err) == bool(name)
    assert "Traceback" not in out + err

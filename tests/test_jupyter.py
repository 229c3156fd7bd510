"""The server extension: who may ask for the page of a file, and for which files."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
import torch
from mutants import PROGRAM
from needed import needs
from processes import wait_for

import workbench as wb

pytest.importorskip("jupyter_server", reason="JupyterLab is not installed")
TOKEN = "0123456789abcdef"
MARKUP = "<img src=x onerror=alert(1)>"
#: A file that nothing may run.
CLASSES = """
raise SystemExit(1)

class Owl:
    def __init__(self):
        self.stem = nn.Conv2d(3, 24, 5)
        self.eye, self.ear = nn.GELU(), nn.Linear(24, 2)

    def forward(self, x):
        return self.stem(x)
"""


class Net(torch.nn.Module):
    """What a script exported."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3)

    def forward(self, x):
        return self.first(x)


def accepts(host, port):
    """Whether a server listens there."""
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection((host, port)):
        return True
    return False


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """Asks a server for the page of a file below its root; returns the status and the answer."""
    root = tmp_path_factory.mktemp("root")
    run = shutil.copytree(wb.sample_run("toy_cnn"), root / "run")
    shutil.copy(next(run.glob("*_on/*_t1.etdump")), root / f"{MARKUP}.etdump")
    shutil.copy(PROGRAM, root / "net.pte")
    shutil.copytree(wb.sample_run("mobilenet_v3_small"), root / "before")
    shutil.copytree(wb.sample_run("mobilenet_v3_small_int8"), root / "after")
    (root / "bad.pte").write_bytes(b"\0\0\0\0ET12" + MARKUP.encode())
    (root / "bad.etdump").write_bytes(b"\0\0\0\0ED00" + MARKUP.encode())
    (root / "notes.txt").write_text("secret")
    (root / f"{MARKUP}.py").write_text(CLASSES)
    (root / "bad.py").write_text("class")
    torch.export.save(torch.export.export(Net(), (torch.ones(1, 3, 9, 9),)), root / "net.pt2")
    (root / "bad.pt2").write_bytes(b"PK" + MARKUP.encode())
    (root.parent / "secret.pte").write_bytes(PROGRAM.read_bytes())
    (root / "link.pte").symlink_to(root.parent / "secret.pte")
    (root / "other").mkdir()
    (root / "other" / "manifest.json").write_text(json.dumps({"name": MARKUP}))
    with (root / "large.pte").open("wb") as file:
        file.truncate(2**30 + 1)
    log = tmp_path_factory.mktemp("log") / "server.log"
    command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", "--port=0"]
    command += [f"--ServerApp.root_dir={root}", f"--IdentityProvider.token={TOKEN}"]
    command += ["--ServerApp.jpserver_extensions=workbench.report.jupyter=True"]
    with log.open("wb") as file:
        server = subprocess.Popen(command, stderr=file, env=os.environ | {"JUPYTER_NO_CONFIG": "1"})
    deadline = time.monotonic() + 120
    while not (found := re.search(r"http://127\.0\.0\.1:\d+/", log.read_text())):
        assert server.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    address = urllib.parse.urlsplit(found[0])
    wait_for(lambda: accepts(address.hostname, address.port))  # it says so before it does

    def ask(path, token=TOKEN, other=None, body=None, **headers):
        view, asked = "compare" if other else "explorer", {"path": path, "other": other}
        address = f"{found[0]}executorch-workbench/{view}"
        request = urllib.request.Request(address, body or json.dumps(asked).encode(), headers)
        if token:
            request.add_header("Authorization", f"token {token}")
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                assert reply.headers["Content-Type"] == "application/json"
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    yield ask
    server.terminate()
    server.wait(30)


@pytest.mark.parametrize("headers", [{}, {"Cookie": "_xsrf=own", "X-XSRFToken": "own"}])
@pytest.mark.parametrize("token", ["", "wrong"])
def test_without_the_token_there_is_no_page(ask, token, headers):
    status, answer = ask("net.pte", token, **headers)
    assert status == 403
    assert "page" not in answer


@pytest.mark.parametrize(
    "body", [b"1", b'"net.pte"', b"\xff", b"[" * 9999, b'{"path": "net.pte"}' + b" " * 99999]
)
def test_a_body_that_asks_for_no_file_is_refused(ask, body):
    status, answer = ask("", body=body)
    assert status == 400
    assert "asks for no file" in answer["message"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("net.pte", "aten::"),
        (f"{MARKUP}.py", "nn.Conv2d"),
        (f"{MARKUP}.py", "nn.Linear"),
        pytest.param("run/manifest.json", '"toy_cnn', marks=pytest.mark.whole),
        ("net.pt2", "What is delegated is known once it is lowered"),
        ("net.pt2", ">first<"),
        ("net.pt2", ">Conv2d<"),
        ("net.pt2", "test_jupyter.py:"),
        ("net.pt2", ">896\u00a0B<"),
        pytest.param(f"{MARKUP}.etdump", "explorer-data", marks=needs("explorer")),
    ],
)
def test_a_page_is_complete_and_can_request_nothing(ask, path, words):
    status, answer = ask(path)
    assert status == 200
    assert words in answer["page"]
    assert "default-src 'none'" in answer["page"]
    assert MARKUP not in answer["page"]


@pytest.mark.parametrize(
    ("path", "subject"), [("net.pte", "net.pte"), (f"{MARKUP}.py", f"{MARKUP}.py:Owl")]
)
def test_what_was_not_measured_comes_with_the_line_that_measures_it(ask, path, subject):
    assert ask(path)[1]["code"] == f"run = wb.profile({subject!r})\nrun"
    assert ask(f"{MARKUP}.etdump")[1]["code"] == ""


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("../secret.pte", "is outside of the folder"),
        ("run/../../secret.pte", "is outside of the folder"),
        ("../missing.pte", "is outside of the folder"),
        ("link.pte", "is outside of the folder"),
        ("net.pte\0", "is outside of the folder"),
        ("notes.txt", "is no trace, program, Python file or manifest"),
        (None, "is no trace, program, Python file or manifest"),
        ("missing.pte", "no such file"),
        ("/etc/passwd.pte", "no such file"),
        ("x" * 6000 + ".pte", "no such file"),
        ("large.pte", "is larger than 1 GB"),
        ("bad.etdump", "bad.etdump"),
        ("bad.pt2", "is no exported program"),
        ("bad.py", "is no Python"),
        ("other/manifest.json", "manifest.json"),
    ],
)
def test_other_files_are_refused_in_one_line(ask, path, words):
    status, answer = ask(path)
    assert status == 400
    assert words in answer["message"]
    assert "\n" not in answer["message"]
    assert answer["foreign"] == (path == "other/manifest.json"), "which opens in the editor"


@needs("explorer")
@pytest.mark.whole
def test_a_run_is_compared_with_another_one(ask):
    status, answer = ask("after/manifest.json", other="before/manifest.json")
    assert status == 200 and "explorer-data" in answer["page"]
    for other, words in (("run/manifest.json", "emulated"), ("../secret.pte", "is outside of")):
        status, answer = ask("after/manifest.json", other=other)
        assert status == 400 and words in answer["message"] and not answer["foreign"]


def test_a_program_that_cannot_be_read_is_harmless(ask):
    status, answer = ask("bad.pte")
    assert status == 200
    assert "Only the runtime can read its operators" in answer["page"]
    assert MARKUP not in answer["page"]

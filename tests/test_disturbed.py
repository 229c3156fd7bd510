"""Whatever a model's file does to its process, outputs are where the caller stands, and clean."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from exporting import slow

import workbench as wb

MODEL = """\
import atexit, os, signal, sys, threading, time
import torch


def disturb():
    {code}


{at_import}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {in_constructor}

    def forward(self, x):
        if not torch.compiler.is_compiling():
            {in_forward}
        return torch.relu(x)


def get_example_inputs():
    return (torch.rand(2, 3),)
"""
PLACES = ("at_import", "in_constructor", "in_forward")


def write_model(code, place="at_import"):
    calls = {name: "disturb()" if name == place else "pass" for name in PLACES}
    Path("m.py").write_text(MODEL.format(code=code, **calls))


DISTURBANCES = {
    "folder": "os.chdir(os.sep)",
    "prints": "print('x' * 2_000_000); os.system('echo from a child')",
    "other stdout": "sys.stdout = open(os.devnull, 'w')",
    "no sys.path": "sys.path.clear()",
    "errors of warnings": "__import__('warnings').simplefilter('error')",
    "no signals": "signal.signal(signal.SIGINT, signal.SIG_IGN)",
}


@pytest.mark.parametrize(
    ("what", "place"),
    [
        *((what, "at_import") for what in DISTURBANCES),
        slow("folder", "in_constructor"),
        ("folder", "in_forward"),
        *(slow(what, "in_forward") for what in ("prints", "errors of warnings")),
    ],
)
def test_a_model_disturbs_neither_the_place_nor_the_output(cli, tmp_path, what, place, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    write_model(DISTURBANCES[what], place)
    handler = signal.getsignal(signal.SIGINT)
    code, out, _ = cli("export", "m.py:Net", "--backend", "portable", "--json")
    assert code == 0
    assert (tmp_path / json.loads(out)["pte"]).is_file()
    assert Path.cwd() == tmp_path and signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("code", ["sys.exit(0)", "raise GeneratorExit"])
def test_a_model_that_ends_the_process_is_one_line(cli, place, code, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    write_model(code, place)
    status, out, err = cli("export", "m.py:Net", "--backend", "portable")
    assert (status, out) == (1, "") and err.splitlines()[-1].startswith("error: m.py:6: ")


@pytest.mark.parametrize("out", ["m.py", "m.py/x", "/proc/x"])
def test_a_folder_that_cannot_be_written_is_refused_before_the_work(cli, out, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    write_model("pass")
    status, _, err = cli("export", "m.py:Net", "--out", out)
    assert status == 1 and "exporting" not in err
    assert re.search(r"error: .*Net_xnnpack_fp32.pte: cannot be written: .* -> .*--out\n$", err)


def test_a_model_file_moves_no_notebook(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model(DISTURBANCES["folder"], "in_forward")
    stdout = sys.stdout
    program = wb.export_model("m.py:Net", options=wb.ExportOptions(backend="portable"))
    assert program.path.resolve().is_relative_to(tmp_path)
    assert sys.stdout is stdout and Path.cwd() == tmp_path


def further(case):
    """A case that CI leaves out."""
    return pytest.param(case, marks=pytest.mark.cases)


def run_command(*arguments, **options):
    line = [sys.executable, "-m", "workbench", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, **options)


@pytest.mark.whole
@pytest.mark.parametrize(
    "code",
    [
        "threading.Thread(target=time.sleep, args=(600,)).start()",
        further("atexit.register(time.sleep, 600)"),
        further("atexit.register(print, 'goodbye')"),
    ],
)
def test_what_a_model_leaves_does_not_hold_the_command(tmp_path, monkeypatch, code):
    monkeypatch.chdir(tmp_path)
    write_model(code)
    started = time.monotonic()
    done = run_command("export", "m.py:Net", "--backend", "portable")
    assert done.returncode == 0 and time.monotonic() - started < 100
    assert done.stdout == "out_Net/artifacts/Net_portable_fp32.pte\n"


@pytest.mark.whole
@pytest.mark.parametrize(
    "name",
    [
        "torch.export.export",
        *map(further, ("torch.relu", "torch.Tensor.detach", "torch.Tensor.cpu", "open")),
    ],
)
def test_a_broken_function_of_torch_is_one_line(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    target = name if "." in name else f"__import__('builtins').{name}"
    write_model(f"{target} = None")
    done = run_command("export", "m.py:Net", "--backend", "portable")
    *_, last = done.stderr.splitlines()
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr
    assert bool(done.returncode) == last.startswith("error: ") == (not done.stdout)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("shell", "code", "words"),
    [
        slow(">/dev/full", 1, "error: No space left on device"),
        ("--json >/dev/full", 1, "error: No space left on device"),
        ("| head -c 1", 0, ""),
    ],
)
def test_a_full_stream_is_one_line(tmp_path, shell, code, words):
    line = f"{sys.executable} -m workbench findings {wb.sample_run()} {shell}"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, cwd=tmp_path)
    errors = [text for text in done.stderr.splitlines() if not text.startswith("next: ")]
    assert done.returncode == code and bool(errors) == bool(words)
    assert words in "".join(errors) and "Traceback" not in done.stderr


def test_a_model_on_another_device_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inputs = torch.rand(2, 4)
    with pytest.raises(wb.WorkbenchError, match="weight is on device meta -> move the model"):
        wb.load_model(torch.nn.Linear(4, 4, device="meta"), inputs)
    with pytest.raises(wb.WorkbenchError, match="an input is on device meta -> move the model"):
        wb.load_model(torch.nn.Linear(4, 4), inputs.to("meta"))
    net = torch.nn.Linear(4, 4)
    with torch.device("meta"), pytest.raises(wb.WorkbenchError, match="default device is meta ->"):
        wb.load_model(net, inputs)


@pytest.mark.whole
def test_where_a_library_aborts_is_said(tmp_path, monkeypatch):
    """No code of Python's runs after that: the place is all that can be written."""
    monkeypatch.chdir(tmp_path)
    write_model("import ctypes; ctypes.CDLL(None).abort()", "in_forward")
    done = run_command("export", "m.py:Net", "--backend", "portable")
    assert done.returncode == -signal.SIGABRT
    assert "Aborted" in done.stderr and re.search(r'm.py", line 6 in disturb', done.stderr)

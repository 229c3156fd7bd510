"""With --json every command prints one JSON document, also of what went wrong."""

import fcntl
import io
import json
import math
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import termios
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import pandas as pd
import pytest
from command_line import COMMANDS
from hypothesis import given
from hypothesis import strategies as st

import workbench as wb
from workbench.jobs import SCHEMA_VERSION, lock_device, show_progress, to_plain

THIS_MACHINE = "host"


def whole(text):
    """The one document that a text is, without NaN."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


@pytest.fixture
def run_dir(tmp_path):
    """A copy of a recorded run, to be analysed anew."""
    folder = tmp_path / "out_Ready" / "runs" / "linux"
    return Path(shutil.copytree(wb.sample_run("Ready"), folder))


def check_step(line):
    """A last line says what to do next; a command in it exists and takes these arguments."""
    assert line.startswith("next: ")
    for words in re.findall(r"workbench ([\w -]+[/\w. :-]*)", line):
        name, *rest = shlex.split(words)
        COMMANDS[name].make_context(name, rest)


def test_every_command_has_the_option():
    for name, each in COMMANDS.items():
        assert [p.name for p in each.params].count("json") == 1, name


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        pytest.param(
            ["analyze", "RUN"], {"run_dir", "files", "ok", "checks"}, marks=pytest.mark.whole
        ),
        (["findings", "RUN"], {"run_dir", "emulated", "findings"}),
        (["compare", "RUN:avx512_off", "RUN:avx512_on"], {"passed", "rows", "verdicts", "aligned"}),
        (["trace", "ETDUMP", "--to", "perfetto"], {"files"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_an_answer_is_one_document(cli, run_dir, arguments, keys):
    places = {"RUN": run_dir, "ETDUMP": next(run_dir.glob("avx512_on/*.etdump"))}
    for word, place in places.items():
        arguments = [argument.replace(word, str(place)) for argument in arguments]
    code, plain, err = cli(*arguments)
    check_step(err.splitlines()[-1])
    json_code, out, _ = cli(*arguments, "--json")
    found = whole(out)
    assert json_code == code
    assert found.pop("schema_version") == SCHEMA_VERSION
    assert keys <= found.keys()
    assert plain != out


def test_the_doctor_answers_with_what_it_found(cli):
    code, out, _ = cli("doctor", "--json")
    found = whole(out)
    assert found["ready"] == (code == 0)
    assert {"subject", "status", "detail", "fix"} == found["findings"][0].keys()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["analyze", "nothing"], 2, "no such file or folder"),
        (["export", "toy_cn"], 2, "unknown model"),
        (["compare", "a", "b", "--fail-above", "lots"], 2, "not a percentage"),
        (["nonsense"], 2, "nonsense"),
        (["run", "bad.pte"], 1, "bad.pte"),
        (["compare"], 2, "Missing argument"),
    ],
)
def test_an_error_is_one_document_too(cli, arguments, code, words):
    found, out, err = cli(*arguments, "--json")
    error = whole(out)["error"]
    assert (found, error["exit_code"]) == (code, code)
    assert words in f"{error['where']} {error['what']}"
    assert error["kind"] == ("UsageError" if code == 2 else "StoreError")
    assert words in err
    assert cli(*arguments)[1] == ""


def test_a_long_stage_is_repeated_with_its_time(monkeypatch, capsys):
    monkeypatch.setattr("workbench.progress.LONG_SILENCE_S", 0.5)
    with show_progress() as progress:
        progress("lowering", 0.0)
        time.sleep(2.2)
    first, *others = capsys.readouterr().err.splitlines()
    assert first == "   0 s  lowering"
    assert others and all(re.fullmatch(r" +[1-9]\d* s  lowering", line) for line in others)


def test_on_a_terminal_the_time_of_a_stage_runs(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    with show_progress() as progress:
        progress("lowering", 0.0)
        time.sleep(1.3)
    assert "00:01<? lowering" in terminal.getvalue()


def test_an_answer_stays_with_the_bar(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    with show_progress() as progress:
        progress("measuring", 0.1)
        progress("net: answer: 2x faster", 0.5)
        progress("net: starts", 0.6)
    assert "net: starts; answer: 2x faster" in terminal.getvalue()


def test_progress_prints_no_control_characters(capsys):
    with show_progress() as progress:
        progress("\x1b]0;t\x07 \u202eabc", 0.5)
    printed = capsys.readouterr().err
    assert "]0;t" in printed and not {"\x1b", "\u202e"} & set(printed)


def test_the_help_of_many_options_has_groups_and_examples_that_parse(cli):
    _, out, _ = cli("profile", "--help")
    titles = re.findall(r"^ *(\w+(?: \w+)?):$", out, re.MULTILINE)
    assert titles == ["Export options", "Measurement options", "Options", "Examples"], out
    for words in re.findall(r"^ +workbench profile (.*)$", out, re.MULTILINE):
        COMMANDS["profile"].make_context("profile", shlex.split(words))


#: A regular expression, as in the path of a module, with all that Markdown would have escaped.
PATTERN = r"^l\.\d|x<y"


@pytest.mark.parametrize("no_color", ["", "1"])
def test_on_a_terminal_tables_are_aligned_and_lines_fit(no_color):
    report, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    cells = [["a_b " * 30, 5, "[b]s", "b " * 40], [PATTERN, 125, "s", "c " * 40]]
    texts = [
        "note: 1",
        "1. [title]\x1b[2J",
        "   where: " + "net.py " * 20,
        "is " + "12.3 ms " * 30,
    ]
    program = f"""
import pandas as pd
from workbench.api import Output, command, show_table
@command()
def echo():
    frame = pd.DataFrame({cells!r}, columns=["name", "total_ms", "experiment", "more"])
    return Output([*{texts!r}, show_table(frame)], {{}})

echo.main([])
"""
    environment = {**os.environ, "NO_COLOR": no_color, "TERM": "xterm"}
    subprocess.run([sys.executable, "-c", program], stdout=terminal, env=environment)
    shown = os.read(report, 10**6).decode().replace("\r", "")
    plain = re.sub(r"\x1b\[[\d;]*m", "", shown)
    assert "\x1b" not in plain and {"1. [title]?[2J", "[b]s"} <= set(re.split(r" {2,}|\n", plain))
    assert bool(re.search(r"\x1b\[3\dm", shown)) == (not no_color)
    assert all(len(line) <= 80 for line in plain.splitlines())
    ends = {len(line) for line in re.findall(r"(?m)^(.*? (?:5|125)) ", plain)}
    assert len(ends) == 1 and PATTERN in plain and "\n     net.py" in plain
    assert "experiment" in plain


def test_a_server_is_announced_before_it_takes_over(cli, monkeypatch):
    started = []
    monkeypatch.setattr("workbench.report.notebooks.open_lab", started.append)
    code, out, _ = cli("lab", "--no-browser", "--json")
    assert (code, whole(out)["arguments"]) == (0, ["--no-browser"])
    assert started == [("--no-browser",)]


@dataclass(frozen=True)
class Place:
    path: Path
    ratio: float


def test_what_json_cannot_say_is_said_otherwise():
    frame = pd.DataFrame(
        {
            "name": pd.Categorical(["a", None]),
            "n": pd.array([1, None], dtype="Int64"),
            "ms": [math.nan, math.inf],
            "shape": [(1, 2), None],
            "flag": [True, False],
        }
    )
    assert to_plain(frame) == [
        {"name": "a", "n": 1, "ms": None, "shape": [1, 2], "flag": True},
        {"name": None, "n": None, "ms": None, "shape": None, "flag": False},
    ]
    assert to_plain(Place(Path("a/b"), np.float64("nan"))) == {"path": "a/b", "ratio": None}
    assert to_plain(np.arange(3)) == [0, 1, 2]
    assert to_plain({1: np.int64(2), "x": np.bool_(True)}) == {"1": 2, "x": True}
    assert to_plain(click.Path) == str(click.Path)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=6,
    )
)
def test_any_content_is_valid_json(content):
    assert whole(json.dumps(to_plain({"content": content}))).keys() == {"content"}


@pytest.mark.cases
def test_a_command_reads_the_files_as_they_are_now(run_dir):
    command = [sys.executable, "-m", "workbench", "findings", str(run_dir)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(run_dir.parent)}
    for path in (*run_dir.parents[:3], run_dir, *run_dir.rglob("*")):  # older than the command
        os.utime(path, (time.time() - 60,) * 2)
    assert subprocess.run(command, capture_output=True, env=environment).returncode == 0
    (run_dir / "manifest.json").write_text("{")
    assert subprocess.run(command, capture_output=True, env=environment).returncode == 1


def test_an_interrupt_is_one_line_also_while_another_job_has_the_machine(shell, capsys, tmp_path):
    """Whoever waits has been told that the machine is busy, which was an error in between."""

    def interrupt(text, part):
        raise KeyboardInterrupt

    shell.user_ns.update(interrupt=interrupt, lock=lambda: lock_device(THIS_MACHINE, interrupt))
    shell.run_cell("import workbench as wb; from workbench.jobs import show_progress")
    with lock_device(THIS_MACHINE):
        thread = threading.Thread(
            target=shell.run_cell, args=("with show_progress(), lock():\n    pass",)
        )
        thread.start()
        thread.join()
    shell.run_cell("wb.export_model('toy_cnn', progress=interrupt)")
    line = "interrupted; run the cell again to resume"
    assert capsys.readouterr().out.split("\n") == [line, line, ""]

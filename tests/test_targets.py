"""Runs on another machine behind a shell: words, files, leftovers, and lost connections."""

import importlib.util
import json
import os
import platform
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import is_running, wait_for
from devices import COPY_TRACE, TRACE, Tools, needs_compiler
from recorded import find_interrupted

import workbench as wb

BRIEF = wb.MeasureOptions(
    target="ssh:board", toggle="none", runs=8, processes=1, cold_start=False, evidence=False
)
WORDS = [
    *("a  b", "it's", "$HOME", "`id`", "x;y&z|*?", 'say "no"', "\\", "ü\n\t", "-", "~", "#", "a=b"),
    *("!", "{1,2}", "<x >y", "\x7f\x1b"),
]


class Board:
    """A machine reached by ssh, which is this one; all that the workbench has there."""

    def __init__(self, tools, home):
        self.tools, self.home = tools, home
        self.base = home / ".cache" / "executorch-workbench" / "target"

    def unplug(self):
        self._mark.touch()

    def plug(self):
        self._mark.unlink()

    @property
    def _mark(self):
        return self.home.with_name(f"{self.home.name}.unplugged")

    @property
    def runs(self):
        return sorted(path.name for path in self.base.glob("run-*"))


@pytest.fixture
def board(tmp_path, monkeypatch):
    # The folder there has a name that a careless command would trip over.
    tools, home = Tools(tmp_path / "bin"), tmp_path / "it's $HOME; `rm`"
    tools.write_ssh(home)
    monkeypatch.setenv("PATH", f"{tools.folder}{os.pathsep}{os.environ['PATH']}")
    return Board(tools, home)


@pytest.fixture
def install(board, monkeypatch, tmp_path):
    """Let pip, apt and a compiler make a bundle for the board, with a runner."""
    (native,) = wb.find_runner().command
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    real = importlib.util.find_spec
    hidden = {"pip": None}
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *r: hidden.get(n, n) and real(n, *r))

    def write(serve=f'exec {native} "$@"'):
        body = f'case "$*" in *--server_mode*) {serve};; *) exec {native} "$@";; esac'
        runner = board.tools.write("board-runner", body, log=False)
        board.tools.write_packages(platform.machine(), str(runner))

    write()
    return write


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A config with two runners that copy a trace; each notes the words that it gets."""
    monkeypatch.chdir(tmp_path)
    script = f'#!/bin/sh\nprintf "%s\\0" "$@" > {tmp_path}/words\n{COPY_TRACE}\n'
    (tmp_path / "it's a $model.pte").write_bytes(b"program")
    experiments = []
    for side in ("off", "on"):
        runner = tmp_path / f"my {side} runner"
        runner.write_text(f"{script}# {side}\n")
        runner.chmod(0o755)
        experiments.append(
            {"name": side, "runner_path": str(runner), "runs": 10, "warmup": 0,
             "cpu_affinity": "1", "extra_args": WORDS}
        )  # fmt: skip
    content = {"model": "it's a $model.pte", "experiments": experiments, "target": "ssh:board"}
    (tmp_path / "x.json").write_text(json.dumps(content))
    return tmp_path / "x.json"


@pytest.mark.ci
def test_every_word_and_file_arrives_unchanged(board, config, tmp_path):
    run = wb.run_config(config, root=tmp_path / "out")
    assert run.record.state == "complete"
    words = (tmp_path / "words").read_bytes().decode().split("\0")[:-1]
    assert words[-len(WORDS) :] == WORDS
    assert words[0] == "--model_path"
    there = Path(words[1])
    assert there.parent == board.base / "files"
    assert there.read_bytes() == b"program"
    for session in run.record.sessions:
        assert (run.path / session.etdump).read_bytes() == TRACE.read_bytes()
    assert [path.name for path in board.base.iterdir()] == ["files"]
    files = {path: path.stat().st_mtime_ns for path in there.parent.iterdir()}
    assert len(files) == 3

    there.write_bytes(b"damaged")
    wb.run_config(config, root=tmp_path / "again")
    assert there.read_bytes() == b"program", "a damaged file is copied again"
    del files[there]
    assert files == {path: path.stat().st_mtime_ns for path in files}, "the others are not"


def test_run_folders_that_a_killed_run_left_days_ago_are_deleted(board, config, tmp_path):
    for name, days in (("run-old", 4), ("run-new", 1)):
        (board.base / name / "inside").mkdir(parents=True)
        then = time.time() - days * 24 * 3600
        os.utime(board.base / name, (then, then))
    (tmp_path / "my off runner").write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(wb.WorkbenchError, match="ended with code 3"):
        wb.run_config(config, root=tmp_path / "out")
    assert board.runs == ["run-new"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("kill -SEGV $$", "killed by signal 11|ended with code 139"),
        ("exit 0", "wrote no ETDump.*No such file"),
    ],
)
def test_a_runner_that_fails_there_says_why(board, config, tmp_path, body, says):
    (tmp_path / "my off runner").write_text(f"#!/bin/sh\n{body}\n")
    with pytest.raises(wb.WorkbenchError, match=says):
        wb.run_config(config, root=tmp_path / "out")
    assert board.runs == []


def test_a_command_that_hangs_or_fails_is_one_line(board, config, tmp_path, short_waits):
    board.tools.write("sha256sum", "echo 'disk full' >&2; exit 1")
    with pytest.raises(wb.WorkbenchError, match=r"^ssh:board: disk full -> check its connection"):
        wb.run_config(config, root=tmp_path / "out")
    board.tools.write("sha256sum", "exec sleep 30")
    with pytest.raises(wb.WorkbenchError, match=r"^ssh:board: no answer in "):
        wb.run_config(config, root=tmp_path / "out")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("yes", "an answer of more than 4 MB"),
        ("yes >&2", "an answer of more than 4 MB"),
        ("exit 0", "`echo ~` prints ''"),
        ("sh -c \"$*\" | sed '/^@/d'", "does not answer as a shell does: no machine"),
        ("sh -c \"$*\" | sed '/^@machine/{n; s|.*|../../x|}'", r"prints '\.\./\.\./x'"),
    ],
)
def test_answers_of_a_machine_are_bounded_and_refused(board, config, tmp_path, answer, says):
    script = (board.tools.folder / "ssh").read_text().replace('exec sh -c "$*"', answer)
    board.tools.write("ssh", script, log=False)
    with pytest.raises(wb.WorkbenchError, match=f"^ssh:board: .*{says}"):
        wb.run_config(config, root=tmp_path / "out")


def test_a_connection_that_never_falls_silent_is_ended(board, conv_pte, tmp_path):
    endless = f"yes >&2 & echo $! >> {tmp_path}/pids; wait"
    board.tools.write("ssh", endless, log=False)
    with pytest.raises(wb.WorkbenchError, match=r"^ssh:board: an answer of more than 4 MB"):
        wb.measure(conv_pte, options=wb.MeasureOptions(target="ssh:board"))
    connect, disconnect = (tmp_path / "pids").read_text().split()
    wait_for(lambda: not is_running(connect) and not is_running(disconnect))


@pytest.mark.ci
def test_facts_that_no_machine_has_are_unknown(board, config, tmp_path):
    edits = f"s/^Cpus_allowed_list.*/Cpus_allowed_list: 0-30000000/; s/^MemTotal: */&{'9' * 6000}/"
    script = (board.tools.folder / "ssh").read_text()
    script = script.replace('exec sh -c "$*"', f"sh -c \"$*\" | sed '{edits}'")
    board.tools.write("ssh", script, log=False)
    host = wb.run_config(config, root=tmp_path / "out").record.host
    assert host["memory_gb"] is None
    assert host["cores_usable"] == host["cores"]


def pretend_clusters(board, khz):
    """Let the board state the largest clock of each core."""
    name = "/sys/devices/system/cpu/cpu{}/cpufreq/cpuinfo_max_freq:{}"
    lines = "\\n".join(name.format(core, clock) for core, clock in enumerate(khz))
    script = (board.tools.folder / "ssh").read_text()
    edit = f"/cpu_capacity:/d; s|^@frequency|&\\n{lines}|"
    script = script.replace('exec sh -c "$*"', f"sh -c \"$*\" | sed '{edit}'")
    board.tools.write("ssh", script, log=False)


@needs_compiler
@pytest.mark.slow
def test_threads_are_those_that_executorch_would_choose_on_the_device(
    board, install, conv_pte, tmp_path
):
    (native,) = wb.find_runner().command
    edit = 's/"cores":[0-9]*/"cores":8/; s/"performance_cores":[0-9]*/"performance_cores":4/'
    body = (
        f'case "$*" in *--print_isa*) {native} "$@" | sed \'{edit}\';; *) exec {native} "$@";; esac'
    )
    runner = board.tools.write("board-runner", body, log=False)
    board.tools.write_packages(platform.machine(), str(runner))
    options = replace(BRIEF, threads=(0,), runs=2, processes=2, roof=False)
    run = wb.measure(conv_pte, options=options, root=tmp_path / "out")
    plan = run.record.plan
    assert plan.threads == (1, 3, 4)
    assert "LlmModule" in plan.thread_rules[1] and "Android's Module" in plan.thread_rules[2]
    first, *_ = run.crossovers
    assert "fastest here (" in first and first.count("as long") == 2


@pytest.mark.ci
@pytest.mark.parametrize(
    ("khz", "says"),
    [
        ([1_800_000] * 4 + [2_400_000] * 3 + [2_800_000],
         "1 x 2800 MHz, 3 x 2400 MHz, 4 x 1800 MHz"),
        (["9" * 5000, "x", "-1"], ""),
        (range(1000, 2_000_000, 1000), "1 x 1999 MHz, 1 x 1998 MHz, "),
    ],
    ids=["clusters", "no numbers", "many"],
)  # fmt: skip
def test_the_clusters_of_a_device_are_stated_and_bounded(board, config, tmp_path, khz, says):
    pretend_clusters(board, khz)
    stated = wb.run_config(config, root=tmp_path / "out").record.host["clusters"]
    assert stated.startswith(says) if says else stated == ""
    assert len(stated) <= 200


@needs_compiler
def test_a_run_on_a_target(board, install, conv_pte, tmp_path):
    pte = Path(shutil.copy(conv_pte, tmp_path / "it's a $model.pte"))
    run = wb.measure(pte, options=BRIEF, root=tmp_path / "out")
    assert run.record.state == "complete"
    assert run.record.plan.target == "ssh:board"
    assert run.path.name.startswith("it_s_a_model-linux")
    assert all(agreement.agree for agreement in run.record.agreements)
    traced = [session for session in run.record.sessions if session.traced]
    assert traced
    assert all((run.path / session.etdump).stat().st_size for session in traced)
    assert board.runs == []
    host = run.record.host
    assert host["machine"] == os.uname().machine
    assert host["cores"] >= 1
    assert host["memory_gb"] > 0
    assert host["cpu"]


@pytest.mark.ci
@needs_compiler
def test_a_device_lost_during_a_run_keeps_its_measurements(board, install, conv_pte, tmp_path):
    pte = Path(shutil.copy(conv_pte, tmp_path / "conv.pte"))

    def unplug(text, fraction):
        if "process 2" in text:
            board.unplug()

    options = replace(BRIEF, processes=2)
    with pytest.raises(wb.WorkbenchError, match="ssh:board: connection lost during a run"):
        wb.measure(pte, options=options, root=tmp_path / "out", progress=unplug)
    manifest = find_interrupted(tmp_path / "out")
    assert len(board.runs) == 1
    with pytest.raises(wb.WorkbenchError, match="device offline"):
        wb.measure(pte, options=options, root=tmp_path / "out")
    board.plug()
    run = wb.measure(pte, options=options, root=tmp_path / "out")
    assert run.path == manifest.parent
    assert run.record.state == "complete"


@needs_compiler
def test_a_crash_is_not_a_lost_device(board, install, conv_pte, tmp_path):
    install(serve="kill -SEGV $$")
    with pytest.raises(wb.WorkbenchError, match="killed by SIGSEGV"):
        wb.measure(conv_pte, options=BRIEF, root=tmp_path / "out")


def test_an_unknown_target_is_refused_with_suggestions(tmp_path):
    (tmp_path / "x.pte").write_bytes(b"x")
    options = wb.MeasureOptions(target="hots")
    with pytest.raises(wb.WorkbenchError, match=r"unknown target 'hots'.*did you mean 'host'"):
        wb.measure(tmp_path / "x.pte", options=options, root=tmp_path / "out")

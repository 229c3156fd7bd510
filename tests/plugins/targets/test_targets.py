"""Runs on another machine behind a shell: words, files, leftovers, and lost connections."""

import importlib.util
import os
import platform
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from devices import needs_compiler
from packages import write_packages
from processes import is_running, wait_for
from recorded import find_interrupted

import workbench as wb

BRIEF = wb.MeasureOptions(
    target="ssh:board", toggle="none", runs=8, processes=1, cold_start=False, evidence=False
)


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
        write_packages(board.tools, platform.machine(), str(runner))

    write()
    return write


@needs_compiler
@pytest.mark.cases
def test_threads_are_those_that_executorch_would_choose_on_the_device(
    board, install, conv_pte, tmp_path
):
    (native,) = wb.find_runner().command
    edit = 's/"cores":[0-9]*/"cores":8/; s/"performance_cores":[0-9]*/"performance_cores":4/'
    body = (
        f'case "$*" in *--print_isa*) {native} "$@" | sed \'{edit}\';; *) exec {native} "$@";; esac'
    )
    runner = board.tools.write("board-runner", body, log=False)
    write_packages(board.tools, platform.machine(), str(runner))
    options = replace(BRIEF, threads=(0,), runs=2, processes=2, roof=False)
    run = wb.measure(conv_pte, options=options, root=tmp_path / "out")
    plan = run.record.plan
    assert plan.threads == (1, 3, 4)
    assert "LlmModule" in plan.thread_rules[1] and "Android's Module" in plan.thread_rules[2]


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


@pytest.mark.whole
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


def test_a_connection_that_never_falls_silent_is_ended(board, conv_pte, tmp_path):
    endless = f"yes >&2 & echo $! >> {tmp_path}/pids; wait"
    board.tools.write("ssh", endless, log=False)
    with pytest.raises(wb.WorkbenchError, match=r"^ssh:board: an answer of more than 4 MB"):
        wb.measure(conv_pte, options=wb.MeasureOptions(target="ssh:board"))
    connect, disconnect = (tmp_path / "pids").read_text().split()
    wait_for(lambda: not is_running(connect) and not is_running(disconnect))

"""Locks: one measurement at a time on a device."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from portfolio_evidence import Starter, check_disjoint, measuring_spans

from workbench import store
from workbench.errors import StoreError
from workbench.options import MeasureOptions
from workbench.run import locks
from workbench.run.execute import run_plan
from workbench.run.locks import device_behind, is_locked, lock_device, share_machine
from workbench.run.plan import make_plan
from workbench.run.runner import find_runner
from workbench.store import find_runs, load_run

WAITING = "another measurement or batch is running on this machine: waiting"


def test_devices_have_one_measurement_at_a_time():
    spans, barrier = [], threading.Barrier(3)

    def measure():
        barrier.wait()
        with lock_device("host"):
            begin = time.monotonic()
            time.sleep(0.02)
            spans.append((begin, time.monotonic()))

    threads = [threading.Thread(target=measure) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans.sort()
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    with share_machine() as first, share_machine() as second, lock_device("ssh:board") as third:
        assert max(first, second, third) < 1
    with lock_device("host"):
        assert is_locked("host")
    assert not is_locked("host")


def test_an_emulated_cpu_is_this_machine():
    names = ("host", "qemu:max", "android:1", "ssh:board")
    assert [device_behind(name) for name in names] == ["host", "host", "android:1", "ssh:board"]


@pytest.fixture
def hold_machine():
    """Have this machine measured on by somebody else, until it is let go."""
    taken, enough = threading.Event(), threading.Event()

    def measure():
        with lock_device("host"):
            taken.set()
            enough.wait(60)

    thread = threading.Thread(target=measure)
    thread.start()
    taken.wait(60)
    yield enough
    enough.set()
    thread.join()


def test_a_waiting_run_says_so_once_then_starts(conv_pte, tmp_path, hold_machine):
    runner, told = find_runner(), []
    plan = make_plan(
        conv_pte, MeasureOptions(toggle="none", runs=1, processes=1, evidence=False), runner
    )

    def let_go(text, part):
        told.append(text)
        assert not list(tmp_path.iterdir()) or hold_machine.is_set()
        hold_machine.set()

    run_plan(replace(plan, batch_ms=0.0), runner, tmp_path / "out", progress=let_go)
    assert told[0] == WAITING
    assert told.count(WAITING) == 1 < len(told)


def test_shared_work_waits_for_a_measurement(hold_machine):
    told = []

    def let_go(words):
        told.append(words)
        hold_machine.set()

    with share_machine(let_go), share_machine(told.append):
        assert not is_locked("host")
    assert told == [WAITING]


def test_waiting_can_be_interrupted(hold_machine):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with (
            pytest.raises(KeyboardInterrupt),
            lock_device("host", lambda words: threading.Timer(0.1, interrupt).start()),
        ):
            pytest.fail("somebody else has it")
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def test_a_cache_that_cannot_be_written_is_one_clear_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(locks, "cache_folder", lambda: tmp_path / "file")
    with pytest.raises(StoreError, match=r"host.*\.lock: cannot be written.*XDG_CACHE_HOME"):
        is_locked("host")


def test_nested_locks_do_not_wait():
    told = []
    with lock_device("host", told.append), lock_device("host", told.append) as waited:
        assert (waited, told) == (0.0, [])
    assert not is_locked("host")


@pytest.fixture
def start(own_cache):
    """Start commands of the workbench with locks of their own; what is left is killed."""
    starter = Starter(own_cache)
    yield starter
    starter.kill_all()


@pytest.mark.slow
def test_two_concurrent_runs_are_serialised(conv_pte, tmp_path, start):
    words = ["run", conv_pte, "--runs", "8", "--processes", "3", "--no-evidence", "--out"]
    runs = [start.command(*words, tmp_path / name) for name in "ab"]
    told = [run.communicate(timeout=280)[1].splitlines() for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert sum(lines.count(WAITING) for lines in told) == 1
    check_turns(tmp_path, tmp_path / "a", tmp_path / "b")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_and_a_batch_are_serialised(conv_pte, tmp_path, start):
    matrix = tmp_path / "small.yaml"
    matrix.write_text(
        "models: toy_cnn\ndtypes: [fp32, fp16]\nruns: 8\nprocesses: 3\nevidence: false\n"
    )
    batch = start(matrix, tmp_path / "batch")
    words = ["run", conv_pte, "--runs", "8", "--processes", "3", "--no-evidence", "--out"]
    runs = []
    while batch.poll() is None:
        run = start.command(*words, tmp_path / f"out_{len(runs)}")
        assert run.wait(280) == 0, run.communicate()
        runs.append(run)
    assert batch.returncode == 0, batch.communicate()
    assert runs
    check_turns(tmp_path / "batch", *(tmp_path / f"out_{n}" for n in range(len(runs))))


def check_turns(*roots):
    """No run below these folders was measured while another one was."""
    runs = [load_run(path) for root in roots for path in find_runs(root)]
    assert len(runs) > 1
    check_disjoint([span for run in runs for span in measuring_spans(run)])


DRIVER = """\
import sys, time
from pathlib import Path
from workbench.run.custom_runner import run_to_end
from workbench.run.locks import THIS_MACHINE, lock_device

with lock_device(THIS_MACHINE):
    run_to_end(["sh", "-c", sys.argv[1]], Path(sys.argv[2]), timeout_s=60)
"""


def is_running(pid):
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "\nState:\tZ" not in status.read_text()


def wait_for(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="parent-death signals are Linux's")
@pytest.mark.parametrize("survives", [False, True])
def test_a_runner_whose_driver_is_killed_disturbs_nothing(tmp_path, monkeypatch, survives):
    """The runner dies with its driver; a child of it that does not keeps the machine locked."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(locks, "cache_folder", store.cache_folder)
    child = "setsid sleep 3 & echo $! > pid; wait" if survives else "echo $$ > pid; exec sleep 60"
    command = [sys.executable, "-c", DRIVER, child, str(tmp_path / "log")]
    with subprocess.Popen(command, cwd=tmp_path) as driver:
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        pid = int((tmp_path / "pid").read_text())
        assert is_running(pid)
        driver.kill()
    if survives:
        assert is_running(pid)
        assert locks.is_locked(locks.THIS_MACHINE)
    wait_for(lambda: not is_running(pid))
    wait_for(lambda: not locks.is_locked(locks.THIS_MACHINE))


def test_sigterm_ends_as_ctrl_c_does(tmp_path):
    code = (
        "import os, signal, workbench.cli as cli, workbench.cli.work as work\n"
        "work.models.callback = lambda: os.kill(os.getpid(), signal.SIGTERM)\n"
        "cli.main(['models'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 130
    assert "interrupted; run the same command again" in done.stderr
    assert "Traceback" not in done.stderr

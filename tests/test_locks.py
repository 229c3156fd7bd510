"""Locks: one measurement at a time on a device."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from planned import make_plan, run_plan
from portfolio_evidence import Starter, check_disjoint, measuring_spans

from workbench.errors import StoreError
from workbench.options import MeasureOptions
from workbench.run import locks
from workbench.run.locks import device_behind, is_locked, lock_device, share_machine
from workbench.run.runner import find_runner
from workbench.store import find_runs, load_run

WAITING = re.compile(
    r"another measurement or batch is running on this machine"
    r"( \(.+, PID \d+, since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\))?: waiting"
)


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
    assert WAITING.fullmatch(told[0])
    assert len(list(filter(WAITING.fullmatch, told))) == 1 < len(told)


def test_shared_work_waits_for_a_measurement(hold_machine):
    told = []

    def let_go(words, fraction):
        told.append(words)
        hold_machine.set()

    with share_machine(let_go), share_machine(lambda words, fraction: told.append(words)):
        assert not is_locked("host")
    assert [bool(WAITING.fullmatch(text)) for text in told] == [True]
    assert f", PID {os.getpid()}, since 20" in told[0]


def test_waiting_can_be_interrupted(hold_machine):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with (
            pytest.raises(KeyboardInterrupt),
            lock_device("host", lambda words, fraction: threading.Timer(0.1, interrupt).start()),
        ):
            pytest.fail("somebody else has it")
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def test_a_cache_that_cannot_be_written_is_one_clear_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WORKBENCH_LOCKS", str(tmp_path / "file"))
    with pytest.raises(StoreError, match=r"host\.lock: cannot be written.*WORKBENCH_LOCKS"):
        is_locked("host")


def test_nested_locks_do_not_wait():
    told = []

    def tell(words, fraction):
        told.append(words)

    with lock_device("host", tell), lock_device("host", tell) as waited:
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
    assert sum(bool(WAITING.search(line)) for lines in told for line in lines) == 1
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


@pytest.mark.parametrize("attack", ["link", "hard link", "pipe", "folder"])
def test_a_lock_that_others_prepared_is_harmless(tmp_path, monkeypatch, attack):
    monkeypatch.setenv("WORKBENCH_LOCKS", str(tmp_path / "locks"))
    victim, lock = tmp_path / "victim", tmp_path / "locks" / "executorch-workbench-host.lock"
    victim.write_text("kept")
    lock.parent.mkdir()
    {
        "link": lambda: lock.symlink_to(victim),
        "hard link": lambda: lock.hardlink_to(victim),
        "pipe": lambda: os.mkfifo(lock),
        "folder": lock.mkdir,
    }[attack]()
    with pytest.raises(StoreError, match="cannot be written"), lock_device("host"):
        pass
    assert victim.read_text() == "kept"


def test_all_users_share_the_locks_of_a_machine(monkeypatch, tmp_path):
    monkeypatch.delenv("WORKBENCH_LOCKS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = locks._device_lock("host")
    assert place.parent in (*locks.SHARED, tmp_path / "executorch-workbench" / "locks")
    monkeypatch.setattr(locks, "SHARED", (tmp_path,))
    assert locks._device_lock("host").is_relative_to(tmp_path / "executorch-workbench")
    tmp_path.chmod(0o1777)
    if tmp_path.stat().st_uid == 0:
        assert locks._device_lock("host").parent == tmp_path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
@pytest.mark.parametrize("first", ["root", "other"])
def test_different_users_take_turns(monkeypatch, first):
    fork = multiprocessing.get_context("fork")
    start, waiting, measuring, enough = (fork.Event() for _ in range(4))

    def measure_as_another():
        os.umask(0o077)
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        start.wait(60)
        with lock_device("host", lambda *_: waiting.set()):
            measuring.set()
            enough.wait(60)

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's are private
        Path(folder).chmod(0o1777)
        monkeypatch.delenv("WORKBENCH_LOCKS")
        monkeypatch.setattr(locks, "SHARED", (Path(folder),))
        other, told = fork.Process(target=measure_as_another), []
        other.start()
        if first == "root":
            with lock_device("host"):
                start.set()
                assert waiting.wait(60)
                assert not measuring.is_set()
            assert measuring.wait(60)
            assert locks.is_locked("host")
            enough.set()
        else:
            start.set()
            assert measuring.wait(60)
            with lock_device("host", lambda words, _: (told.append(words), enough.set())):
                assert f", PID {other.pid}, since" in told[0]
        other.join(60)
        assert other.exitcode == 0
        owner = locks._device_lock("host").stat().st_uid
        assert owner == (0 if first == "root" else 65534)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ten_identical_commands_at_once_end_well(tmp_path, start):
    words = ["profile", "toy_cnn", "--runs", "4", "--processes", "2", "--no-evidence", "--out"]
    started = [start.command(*words, tmp_path / "out") for _ in range(10)]
    ends = [command.communicate(timeout=800) for command in started]
    assert [command.returncode for command in started] == [0] * 10, ends
    runs = [load_run(path) for path in find_runs(tmp_path / "out")]
    assert [run.state for run in runs] == ["complete"] * 10
    check_turns(tmp_path / "out")


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
    monkeypatch.setenv("WORKBENCH_LOCKS", str(tmp_path))
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

"""Custom runners hold the locks of their machine, and give them back."""

import contextlib
import json
import multiprocessing
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from devices import COPY_TRACE, Tools
from locking import hold, is_locked, lock_of
from processes import is_running, wait_for

import workbench as wb

WAITING = re.compile(
    r"(\S+: )?another measurement or batch is running on this machine"
    r"( \(.+, PID \d+, (exporting )?since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\))?: waiting"
)


def write_config(folder, script=COPY_TRACE, **keys):
    """A config with one runner, a script."""
    runner = folder / "runner"
    runner.write_text(f"#!/bin/sh\n{script}\n")
    runner.chmod(0o755)
    (folder / "x.pte").write_bytes(b"x")
    entry = {"name": "a", "runner_path": str(runner), "runs": 5, "warmup": 0}
    content = {"model": "x.pte", "experiments": [entry], "output_root": str(folder / "out")}
    (folder / "x.json").write_text(json.dumps({**content, **keys}))
    return folder / "x.json"


@pytest.mark.parametrize("target", ["host", "qemu", "ssh:board"])
def test_a_device_is_locked_while_it_is_measured(tmp_path, monkeypatch, target):
    """An emulated CPU is this machine."""
    tools, states = Tools(tmp_path / "bin"), set()
    monkeypatch.setenv("PATH", f"{tools.folder}{os.pathsep}{os.environ['PATH']}")
    tools.write_ssh(tmp_path / "home")
    answers = '--version) echo version 10.2.0;; *help) echo "  max";;'
    tools.write("qemu-aarch64", f'case "$*" in {answers} *) shift 2; "$@";; esac')

    def look(text, fraction):
        if "process" in text:
            states.add((is_locked(lock_of()), is_locked(lock_of("ssh_board"))))

    config = write_config(tmp_path, "exit 1")
    with pytest.raises(wb.WorkbenchError, match="ended with code 1"):
        wb.run_config(config, target=target, progress=look)
    assert states == {(target != "ssh:board", target == "ssh:board")}
    assert not is_locked(lock_of())
    assert not is_locked(lock_of("ssh_board"))


def test_a_waiting_run_says_so_once_then_starts(tmp_path):
    texts, config = [], write_config(tmp_path)
    with hold(lock_of()) as let_go:

        def tell(text, fraction):
            texts.append(text)
            if len(texts) == 1:
                assert not (tmp_path / "out").exists()
                let_go()

        assert wb.run_config(config, progress=tell).record.state == "complete"
    assert WAITING.fullmatch(texts[0])
    assert len(list(filter(WAITING.fullmatch, texts))) == 1 < len(texts)


@pytest.mark.whole
def test_a_measurement_says_which_batch_exports(tmp_path):
    """A batch keeps its exports from its own measurements, with a lock that other exports share."""
    code = "from workbench.run.locks import share_machine\n"
    code += "with share_machine(): print(flush=True); input()"
    command, texts = [sys.executable, "-c", code, "matrix.yaml"], []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()

        def tell(text, fraction):
            texts.append(text)
            if len(texts) == 1:
                other.communicate(b"\n")

        wb.run_config(write_config(tmp_path), progress=tell)
    assert f" matrix.yaml, PID {other.pid}, exporting since 20" in texts[0]
    assert lock_of().read_text() == ""


def test_waiting_can_be_interrupted(tmp_path):
    def interrupt(text, fraction):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

    config = write_config(tmp_path)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with hold(lock_of()), pytest.raises(KeyboardInterrupt):
            wb.run_config(config, progress=interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("attack", ["file", "link", "hard link", "pipe", "folder"])
def test_a_lock_that_others_prepared_is_harmless(tmp_path, monkeypatch, attack):
    monkeypatch.setenv("WORKBENCH_LOCKS", str(tmp_path / "locks"))
    victim = tmp_path / "victim"
    victim.write_text("kept")
    if attack != "file":
        lock_of().parent.mkdir()
    {
        "file": lambda: lock_of().parent.write_text(""),
        "link": lambda: lock_of().symlink_to(victim),
        "hard link": lambda: lock_of().hardlink_to(victim),
        "pipe": lambda: os.mkfifo(lock_of()),
        "folder": lambda: lock_of().mkdir(),
    }[attack]()
    with pytest.raises(wb.WorkbenchError, match=r"host\.lock: cannot be written.*WORKBENCH_LOCKS"):
        wb.run_config(write_config(tmp_path))
    assert victim.read_text() == "kept"


@pytest.mark.parametrize("shared", [False, True])
def test_all_users_share_the_locks_of_a_machine(monkeypatch, tmp_path, shared):
    """In a folder for everybody, if there is one; else in the cache."""
    monkeypatch.delenv("WORKBENCH_LOCKS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    name, real = "executorch-workbench-host.lock", Path.stat
    places = ["/run/lock", "/tmp"]
    if not shared:

        def stat(path, **options):
            if str(path) in places:
                raise FileNotFoundError
            return real(path, **options)

        monkeypatch.setattr(Path, "stat", stat)
    usable = [p for p in places if shared and Path(p).is_dir() and Path(p).stat().st_mode & 0o1002]
    lock = tmp_path / "executorch-workbench" / "locks" / f"{platform.node()}-{name}"
    lock = Path(usable[0]) / name if usable else lock
    states = []

    def look(text, fraction):
        states.append(lock.exists() and is_locked(lock))

    with pytest.raises(wb.WorkbenchError, match="ended with code 1"):
        wb.run_config(write_config(tmp_path, "exit 1"), progress=look)
    assert any(states)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
def test_different_users_take_turns(monkeypatch, tmp_path):
    fork = multiprocessing.get_context("fork")
    measuring, enough = fork.Event(), fork.Event()
    find = wb.run_config

    def measure_as_another(folder):
        os.umask(0o077)
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)

        def tell(text, fraction):
            measuring.set()
            enough.wait(60)

        with contextlib.suppress(wb.WorkbenchError):  # its runner fails
            find(folder / "x.json", progress=tell)

    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # pytest's are private
        folder = Path(name)
        folder.chmod(0o1777)
        monkeypatch.setenv("WORKBENCH_LOCKS", name)
        write_config(folder, "exit 1")
        other = fork.Process(target=measure_as_another, args=(folder,))
        other.start()
        assert measuring.wait(60)
        texts = []

        def tell(text, fraction):
            texts.append(text)
            enough.set()

        with pytest.raises(wb.WorkbenchError, match="ended with code 1"):
            wb.run_config(write_config(tmp_path, "exit 1"), progress=tell)
        assert f", PID {other.pid}, since" in texts[0]
        assert lock_of().stat().st_uid == 65534
        other.join(60)
        assert other.exitcode == 0


@pytest.mark.whole
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_runner_that_survives_its_driver_keeps_the_machine_locked(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_LOCKS", str(tmp_path))
    mark = tmp_path / "pid"
    config = write_config(tmp_path, f"setsid sleep 3 & echo $! > {mark}; wait")
    command = [sys.executable, "-m", "workbench", "run", str(config)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as driver:
        wait_for(lambda: mark.exists() and mark.read_text())
        pid = int(mark.read_text())
        driver.kill()
    assert is_running(pid)
    assert is_locked(lock_of())
    wait_for(lambda: not is_running(pid))
    wait_for(lambda: not is_locked(lock_of()))


@pytest.mark.whole
def test_sigterm_ends_as_ctrl_c_does(tmp_path):
    config = write_config(tmp_path, "sleep 0.3; kill -TERM $PPID; sleep 9")
    command = [sys.executable, "-m", "workbench", "run", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 130
    assert "interrupted; run the same command again" in done.stderr
    assert "Traceback" not in done.stderr

"""The ssh client against an sshd of this machine, on a port and with keys of its own."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from planned import make_plan, run_plan

from workbench import store
from workbench.errors import TargetError, UsageError
from workbench.options import MeasureOptions
from workbench.run.runner import find_runner
from workbench.run.session import RunnerSession
from workbench.run.targets import open_target
from workbench.run.targets.host import run_there
from workbench.run.targets.remote import Ssh

pytestmark = [pytest.mark.ssh, pytest.mark.timeout(1200)]

SSHD = shutil.which("sshd", path=os.pathsep.join([os.environ["PATH"], "/usr/sbin"]))


class Server:
    """An sshd that lets this user in, and an ``ssh`` that knows it as ``board``."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("host", "user"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name]
            subprocess.run(words, check=True)
        shutil.copy(folder / "user.pub", folder / "authorized")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._write(
            "server.conf",
            *("UsePAM no", "StrictModes no", "PasswordAuthentication no", "PermitRootLogin yes"),
            f"Port {self.port}",
            *("ListenAddress 127.0.0.1", f"HostKey {folder}/host", f"PidFile {folder}/pid"),
            f"AuthorizedKeysFile {folder}/authorized",
            f"SetEnv HOME={folder}/home",
        )
        self._write(
            "client.conf",
            *(
                "Host board",
                "HostName 127.0.0.1",
                f"Port {self.port}",
                f"IdentityFile {folder}/user",
            ),
            *("IdentitiesOnly yes", "StrictHostKeyChecking no", "UserKnownHostsFile /dev/null"),
            "LogLevel ERROR",
        )
        (folder / "home").mkdir()
        (folder / "client").mkdir()
        client = folder / "client" / "ssh"
        client.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/client.conf "$@"\n')
        client.chmod(0o755)
        self.start()

    def start(self):
        command = [SSHD, "-D", "-f", self.folder / "server.conf", "-E", self.folder / "log"]
        self.process = subprocess.Popen(command, start_new_session=True)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        pytest.skip(f"sshd does not start: {(self.folder / 'log').read_text()}")

    def kill(self):
        """The server and its connections, at once."""
        listed = subprocess.run(["ps", "-eo", "pid,ppid"], capture_output=True, text=True).stdout
        parents = dict(map(int, line.split()) for line in listed.splitlines()[1:])
        family = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in family} - family:
            family |= more
        for pid in family:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def _write(self, name, *lines):
        (self.folder / name).write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    for tool in (SSHD, shutil.which("ssh"), shutil.which("ssh-keygen")):
        if not tool:
            pytest.skip("no OpenSSH client and server (Debian: apt install openssh-server)")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    server = Server(tmp_path_factory.mktemp("sshd"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{server.folder}/client{os.pathsep}{os.environ['PATH']}")
        yield server
    server.kill()


def runs_there(server):
    base = server.folder / "home" / ".cache" / "executorch-workbench" / "target"
    return [path.name for path in base.glob("run-*")]


def test_words_files_and_facts(server, tmp_path):
    words = ["a  b", "it's", "$HOME", "`id`", "x;y&z|*?", 'say "no"', "\\", "ü\n\t"]
    path = tmp_path / "all bytes"
    path.write_bytes(bytes(range(256)) * 5000)
    with open_target("ssh:board") as target:
        done = run_there(target, ["printf", r"%s\0", *words])
        assert done.stdout.decode() == "".join(f"{word}\0" for word in words)
        there, placed = target.push(path), target.place(path)
        shutil.copy(there, placed)
        target.pull(placed, tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == path.read_bytes()
        assert target.machine == os.uname().machine
        assert len(runs_there(server)) == 1
    assert runs_there(server) == []


def test_an_ab_run(server, conv_pte, tmp_path):
    with open_target("ssh:board") as target:
        runner = find_runner(target)
        pte = Path(shutil.copy(conv_pte, tmp_path / "conv.pte"))
        plan = make_plan(pte, MeasureOptions(runs=8, processes=1), runner)
        run_dir = run_plan(plan, runner, tmp_path / "out")
    run = store.load_run(run_dir)
    assert run.state == "complete"
    assert run.plan.target == "ssh:board"
    assert all(a.agree for a in run.agreements)
    assert all((run_dir / s.etdump).stat().st_size for s in run.sessions if s.traced)
    assert runs_there(server) == []


def test_disconnected_during_a_run(server, conv_pte, tmp_path, monkeypatch):
    pte = Path(shutil.copy(conv_pte, tmp_path / "conv.pte"))
    real, calls = RunnerSession.run, iter(range(30))

    def run(session, count):
        if next(calls, None) is None:
            server.kill()
        return real(session, count)

    with open_target("ssh:board") as target, monkeypatch.context() as patch:
        runner = find_runner(target)
        plan = make_plan(pte, MeasureOptions(runs=8, processes=1), runner)
        patch.setattr(RunnerSession, "run", run)
        with pytest.raises(TargetError, match="ssh:board: connection lost during a run"):
            run_plan(plan, runner, tmp_path / "out")
    (run_dir,) = store.find_runs(tmp_path / "out")
    partial = store.load_run(run_dir)
    assert partial.state == "incomplete"
    assert any(s.batches for s in partial.sessions)
    assert runs_there(server)

    server.start()
    with open_target("ssh:board") as target:
        assert len(runs_there(server)) == 1
        runner = find_runner(target)
        assert run_plan(plan, runner, tmp_path / "out") == run_dir
    assert store.load_run(run_dir).state == "complete"
    assert runs_there(server) == []


@pytest.mark.parametrize("host", ["", "-oProxyCommand=touch x", "a b", "x;id", "$(id)"])
def test_an_invalid_host_name_reaches_no_shell(host):
    with pytest.raises(UsageError, match="invalid host name"):
        Ssh(host)


def test_a_host_that_cannot_be_reached(server):
    with pytest.raises(TargetError, match=r"ssh:127\.0\.0\.1: "):
        Ssh("127.0.0.1")

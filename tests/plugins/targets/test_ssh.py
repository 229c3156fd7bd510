"""The ssh client against an sshd of this machine, on a port and with keys of its own."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

import workbench as wb

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
        command = [SSHD, "-D", "-f", folder / "server.conf", "-E", folder / "log"]
        self.process = subprocess.Popen(command)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        pytest.skip(f"sshd does not start: {(folder / 'log').read_text()}")

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
    server.process.kill()
    server.process.wait()


def runs_there(server):
    base = server.folder / "home" / ".cache" / "executorch-workbench" / "target"
    return [path.name for path in base.glob("run-*")]


OPTIONS = wb.MeasureOptions(target="ssh:board", runs=8, processes=1)


@pytest.fixture
def pte(conv_pte, tmp_path):
    return Path(shutil.copy(conv_pte, tmp_path / "it's a $model.pte"))


def test_an_ab_run(server, pte, tmp_path):
    """Also sends files with such a name there and back; test_targets.py has all words."""
    run = wb.measure(pte, options=OPTIONS, root=tmp_path / "out")
    assert run.record.state == "complete"
    assert run.record.plan.target == "ssh:board"
    assert run.record.host["machine"] == os.uname().machine
    assert all(agreement.agree for agreement in run.record.agreements)
    traces = [run.path / s.etdump for s in run.record.sessions if s.traced]
    assert all(trace.stat().st_size for trace in traces)
    assert runs_there(server) == []


@pytest.mark.parametrize("host", ["", "-oProxyCommand=touch x", "a b", "x;id", "$(id)"])
def test_an_invalid_host_name_reaches_no_shell(pte, tmp_path, host):
    with pytest.raises(wb.WorkbenchError, match="invalid host name"):
        wb.measure(pte, options=wb.MeasureOptions(target=f"ssh:{host}"), root=tmp_path / "out")


def test_a_host_that_cannot_be_reached(server, pte, tmp_path):
    with pytest.raises(wb.WorkbenchError, match=r"ssh:127\.0\.0\.1: "):
        wb.measure(pte, options=wb.MeasureOptions(target="ssh:127.0.0.1"), root=tmp_path / "out")

"""A Linux board or server that the ssh client can reach without asking."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from workbench.errors import SetupError, TargetError, UsageError
from workbench.run.targets.remote import Remote

CONNECT_TIMEOUT_S = 15

#: What ssh exits with when it is not the remote command that failed.
SSH_FAILED = 255


class Ssh(Remote):
    """A host as the ssh client knows it; one connection is shared by everything.

    Raises
    ------
    UsageError
        No name of a host.
    SetupError
        There is no ssh client.
    TargetError
        The host cannot be reached, or asks for a password.
    """

    def __init__(self, host: str):
        if not re.fullmatch(r"[A-Za-z0-9_][\w.@:%\[\]-]*", host, re.ASCII):
            raise UsageError(f"no name of a host: {host!r}", where="--target ssh:HOST")
        if not shutil.which("ssh"):
            raise SetupError("no ssh client", hint="apt install openssh-client")
        self.host, self.name = host, f"ssh:{host}"
        # The path of a socket may have but a hundred letters.
        self._folder = tempfile.mkdtemp(prefix="wb-", dir="/tmp")
        self._options = ["-T", "-o", f"ControlPath={self._folder}/s", "-o", "BatchMode=yes"]
        try:
            self._connect()
            home = self.sh("echo ~").decode(errors="replace").strip()
            super().__init__(self.name, f"{home}/.cache/executorch-workbench/target")
        except BaseException:
            self._disconnect()
            raise

    @property
    def platform(self) -> str:
        """The platform's name in the artifact layout."""
        return "linux" if self.machine == "x86_64" else f"linux-{self.machine}"

    def shell(self, script: str) -> list[str]:
        """The ssh command that runs a shell script there."""
        return ["ssh", *self._options, self.host, script]

    def is_lost(self, code: int) -> bool:
        """Whether a command that ended with ``code`` was cut off."""
        return code == SSH_FAILED or not self.is_alive()

    def close(self) -> None:
        """Remove the run's folder and hang up."""
        super().close()
        self._disconnect()

    def _connect(self) -> None:
        """Open the connection that all commands share."""
        patience = [f"ConnectTimeout={CONNECT_TIMEOUT_S}", "ServerAliveInterval=5"]
        words = [word for option in patience for word in ("-o", option)]
        command = ["ssh", "-M", "-N", "-f", *self._options, *words, self.host]
        # No pipe: the process that stays behind would keep it open.
        with tempfile.TemporaryFile() as errors:
            try:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    timeout=4 * CONNECT_TIMEOUT_S,
                )
            except subprocess.TimeoutExpired:
                raise TargetError("no connection", where=self.name) from None
            errors.seek(0)
            words = errors.read().decode(errors="replace").strip().splitlines()[-1:]
        if done.returncode:
            raise TargetError(
                words[0] if words else "no connection",
                where=self.name,
                hint=f"`ssh {self.host} true` must work without a question",
            )

    def _disconnect(self) -> None:
        command = ["ssh", *self._options, "-O", "exit", self.host]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, timeout=10)
        shutil.rmtree(Path(self._folder), ignore_errors=True)

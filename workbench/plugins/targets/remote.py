"""A machine behind a shell, such as one reached with ssh: all files and commands go through it."""

import abc
import contextlib
import itertools
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from workbench import WorkbenchError
from workbench.api import Host, UsageError
from workbench.jobs import Progress, TargetError, atomic_write, safe_name, silent
from workbench.plugins.targets.bundle import install_bundle

#: Time limit of a command, in seconds.
TIMEOUT_S = 30.0
#: Limits for copying a file, in seconds and bytes.
TRANSFER_TIMEOUT_S, LARGEST_FILE = 600.0, 2**30

#: Days after which the folder of a run that was killed is deleted.
LEFTOVER_DAYS = 2


class Remote(Host, abc.ABC):
    """A machine behind a shell; ``base`` is a folder there from which programs can run."""

    def __init__(self, name: str, base: str):
        self.name, self.base = name, base
        self._there: set[str] = set()
        self._numbers = itertools.count(1)
        self.run_dir = f"{base}/run-{secrets.token_hex(8)}"
        self.sh(f"mkdir -p {self.quote(f'{base}/files')} {self.quote(self.run_dir)}")
        leftovers = f"{self.quote(base)}/run-* -prune -mtime +{LEFTOVER_DAYS}"
        self.sh(f"find {leftovers} -exec rm -rf {{}} \\;")

    @abc.abstractmethod
    def shell(self, script: str) -> list[str]:
        """The local command that runs a shell script there; more words extend the script."""

    def sh(
        self,
        script: str,
        *,
        stdin: Path | None = None,
        timeout_s: float = TIMEOUT_S,
        out: IO[bytes] | None = None,
    ) -> bytes:
        """Run a shell script there; returns its output. TargetError if it fails or times out."""
        limits: dict[str, Any] = {"most": LARGEST_FILE} if out else {}
        with open(stdin or os.devnull, "rb") as source:
            command = self.shell(script)
            done = self.ask(command, self.name, timeout_s, stdin=source, out=out, **limits)
        if done.returncode:
            words = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            reason = words[0] if words else f"code {done.returncode}"
            raise TargetError(reason, where=self.name, hint="check its connection and free space")
        return done.stdout

    def command(self, argv: Sequence[str]) -> list[str]:
        """The local command that runs ``argv`` there."""
        return self.shell(shlex.join(argv))

    def quote(self, word: str) -> str:
        """A word, quoted for the shell there."""
        if "\0" in word:
            raise UsageError("a shell word cannot have a null byte", where=repr(word))
        return shlex.quote(word)

    def install_runner(self, progress: Progress = silent) -> tuple[list[str], Path, Path]:
        """A bundle of the runner with all its libraries, which is copied there."""
        return install_bundle(self)

    def push(self, path: Path) -> str:
        """Copy a local file there, under its hash; returns its path there."""
        digest = self.hash_file(path)
        remote = f"{self.base}/files/{digest[:16]}-{safe_name(path.name)}"
        if remote not in self._there:
            self._upload({path: remote}, executable=False)
            self._there.add(remote)
        return remote

    def push_folder(self, folder: Path) -> str:
        """Copy a local folder of programs there, under its name; returns its path there."""
        remote = f"{self.base}/{safe_name(folder.name)}"
        self.sh(f"mkdir -p {self.quote(remote)}")
        files = sorted(path for path in folder.iterdir() if path.is_file())
        self._upload({path: f"{remote}/{path.name}" for path in files}, executable=True)
        return remote

    def place(self, path: Path) -> str:
        """A path in the run's folder there, for the contents of a local file."""
        return f"{self.run_dir}/{next(self._numbers)}-{safe_name(path.name)}"

    def pull(self, remote: str, path: Path) -> None:
        """Copy a complete file from there, and delete it there."""
        name = self.quote(remote)
        script = f"sha256sum < {name} && cat {name} && rm -f {name}"
        with tempfile.TemporaryFile() as file:
            self.sh(script, timeout_s=TRANSFER_TIMEOUT_S, out=file)
            file.seek(0)
            digest_there = file.readline(200)
            atomic_write(path, file.read())
        if digest_there.split()[:1] != [self.hash_file(path).encode()]:
            raise TargetError("a file arrived damaged", where=path, hint="try another cable")

    def is_alive(self) -> bool:
        """Whether it responds."""
        with contextlib.suppress(TargetError):
            self.sh("true", timeout_s=10.0)
            return True
        return False

    @property
    def machine(self) -> str:
        """The architecture, as ``uname -m`` calls it."""
        if not re.fullmatch(r"\w{1,30}", name := self.facts["machine"], re.ASCII):
            raise TargetError(f"`uname -m` prints {name!r:.60}", where=self.name)
        return name

    def close(self) -> None:
        """Delete the run's folder, if the machine can still be reached."""
        with contextlib.suppress(TargetError):
            self.sh(f"rm -rf {self.quote(self.run_dir)}")

    def _upload(self, files: dict[Path, str], *, executable: bool) -> None:
        """Copy files to paths there, except those that are already there."""
        names = " ".join(map(self.quote, files.values()))
        listed = self.sh(f"sha256sum {names} 2>/dev/null || true").decode(errors="replace")
        there = {path: digest for digest, path in re.findall(r"^(\w{64})\s+(.*)$", listed, re.M)}
        for path, remote in files.items():
            digest = self.hash_file(path)
            if there.get(remote) == digest:
                continue
            new = self.quote(f"{remote}.{secrets.token_hex(4)}")
            mode = "755" if executable else "644"
            script = f"cat > {new} && chmod {mode} {new} && sha256sum < {new}"
            answer = self.sh(script, stdin=path, timeout_s=TRANSFER_TIMEOUT_S)
            if answer.split()[:1] != [digest.encode()]:
                self.sh(f"rm -f {new}")
                raise TargetError(f"{path.name} arrived damaged", where=self.name)
            self.sh(f"mv -f {new} {self.quote(remote)}")


CONNECT_TIMEOUT_S = 15
#: ssh's own exit code, as opposed to the remote command's.
SSH_FAILED = 255


class Ssh(Remote):
    """A host by the ssh client's name for it; all commands share one connection."""

    def __init__(self, host: str, power: str = ""):
        if not re.fullmatch(r"[A-Za-z0-9_][\w.@:%\[\]-]*", host, re.ASCII):
            raise UsageError(f"invalid host name: {host!r}", where="--target ssh:HOST")
        if not shutil.which("ssh"):
            raise WorkbenchError("no ssh client", hint="apt install openssh-client")
        self.host, self.name = host, f"ssh:{host}"
        # A socket's path is limited to about a hundred characters.
        self._folder = tempfile.mkdtemp(prefix="wb-", dir="/tmp")
        self._options = ["-T", "-o", f"ControlPath={self._folder}/s", "-o", "BatchMode=yes"]
        try:
            self._connect()
            home = self.sh("echo ~").decode(errors="replace").strip()
            if not re.fullmatch(r"/.{,999}", home):
                raise TargetError(f"`echo ~` prints {home!r:.60}", where=self.name)
            super().__init__(self.name, f"{home}/.cache/executorch-workbench/target")
        except BaseException:
            self._disconnect()
            raise

    @property
    def platform(self) -> str:
        """The platform's name."""
        return self.name_platform("linux", self.machine)

    @staticmethod
    def examine() -> Iterator[tuple[str, ...]]:
        """Whether there is an ssh client: a check of the doctor."""
        subject = "--target ssh:HOST"
        if not shutil.which("ssh"):
            yield subject, "note", "no ssh client", "apt install openssh-client"
            return
        answer = subprocess.run(["ssh", "-V"], capture_output=True, timeout=TIMEOUT_S).stderr
        yield subject, "ok", answer.decode(errors="replace").strip().split(",")[0]

    def shell(self, script: str) -> list[str]:
        """The ssh command that runs a shell script there."""
        return ["ssh", *self._options, self.host, script]

    def is_lost(self, code: int) -> bool:
        """Whether a command that ended with ``code`` was cut off."""
        return code == SSH_FAILED or not self.is_alive()

    def close(self) -> None:
        """Delete the run's folder and disconnect."""
        super().close()
        self._disconnect()

    def _connect(self) -> None:
        """Open the connection that all commands share."""
        timeouts = ["-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}", "-o", "ServerAliveInterval=5"]
        command = ["ssh", "-M", "-N", "-f", *self._options, *timeouts, self.host]
        deadline = time.monotonic() + 4 * CONNECT_TIMEOUT_S
        # No pipe: the background process would keep it open.
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
                start_new_session=True,
            ) as process,
        ):  # fmt: skip
            try:
                while process.poll() is None:
                    time.sleep(0.02)
                    if time.monotonic() > deadline:
                        raise TargetError("no connection", where=self.name)
                    self.check_length(os.fstat(errors.fileno()).st_size, self.name)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with what it has started
                raise
            errors.seek(0)
            words = errors.read(10_000).decode(errors="replace").strip().splitlines()[-1:]
        if process.returncode:
            hint = f"`ssh {self.host} true` must work without a prompt"
            raise TargetError(words[0] if words else "no connection", where=self.name, hint=hint)

    def _disconnect(self) -> None:
        command = ["ssh", *self._options, "-O", "exit", self.host]
        with contextlib.suppress(TargetError):
            self.ask(command, self.name, CONNECT_TIMEOUT_S)
        shutil.rmtree(Path(self._folder), ignore_errors=True)

"""Where a runner runs: this machine, or another one that files and commands have to reach.

The seam between the driver and a device is one small interface: how a command is started there,
how a file gets there and back. `Host` is the identity; what is elsewhere overrides what differs.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from workbench.run.host import describe_host, fast_cores, platform_name


class Host:
    """The machine we are on; also the interface of all targets, which are context managers.

    ``name`` is what the user calls it, ``platform`` its name in the artifact layout; ``emulated``
    says that times measured there mean nothing.
    """

    name = "host"
    emulated = False

    @property
    def platform(self) -> str:
        """The platform's name in the artifact layout."""
        return platform_name()

    @property
    def machine(self) -> str:
        """The architecture, as ``uname -m`` calls it."""
        return platform.machine()

    def command(self, argv: Sequence[str]) -> list[str]:
        """The local command that runs ``argv`` there; words for it may follow, if `quote` d."""
        return list(argv)

    def quote(self, word: str) -> str:
        """A word as it must follow a `command` to arrive there unchanged."""
        return word

    def push(self, path: Path, *, executable: bool = False) -> str:
        """Make a local file available there, if it is not yet; returns its path there."""
        return os.fspath(path)

    def push_folder(self, folder: Path) -> str:
        """Make a local folder of programs available there; returns its path there."""
        return os.fspath(folder)

    def place(self, path: Path) -> str:
        """Where a program there shall write what belongs into the local file ``path``."""
        return os.fspath(path)

    def pull(self, remote: str, path: Path) -> None:
        """Fetch a file that was written there into the local file ``path``."""

    def is_alive(self) -> bool:
        """Whether it can still be reached."""
        return True

    def describe(self) -> dict[str, Any]:
        """CPU, cores, memory, kernel and whatever else tells what was measured on."""
        return describe_host()

    def cores(self) -> list[int]:
        """The cores that a measurement may be bound to, the slow ones left out; [] if unknown."""
        return fast_cores()

    def is_lost(self, code: int) -> bool:
        """Whether a command that ended with ``code`` did so because the target is out of reach."""
        return not self.is_alive()

    @contextmanager
    def prepared(self, run_dir: Path) -> Iterator[None]:
        """The target made ready for measuring; what was changed goes into ``run_dir``."""
        yield

    def close(self) -> None:
        """Leave it as it was found."""

    def __enter__(self) -> Host:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def run_there(
    target: Host, argv: Sequence[str], *, timeout_s: float = 60.0
) -> subprocess.CompletedProcess[bytes]:
    """Run a command on a target to its end.

    Raises
    ------
    OSError
        The local program that reaches the target cannot be started.
    subprocess.TimeoutExpired
        It takes too long.
    """
    return subprocess.run(
        target.command(argv), stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s
    )


HOST = Host()

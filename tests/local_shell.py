"""A target that is a shell on this machine, in place of a remote one."""

import os
from pathlib import Path

from workbench.run.targets.remote import Remote


class LocalShell(Remote):
    """A shell on this machine."""

    platform = "shell"

    def __init__(self, base: Path):
        super().__init__("shell", os.fspath(base))

    def shell(self, script: str) -> list[str]:
        """A local shell; like adb and ssh it appends further words to the script."""
        return ["sh", "-c", 'eval "$*"', "sh", script]

"""How files are written: whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path

from workbench.errors import StoreError

#: What a file is called before it is whole, by us and (``native/files.h``) by the runner.
PARTIAL = ".partial"
_LEFTOVER = re.compile(rf"^\..+\.\w{{8}}{PARTIAL}$|\.(etdump|samples){PARTIAL}$")


def write_whole(path: Path, content: bytes | str) -> Path:
    """Write a file so that a reader sees all of it or the old one; returns its path.

    Raises
    ------
    StoreError
        The disk is full, the folder read-only, or the like.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PARTIAL)
    except OSError as error:
        raise StoreError(f"cannot be written: {error.strerror}", where=path) from None
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        temporary.chmod(0o644)
        return temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise StoreError(f"cannot be written: {error.strerror}", where=path) from None
        raise


def remove_partials(folder: Path) -> None:
    """Remove what writers that were killed left below a folder; nobody may be writing there."""
    for path in folder.rglob(f"*{PARTIAL}"):
        if _LEFTOVER.search(path.name):
            with contextlib.suppress(OSError):  # it does no harm either
                path.unlink()

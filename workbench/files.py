"""How files are written: whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from workbench.errors import StoreError


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
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise StoreError(f"cannot be written: {error.strerror}", where=path) from None
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        temporary.chmod(0o644)
        return temporary.replace(path)
    except BaseException as error:
        temporary.unlink()
        if isinstance(error, OSError):
            raise StoreError(f"cannot be written: {error.strerror}", where=path) from None
        raise

"""What is made or fetched once and kept: in ``$XDG_CACHE_HOME``, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from workbench.errors import SetupError


def cache_folder() -> Path:
    """The workbench's cache: ``$XDG_CACHE_HOME/executorch-workbench``, or below ``~/.cache``."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # A relative path there means nothing, says the specification.
    root = base if base.is_absolute() else Path.home() / ".cache"
    return root / "executorch-workbench"


def keep(name: str, make: Callable[[Path], None]) -> Path:
    """The file or folder ``name`` in the cache; if it is not there, ``make`` makes it at a path.

    Several processes may make it at once: each makes its own, and one of them stays.

    Raises
    ------
    SetupError
        The cache cannot be written.
    """
    kept = cache_folder() / name
    if kept.exists():
        return kept
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".new-") as workplace:
            fresh = Path(workplace) / kept.name
            make(fresh)
            with contextlib.suppress(FileExistsError if fresh.is_file() else OSError):
                fresh.replace(kept)
    except OSError as error:
        raise SetupError(
            f"cannot write the cache: {error.strerror}",
            where=kept.parent,
            hint="set XDG_CACHE_HOME to a folder that can be written",
        ) from None
    return kept

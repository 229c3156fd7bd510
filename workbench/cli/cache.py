"""Outputs of commands, cached while every file that they read or wrote is unchanged."""

import contextlib
import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError
from workbench.store import artifacts_dir, atomic_write, cache_folder, file_state

_PACKAGE = Path(__file__).parents[1]
#: What importing reads: the package has a key, and installing changes the folder of packages.
_CODE = tuple(f"{path}{os.sep}" for path in (sys.prefix, sys.base_prefix, _PACKAGE))
_MOST_OUTPUTS, _MOST_FILES = 100, 5000

#: Files and folders that were opened, listed or written since watching began.
_used: set[str] = set()
_written: set[str] = set()


def find_output(arguments: dict[str, Any]) -> tuple[Path | None, dict[str, Any] | None]:
    """Where a command's output is cached, and the output if it is still valid.

    None, None in a process that has computed before: it may know files that it does not read again.
    """
    if "pandas" in sys.modules or "torch" in sys.modules:
        return None, None
    state = [
        arguments, str(Path.cwd()), platform.node(), sys.version, sys.path,
        sorted(item for item in os.environ.items() if item[0].startswith(("WORKBENCH_", "XDG_"))),
        [_state(path) for path in sys.path if path.startswith(sys.prefix)],
        [(path, _state(path)) for path in sorted(_walk(str(_PACKAGE)))],
    ]  # fmt: skip
    key = hashlib.sha256(json.dumps(state, default=str).encode()).hexdigest()
    path = cache_folder() / "outputs" / f"{key}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        output = json.loads(path.read_bytes())
        own = path.stat().st_uid == os.geteuid()
        if own and all(_state(name) == known for name, known in output["files"].items()):
            return path, output
    return path, None


@contextlib.contextmanager
def cache_output(path: Path | None) -> Iterator[dict[str, Any]]:
    """Cache the output that is filled in, with the state of the files that the command used."""
    output: dict[str, Any] = {}
    if path is None:
        yield output
        return
    started = time.time_ns()
    sys.addaudithook(_watch)
    yield output
    other = (*_CODE, "/proc/", "/sys/", str(cache_folder().parent))  # there, matplotlib lists fonts
    used = {name for name in _used | _written if not name.startswith(other)}
    # What a command looks for and does not find would appear in one of these, or beside a file.
    programs = {
        str(artifacts_dir(place)) for name in used for place in list(Path(name).parents)[:3]
    }
    states = {name: _state(name) for name in sorted(used | programs)}
    own = _written | {str(Path(name).parent) for name in _written}
    changed = [name for name, known in states.items() if known and known[1] > started - 10**9]
    if len(states) > _MOST_FILES or not own.issuperset(changed):
        return
    with contextlib.suppress(WorkbenchError, OSError):  # it will be computed again
        atomic_write(path, json.dumps({**output, "files": states}))
        kept = sorted(path.parent.glob("*.json"), key=lambda file: file.stat().st_mtime)
        for old in kept[:-_MOST_OUTPUTS]:
            old.unlink()


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Note a file or folder that Python is about to use."""
    if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], str | Path):
        path = Path(arguments[0]).absolute()
        if event == "open":
            _used.update((str(path), str(path.parent)))
        elif event == "os.scandir" or str(path) not in sys.path:  # that is an import
            _used.add(str(path))
    elif event == "os.rename":
        _written.add(str(Path(arguments[1]).absolute()))


def _state(name: str) -> list[int] | None:
    try:
        return list(file_state(Path(name)))
    except (OSError, ValueError):
        return None


def _walk(folder: str) -> Iterator[str]:
    for entry in os.scandir(folder):
        if entry.name != "__pycache__":
            yield entry.path
            if entry.is_dir():
                yield from _walk(entry.path)

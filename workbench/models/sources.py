"""Source files of a model, found without running them; the user's line behind an error or node."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.metadata
import importlib.util
import inspect
import io
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.errors import StoreError

if TYPE_CHECKING:
    from torch import nn

_INSTALLED = {"site-packages", "dist-packages"}
_LONGEST_PATH = 512


@dataclass(frozen=True)
class Sources:
    """Files in the order of their paths, and ``name version`` of the packages that they import."""

    files: tuple[Path, ...]
    packages: tuple[str, ...]


def find_sources(file: Path) -> Sources:
    """A Python file and, recursively, those that it imports or names in string literals.

    Files of installed packages are left out.
    """
    found: set[Path] = set()
    outside: set[str] = set()
    queue = [file.resolve()]
    while queue:
        path = queue.pop()
        if path in found:
            continue
        found.add(path)
        if path.suffix != ".py":
            continue
        tree = _parse(path)
        queue += _named_files(tree, path)
        for folder, name in _imports(tree, path):
            if files := list(_module_files(folder, name)) or list(_own_files(name)):
                queue += files
            else:
                outside.add(name.partition(".")[0])
    packages = sorted(filter(None, map(installed_version, outside)))
    return Sources(tuple(sorted(found)), tuple(packages))


def _parse(path: Path) -> ast.Module:
    """The tree of a file; an empty one if it is not Python: importing it will fail."""
    try:
        return ast.parse(path.read_bytes())
    except OSError as error:
        raise StoreError(error.strerror or str(error), where=path) from None
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def _imports(tree: ast.Module, path: Path) -> Iterator[tuple[Path, str]]:
    """The folder to search for each import, and its dotted name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((path.parent, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            folder = path.parents[node.level - 1] if node.level else path.parent
            base = f"{node.module}." if node.module else ""
            yield from ((folder, base + alias.name) for alias in node.names)


def relative_depth(file: Path) -> int:
    """How many folders above a file belong to its package, if it has relative imports; else 0."""
    nodes = [n for n in ast.walk(_parse(file)) if isinstance(n, ast.ImportFrom)]
    levels = max((node.level for node in nodes), default=0)
    packages = takewhile(lambda folder: (folder / "__init__.py").is_file(), file.parents)
    return max(levels, len(list(packages))) if levels else 0


def _module_files(folder: Path, name: str) -> Iterator[Path]:
    """The files that importing a dotted name runs; its last part need not be a module."""
    for part in name.split("."):
        candidates = (folder / part / "__init__.py", folder / f"{part}.py")
        yield from [file.resolve() for file in candidates if os.path.isfile(file)][:1]  # noqa: PTH113
        folder = folder / part
        if not os.path.isdir(folder):  # noqa: PTH112
            return


def _own_files(name: str) -> Iterator[Path]:
    """The same for modules on Python's path that are not installed or in its library."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names:
        return
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return
    if spec and spec.has_location and spec.origin:
        origin = Path(spec.origin)
        if _INSTALLED.isdisjoint(origin.parts) and not _is_installed(top, origin):
            yield from _module_files(origin.parents[bool(spec.submodule_search_locations)], name)


def _is_installed(package: str, origin: Path) -> bool:
    """Whether an installer put a package there, for example into a folder on PYTHONPATH."""
    found = map(importlib.metadata.distribution, _distributions().get(package, ()))
    return any(
        d.read_text("RECORD") and origin.is_relative_to(str(d.locate_file(""))) for d in found
    )


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def _named_files(tree: ast.Module, path: Path) -> Iterator[Path]:
    """Files named by string literals, relative to the source or the working directory."""
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if not isinstance(text, str) or not 3 < len(text) < _LONGEST_PATH or not text.isprintable():
            continue
        if "." in text or "/" in text:
            candidates = (folder / text for folder in {path.parent, Path.cwd()})
            # Path.is_file raises an error for a sentence that is too long for a file name.
            yield from (file.resolve() for file in candidates if os.path.isfile(file))  # noqa: PTH113


def installed_version(package: str) -> str:
    """``name version`` of an installed package; empty if there is none of that name."""
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return ""


_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])|\n\n|\nFor more information")
_MODELS = Path(__file__).parent / "zoo"
_WORKBENCH = Path(__file__).parents[1]
_LIBRARIES = ("torch", "torchao", "executorch", "functorch")


def user_line(error: BaseException) -> str:
    """``file:line`` of an error's innermost frame in the user's code; empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{shown_path(Path(error.filename))}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    return _innermost([(frame.filename, frame.lineno or 0) for frame in frames])


def user_line_of_stack(stack: str | None) -> str:
    """The same for the text of a graph node's stack trace."""
    return _innermost([(file, int(line)) for file, line in _FRAME.findall(stack or "")])


def forward_line(module: nn.Module) -> str:
    """``file:line`` of a model's ``forward``; empty if it is not in the user's code."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return _innermost([(code.co_filename, code.co_firstlineno)]) if code else ""


def reason(error: BaseException) -> str:
    """The type of an error and the first sentence of its message."""
    sentence = _SENTENCE_END.split(str(error).strip(), maxsplit=1)[0]
    name = type(error).__name__
    return f"{name}: {' '.join(sentence.split())[:300]}" if sentence else name


def shown_path(file: Path) -> str:
    """A path relative to the working directory, if it is inside."""
    folder = Path.cwd()
    return str(file.relative_to(folder) if file.is_relative_to(folder) else file)


def _innermost(frames: list[tuple[str, int]]) -> str:
    for file, line in reversed(frames):
        if not file.startswith("<") and _is_users(Path(file)):
            return f"{shown_path(Path(file))}:{line}"
    return ""


def _is_users(file: Path) -> bool:
    """Whether a file is user code: not of Python, PyTorch, ExecuTorch or the workbench."""
    if file.is_relative_to(_WORKBENCH):
        return file.parent == _MODELS
    if _INSTALLED.isdisjoint(file.parts):
        return not file.is_relative_to(sysconfig.get_path("stdlib"))
    return not any(file.is_relative_to(folder) for folder in _library_folders())


@functools.cache
def _library_folders() -> tuple[str, ...]:
    specs = [importlib.util.find_spec(name) for name in _LIBRARIES]
    locations = (spec.submodule_search_locations or () for spec in specs if spec)
    return tuple(folder for folders in locations for folder in folders)


@contextlib.contextmanager
def silent_stderr() -> Iterator[io.StringIO]:
    """Hide what C++ code (the CPU detection) writes to standard error; yields the runtime's log.

    That passes through ``sys.stderr``, which in a notebook is not file descriptor 2.
    """
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        with contextlib.redirect_stderr(io.StringIO()) as log:
            yield log
    finally:
        os.dup2(saved, 2)
        os.close(null)
        os.close(saved)

"""What an export depends on beside its model: the code that makes programs, and its versions.

Modules are not listed by hand: they are all that an export imports of the workbench, directly or
not, and all files of the plug-ins that rewrite programs.
"""

from __future__ import annotations

import ast
import inspect
import json
import platform
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

from workbench import plugin, upstream
from workbench.export.rewriter import list_rewriters
from workbench.key import make_key
from workbench.store import read_file, sha256_of

_PACKAGE = Path(__file__).parents[1]
#: Where an export begins.
_START = Path(__file__).with_name("artifact.py")
#: The hash of each part when this process first asked, which is when it imported its code.
_first: dict[str, str] = {}


def identify_exporter() -> dict[str, str]:
    """Hashes of the code that exports and rewrites, the versions of all that it uses, and more.

    What this installation lacks is a part of the record, and so is whether the program runs here.
    """
    packages = plugin.list_files("remedies")
    rewriters = {name: _settle(name, _hash_files(files)) for name, files in packages.items()}
    modules = [Path(inspect.getfile(type(each))) for each in list_rewriters().values()]
    theirs = [file for file in chain(*packages.values()) if not file.is_relative_to(_PACKAGE)]
    used = versions() | upstream.installed_versions(*upstream.PACKAGES)
    return {
        "workbench": _settle("", hash_code([_START, *modules, *theirs])),
        "rewriters": json.dumps(rewriters),
        "versions": ", ".join(f"{name} {version}" for name, version in used.items()),
        "machine": platform.machine(),
        "missing": json.dumps(upstream.find_missing()),
    }


def versions() -> dict[str, str]:
    """The versions of all that makes a program."""
    packages = upstream.installed_versions("torch", "executorch", "torchao")
    version = upstream.installed_versions("executorch-workbench").get("executorch-workbench", "")
    return {"python": platform.python_version(), **packages, "workbench": version}


def hash_code(files: Iterable[Path]) -> str:
    """One hash of some files, and of all modules of the workbench that these import."""
    return _hash_files(list_modules(files))


def _hash_files(files: Iterable[Path]) -> str:
    return make_key(sorted((file.name, sha256_of(file)) for file in files))


def list_modules(files: Iterable[Path]) -> set[Path]:
    """Some files, and those of the workbench that they import, directly or not."""
    listed, waiting = set[Path](), list(files)
    while waiting:
        file = waiting.pop()
        if file not in listed:
            listed.add(file)
            waiting += _list_imports(file)
    return listed


@cache
def _list_imports(file: Path) -> list[Path]:
    """The files of the workbench that a module imports, in its functions, too."""
    code = read_file(file) if file.suffix == ".py" else b""
    if _PACKAGE.name.encode() not in code:
        return []
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):  # a template, which nobody imports
        return []
    return [path for name in _name_imports(tree) for path in _locate(name)]


def _name_imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{each.name}" for each in node.names)


@cache
def _list_lazy() -> dict[str, str]:
    """Names of ``workbench`` and of the modules for plug-ins, which import others for them."""
    top = _PACKAGE.name
    stubs = {
        stub: f"{top}.{stub.stem}".removesuffix(".__init__") for stub in _PACKAGE.glob("*.pyi")
    }
    return {
        f"{owner}.{alias.name}": f"{top}.{node.module}.{alias.name}"
        for stub, owner in stubs.items()
        for node in ast.parse(stub.read_bytes()).body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def _locate(name: str) -> Iterator[Path]:
    """The files that are executed if a name of the workbench is imported."""
    top, *parts = name.split(".")
    if top != _PACKAGE.name:
        return
    if lazy := _list_lazy().get(name):
        yield from _locate(lazy)
    folders = [_PACKAGE.joinpath(*parts[:count]) for count in range(len(parts) + 1)]
    for path in folders:
        yield from filter(Path.is_file, (path / "__init__.py", path.with_suffix(".py")))


def _settle(part: str, digest: str) -> str:
    """The hash of code; of files that changed since this process imported them, both hashes.

    Nobody knows which of the two such a process executes: its exports are nobody else's.
    """
    first = _first.setdefault(part, digest)
    return digest if digest == first else f"{first}, now {digest}"

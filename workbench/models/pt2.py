"""Read a ``.pt2`` file, which may be a stranger's: nothing but tensors is unpickled, no code run.

PyTorch's reader unpickles objects, evaluates sizes as Python, and loads compiled code. It gets a
copy of the archive that has none of these.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from workbench.errors import StoreError, WorkbenchError
from workbench.process import silence

if TYPE_CHECKING:
    from torch.export import ExportedProgram

PT2 = ".pt2"
#: Bytes of a graph as JSON, of which objects may take 25 times as many.
_LARGEST = 2**26
#: What the archive of a program without objects and compiled code consists of, below its root.
_PARTS = re.compile(
    r"(models|data/weights|data/constants|data/sample_inputs)/[^/]+|\.data/[^/]+"
    r"|archive_(format|version)|byteorder|version|\.format_version|\.storage_alignment"
)
_OBJECTS = re.compile(r"(^|/)(custom_obj|opaque_obj)_")
_TARGET = re.compile(r"torch\.ops(\.\w+)+|_operator\.\w+|math\.\w+|torch\.sym_\w+")
_EXPRESSION = re.compile(
    r"(\b(True|False|Eq|Ne|Min|Max|Mod|PythonMod|FloorDiv|CeilDiv|CleanDiv|IntTrueDiv|FloatTrueDiv"
    r"|ToFloat|TruncToInt|Piecewise|Abs|int_oo|oo|[su]\d+)\b|[-+*/%()<>=!&|~,. \d])*"
)


def read_exported(path: Path) -> ExportedProgram:
    """The program that ``torch.export.save`` wrote.

    StoreError if it is another file, damaged, or has what would have to be trusted.
    """
    import torch

    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "program.pt2"
        try:
            with zipfile.ZipFile(path) as archive, zipfile.ZipFile(copy, "w") as checked:
                _copy_checked(archive, checked, path)
            # PyTorch's own switch: what is unpickled is tensors and plain containers.
            safe = mock.patch.dict(os.environ, {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"})
            with silence(), safe:
                return torch.export.load(copy)
        except WorkbenchError:
            raise
        except OSError as error:
            raise StoreError(error.strerror or str(error), where=path) from None
        except Exception as error:  # a malformed one can lead to any
            what = f"cannot be loaded: {type(error).__name__}: {error!s:.200}".splitlines()[0]
            hint = "save it again with torch.export.save"
            raise StoreError(what, where=path, hint=hint) from None


def read_graph(path: Path) -> dict[str, Any]:
    """The graph of a saved program as JSON, without PyTorch; StoreError if it has none."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if re.fullmatch(r"[^/]*/?models/[^/]+\.json", name):
                    graph: dict[str, Any] = json.loads(_read(archive, name, path))
                    return graph
    except (OSError, zipfile.BadZipFile, ValueError, RecursionError) as error:
        raise StoreError(f"is no exported program: {error}", where=path) from None
    raise StoreError("is no exported program: it has no graph", where=path)


def _read(archive: zipfile.ZipFile, name: str, path: Path) -> bytes:
    entry = archive.getinfo(name)
    if entry.file_size > min(_LARGEST, 64 * entry.compress_size + 2**20):
        raise StoreError(f"{name} is too large", where=path)
    with archive.open(name) as file:
        return file.read(_LARGEST)


def _copy_checked(archive: zipfile.ZipFile, checked: zipfile.ZipFile, path: Path) -> None:
    """Copy the parts of a program; refuse what would be unpickled, loaded or evaluated."""
    entries = archive.infolist()
    if sum(entry.file_size for entry in entries) > 4 * path.stat().st_size + _LARGEST:
        raise StoreError("its parts are larger than they can be", where=path)
    for entry in entries:
        part = entry.filename.partition("/")[2]
        if _OBJECTS.search(entry.filename):
            what = "has an object beside tensors, which only unpickling would load"
            raise StoreError(what, where=path, hint="load it yourself, and give the program")
        if not _PARTS.fullmatch(part):
            continue
        if part.startswith("models/"):
            graph = json.loads(_read(archive, entry.filename, path))
            for what in _list_unsafe(graph):
                raise StoreError(f"its graph has {what!r:.80}, which is not evaluated", where=path)
            graph.pop("guards_code", None)
            checked.writestr(entry.filename, json.dumps(graph))
        else:
            with archive.open(entry) as source, checked.open(entry.filename, "w") as target:
                while block := source.read(2**20):
                    target.write(block)


def _list_unsafe(value: Any, key: str = "") -> Iterator[str]:
    """What PyTorch would evaluate, import or call of a graph, but for operators and sizes."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _list_unsafe(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _list_unsafe(inner, key)
    elif isinstance(value, str):
        patterns = {"target": _TARGET, "as_operator": _TARGET, "expr_str": _EXPRESSION}
        wrong = key in patterns and not patterns[key].fullmatch(value)
        if wrong or (key in ("in_spec", "out_spec") and "defaultdict" in value):
            yield value

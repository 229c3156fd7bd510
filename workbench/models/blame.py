"""Which line of the user's own source an error or a graph node comes from."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import re
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])|\n\n|\nFor more information")
_MODELS = Path(__file__).parent
_WORKBENCH = _MODELS.parent
_MACHINERY = ("__init__", "blame", "loader", "registry", "weights")
_LIBRARIES = ("torch", "torchao", "executorch", "functorch")


def user_line(error: BaseException) -> str:
    """``file:line`` of the innermost frame of an error that is the user's; empty if none is."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{shown_path(Path(error.filename))}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    return _innermost([(frame.filename, frame.lineno or 0) for frame in frames])


def user_line_of_stack(stack: str | None) -> str:
    """The same for the text of a stack trace, as graph nodes carry it."""
    return _innermost([(file, int(line)) for file, line in _FRAME.findall(stack or "")])


def forward_line(module: nn.Module) -> str:
    """``file:line`` of a model's ``forward``; empty if that is not the user's."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return _innermost([(code.co_filename, code.co_firstlineno)]) if code else ""


def reason(error: BaseException) -> str:
    """The type of an error and the first sentence of its message."""
    sentence = _SENTENCE_END.split(str(error).strip(), maxsplit=1)[0]
    name = type(error).__name__
    return f"{name}: {' '.join(sentence.split())[:300]}" if sentence else name


def shown_path(file: Path) -> str:
    """A path as a reader would write it: relative to the working directory if it lies in there."""
    folder = Path.cwd()
    return str(file.relative_to(folder) if file.is_relative_to(folder) else file)


def _innermost(frames: list[tuple[str, int]]) -> str:
    for file, line in reversed(frames):
        if not file.startswith("<") and _is_users(Path(file)):
            return f"{shown_path(Path(file))}:{line}"
    return ""


def _is_users(file: Path) -> bool:
    """Whether a file is neither of Python, PyTorch, ExecuTorch nor the workbench's machinery."""
    if file.is_relative_to(_WORKBENCH):
        return file.parent == _MODELS and file.stem not in _MACHINERY
    if {"site-packages", "dist-packages"}.isdisjoint(file.parts):
        return not file.is_relative_to(sysconfig.get_path("stdlib"))
    return not any(file.is_relative_to(folder) for folder in _library_folders())


@functools.cache
def _library_folders() -> tuple[str, ...]:
    specs = [importlib.util.find_spec(name) for name in _LIBRARIES]
    return tuple(folder for spec in specs if spec for folder in spec.submodule_search_locations)

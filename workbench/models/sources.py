"""The files of a model and its inputs; the user's line behind an error or a node."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import re
import sysconfig
import traceback
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from workbench.errors import UsageError
from workbench.store import read_file
from workbench.upstream import find_cell_number

if TYPE_CHECKING:
    from torch import nn
    from torch.fx import Node

_INSTALLED = {"site-packages", "dist-packages"}
_RELATIVE_IMPORT = re.compile(r"^\s*from\s+(\.+)", re.MULTILINE)


def package_root(file: Path) -> Path | None:
    """The folder of the package that a file with relative imports belongs to."""
    dots = max(map(len, _RELATIVE_IMPORT.findall(_read(file))), default=0)
    packages = takewhile(lambda folder: (folder / "__init__.py").is_file(), file.parents)
    return file.parents[max(dots, len(list(packages))) - 1] if dots else None


def _read(file: Path) -> str:
    return read_file(file).decode(errors="replace")


#: The maximum number of samples from one source, which is enough to calibrate any model.
MOST_SAMPLES = 512
ARRAYS = (".npy", ".pt", ".pth", ".safetensors")
RANDOM = re.compile(r"random:(\d{1,18})")
_FORMS = f"a file ({', '.join(ARRAYS)}), a folder of these, or random:SEED"


def sample_files(sources: Iterable[str]) -> list[Path]:
    """The files of some sources, those of a folder by name; `UsageError` if one is missing."""
    files: list[Path] = []
    for path in (Path(source) for source in sources if not RANDOM.fullmatch(source)):
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.is_file())
            samples = [p for p in inside if p.suffix.lower() in ARRAYS]
            if not samples:
                raise UsageError("no array in this folder", where=path, hint=_FORMS)
            files += samples[:MOST_SAMPLES]
        elif path.suffix.lower() not in ARRAYS:
            raise UsageError("not a source of inputs", where=path, hint=_FORMS)
        elif not path.is_file():
            raise UsageError("no such file", where=path, hint=_FORMS)
        else:
            files.append(path)
    return files


_FRAME = re.compile(r'File "([^"]+)", line (\d+)(?:, in (\w+))?[^\n]*(?:\n[ \t]+([^\n]*))?')
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])|\n\n|\nFor more information")
#: The folder of models, here and in plug-ins.
_MODELS = "zoo"
_WORKBENCH = Path(__file__).parents[1]
_LIBRARY_MODELS = ("examples", "models")
_LIBRARIES = ("torch", "torchao", "executorch", "functorch")


def user_line(error: BaseException) -> str:
    """``file:line`` of an error's innermost frame in the user's code; empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{shown_path(Path(error.filename))}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    return _innermost([(frame.filename, frame.lineno or 0) for frame in frames])


def user_line_of_stack(stack: str | None) -> str:
    """The same for the text of a graph node's stack trace, from the model's ``forward`` on."""
    file, line, _ = users_frame(stack)
    return f"{shown_path(Path(file))}:{line}" if file else ""


def users_frame(stack: str | None) -> tuple[str, int, str]:
    """The innermost frame in the user's code of a stack trace: file, line, and what stands there.

    Of the frames from the model's ``forward`` on; empty if there is none. Code of packages is the
    user's, too, but for PyTorch, ExecuTorch and Python itself: a model's lines may be in one.
    """
    frames = _FRAME.findall(stack or "")
    start = next((at for at, (_, _, name, _) in enumerate(frames) if name == "forward"), 0)
    for file, line, _, code in reversed(frames[start:]):
        if _is_in_users_code(file):
            return file, int(line), code.strip()
    return "", 0, ""


def user_line_of_node(node: Node) -> str:
    """The user's line of a node; of one that PyTorch added, such as a size, of what reads it."""
    lines = (user_line_of_stack(each.meta.get("stack_trace")) for each in (node, *node.users))
    return next(filter(None, lines), "")


class UserFrame(NamedTuple):
    """A line of the user's code that called an operator, and the function that it is in."""

    file: str
    line: int
    function: str

    @property
    def shown(self) -> str:
        """Its file, as people read it."""
        return shown_path(Path(self.file))

    @property
    def is_installed(self) -> bool:
        """Whether its file belongs to an installed package."""
        return not _INSTALLED.isdisjoint(Path(self.file).parts)


def find_user_frame(stack: str | None) -> UserFrame | None:
    """The innermost frame of the user's code in the text of a stack trace."""
    for file, line, function, _ in reversed(_FRAME.findall(stack or "")):
        if _is_in_users_code(file):
            return UserFrame(file, int(line), function)
    return None


def forward_line(module: nn.Module) -> str:
    """``file:line`` of a model's ``forward``; empty if it is not in the user's code."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return _innermost([(code.co_filename, code.co_firstlineno)]) if code else ""


#: Errors of code that other inputs do not cure.
BROKEN = (AttributeError, ImportError, NameError, OSError, SyntaxError)


def reason(error: BaseException) -> str:
    """The type of an error and the first sentence of its message."""
    sentence = _SENTENCE_END.split(str(error).strip(), maxsplit=1)[0]
    name = type(error).__name__
    return f"{name}: {' '.join(sentence.split())[:300]}" if sentence else name


def shown_path(file: Path) -> str:
    """``In [4]`` for a notebook's cell; else a path, relative if in the working directory."""
    if cell := find_cell_number(str(file)):
        return f"In [{cell}]"
    folder = Path.cwd()
    return str(file.relative_to(folder) if file.is_relative_to(folder) else file)


class UserFrames(set[tuple[str, str]]):
    """The frames, as pairs of file and function, of the user's code.

    Those that run when it is made are left out: they export the model, and are none of its code.
    """

    def __init__(self) -> None:
        running = (frame.f_code for frame, _ in traceback.walk_stack(None))
        self._running = {(code.co_filename, code.co_name) for code in running}

    def __contains__(self, frame: object) -> bool:
        if not isinstance(frame, tuple) or frame in self._running:
            return False
        return _is_in_users_code(frame[0])


def _innermost(frames: list[tuple[str, int]]) -> str:
    for file, line in reversed(frames):
        if _is_in_users_code(file):
            return f"{shown_path(Path(file))}:{line}"
    return ""


@functools.cache
def _is_in_users_code(file: str) -> bool:
    return bool(find_cell_number(file)) or (not file.startswith("<") and _is_users(Path(file)))


def _is_users(file: Path) -> bool:
    """Whether a file is user code: not of Python, PyTorch, ExecuTorch or the workbench.

    Models that come with ExecuTorch are, as those of other packages.
    """
    if file.is_relative_to(_WORKBENCH):
        return file.parent.name == _MODELS
    if _INSTALLED.isdisjoint(file.parts):
        # PyTorch gives nodes that its passes add a path of its own, relative to its folder.
        if file.parts[:1] and file.parts[0] in _LIBRARIES and not file.exists():
            return False
        return not file.is_relative_to(sysconfig.get_path("stdlib"))
    library = next((f for f in _library_folders() if file.is_relative_to(f)), "")
    return not library or file.is_relative_to(Path(library, *_LIBRARY_MODELS))


@functools.cache
def _library_folders() -> tuple[str, ...]:
    specs = [importlib.util.find_spec(name) for name in _LIBRARIES]
    locations = (spec.submodule_search_locations or () for spec in specs if spec)
    return tuple(folder for folders in locations for folder in folders)

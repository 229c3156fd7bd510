"""The lines of code that operators come from, and the text around them, kept with the program."""

import linecache
import re
import sys
from collections.abc import Collection, Iterable
from itertools import pairwise
from pathlib import Path

from workbench.errors import StoreError
from workbench.models.sources import shown_path, users_frame
from workbench.store import read_file

#: Bytes that are kept of one file, and of all files of a program.
MOST_OF_FILE, MOST = 2**17, 2**18
#: Lines that are kept around a line, where its class or function would be too much.
_AROUND = 20
_WIDEST = 400  #: Letters of a line that is only quoted.
#: A statement that is in no other begins a block.
_HEAD = re.compile(r"[@A-Za-z_]")
_PACKAGES = re.compile(r"^.*[/\\](?:site|dist)-packages[/\\]")
_REPOSITORY = Path(__file__).parents[2]


class Sources:
    """The lines of a program's operators, as their stack traces name and quote them.

    Files that were not traced in this process are only read below the working directory, the
    environment and the workbench: an ETRecord or a saved export may be a stranger's.
    """

    def __init__(self) -> None:
        self._lines: dict[str, dict[int, str]] = {}

    def add(self, trace: str | None) -> str:
        """``file:line`` of the innermost line of a stack trace in the user's code, or in a package.

        An operator belongs to this line alone, however many lines called it. Code of PyTorch and
        ExecuTorch is nobody's: its operators belong to the line that called it.
        """
        file, line, code = users_frame(trace)
        if not file:
            return ""
        self._lines.setdefault(file, {})[line] = code
        return f"{_name(file)}:{line}"

    def read(self) -> dict[str, dict[int, str]]:
        """The text of each file as blocks by their first line, if it still has the quoted lines.

        Of a file that has changed or cannot be read, only the quoted lines are known.
        """
        texts: dict[str, dict[int, str]] = {}
        room = MOST
        for file, quoted in self._lines.items():
            lines = _read_lines(file, quoted)
            blocks = _join(lines, _choose(lines, quoted, min(room, MOST_OF_FILE)))
            few = sorted(quoted)[: max(0, room) // _WIDEST]
            texts[_name(file)] = blocks = blocks or {n: quoted[n][:_WIDEST] for n in few}
            room -= sum(map(len, blocks.values()))
        return texts


def _read_lines(file: str, quoted: dict[int, str]) -> list[str]:
    """The lines of a file that may be read and has what is quoted of it; else none."""
    if file in linecache.cache:  # a cell, or a file that was traced in this process
        linecache.checkcache(file)
        lines = [line.rstrip("\n") for line in linecache.getlines(file)]
    else:
        try:
            path = Path(file).resolve()
            roots = [Path.cwd(), _REPOSITORY, Path(sys.prefix)]
            if path.suffix != ".py" or not any(path.is_relative_to(r.resolve()) for r in roots):
                return []
            lines = read_file(path, 2**22).decode(errors="replace").split("\n")
        except (StoreError, OSError, ValueError):  # deleted, on another machine, or no name
            return []
    same = all(0 < n <= len(lines) and lines[n - 1].strip() == quoted[n] for n in quoted)
    return lines if same and all(quoted.values()) else []


def _name(file: str) -> str:
    """A file as origins name it: one that is imported, without the folder that it is found in."""
    packaged = _PACKAGES.sub("", file)
    if packaged != file:
        return packaged
    name = shown_path(Path(file)).removeprefix(f"{_REPOSITORY}/")
    folders = [folder for folder in sys.path if folder and Path(name).is_relative_to(folder)]
    return str(Path(name).relative_to(max(folders, key=len))) if folders else name


def _choose(lines: list[str], wanted: Collection[int], most: int) -> Iterable[int]:
    """The numbers of the lines to keep: all, or as much around the wanted ones as has room."""
    heads = [1, *(n for n, line in enumerate(lines, 1) if _HEAD.match(line)), len(lines) + 1]
    blocks = [range(*ends) for ends in pairwise(heads)]
    near = {n for line in wanted for n in range(line - _AROUND, line + _AROUND + 1)}
    choices: list[Iterable[int]] = [
        range(1, len(lines) + 1),
        [n for block in blocks if any(line in block for line in wanted) for n in block],
        sorted(near.intersection(range(1, len(lines) + 1))),
    ]
    for chosen in choices:
        if sum(len(lines[n - 1]) + 1 for n in chosen) <= most:
            return chosen
    return []


def _join(lines: list[str], numbers: Iterable[int]) -> dict[int, str]:
    """Blocks of consecutive lines by the number of their first one."""
    blocks: dict[int, list[str]] = {}
    start = last = -1
    for number in numbers:
        if number != last + 1:
            start = number
        blocks.setdefault(start, []).append(lines[number - 1])
        last = number
    return {start: "\n".join(block) for start, block in blocks.items()}

"""The functions of a library that samples fell into: where they begin, their name, their code."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from workbench.schema import FUNCTIONS, check
from workbench.trace import aarch64, x86

#: Longer stretches of code than this are no function; they are not disassembled.
_LONGEST = 1 << 20
_HIGHEST = 1 << 62


def find_functions(path: Path, build_id: str, addresses: np.ndarray) -> pd.DataFrame | None:
    """The functions that hold the addresses; None if the file is not the one with this build id.

    Exported functions have a name. The others, such as the microkernels of XNNPACK, are known from
    ``.eh_frame`` and named ``<library>+0x<address>``. Code without either, such as assembly,
    reaches from one return instruction to the next.

    Parameters
    ----------
    path
        An ELF file.
    build_id
        Its GNU build id, in hexadecimal.
    addresses
        Virtual addresses in the file.

    Returns
    -------
    DataFrame
        ``schema.FUNCTIONS``, by ascending start; addresses outside any code have no row.
    """
    image = _open(path)
    if image is None or image.build_id != build_id:
        return None
    found: dict[int, tuple[int, str]] = {}
    for address in np.unique(addresses).tolist():
        if place := image.locate(address):
            begin, size = place
            found[begin] = size, image.names.get(begin, f"{_short(path.name)}+{begin:#x}")
    rows = [
        (path.name, build_id, begin, size, name, image.classify(begin, size))
        for begin, (size, name) in sorted(found.items())
    ]
    return check(pd.DataFrame(rows, columns=FUNCTIONS.names), FUNCTIONS)


@dataclass(frozen=True)
class _Image:
    """An ELF file: where its known functions begin and end, their names, its code."""

    elf: object
    machine: str
    build_id: str
    begins: np.ndarray
    ends: np.ndarray
    names: dict[int, str]
    code: tuple[tuple[int, int], ...]

    def locate(self, address: int) -> tuple[int, int] | None:
        """Begin and size of the function at an address."""
        section = next((s for s in self.code if s[0] <= address < s[1]), None)
        if section is None:
            return None
        before = int(np.searchsorted(self.begins, address, side="right")) - 1
        if before >= 0 and address < self.ends[before]:
            return int(self.begins[before]), int(self.ends[before] - self.begins[before])
        low = max(section[0], int(self.ends[before]) if before >= 0 else 0)
        following = self.begins[before + 1 :]
        high = min(section[1], int(following[0]) if len(following) else section[1])
        return self._between_returns(low, high, address)

    def _between_returns(self, low: int, high: int, address: int) -> tuple[int, int]:
        if high - low > _LONGEST:
            return low, high - low
        ends = [low, *self._returns(low, high), high]
        place = int(np.searchsorted(ends, address, side="right"))
        return ends[place - 1], ends[place] - ends[place - 1]

    def _returns(self, low: int, high: int) -> list[int]:
        """Where code goes on after the return instructions of a stretch."""
        code = self.read(low, high - low)
        if self.machine == "aarch64":
            return (low + 4 + 4 * np.flatnonzero(np.isin(_words(code), aarch64.RETURNS))).tolist()
        starts, after_return = [], False
        for at, _, mnemonic in x86.disassemble(code, low):
            if after_return and mnemonic not in ("nop", "int3"):
                starts.append(at)
            if mnemonic not in ("nop", "int3"):
                after_return = mnemonic in ("ret", "retq")
        return starts

    def classify(self, begin: int, size: int) -> str:
        """The widest class of the instructions of a function."""
        code = self.read(begin, min(size, _LONGEST))
        if self.machine == "aarch64":
            return aarch64.CLASSES[int(aarch64.classify_words(_words(code)).max(initial=0))]
        return x86.CLASSES[max((kind for _, kind, _ in x86.disassemble(code, begin)), default=0)]

    def read(self, begin: int, size: int) -> bytes:
        """The bytes at a virtual address."""
        return bytes(self.elf.get_content_from_virtual_address(begin, size))


def _open(path: Path) -> _Image | None:
    import lief

    lief.logging.disable()
    elf = lief.ELF.parse(str(path)) if path.is_file() else None
    if elf is None:
        return None
    machines = {lief.ELF.ARCH.X86_64: "x86_64", lief.ELF.ARCH.AARCH64: "aarch64"}
    machine = machines.get(elf.header.machine_type)
    notes = [n for n in elf.notes if n.type == lief.ELF.Note.TYPE.GNU_BUILD_ID]
    if machine is None or not notes:
        return None
    executable = lief.ELF.Section.FLAGS.EXECINSTR
    known = sorted(
        (f.address, f.address + f.size)
        for f in elf.functions
        if f.size and f.address + f.size < _HIGHEST
    )
    begins, ends = np.array(known, np.int64).reshape(-1, 2).T
    return _Image(
        elf=elf,
        machine=machine,
        build_id=bytes(notes[0].description).hex(),
        begins=begins,
        ends=ends,
        names=_exported_names(elf),
        code=tuple(
            (s.virtual_address, s.virtual_address + s.size)
            for s in elf.sections
            if s.has(executable)
        ),
    )


def _exported_names(elf: object) -> dict[int, str]:
    """Names by address, readable ones where they are C++; without the parameters."""
    names = {}
    for symbol in elf.dynamic_symbols:
        if symbol.is_function and symbol.value:
            with contextlib.suppress(UnicodeDecodeError):
                names[symbol.value] = (symbol.demangled_name or symbol.name).partition("(")[0]
    return names


def _words(code: bytes) -> np.ndarray:
    return np.frombuffer(code[: len(code) // 4 * 4], "<u4")


def _short(library: str) -> str:
    """``libexecutorch_backend_xnnpack.so`` as ``backend_xnnpack``."""
    return library.partition(".so")[0].removeprefix("libexecutorch_")

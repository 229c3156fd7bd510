"""A64 machine code: which extension an instruction belongs to, by its encoding.

From the index of encodings in the Arm Architecture Reference Manual (DDI 0487): data processing
(Advanced SIMD), SVE, and SME. Disassemblers of today lag behind SME2; the table needs none.

x86-64 machine code: which vector extension an instruction belongs to.

The functions of a library that samples fell into: where they begin, their name, their code.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from workbench.frames import FUNCTIONS, check
from workbench.trace import functions as aarch64
from workbench.trace import functions as x86

#: From the narrowest to the widest. ``scalar`` is all that computes without vectors; loads and
#: stores of vector registers count as that, since copying memory uses them everywhere.
CLASSES = ("scalar", "neon", "fp16", "dotprod", "bf16", "i8mm", "sve", "sme", "sme2")

RETURNS = (0xD65F03C0, 0xD65F0BFF, 0xD65F0FFF)

# (mask, value, class): an instruction is of the first class whose value its masked bits have.
_TABLE = (
    # SMSTART and SMSTOP: MSR (immediate) of SVCRSM, SVCRZA or both
    (0xFFFFFEFF, 0xD503427F, "sme"),
    (0xFFFFFCFF, 0xD503447F, "sme"),
    # RDSVL; ADDSVL, ADDSPL: SVE's stack frame instructions, with the streaming vector length
    (0xFFFFF800, 0x04BF5800, "sme"),
    (0xFFA0F800, 0x04205800, "sme"),
    # Outer products: those of SME; with two ways, of bits, or of unwidened halves: SME2
    (0xDE800008, 0x80800000, "sme"),
    (0xDE800008, 0x80800008, "sme2"),
    # Tile slices to and from vectors, ZERO {ZA}, ADDHA and ADDVA; all else here is SME2
    (0xFF3C0000, 0xC0000000, "sme"),
    (0xFFFFFF00, 0xC0080000, "sme"),
    (0xFF3E0000, 0xC0100000, "sme"),
    # Loads and stores of ZT0; of ZA
    (0xFFDFFC1F, 0xE11F8000, "sme2"),
    (0xFE000000, 0xE0000000, "sme"),
    # What is left of SME's encodings: several vectors at once, lookup tables
    (0x9E000000, 0x80000000, "sme2"),
    (0x1E000000, 0x04000000, "sve"),
    # SMMLA, UMMLA, USMMLA; USDOT; USDOT and SUDOT by element
    (0xDFE0FC00, 0x4E80A400, "i8mm"),
    (0xFFE0FC00, 0x4E80AC00, "i8mm"),
    (0xBFE0FC00, 0x0E809C00, "i8mm"),
    (0xBF40F400, 0x0F00F000, "i8mm"),
    # BFDOT, BFMMLA, BFMLAL; by element; BFCVTN
    (0xBFE0FC00, 0x2E40FC00, "bf16"),
    (0xFFE0FC00, 0x6E40EC00, "bf16"),
    (0xBFE0FC00, 0x2EC0FC00, "bf16"),
    (0xBF40F400, 0x0F40F000, "bf16"),
    (0xBFFFFC00, 0x0EA16800, "bf16"),
    # SDOT, UDOT; by element
    (0x9FE0FC00, 0x0E809400, "dotprod"),
    (0x9FC0F400, 0x0F80E000, "dotprod"),
    # Half precision: three registers; two; FMLA, FMLS, FMUL and FMULX by element
    (0x9F60C400, 0x0E400400, "fp16"),
    (0x9F7E0C00, 0x0E780800, "fp16"),
    (0xBFC0B400, 0x0F001000, "fp16"),
    (0x9FC0F400, 0x0F009000, "fp16"),
    (0x9E000000, 0x0E000000, "neon"),
)


def classify_words(words: np.ndarray) -> np.ndarray:
    """The class of every instruction, as its position in :data:`CLASSES`.

    Parameters
    ----------
    words
        Instructions as unsigned 32-bit numbers.
    """
    found = np.zeros(len(words), np.int8)
    for mask, value, name in reversed(_TABLE):
        found[(words & np.uint32(mask)) == value] = CLASSES.index(name)
    return found


#: From the narrowest to the widest, along the levels of the ISA ladder: ``avx2`` is also FMA3 and
#: F16C, ``avx512vnni`` also VBMI, which comes with VNNI.
X86_CLASSES = ("scalar", "sse", "avx", "avx2", "avx512", "avx512vnni")

_LATE = re.compile(r"vpdp|vperm(b|[it]2b)\b")
_FUSED = re.compile(r"vfn?m(add|sub)|vcvt(ph2ps|ps2ph)")
_EVEX, _VEX = b"\x62", (b"\xc4", b"\xc5")


def disassemble(code: bytes, address: int) -> Iterator[tuple[int, int, str]]:
    """Address, position in :data:`X86_CLASSES` and mnemonic of every instruction.

    Bytes that are no instruction are skipped, but for the prefix of AVX-512, of which capstone
    does not know every extension.
    """
    import capstone

    engine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    engine.detail = engine.skipdata = True
    for instruction in engine.disasm(code, address):
        if instruction.id or instruction.bytes[:1] == _EVEX:
            name = _classify(instruction)
            yield instruction.address, X86_CLASSES.index(name), instruction.mnemonic


def _classify(instruction) -> str:
    """The class, by the prefix that encodes it; for VEX by what the operation is."""
    mnemonic, first = instruction.mnemonic, bytes(instruction.bytes[:1])
    if first == _EVEX:
        return "avx512vnni" if _LATE.match(mnemonic) else "avx512"
    groups = {instruction.group_name(group) for group in instruction.groups}
    if first in _VEX:
        if mnemonic.startswith("k"):
            return "avx512"  # masks
        if "avx2" in groups or _FUSED.match(mnemonic):
            return "avx2"
        return "avx" if mnemonic.startswith("v") and mnemonic != "vzeroupper" else "scalar"
    return "sse" if any(group.startswith(("sse", "ssse")) for group in groups) else "scalar"


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

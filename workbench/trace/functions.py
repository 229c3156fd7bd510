"""The functions of a library that samples fell into: where they begin, their name, their code.

The code of a function is the widest class of its instructions. Capstone disassembles x86-64.
Disassemblers lag behind SME2, so AArch64 is classified by a table of encodings, from the index in
the Arm Architecture Reference Manual (DDI 0487): data processing (Advanced SIMD), SVE, and SME.
"""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from workbench.frames import FUNCTIONS

if TYPE_CHECKING:
    import capstone

#: From the narrowest to the widest. ``scalar`` is all that computes without vectors; loads and
#: stores of vector registers count as that, since copying memory uses them everywhere.
AARCH64_CLASSES = ("scalar", "neon", "fp16", "dotprod", "bf16", "i8mm", "sve", "sme", "sme2")
#: From the narrowest to the widest, along the ISA levels: ``avx2`` includes FMA3 and F16C,
#: ``avx512vnni`` VBMI, which comes with VNNI.
X86_CLASSES = ("scalar", "sse", "avx", "avx2", "avx512", "avx512vnni")

#: The longest function and the highest address: what exceeds them is no function.
_LONGEST, _HIGHEST = 1 << 20, 1 << 62

# (mask, value, class): an instruction is of the first class whose value its masked bits have.
_AARCH64 = (
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

# RET, RETAA, RETAB
_AARCH64_RETURNS = (0xD65F03C0, 0xD65F0BFF, 0xD65F0FFF)

# A jump and its target, in capstone's notation for either machine.
_JUMP = re.compile(r"(?:j\w+|b|b\.\w+|cbn?z|tbn?z) (?:.*, )?#?0x([0-9a-f]+)")
#: Fewer samples show no hot loop; longer loops are cut to the lines around the hottest one.
_FEWEST, _LINES = 10, 96

_LATE = re.compile(r"vpdp|vperm(b|[it]2b)\b")
_FUSED = re.compile(r"vfn?m(add|sub)|vcvt(ph2ps|ps2ph)")
_EVEX, _VEX = b"\x62", (b"\xc4", b"\xc5")


def find_functions(path: Path, build_id: str, addresses: np.ndarray) -> pd.DataFrame | None:
    """The functions that hold the addresses; None if the file is not the one with this build id.

    Functions without an exported name, such as XNNPACK's microkernels, are known from ``.eh_frame``
    and named ``<library>+0x<address>``. Code without either, such as assembly, reaches from one
    return instruction to the next. Addresses are virtual; those outside any code have no row.
    """
    import lief

    lief.logging.disable()
    lief.disable_leak_warning()  # of the library; at exit
    elf = lief.ELF.parse(str(path)) if path.is_file() else None
    if elf is None:
        return None
    machines = {lief.ELF.ARCH.X86_64: "x86_64", lief.ELF.ARCH.AARCH64: "aarch64"}
    machine = machines.get(elf.header.machine_type)
    notes = [n for n in elf.notes if n.type == lief.ELF.Note.TYPE.GNU_BUILD_ID]
    if machine is None or not notes or bytes(notes[0].description).hex() != build_id:
        return None

    def read(begin: int, end: int) -> bytes:
        return bytes(elf.get_content_from_virtual_address(begin, end - begin))

    executable = [s for s in elf.sections if s.has(lief.ELF.Section.FLAGS.EXECINSTR)]
    sections = [(s.virtual_address, s.virtual_address + s.size) for s in executable]
    bounds = sorted((f.address, f.address + f.size) for f in elf.functions if f.size)
    bounds = [(begin, end) for begin, end in bounds if end < _HIGHEST]
    located = {
        _locate(address, section, bounds, machine, read)
        for address in np.unique(addresses).tolist()
        for section in sections
        if section[0] <= address < section[1]
    }
    names = _read_names(elf)
    library = path.name.partition(".so")[0].removeprefix("libexecutorch_")
    rows = []
    for begin, end in sorted(located):
        name = names.get(begin, f"{library}+{begin:#x}")
        content = read(begin, min(end, begin + _LONGEST))
        if machine == "aarch64":
            code = AARCH64_CLASSES[int(classify_aarch64(_words(content)).max(initial=0))]
        else:
            kinds = (kind for _, kind, _ in disassemble_x86(content, begin))
            code = X86_CLASSES[max(kinds, default=0)]
        inside = addresses[(addresses >= begin) & (addresses < end)]
        is_sampled = len(inside) >= _FEWEST and end - begin <= _LONGEST
        loop = _find_loop(machine, read(begin, end), begin, inside) if is_sampled else ""
        rows.append((path.name, build_id, begin, end - begin, name, code, loop))
    return FUNCTIONS.check(pd.DataFrame(rows, columns=FUNCTIONS.names))


def _read_names(elf: Any) -> dict[int, str]:
    """The exported functions by address; those of C++ are readable and without the parameters."""
    names = {}
    for symbol in elf.dynamic_symbols:
        if symbol.is_function and symbol.value:
            with contextlib.suppress(UnicodeDecodeError):
                names[symbol.value] = str(symbol.demangled_name or symbol.name).partition("(")[0]
    return names


def _locate(
    address: int,
    section: tuple[int, int],
    spans: list[tuple[int, int]],
    machine: str,
    read: Callable[[int, int], bytes],
) -> tuple[int, int]:
    """Begin and end of the function at an address."""
    following = bisect_right(spans, address, key=itemgetter(0))
    if following and address < spans[following - 1][1]:
        return spans[following - 1]
    low = max([section[0], *(end for _, end in spans[:following][-1:])])
    high = min([section[1], *(begin for begin, _ in spans[following:][:1])])
    if high - low > _LONGEST:
        return low, high
    bounds = [low, *_after_returns(machine, read(low, high), low), high]
    place = bisect_right(bounds, address)
    return bounds[place - 1], bounds[place]


def _after_returns(machine: str, code: bytes, begin: int) -> list[int]:
    """Where code continues after the return instructions of a stretch."""
    if machine == "aarch64":
        returns = np.flatnonzero(np.isin(_words(code), _AARCH64_RETURNS))
        return (begin + 4 + 4 * returns).tolist()
    starts, after_return = [], False
    for at, _, mnemonic in disassemble_x86(code, begin):
        if mnemonic not in ("nop", "int3"):
            if after_return:
                starts.append(at)
            after_return = mnemonic in ("ret", "retq")
    return starts


def _find_loop(machine: str, code: bytes, begin: int, addresses: np.ndarray) -> str:
    """The shortest loop with half of a function's samples, or the lines around the hottest."""
    texts = dict(_disassemble(machine, code, begin))
    places = list(texts)
    at = np.searchsorted(places, addresses, side="right") - 1
    hits = np.bincount(at[at >= 0], minlength=len(places))
    until = np.cumsum(hits)
    loops = []
    for last, text in enumerate(texts.values()):
        if not (jump := _JUMP.fullmatch(text)):
            continue
        first = bisect_left(places, int(jump[1], 16))
        held = until[last] - until[first] + hits[first] if first <= last else -1
        if 2 * held >= len(addresses):
            loops.append((last + 1 - first, first))
    length, first = min(loops, default=(len(places), 0))
    if length > _LINES:
        hottest = int(hits[first : first + length].argmax())
        first += min(max(0, hottest - _LINES // 2), length - _LINES)
    lines = places[first : first + min(length, _LINES)]
    return "\n".join(f"{place:x} {texts[place]}" for place in lines)


def _words(code: bytes) -> np.ndarray:
    return np.frombuffer(code[: len(code) // 4 * 4], "<u4")


def classify_aarch64(words: np.ndarray) -> np.ndarray:
    """The classes of instructions, 32-bit words, as positions in :data:`AARCH64_CLASSES`."""
    classes = np.zeros(len(words), np.int8)
    for mask, value, name in reversed(_AARCH64):
        classes[(words & np.uint32(mask)) == value] = AARCH64_CLASSES.index(name)
    return classes


def _disassemble(machine: str, code: bytes, address: int) -> Iterator[tuple[int, str]]:
    """Address and text of every instruction; unknown ones of AArch64 as their encoding."""
    import capstone

    arm = machine == "aarch64"
    modes = (capstone.CS_ARCH_ARM64, 0) if arm else (capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    engine = capstone.Cs(*modes)
    engine.skipdata = True
    for instruction in engine.disasm(code, address):
        text = f"{instruction.mnemonic} {instruction.op_str}".strip()
        if arm and not instruction.id:
            (word,) = _words(bytes(instruction.bytes))
            kind = AARCH64_CLASSES[int(classify_aarch64(np.array([word]))[0])]
            text = f".inst {word:#010x}  // {kind}"
        yield instruction.address, text


def disassemble_x86(code: bytes, address: int) -> Iterator[tuple[int, int, str]]:
    """Address, position in :data:`X86_CLASSES` and mnemonic of every instruction.

    Unknown ones are skipped, except those of AVX-512: capstone does not know all its extensions.
    """
    import capstone

    engine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    engine.detail = engine.skipdata = True
    for instruction in engine.disasm(code, address):
        if instruction.id or instruction.bytes[:1] == _EVEX:
            name = _classify_x86(instruction)
            yield instruction.address, X86_CLASSES.index(name), instruction.mnemonic


def _classify_x86(instruction: capstone.CsInsn) -> str:
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

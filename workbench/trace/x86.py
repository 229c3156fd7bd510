"""x86-64 machine code: which vector extension an instruction belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterator

#: From the narrowest to the widest, along the levels of the ISA ladder: ``avx2`` is also FMA3 and
#: F16C, ``avx512vnni`` also VBMI, which comes with VNNI.
CLASSES = ("scalar", "sse", "avx", "avx2", "avx512", "avx512vnni")

_LATE = re.compile(r"vpdp|vperm(b|[it]2b)\b")
_FUSED = re.compile(r"vfn?m(add|sub)|vcvt(ph2ps|ps2ph)")
_EVEX, _VEX = b"\x62", (b"\xc4", b"\xc5")


def disassemble(code: bytes, address: int) -> Iterator[tuple[int, int, str]]:
    """Address, position in :data:`CLASSES` and mnemonic of every instruction.

    Bytes that are no instruction are skipped, but for the prefix of AVX-512, of which capstone
    does not know every extension.
    """
    import capstone

    engine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    engine.detail = engine.skipdata = True
    for instruction in engine.disasm(code, address):
        if instruction.id or instruction.bytes[:1] == _EVEX:
            name = _classify(instruction)
            yield instruction.address, CLASSES.index(name), instruction.mnemonic


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

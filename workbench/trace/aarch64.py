"""A64 machine code: which extension an instruction belongs to, by its encoding.

From the index of encodings in the Arm Architecture Reference Manual (DDI 0487): data processing
(Advanced SIMD), SVE, and SME. Disassemblers of today lag behind SME2; the table needs none.
"""

from __future__ import annotations

import numpy as np

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

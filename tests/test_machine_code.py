"""Which extension an instruction belongs to, and which function an address is in."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import lief
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import recorded

from workbench.trace.functions import (
    AARCH64_CLASSES,
    X86_CLASSES,
    classify_aarch64,
    disassemble_x86,
    find_functions,
)
from workbench.trace.samples import count_instructions

GOLDEN = [
    line.split("\t")
    for line in (Path(__file__).parent / "data/machine_code/aarch64.tsv").read_text().splitlines()
    if not line.startswith("#")
]
X86 = [
    ("mov %rax, %rbx", "scalar"),
    ("vzeroupper", "scalar"),
    ("rep movsb", "scalar"),
    ("addss %xmm0, %xmm1", "sse"),
    ("pshufb %xmm1, %xmm2", "sse"),
    ("pmovsxbw %xmm1, %xmm2", "sse"),
    ("vaddps %ymm1, %ymm2, %ymm3", "avx"),
    ("vaddps %xmm1, %xmm2, %xmm3", "avx"),
    ("vbroadcastss (%rax), %ymm2", "avx"),
    ("vpaddd %xmm1, %xmm2, %xmm3", "avx"),
    ("vpaddd %ymm1, %ymm2, %ymm3", "avx2"),
    ("vpermd %ymm1, %ymm2, %ymm3", "avx2"),
    ("vfmadd231ps %ymm1, %ymm2, %ymm3", "avx2"),
    ("vfnmsub213ss %xmm1, %xmm2, %xmm3", "avx2"),
    ("vcvtph2ps %xmm1, %ymm2", "avx2"),
    ("vaddps %zmm1, %zmm2, %zmm3", "avx512"),
    ("vaddps %ymm1, %ymm2, %ymm3{%k1}", "avx512"),
    ("vaddps %ymm17, %ymm2, %ymm3", "avx512"),
    ("vpmaddubsw %zmm1, %zmm2, %zmm3", "avx512"),
    ("vfmadd231ps %zmm1, %zmm2, %zmm3", "avx512"),
    ("vcvtps2ph $0, %zmm1, %ymm3", "avx512"),
    ("vpermd %zmm1, %zmm2, %zmm3", "avx512"),
    ("kmovd %eax, %k1", "avx512"),
    ("vpdpbusd %zmm1, %zmm2, %zmm3", "avx512vnni"),
    ("vpdpbusd %ymm17, %ymm2, %ymm3", "avx512vnni"),
    ("vpermb %zmm1, %zmm2, %zmm3", "avx512vnni"),
]


@pytest.mark.parametrize(("kind", "word", "text"), GOLDEN, ids=lambda value: value)
def test_every_a64_instruction_has_its_class(kind, word, text):
    found = classify_aarch64(np.array([int(word, 16)], np.uint32))
    assert AARCH64_CLASSES[found[0]] == kind, text


def test_golden_instructions_cover_every_class():
    assert {kind for kind, _, _ in GOLDEN} == set(AARCH64_CLASSES)
    sme2 = [text for kind, _, text in GOLDEN if kind == "sme2"]
    assert len(sme2) > 40


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="no zig, no assembler")
def test_golden_words_match_the_assembler(tmp_path):
    source = tmp_path / "all.s"
    extensions = "+sme2+sme-i16i64+sme-f64f64+bf16+i8mm+fp16+dotprod"
    source.write_text(
        "\n".join([f".arch armv9-a{extensions}", *(text for _, _, text in GOLDEN), ""])
    )
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-gnu"]
    subprocess.run([*zig, "-c", source, "-o", tmp_path / "all.o"], check=True)
    assert words_of(tmp_path / "all.o") == [int(word, 16) for _, word, _ in GOLDEN]


def words_of(path):
    return np.frombuffer(text_of(path), "<u4").tolist()


def text_of(path):
    elf = lief.ELF.parse(str(path))  # what it lends must not outlive it
    return bytes(elf.get_section(".text").content)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50))
def test_any_word_has_a_class(words):
    found = classify_aarch64(np.array(words, np.uint32))
    assert ((found >= 0) & (found < len(AARCH64_CLASSES))).all()


def assemble(tmp_path, text):
    assembler = shutil.which("as")
    if not assembler:
        pytest.skip("no assembler")
    source = tmp_path / "x.s"
    source.write_text(text + "\n")
    done = subprocess.run(
        [assembler, "--64", "-o", tmp_path / "x.o", source], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip("the assembler is not one for x86-64")
    return tmp_path / "x.o"


def test_every_x86_instruction_has_its_class(tmp_path):
    code = text_of(assemble(tmp_path, "\n".join(text for text, _ in X86)))
    found = [X86_CLASSES[kind] for _, kind, _ in disassemble_x86(code, 0)]
    assert list(zip(X86, found, strict=True)) == [(row, row[1]) for row in X86]


def test_instructions_that_the_disassembler_lacks_count_by_their_prefix(tmp_path):
    for text in ("vdpbf16ps %zmm1, %zmm2, %zmm3", "vgf2p8affineqb $1, %zmm1, %zmm2, %zmm3"):
        code = text_of(assemble(tmp_path, text))
        assert X86_CLASSES[max(kind for _, kind, _ in disassemble_x86(code, 0))] == "avx512"


@given(st.binary(max_size=200))
def test_any_bytes_can_be_disassembled(code):
    addresses = [address for address, *_ in disassemble_x86(code, 0x1000)]
    assert addresses == sorted(set(addresses))
    assert all(0x1000 <= a < 0x1000 + len(code) for a in addresses)


ASSEMBLY = """
        .globl exported
        .type exported, @function
exported:
        .cfi_startproc
        vaddps %zmm0, %zmm1, %zmm2
        ret
        .cfi_endproc
        .size exported, .-exported
        .p2align 5
hidden:
        .cfi_startproc
        vaddps %ymm0, %ymm1, %ymm2
        ret
        .cfi_endproc
        .p2align 5
first_bare:
        vpdpbusd %zmm1, %zmm2, %zmm3
        ret
        .p2align 5
second_bare:
        addss %xmm0, %xmm1
        ret
"""


def link(tmp_path, assembly):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler")
    item = assemble(tmp_path, assembly)
    path = tmp_path / "libexecutorch_x.so.1"
    flags = ["-shared", "-nostdlib", "-Wl,--build-id=0x0123456789abcdef", "-Wl,--eh-frame-hdr"]
    subprocess.run([compiler, *flags, "-o", path, item], check=True)
    return path


@pytest.fixture
def library(tmp_path):
    """A library with an exported function, a hidden one, and two that only their returns bound."""
    return link(tmp_path, ASSEMBLY)


def test_addresses_find_their_functions(library):
    elf = lief.ELF.parse(str(library))
    start = next(symbol.value for symbol in elf.dynamic_symbols if symbol.value)
    addresses = np.array([start + 1, start + 32, start + 36, start + 65, start + 96, 2**40])
    found = find_functions(library, "0123456789abcdef", addresses)
    assert found["code"].tolist() == ["avx512", "avx", "avx512vnni", "sse"]
    assert (found["start"] - start).tolist() == [0, 32, found["start"][2] - start, 96]
    assert found["start"][2] + found["size"][2] == start + 96
    assert found["name"][0] == "exported"
    assert found["name"][1] == f"x+{start + 32:#x}"


LOOPS = """
        .globl kernel
        .type kernel, @function
kernel:
        .cfi_startproc
outer:
        vxorps %xmm0, %xmm0, %xmm0
inner:
        vfmadd231ps (%rdi), %zmm1, %zmm0
        dec %rcx
        jne inner
        dec %rdx
        jne outer
        ret
        .cfi_endproc
        .size kernel, .-kernel
"""


def test_the_hot_loop_is_the_innermost_with_most_samples(tmp_path):
    library = link(tmp_path, LOOPS)
    elf = lief.ELF.parse(str(library))
    start = next(symbol.value for symbol in elf.dynamic_symbols if symbol.value)
    lines = ["vxorps", "vfmadd231ps", "dec", "jne", "dec", "jne", "ret"]

    def loop_of(*offsets):
        addresses = start + np.repeat(offsets, 6)
        loop = find_functions(library, "0123456789abcdef", addresses)["loop"].item()
        assert not loop or int(loop.split()[0], 16) >= start
        return [line.split()[1] for line in loop.splitlines()]

    assert loop_of(4, 10) == lines[1:4]
    assert loop_of(0, 4, 4, 15) == lines[1:4]
    assert loop_of(0, 0, 4, 15) == lines[:6]
    assert loop_of(18, 18) == lines[:6]
    assert loop_of(20, 20) == lines  # in no loop
    assert loop_of(4) == []  # six samples show nothing


def test_a_loop_counts_its_samples():
    samples = pd.DataFrame(
        {"address": [16, 16, 20, 24, 99], "busy": [True, True, True, False, True], "build_id": "1"}
    )
    loop = "10 fmopa za0.s\n14 .inst 0xa040c764  // sme2\n18 b.gt #0x10"
    functions = pd.DataFrame({"build_id": ["1", "1"], "name": ["f", "g"], "loop": [loop, ""]})
    (found,) = count_instructions(samples, functions).values()
    assert found.to_dict() == dict(zip(loop.splitlines(), [2, 1, 0], strict=True))


def test_recorded_sme2_code_shows_its_outer_products():
    loops = recorded("toy_cnn")["sme2_on"].loops
    kernel = next(found for name, found in loops.items() if name.endswith("sme2_mopa"))
    hottest = kernel.idxmax()
    assert "fmopa za" in hottest or ".inst" in hottest
    assert sum("// sme2" in line for line in kernel.index) == 4
    assert kernel.index[-1].endswith(f"b.gt #0x{kernel.index[0].split()[0]}")


def test_a_library_is_known_by_its_build_id(library, tmp_path):
    assert find_functions(library, "1123456789", np.array([0])) is None
    assert find_functions(tmp_path / "none.so", "01", np.array([0])) is None
    assert find_functions(Path(__file__), "01", np.array([0])) is None


def test_damaged_libraries_are_no_crash(library):
    whole, rng = library.read_bytes(), np.random.default_rng(0)
    for length in rng.integers(0, len(whole), 20).tolist():
        library.write_bytes(whole[:length])
        find_functions(library, "0123456789abcdef", np.array([0x1000]))
    for _ in range(60):
        damaged = bytearray(whole)
        for at in rng.integers(0, len(whole), 8):
            damaged[at] = rng.integers(256)
        library.write_bytes(damaged)
        find_functions(library, "0123456789abcdef", np.arange(0, 0x4000, 64))

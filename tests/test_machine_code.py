"""Which machine code ran: instructions, functions, and what is joined to operators by time."""

import importlib.util
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import lief
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import recorded

import workbench as wb
from workbench.analysis.machine_code import (
    UNSURE,
    compare_evidence,
    explain_unchanged,
    find_operators,
    gather_evidence,
    keep_places,
    name_kernels,
    place_samples,
    prove_change,
)
from workbench.frames import EVIDENCE
from workbench.store import load_run, save_run
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
    ("addss %xmm0, %xmm1", "sse"),
    ("pshufb %xmm1, %xmm2", "sse"),
    ("vaddps %ymm1, %ymm2, %ymm3", "avx"),
    ("vbroadcastss (%rax), %ymm2", "avx"),
    ("vpaddd %xmm1, %xmm2, %xmm3", "avx"),
    ("vpaddd %ymm1, %ymm2, %ymm3", "avx2"),
    ("vpermd %ymm1, %ymm2, %ymm3", "avx2"),
    ("vfmadd231ps %ymm1, %ymm2, %ymm3", "avx2"),
    ("vcvtph2ps %xmm1, %ymm2", "avx2"),
    ("vaddps %zmm1, %zmm2, %zmm3", "avx512"),
    ("vaddps %ymm1, %ymm2, %ymm3{%k1}", "avx512"),
    ("vaddps %ymm17, %ymm2, %ymm3", "avx512"),
    ("vfmadd231ps %zmm1, %zmm2, %zmm3", "avx512"),
    ("vcvtps2ph $0, %zmm1, %ymm3", "avx512"),
    ("kmovd %eax, %k1", "avx512"),
    ("vpdpbusd %zmm1, %zmm2, %zmm3", "avx512vnni"),
    ("vpdpbusd %ymm17, %ymm2, %ymm3", "avx512vnni"),
    ("vpermb %zmm1, %zmm2, %zmm3", "avx512vnni"),
]


def test_every_a64_instruction_has_its_class():
    found = classify_aarch64(np.array([int(word, 16) for _, word, _ in GOLDEN], np.uint32))
    pairs = zip(found, GOLDEN, strict=True)
    classes = [(AARCH64_CLASSES[number], *row[1:]) for number, row in pairs]
    assert classes == [tuple(row) for row in GOLDEN]
    counts = Counter(kind for kind, *_ in GOLDEN)
    assert counts.keys() == set(AARCH64_CLASSES) and counts["sme2"] > 40


@pytest.mark.cases
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


# --- machine code joined to operators by time ---

#: An inference of 100 us: 5 us before the delegate's first operator, then operators of which
#: XNNPACK logs whole microseconds: (name, true duration, logged duration) in ns.
OPERATORS = [("Transpose (ND, X32) #1", 9_600, 9_000)] + [
    (f"Convolution (NHWC, F32) IGEMM #{n}", 8_500, 8_000) for n in range(1, 9)
]
FIRST, PERIOD = 5_000, 100_000


def trace(runs=1):
    """The events of some inferences, as XNNPACK logs them, and when each operator truly ran."""
    rows, truth = [], []
    for run in range(runs):
        begin, call = run * PERIOD, len(rows) + len(OPERATORS)
        logged = true = begin + FIRST
        for name, lasted, noted in OPERATORS:
            rows.append(("delegate_operator", name, call, 0, logged, noted, run))
            truth.append((run, name, true, true + lasted))
            logged, true = logged + noted, true + lasted
        rows.append(("delegate_call", "DELEGATE_CALL", call + 3, 0, begin + 2_000, 84_000, run))
        rows.append(("kernel", "native_call_mean.out", call + 2, 1, begin + 90_000, 4_000, run))
        rows.append(("operator_call", "OPERATOR_CALL", call + 3, 1, begin + 89_000, 6_000, run))
        rows.append(("method", "Method::execute", -1, -1, begin, 99_000, run))
    columns = ["kind", "name", "parent", "instruction", "start_ns", "duration_ns", "run"]
    events = pd.DataFrame(rows, columns=columns)
    events["event"] = events.index
    events["chain"] = np.where(events["instruction"] < 0, -1, 0)
    events = events.assign(block=0, delegate_id=-1, block_name="Execute")
    return events, pd.DataFrame(truth, columns=["run", "name", "start", "end"])


def test_a_time_belongs_to_the_innermost_span():
    events, _ = trace()
    times = np.array([-5, 500, 3_000, 9_000, 88_000, 89_500, 92_000, 97_000, 99_500])
    found = find_operators(events, times)
    assert found["key"].fillna("").tolist() == [
        "",
        "-1/Method::execute/0",
        "0/DELEGATE_CALL/0",
        "0/Transpose/0",
        "-1/Method::execute/0",
        "1/OPERATOR_CALL/0",
        "1/native_call_mean.out/0",
        "-1/Method::execute/0",
        "",
    ]
    assert found["sure"].tolist() == [False, *[True] * 7, False]


def test_what_rounding_took_is_given_back():
    """The middle of the last operator lies in it, though what was logged ends before."""
    events, truth = trace(runs=3)
    for _, operator in truth.iterrows():
        middle = (operator["start"] + operator["end"]) / 2
        found = find_operators(events, np.array([middle])).iloc[0]
        assert found["operator"] == operator["name"].partition(" #")[0]
        assert found["key"].endswith(f"/{max(0, int(operator['name'][-1]) - 1)}")
        assert found["sure"]


def test_times_near_a_boundary_are_not_sure():
    events, truth = trace()
    last = truth.iloc[-1]
    times = last["start"] + np.array([-400, 0, 400, 4_000])
    assert find_operators(events, times)["sure"].tolist() == [False, False, False, True]
    # Kernels are timed by the runtime's own clock.
    assert find_operators(events, np.array([89_999, 90_001]))["sure"].all()


def test_exact_times_of_a_delegate_stay():
    events, _ = trace()
    events.loc[events["kind"] == "delegate_operator", "duration_ns"] -= 500
    found = find_operators(events, np.array([FIRST + 9_000 - 400]))
    assert found["operator"].tolist() == ["DELEGATE_CALL"]


def samples_of(times, functions):
    """Samples at the times, one function each, of a library whose name tells nothing."""
    return pd.DataFrame(
        {
            **{"time_ns": times, "thread": 1, "busy": True, "library": "/x/libxnn.so"},
            **{"build_id": "aa", "address": 0, "function": functions, "code": "avx2"},
        }
    )


def test_samples_are_counted_by_operator_and_function():
    events, truth = trace(runs=20)
    transposes = truth[truth["name"].str.startswith("Transpose")]
    middle = ((transposes["start"] + transposes["end"]) / 2).to_numpy()
    functions = ["a"] * 15 + ["b"] * 5
    samples = samples_of(middle, functions)
    waiting = samples.assign(busy=False, function="idle")
    outside = samples_of([-100.0, 10 * PERIOD - 500], ["c", "c"])
    unsure = samples_of(transposes["end"].to_numpy()[:3], ["d", "d", "d"])
    placed = place_samples(pd.concat([samples, waiting, outside, unsure]), events)
    evidence = gather_evidence(placed)
    rows = evidence.set_index("function")
    assert rows["samples"].to_dict() == {"a": 15, "b": 5, "d": 3}
    assert rows.loc["a", ["key", "category", "library"]].tolist() == [
        *("0/Transpose/0", "Data Movement", "libxnn.so")
    ]
    assert rows.loc["a", ["share", "low", "high"]].tolist() == pytest.approx(
        [0.75, 0.5313, 0.8881],
        abs=1e-4,  # Wilson's interval of 15 in 20
    )
    assert rows.loc["d", ["key", "operator"]].tolist() == ["", UNSURE]
    kernels = name_kernels(evidence)
    assert kernels["function"].to_dict() == {"0/Transpose/0": "a"}


def test_without_samples_there_is_no_evidence():
    events, _ = trace()
    nothing = samples_of(np.array([]), [])
    evidence = gather_evidence(place_samples(nothing, events))
    assert evidence.empty
    assert prove_change(evidence, evidence).outcome == "not shown"
    assert compare_evidence(evidence, evidence).empty


def evidence_of(counts, key="0/Convolution/0", code=None):
    """The evidence of one operator from samples by function."""
    total = sum(counts.values())
    rows = [
        {
            **{"key": key, "operator": "Convolution (NHWC, F32) IGEMM", "kind": "delegated"},
            **{"category": "Convolution", "family": "convolution", "library": "libxnn.so"},
            **{"function": function, "code": (code or {}).get(function, "avx2")},
            **{"samples": n, "share": n / total, "low": 0.0, "high": 1.0},
        }
        for function, n in sorted(counts.items(), key=lambda item: -item[1])
        if n
    ]
    return pd.DataFrame(rows, columns=EVIDENCE.names)


def test_another_function_is_a_change():
    classes = {"on": "avx512"}
    before = evidence_of({"off": 500, "shared": 40})
    after = evidence_of({"on": 200, "shared": 45}, code=classes)
    proof = prove_change(before, after)
    assert proof.outcome == "changed"
    assert (proof.appeared, proof.vanished) == pytest.approx((200 / 245, 500 / 540))
    assert proof.after == pytest.approx({"avx512": 200 / 245, "avx2": 45 / 245})
    row = compare_evidence(before, after).iloc[0]
    assert (row["baseline_kernel"], row["candidate_kernel"], row["change"]) == (
        *("off", "on", "changed"),
    )


def test_other_shares_of_the_same_functions_are_no_change():
    before, after = evidence_of({"a": 400, "b": 100}), evidence_of({"a": 250, "b": 250})
    assert prove_change(before, after).outcome == "same"
    assert compare_evidence(before, after)["change"].tolist() == ["same"]


def test_a_few_samples_prove_nothing():
    for before, after in [({"a": 4}, {"b": 4}), ({"a": 60}, {"a": 60}), ({"a": 500}, {"a": 3})]:
        proof = prove_change(evidence_of(before), evidence_of(after))
        assert proof.outcome == "not shown", (before, after)
    few = compare_evidence(evidence_of({"a": 6}), evidence_of({"a": 6}))
    assert few["change"].tolist() == ["not shown"]


@pytest.mark.whole
def test_two_samplings_of_the_same_code_hardly_ever_differ():
    """Shares as lopsided as in a real run, with many rare functions."""
    rng = np.random.default_rng(0)
    changed = 0
    for _ in range(100):
        shares = rng.dirichlet(1 / np.arange(1, 60))
        draws = [rng.multinomial(int(n), shares) for n in rng.integers(50, 2000, 2)]
        before, after = (evidence_of({f"f{i}": int(n) for i, n in enumerate(d)}) for d in draws)
        changed += prove_change(before, after).outcome == "changed"
    assert changed <= 1


def test_a_share_that_would_be_noticed_is_noticed():
    rng = np.random.default_rng(0)
    before = evidence_of({"a": 900, "b": 100})
    for _ in range(20):
        after = evidence_of({"a": 900, "b": 100})
        noticed = prove_change(before, after).noticed
        moved = int(np.ceil(noticed * 1000)) + int(rng.integers(0, 3))
        after = evidence_of({"a": 900, "b": 100 - moved, "new": moved})
        assert prove_change(before, after).outcome == "changed"


def test_placed_samples_show_the_same_without_the_trace_of_their_process(tmp_path):
    sample, folder = recorded("toy_cnn"), tmp_path / "run"
    shutil.copytree(sample.path, folder)
    save_run(keep_places(load_run(folder), folder), folder)
    run = wb.open_run(folder)
    assert not [*folder.rglob("*_sampled.etdump")]
    assert [sampling.etdump for sampling in run.record.samplings] == ["", ""]
    for before in sample.measurements:
        after = run[before.name]
        pd.testing.assert_frame_equal(after.machine_code, before.machine_code)
        assert after.loops.keys() == before.loops.keys()


def test_likely_reasons_why_a_toggle_had_no_effect():
    ab = recorded("toy_cnn").compare()
    proof, ledger = ab.proof, ab.baseline.ledger
    portable = ledger.assign(kind="portable")
    assert "100 % of the time is outside" in explain_unchanged(proof, {"sme2"}, portable)
    assert "no such feature to hide" in explain_unchanged(proof, set(), ledger)

"""What can be said of macOS without a Mac: cpuinfo's layout there, and that the runner links."""

from importlib import metadata
from pathlib import Path

import lief
import pytest
from isa_table import load_table

import workbench as wb
from workbench.run.build import ZIG, compile_runner, fetch_wheel

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(1200)]


def parse(path):
    """A Mach-O file for arm64, and the addresses of the symbols that it exports."""
    binary = lief.MachO.parse(str(path)).at(0)
    assert binary.header.cpu_type == lief.MachO.Header.CPU_TYPE.ARM64
    return binary, {symbol.name: symbol.value for symbol in binary.exported_symbols}


@pytest.fixture(scope="module")
def sdk():
    try:
        version = metadata.version("executorch")
        return fetch_wheel("executorch", version, "macosx_14_0_arm64") / "executorch"
    except wb.WorkbenchError as error:  # it cannot be downloaded
        pytest.skip(str(error))


def stores_by_question(dylib, flags):
    """Which byte of ``cpuinfo_isa`` is written after which name was asked of the system.

    Follows the addresses that ``adrp`` and ``add`` put together through the whole machine code.
    """
    import capstone
    from capstone import arm64

    strings, code = (dylib.get_section(name) for name in ("__cstring", "__text"))
    words, size, texts = strings.virtual_address, strings.size, bytes(strings.content)
    engine = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    engine.detail = True
    registers, found, question = {}, {}, ""
    for instruction in engine.disasm(bytes(code.content), code.virtual_address):
        operands = instruction.operands
        if instruction.mnemonic == "adrp":
            registers[operands[0].reg] = operands[1].imm
        elif instruction.mnemonic == "add" and operands[1].reg in registers:
            if operands[-1].type != arm64.ARM64_OP_IMM:
                continue
            address = registers[operands[1].reg] + operands[2].imm
            registers[operands[0].reg] = address
            if words <= address < words + size:
                question = texts[address - words :].partition(b"\0")[0].decode()
        elif instruction.mnemonic == "strb" and operands[-1].type == arm64.ARM64_OP_MEM:
            memory = operands[-1].mem
            byte = registers.get(memory.base, -1) + memory.disp - flags
            if 0 <= byte < 64:
                found.setdefault(question.removeprefix("hw.optional.arm."), byte)
    return found


def test_cpuinfo_writes_its_flags_at_the_offsets_of_the_table(sdk):
    table = load_table("aarch64")
    dylib, exports = parse(sdk / "lib" / "libexecutorch_threadpool.dylib")
    assert {"_cpuinfo_isa", "_cpuinfo_initialize"} <= exports.keys(), "the runner needs them"
    found = stores_by_question(dylib, exports["_cpuinfo_isa"])
    asked = {f.os_name: f.byte for f in table.features if f.os_name}
    assert {"FEAT_SME2", "FEAT_SME", "FEAT_I8MM", "FEAT_DotProd", "FEAT_FP16"} <= set(asked)
    assert {name: found.get(name) for name in asked} == asked
    data = dylib.get_section("__data")
    assert data.virtual_address + data.size - exports["_cpuinfo_isa"] == table.size


def test_the_runner_links_for_macos(sdk, tmp_path):
    runner = tmp_path / "runner"
    try:
        zig = fetch_wheel("ziglang", ZIG) / "ziglang" / "zig"
        zig.chmod(0o755)
        compile_runner(sdk, [str(zig), "c++", "-target", "aarch64-macos"], runner)
    except wb.WorkbenchError as error:
        if "cannot get" not in str(error):
            raise
        pytest.skip(str(error))
    linked, _ = parse(runner)
    loaded = {Path(library.name).name for library in linked.libraries}
    names = ("executorch", "executorch_etdump", "executorch_threadpool")
    assert {f"lib{name}.dylib" for name in names} <= loaded
    assert [rpath.path for rpath in linked.rpaths] == [str(sdk / "lib")]

"""What can be said of macOS without a Mac: cpuinfo's layout there, and that the runner links."""

import itertools
import struct
from pathlib import Path

import pytest
from devices import link_for_mac, mac_sdk
from isa_table import load_table

import workbench as wb

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

MACH_O_64, ARM64 = 0xFEEDFACF, 0x0100000C
SEGMENT, SYMBOLS, LOAD, RPATH = 0x19, 0x02, 0x0C, 0x8000001C
EXTERNAL, IN_SECTION = 0x01, 0x0E


class MachO:
    """A 64-bit Mach-O file for arm64: its sections, and the symbols that it exports."""

    def __init__(self, path):
        self.data = path.read_bytes()
        magic, cpu, _, _, commands = struct.unpack_from("<5I", self.data)
        assert (magic, cpu) == (MACH_O_64, ARM64)
        self.sections, self.exports, self.loads, self.rpaths = {}, {}, [], []
        offset = 32
        for _ in range(commands):
            kind, size = struct.unpack_from("<2I", self.data, offset)
            if kind == SEGMENT:
                self._read_sections(offset)
            elif kind == SYMBOLS:
                self._read_symbols(*struct.unpack_from("<3I", self.data, offset + 8))
            elif kind in (LOAD, RPATH):
                (name,) = struct.unpack_from("<I", self.data, offset + 8)
                (self.loads if kind == LOAD else self.rpaths).append(self.text(offset + name))
            offset += size

    def text(self, offset):
        return self.data[offset : self.data.index(b"\0", offset)].decode()

    def section(self, name):
        """Address, size and bytes."""
        address, size, offset = self.sections[name]
        return address, size, self.data[offset : offset + size]

    def _read_sections(self, offset):
        (count,) = struct.unpack_from("<I", self.data, offset + 64)
        for place in itertools.islice(itertools.count(offset + 72, 80), count):
            name = f"{self.text(place + 16)[:16]},{self.text(place)[:16]}"
            self.sections[name] = struct.unpack_from("<2QI", self.data, place + 32)

    def _read_symbols(self, start, count, strings):
        for place in range(start, start + 16 * count, 16):
            name, kind, _, _, value = struct.unpack_from("<I2BHQ", self.data, place)
            if kind & EXTERNAL and kind & IN_SECTION == IN_SECTION:
                self.exports[self.text(strings + name)] = value


@pytest.fixture(scope="module")
def sdk():
    try:
        return mac_sdk()
    except wb.WorkbenchError as error:  # it cannot be downloaded
        pytest.skip(str(error))


def stores_by_question(dylib):
    """Which byte of ``cpuinfo_isa`` is written after which name was asked of the system.

    Follows the addresses that ``adrp`` and ``add`` put together through the whole machine code.
    """
    import capstone
    from capstone import arm64

    flags = dylib.exports["_cpuinfo_isa"]
    words, size, texts = dylib.section("__TEXT,__cstring")
    start, _, code = dylib.section("__TEXT,__text")
    engine = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    engine.detail = True
    registers, found, question = {}, {}, ""
    for instruction in engine.disasm(code, start):
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
    dylib = MachO(sdk / "lib" / "libexecutorch_threadpool.dylib")
    found = stores_by_question(dylib)
    asked = {f.os_name: f.byte for f in table.features if f.os_name}
    assert {"FEAT_SME2", "FEAT_SME", "FEAT_I8MM", "FEAT_DotProd", "FEAT_FP16"} <= set(asked)
    assert {name: found.get(name) for name in asked} == asked
    address, size, _ = dylib.section("__DATA,__data")
    assert address + size - dylib.exports["_cpuinfo_isa"] == table.size


def test_the_wheel_exports_the_runners_symbols(sdk):
    exports = MachO(sdk / "lib" / "libexecutorch_threadpool.dylib").exports
    assert {"_cpuinfo_isa", "_cpuinfo_initialize"} <= set(exports)


def test_the_runner_links_for_macos(sdk, tmp_path):
    runner = tmp_path / "runner"
    try:
        link_for_mac(sdk, runner)
    except wb.WorkbenchError as error:
        if "cannot get" not in str(error):
            raise
        pytest.skip(str(error))
    linked = MachO(runner)
    loaded = {Path(name).name for name in linked.loads}
    names = ("executorch", "executorch_etdump", "executorch_threadpool")
    assert {f"lib{name}.dylib" for name in names} <= loaded
    assert linked.rpaths == [str(sdk / "lib")]

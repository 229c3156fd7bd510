"""cpuinfo's flags in the memory of this process, and what the system says of the same features."""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path

from workbench.errors import RunnerError
from workbench.run.build import find_sdk, library_path
from workbench.run.isa import Table

#: ELF and the auxiliary vector, as the system's headers number them.
RTLD_DL_SYMENT, ST_SIZE_OFFSET, AT_HWCAP, AT_HWCAP2 = 1, 16, 16, 26


def load_cpuinfo() -> ctypes.CDLL:
    """ExecuTorch's thread pool library, which holds cpuinfo, with the CPU looked at.

    Raises
    ------
    RunnerError
        It cannot be loaded, or does not know this CPU.
    """
    path = library_path(find_sdk(), "executorch_threadpool")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise RunnerError(str(error), kind="library") from None
    library.cpuinfo_initialize.restype = ctypes.c_bool
    if not library.cpuinfo_initialize():
        raise RunnerError("cpuinfo does not know this CPU", kind="isa")
    return library


def find_flags(library: ctypes.CDLL, table: Table) -> ctypes.Array[ctypes.c_ubyte]:
    """``cpuinfo_isa`` where it lies, in the size that the library's symbol table states.

    Raises
    ------
    RunnerError
        The library does not export it.
    """
    try:
        size = _size_of_symbol(library, "cpuinfo_isa") or table.size
        return (ctypes.c_ubyte * size).in_dll(library, "cpuinfo_isa")
    except ValueError:
        raise RunnerError("cpuinfo_isa is not exported", kind="isa") from None


def ask_system(table: Table) -> dict[str, bool]:
    """What the operating system says of the features, without asking cpuinfo."""
    libc = ctypes.CDLL(None)
    if sys.platform == "darwin":
        return {f.name: _ask_sysctl(libc, f.os_name) for f in table.features if f.os_name}
    if table.arch == "x86_64":
        found = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        listed = set(found[1].split()) if found else set()
        return {f.name: f.os_name in listed for f in table.features}
    libc.getauxval.restype, libc.getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    words = {"HWCAP": libc.getauxval(AT_HWCAP), "HWCAP2": libc.getauxval(AT_HWCAP2)}
    return {f.name: bool(words[f.word] >> f.bit & 1) for f in table.features}


def _ask_sysctl(libc: ctypes.CDLL, name: str) -> bool:
    value, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    key = f"hw.optional.arm.{name}".encode()
    found = libc.sysctlbyname(key, ctypes.byref(value), ctypes.byref(size), None, 0) == 0
    return found and value.value != 0


def _size_of_symbol(library: ctypes.CDLL, name: str) -> int:
    """The size of an exported variable, 0 where the dynamic linker cannot be asked."""
    place = ctypes.c_ubyte.in_dll(library, name)
    dladdr1 = getattr(ctypes.CDLL(None), "dladdr1", None)
    if dladdr1 is None:
        return 0
    info, symbol = (ctypes.c_void_p * 4)(), ctypes.c_void_p()
    found = dladdr1(ctypes.byref(place), info, ctypes.byref(symbol), RTLD_DL_SYMENT)
    if not found or not symbol.value:
        return 0
    return ctypes.c_uint64.from_address(symbol.value + ST_SIZE_OFFSET).value

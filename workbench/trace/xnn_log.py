"""What the name of a microkernel says.

The two libraries document how they name one, XNNPACK in ``doc/microkernel-naming-conventions.md``
and KleidiAI in ``docs/microkernel_names.md``::

    xnn_<data types>_<type>[_<variant>]_ukernel[_<tile>]__<arch>
    kai_<type>[_<variant>]_<buffers, the output first>[_<tile>][_<arch>]

Logs of a runner whose XNNPACK was built to log: which microkernels were registered.

The first operator of a kind makes XNNPACK choose the microkernels for it, once per process, and
each choice is a line ``Using gemm microkernel 'xnn_...'.``, in newer versions followed by the
function, file and line that made it. Several variants are chosen at a time, for one row and for
many, and for big and little cores. So a line says that a microkernel was *registered* and can run
from then on; that it did run, and how long, is not in the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pandas as pd

from workbench.errors import TraceError
from workbench.frames import KERNELS, check

_XNNPACK = re.compile(
    r"xnn_(?:generate_)?(?P<head>\w+?)_ukernel(?:_(?P<tile>(?:(?!__)\w)+))?__(?P<arch>\w+)",
    re.ASCII,
)
_HEAD = re.compile(
    r"(?P<dtype>(?:(?:p?b?f|p?q[a-z]{1,2}|[sux]|cs)\d+(?:w|acc)?_|xx_)*)"
    r"(?P<type>\w+?)"
    r"(?:_(?P<variant>(?:minmax|relu|linear)(?:_\w+)?))?",
    re.ASCII,
)
# A transpose has its tile behind the double underscore.
_LATE_TILE = re.compile(r"(?P<tile>\d+x\d+)_(?P<arch>\w+)", re.ASCII)

_KLEIDIAI = re.compile(
    r"kai_(?:run_)?(?P<type>[a-z_]+?)(?:_(?P<variant>clamp))?"
    r"(?P<buffers>(?:_(?:q[as])?(?:b?f|[iux])\d[a-z\d]*)+)"
    r"(?:_(?P<tile>\d+(?:d|(?:v[ls])?x\d)[a-z\d_]*?))?"
    r"(?:_(?P<arch>(?:neon|sve|sme|qmx)\w*))?",
    re.ASCII,
)
_BUFFER = re.compile(r"_((?:q[as])?(?:b?f|[iux])\d+(?:cx|dx|d32|c32)?)", re.ASCII)


@dataclass(frozen=True)
class KernelName:
    """The parts of a microkernel's name, in the words of its library; empty where it has none."""

    type: str = ""
    dtype: str = ""
    variant: str = ""
    tile: str = ""
    arch: str = ""

    @property
    def sme(self) -> bool:
        """Whether it needs SME, in whichever version."""
        return "sme" in self.arch

    @property
    def sme2(self) -> bool:
        """Whether it needs SME2."""
        return "sme2" in self.arch


def parse_kernel_name(name: str) -> KernelName:
    """Take the name of a microkernel apart.

    Examples
    --------
    >>> parse_kernel_name("xnn_f32_gemm_minmax_ukernel_7x16__avx512f_broadcast")
    KernelName(type='gemm', dtype='f32', variant='minmax', tile='7x16', arch='avx512f_broadcast')
    """
    if found := _XNNPACK.fullmatch(name):
        return _parse_xnnpack(**found.groupdict(""))
    if found := _KLEIDIAI.fullmatch(name):
        parts = found.groupdict("")
        dtype = "_".join(_BUFFER.findall(parts.pop("buffers")))
        return KernelName(dtype=dtype, **parts)
    return KernelName()


def _parse_xnnpack(head: str, tile: str, arch: str) -> KernelName:
    parts = _HEAD.fullmatch(head).groupdict("")
    if not tile and (late := _LATE_TILE.fullmatch(arch)):
        tile, arch = late.group("tile", "arch")
    return KernelName(
        parts["type"], parts["dtype"].rstrip("_"), parts["variant"], tile=tile, arch=arch
    )


#: Longest line that is read, in bytes; of a longer one, this much.
LONGEST_LINE = 4096

_USING = re.compile(
    rb"Using (?P<operator>\w{1,64}) microkernel '(?P<kernel>\w{1,255})'"
    rb"(?:\.? \((?P<config>\w{1,255}),)?"
)


def read_xnn_log(path: str | Path) -> pd.DataFrame:
    """Read which microkernels XNNPACK registered.

    Lines of anything else, and bytes that are no text, are passed over.

    Parameters
    ----------
    path
        What the runner printed, or ``adb logcat``; XNNPACK built with ``XNN_LOG_LEVEL=4`` or more.

    Returns
    -------
    pandas.DataFrame
        :data:`workbench.schema.KERNELS`, one row per microkernel, purpose and place of
        registration, in the order of the log.

    Raises
    ------
    TraceError
        The file cannot be read, or names no microkernel.
    """
    path = Path(path)
    first: dict[tuple[str, str, str], int] = {}
    count: dict[tuple[str, str, str], int] = {}
    try:
        with open(path, "rb") as file:
            for line, text in _lines(file):
                for found in _USING.finditer(text):
                    key = tuple(part.decode("ascii") for part in found.groups(b""))
                    first.setdefault(key, line)
                    count[key] = count.get(key, 0) + 1
    except OSError as error:
        raise TraceError(error.strerror or str(error), where=path) from None
    if not count:
        raise TraceError(
            "names no microkernel",
            where=path,
            hint="XNNPACK says which ones it uses if it was built with XNN_LOG_LEVEL=4",
        )
    return _tabulate(first, count)


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers; of one that is too long, its beginning."""
    number = 0
    while text := file.readline(LONGEST_LINE):
        number += 1
        yield number, text
        while text and not text.endswith(b"\n"):
            text = file.readline(LONGEST_LINE)


def _tabulate(
    first: dict[tuple[str, str, str], int], count: dict[tuple[str, str, str], int]
) -> pd.DataFrame:
    rows = []
    for (operator, kernel, config), line in first.items():
        name = parse_kernel_name(kernel)
        rows.append(
            {
                "line": line,
                "operator": operator,
                "kernel": kernel,
                "type": name.type,
                "dtype": name.dtype,
                "variant": name.variant,
                "tile": name.tile,
                "arch": name.arch,
                "sme": name.sme,
                "sme2": name.sme2,
                "config": config,
                "count": count[operator, kernel, config],
            }
        )
    return check(pd.DataFrame(rows, columns=KERNELS.names), KERNELS)

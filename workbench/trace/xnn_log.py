"""Logs of a runner whose XNNPACK was built to log: which microkernels were registered.

The first operator of a kind makes XNNPACK choose the microkernels for it, once per process, and
each choice is a line ``Using gemm microkernel 'xnn_...'.``, in newer versions followed by the
function, file and line that made it. Several variants are chosen at a time, for one row and for
many, and for big and little cores. So a line says that a microkernel was *registered* and can run
from then on; that it did run, and how long, is not in the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pandas as pd

from workbench.errors import TraceError
from workbench.schema import KERNELS, check
from workbench.trace.kernel_names import parse_kernel_name

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

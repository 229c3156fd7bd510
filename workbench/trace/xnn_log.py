"""XNNPACK's log, if it was built to log: which microkernels were registered.

The first operator of a kind makes XNNPACK choose its microkernels, once per process. Each choice is
a line ``Using gemm microkernel 'xnn_...'.``, in newer versions followed by the function, file and
line that made it. A line says that a microkernel was *registered*, not that it ran.

Names are documented by XNNPACK in ``doc/microkernel-naming-conventions.md`` and by KleidiAI in
``docs/microkernel_names.md``::

    xnn_<data types>_<type>[_<variant>]_ukernel[_<tile>]__<arch>
    kai_<type>[_<variant>]_<buffers, the output first>[_<tile>][_<arch>]
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pandas as pd

from workbench.errors import TraceError
from workbench.frames import KERNELS
from workbench.store import open_file

#: Longest line that is read, in bytes; of a longer one, this much.
LONGEST_LINE = 4096

_USING = re.compile(
    rb"Using (?P<operator>\w{1,64}) microkernel '(?P<kernel>\w{1,255})'"
    rb"(?:\.? \((?P<config>\w{1,255}),)?"
)
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


def read_xnn_log(path: str | Path) -> pd.DataFrame:
    """Read which microkernels XNNPACK registered.

    Other lines, and bytes that are no text, are skipped.

    Parameters
    ----------
    path
        What the runner printed, or ``adb logcat``; XNNPACK built with ``XNN_LOG_LEVEL=4`` or more.

    Returns
    -------
    pandas.DataFrame
        Columns of :data:`workbench.frames.KERNELS`: one row per microkernel, purpose and place of
        registration, in the order of the log.

    Raises
    ------
    TraceError
        The file cannot be read, or names no microkernel.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import workbench as wb
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = Path(folder) / "xnnpack.log"
    ...     kernel = "xnn_f32_gemm_minmax_ukernel_7x16__avx512f_broadcast"
    ...     _ = log.write_text(f"Using gemm microkernel '{kernel}'.")
    ...     wb.read_xnn_log(log)[["operator", "dtype", "tile", "arch"]]
      operator dtype  tile               arch
    0     gemm   f32  7x16  avx512f_broadcast
    """
    path = Path(path)
    choices = _find_choices(path)
    if not choices:
        hint = "build XNNPACK with XNN_LOG_LEVEL=4 to have it log them"
        raise TraceError("names no microkernel", where=path, hint=hint)
    rows = []
    for key, (line, count) in choices.items():
        operator, kernel, config = (part.decode("ascii") for part in key)
        parts = _parse_name(kernel)
        flags = {"sme": "sme" in parts["arch"], "sme2": "sme2" in parts["arch"]}
        place = {"line": line, "operator": operator, "kernel": kernel}
        rows.append({**place, **parts, **flags, "config": config, "count": count})
    return KERNELS.check(pd.DataFrame(rows, columns=KERNELS.names))


def _find_choices(path: Path) -> dict[tuple[bytes, ...], tuple[int, int]]:
    """By operator, kernel and configuration, the first line that names them, and how many do."""
    choices: dict[tuple[bytes, ...], tuple[int, int]] = {}
    try:
        with open_file(path) as file:
            for line, text in _lines(file):
                for choice in _USING.finditer(text):
                    first, count = choices.get(choice.groups(b""), (line, 0))
                    choices[choice.groups(b"")] = first, count + 1
    except OSError as error:
        raise TraceError(error.strerror or str(error), where=path) from None
    return choices


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers; of one that is too long, its beginning."""
    number = 0
    while text := file.readline(LONGEST_LINE):
        number += 1
        yield number, text
        while text and not text.endswith(b"\n"):
            text = file.readline(LONGEST_LINE)


def _parse_name(name: str) -> dict[str, str]:
    """The parts of a microkernel's name, in the words of its library; empty where it has none."""
    parts = dict.fromkeys(("type", "dtype", "variant", "tile", "arch"), "")
    if (whole := _XNNPACK.fullmatch(name)) and (head := _HEAD.fullmatch(whole["head"])):
        tile, arch = whole["tile"] or "", whole["arch"]
        if not tile and (late := _LATE_TILE.fullmatch(arch)):
            tile, arch = late["tile"], late["arch"]
        parts |= head.groupdict("") | {"tile": tile, "arch": arch}
        parts["dtype"] = parts["dtype"].rstrip("_")
    elif kleidiai := _KLEIDIAI.fullmatch(name):
        parts |= kleidiai.groupdict("")
        parts["dtype"] = "_".join(_BUFFER.findall(parts.pop("buffers")))
    return parts

"""What the name of a microkernel says.

The two libraries document how they name one, XNNPACK in ``doc/microkernel-naming-conventions.md``
and KleidiAI in ``docs/microkernel_names.md``::

    xnn_<data types>_<type>[_<variant>]_ukernel[_<tile>]__<arch>
    kai_<type>[_<variant>]_<buffers, the output first>[_<tile>][_<arch>]
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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

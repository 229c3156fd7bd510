"""Tensors in the debug buffer that a runtime wrote beside its trace."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from workbench.errors import TraceError

#: PyTorch's names for the numbers of scalar_type.fbs.
DTYPES = {
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "float16",
    6: "float32",
    7: "float64",
    11: "bool",
    12: "qint8",
    13: "quint8",
    14: "qint32",
    15: "bfloat16",
    16: "quint4x2",
    17: "quint2x4",
    22: "bits16",
    23: "float8_e5m2",
    24: "float8_e4m3fn",
    25: "float8_e5m2fnuz",
    26: "float8_e4m3fnuz",
    27: "uint16",
    28: "uint32",
    29: "uint64",
}

# How elements are stored, if not by a type of numpy's that bears the same name.
_STORED = {"qint8": "int8", "quint8": "uint8", "qint32": "int32", "bits16": "uint16"}
_STORED |= {"bfloat16": "uint16"}

# Most dimensions that the runtime allows; more elements than anyone has.
_MOST_DIMENSIONS = 16
_MOST_ELEMENTS = 2**48


def read_tensor(
    data: np.ndarray,
    dtype: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    path: Path,
) -> np.ndarray | None:
    """A tensor that is stored in ``data`` from byte ``offset`` on.

    Parameters
    ----------
    data
        The bytes of the debug buffer.
    dtype
        PyTorch's name for it.
    shape, strides
        Elements of every dimension, and from one to the next.
    path
        What errors name.

    Returns
    -------
    numpy.ndarray or None
        It looks into ``data``, but for bfloat16, which becomes float32. None for types of which
        numpy has no like.

    Raises
    ------
    TraceError
        Shape and strides are no tensor's, or it reaches beyond the data.
    """
    stored = _STORED.get(dtype, dtype)
    if stored not in np.sctypeDict:
        return None
    itemsize = np.dtype(stored).itemsize
    if (
        not len(shape) == len(strides) <= _MOST_DIMENSIONS
        or min((*shape, *strides), default=0) < 0
        or math.prod(length or 1 for length in shape) > _MOST_ELEMENTS
    ):
        raise TraceError(f"no tensor has shape {shape} and strides {strides}", where=path)
    count = math.prod(shape)
    if count == 0:
        return np.zeros(shape, stored)
    reach = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    if reach != count - 1:
        raise TraceError(f"strides {strides} leave gaps in shape {shape}", where=path)
    if not 0 <= offset <= len(data) - count * itemsize:
        raise TraceError("a tensor reaches beyond the debug buffer", where=path, offset=offset)
    elements = data[offset:][: count * itemsize].view(np.dtype(stored).newbyteorder("<"))
    if dtype == "bfloat16":
        elements = (elements.astype(np.uint32) << 16).view(np.float32)
    # Nobody steps along a dimension of one element, so its stride may be any number.
    steps = [
        stride * elements.itemsize if length > 1 else 0
        for length, stride in zip(shape, strides, strict=True)
    ]
    return np.lib.stride_tricks.as_strided(elements, shape, steps, writeable=False)

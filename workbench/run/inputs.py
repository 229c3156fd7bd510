"""The files that a run feeds to the program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from workbench.errors import RunnerError, StoreError
from workbench.records import Plan, Tensor
from workbench.store import sha256_of, write_whole

RANDOM_SOURCE = "seeded random: normal for floats, 0 or 1 for integers"


def locate_inputs(plan: Plan, run_dir: Path) -> list[Path]:
    """The input files in order: those saved with the program, or random ones made in ``run_dir``.

    Raises
    ------
    StoreError
        A saved input is missing, or not the one that the record describes.
    """
    folder = Path(plan.pte).parent
    paths = []
    for number, tensor in enumerate(plan.inputs):
        if not tensor.file:
            path = run_dir / "inputs" / f"input{number}.bin"
            paths.append(write_whole(path, random_bytes(tensor, seed=number)))
            continue
        path = folder / tensor.file
        if sha256_of(path) != tensor.sha256:
            raise StoreError("is not the input that was exported", where=path, hint="export again")
        paths.append(path)
    return paths


def random_bytes(tensor: Tensor, seed: int) -> bytes:
    """Raw bytes for one input: normally distributed floats, or integers that are 0 or 1.

    Raises
    ------
    RunnerError
        A dtype that cannot be filled.
    """
    rng = np.random.default_rng(seed)
    if tensor.dtype == "bfloat16":
        wide = rng.standard_normal(tensor.shape, dtype=np.float32)
        return (wide.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    try:
        dtype = np.dtype(tensor.dtype)
    except TypeError:
        raise RunnerError(f"cannot make a random input of dtype {tensor.dtype}") from None
    if dtype.kind == "f":
        return rng.standard_normal(tensor.shape).astype(dtype).tobytes()
    return rng.integers(0, 2, tensor.shape).astype(dtype).tobytes()


def strip_files(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The tensors without files: what a program of unknown origin says of its inputs."""
    return tuple(Tensor(dtype=tensor.dtype, shape=tuple(tensor.shape)) for tensor in tensors)

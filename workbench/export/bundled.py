"""Bundled programs: a ``.pte`` with inputs and the outputs that these should give, in one file."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from workbench.errors import StoreError
from workbench.export.pte import installed_schema, read_flatbuffer
from workbench.export.sidecar import DTYPES, WIDTHS
from workbench.records.exports import Tensor
from workbench.store import atomic_write, cached, safe_name, sha256_of

_IDENTIFIER = b"BP08"
_FOLDER = "devtools/bundled_program/serialize"
_SCHEMA = (f"{_FOLDER}/scalar_type.fbs", f"{_FOLDER}/bundled_program_schema.fbs")

Case = tuple[Tensor, ...]


def unpack(path: Path) -> tuple[Path, Case, Case]:
    """The program inside, in the cache, and the inputs and expected outputs beside it.

    They are the first case of ``forward``, or of the first method that has one.
    """
    data = memoryview(path.read_bytes())
    try:
        if data[4:8] != _IDENTIFIER:
            raise ValueError("not a bundled program")
        tables = read_flatbuffer(data, installed_schema(*_SCHEMA), "BundledProgram")
        suites = sorted(tables["method_test_suites"], key=lambda s: s["method_name"] != "forward")
        case: dict[str, Any] = next((case for suite in suites for case in suite["test_cases"]), {})
        inputs = list(_list_tensors(case.get("inputs", ()), "input"))
        outputs = list(_list_tensors(case.get("expected_outputs", ()), "expected"))
    except ValueError as error:
        raise StoreError(str(error), where=path, hint="bundle it again, or run the .pte") from None

    stem = safe_name(path.stem)

    def make(folder: Path) -> None:
        atomic_write(folder / f"{stem}.pte", bytes(tables["program"]))
        for tensor, content in (*inputs, *outputs):
            atomic_write(folder / tensor.file, bytes(content))

    folder = cached(f"bundled/{stem}-{sha256_of(path)[:16]}", make)
    return folder / f"{stem}.pte", tuple(t for t, _ in inputs), tuple(t for t, _ in outputs)


def _list_tensors(
    values: Sequence[dict[str, Any]], kind: str
) -> Iterator[tuple[Tensor, memoryview]]:
    for number, value in enumerate(values):
        union: tuple[str, dict[str, Any]] = value["val"] or ("", {})
        alias, tensor = union
        if alias != "Tensor":
            raise ValueError(f"{kind} {number} is no tensor: the runner passes tensors only")
        scalar, shape = str(tensor["scalar_type"]), tuple(tensor["sizes"])
        content = memoryview(tensor["data"] or b"")
        if len(content) != math.prod(shape) * WIDTHS.get(scalar, 0):
            raise ValueError(f"{kind} {number} has {len(content)} bytes for {scalar} {shape}")
        digest = hashlib.sha256(content).hexdigest()
        dtype, order = DTYPES.get(scalar, scalar.lower()), tuple(tensor["dim_order"])
        yield Tensor(dtype, shape, f"{kind}{number}.bin", digest, dim_order=order), content

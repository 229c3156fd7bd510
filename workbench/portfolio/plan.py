"""From a matrix to its cells, each with an address that tells whether it was done before."""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from itertools import product

from workbench.errors import UsageError
from workbench.export import identify_export
from workbench.models.names import parse_name
from workbench.portfolio.matrix import Exclusion, Matrix
from workbench.records import Cell
from workbench.run import identify_runner
from workbench.run.host import describe_host
from workbench.store import safe_name, stem_of

#: Of a matrix: what a run is measured with, and so part of a cell's address.
SETTINGS = (
    "threads",
    "backend",
    "runner",
    "runs",
    "warmup",
    "processes",
    "budget_s",
    "precision",
    "evidence",
    "power",
    "timeout_s",
)
HOST = "host"


def plan_cells(matrix: Matrix) -> list[Cell]:
    """The cells of a matrix, without those excluded, in the order of its axes.

    Raises
    ------
    UsageError
        None is left, two would share a folder, or a model's file is not there.
    """
    settings = {name: getattr(matrix, name) for name in SETTINGS}
    runners = {target: identify_runner(matrix.runner, target) for target in matrix.targets}
    cells = []
    for model in matrix.models:
        label = parse_name(model).label
        # Of the identity, the dtype is the only part that differs from cell to cell.
        source = identify_export(model, "", "") | {"settings": ""}
        for dtype, target, isa in product(matrix.dtypes, matrix.targets, matrix.isa):
            if any(_is_excluded(e, model, dtype, target, isa) for e in matrix.exclude):
                continue
            # Elsewhere, the target's name tells the machine.
            cpu = describe_host()["cpu"] if target == HOST else ""
            told = [source, settings, dtype, target, isa, runners[target], cpu]
            address = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
            stem = stem_of(safe_name(label), dtype, matrix.backend)
            cells.append(Cell(model, label, dtype, target, isa, stem, address))
    if not cells:
        raise UsageError("every cell is excluded", where="exclude")
    _refuse_one_folder(cell.model for cell in cells)
    return cells


def select_cells(cells: list[Cell], pattern: str) -> list[Cell]:
    """The cells whose name matches a pattern such as ``toy_cnn/*``.

    Raises
    ------
    UsageError
        There is none.
    """
    chosen = [cell for cell in cells if fnmatch.fnmatchcase(cell.name, pattern or "*")]
    if not chosen:
        names = ", ".join(cell.name for cell in cells[:3])
        raise UsageError(f"no cell {pattern!r}", where="--only", hint=f"there are {names}, ...")
    return chosen


def _is_excluded(exclusion: Exclusion, *values: str) -> bool:
    said = asdict(exclusion).values()
    return all(not wanted or wanted == value for wanted, value in zip(said, values, strict=True))


def _refuse_one_folder(models: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for model in models:
        label = safe_name(parse_name(model).label)
        other = seen.setdefault(label, model)
        if other != model:
            raise UsageError(
                f"{model} and {other} would both be called {label}",
                where="models",
                hint="rename one, or write two matrices",
            )

"""A matrix of models, dtypes, targets and CPU extensions to measure, as a person writes it.

From a matrix to its cells, each with an address that tells whether it was done before.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

from workbench.errors import StoreError, UsageError, unknown_name
from workbench.export.artifact import identify_export
from workbench.export.lower import BACKENDS, DTYPES
from workbench.models.registry import list_models, parse_name
from workbench.options import ExportOptions, MeasureOptions
from workbench.records.codec import structure
from workbench.records.portfolio import Cell
from workbench.records.runs import LADDER_TOGGLE
from workbench.run.host import describe_host
from workbench.run.isa import list_toggles
from workbench.run.runner import KINDS, identify_runner
from workbench.run.targets.open import TARGETS
from workbench.store import safe_name, stem_of

#: A matrix is written by hand: what is larger is something else.
LARGEST_BYTES, DEEPEST, MOST_CELLS, MOST_NUMBER = 100_000, 3, 10_000, 1_000_000
#: What a list of one may be written as.
LISTS = ("models", "dtypes", "targets", "isa", "threads")


@dataclass(frozen=True)
class Exclusion:
    """Cells to leave out: those that agree in all that is said."""

    model: str = ""
    dtype: str = ""
    target: str = ""
    isa: str = ""


@dataclass(frozen=True)
class Matrix:
    """What ``MATRIX.yaml`` says; the axes first, then how each cell is measured.

    ``isa`` names CPU extensions to switch off and on, as ``--toggle`` does, or ``ladder`` for every
    level; ``threads`` and the levels are measured within one run, taking turns. The rest is what
    ``workbench run`` takes: ``budget_s`` in seconds, ``precision`` as a fraction. An export that
    takes longer than ``export_limit_s`` seconds is ended.
    """

    models: tuple[str, ...]
    dtypes: tuple[str, ...] = ("fp32",)
    targets: tuple[str, ...] = ("host",)
    isa: tuple[str, ...] = ("auto",)
    threads: tuple[int, ...] = MeasureOptions.threads
    exclude: tuple[Exclusion, ...] = ()
    backend: str = ExportOptions.backend
    runner: str = MeasureOptions.runner
    runs: int = MeasureOptions.runs
    warmup: int = MeasureOptions.warmup
    processes: int = MeasureOptions.processes
    budget_s: float = MeasureOptions.budget_s
    precision: float = MeasureOptions.precision
    evidence: bool = MeasureOptions.evidence
    power: str = MeasureOptions.power
    timeout_s: float = MeasureOptions.timeout_s
    export_limit_s: float = 3600.0

    def export_options(self, dtype: str) -> ExportOptions:
        """How to export the cells of a dtype."""
        return ExportOptions(dtype=dtype, backend=self.backend)

    def measure_options(self, target: str, isa: str) -> MeasureOptions:
        """How to measure the cells of a target and an ISA toggle."""
        known = {field.name for field in fields(MeasureOptions)}
        shared = {name: value for name, value in vars(self).items() if name in known}
        ladder = isa == LADDER_TOGGLE
        toggle = "auto" if ladder else isa
        return MeasureOptions(**shared, toggle=toggle, isa_ladder=ladder, target=target)


def read_matrix(path: Path) -> Matrix:
    """Read a matrix and check it: names and numbers are what they may be.

    Models of files are looked up here, then beside the matrix; their paths become absolute.

    Raises
    ------
    UsageError
        An unknown key or name (with the nearest valid one), a value out of range, or two models
        whose artifacts would bear one name.
    StoreError
        The file cannot be read, is too large, or no matrix.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise StoreError(error.strerror or str(error), where=path) from None
    if len(text) > LARGEST_BYTES:
        raise StoreError("too large for a matrix", where=path)
    data = _parse(text, path)
    lists = {key: [data[key]] for key in LISTS if isinstance(data.get(key), str | int)}
    matrix = structure(Matrix, {**data, **lists}, path, strict=True)
    models = tuple(find_model_file(name, path.parent) for name in matrix.models)
    exclude = tuple(
        Exclusion(find_model_file(e.model, path.parent), e.dtype, e.target, e.isa)
        for e in matrix.exclude
    )
    matrix = Matrix(**{**vars(matrix), "models": models, "exclude": exclude})
    _check(matrix, path)
    return matrix


def find_model_file(name: str, folder: Path) -> str:
    """A model's name; ``path/to/file.py:NAME`` with the file's absolute path, if it is there."""
    file, colon, inner = name.rpartition(":")
    for place in (Path(file), folder / file):
        if colon and place.suffix == ".py" and place.is_file():
            return f"{place.resolve()}:{inner}"
    return name


def _parse(text: bytes, path: Path) -> dict[str, Any]:
    """The YAML as a mapping: no key twice, no aliases, by which few lines become terabytes."""
    import yaml

    depth = 0
    try:
        for event in yaml.parse(text, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent):
                raise StoreError("has an alias (*), which a matrix does not need", where=path)
            if depth > DEEPEST:
                raise StoreError("is nested too deeply for a matrix", where=path)
        _refuse_twice(yaml.compose(text, yaml.SafeLoader), path)
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        reason = getattr(error, "problem", None) or str(error)
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark else ""
        raise StoreError(f"not YAML: {reason}{line}", where=path) from None
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise StoreError("not a matrix: no mapping of keys", where=path)
    return data


def _refuse_twice(node: Any, path: Path) -> None:
    names = [key.value for key, _ in node.value] if getattr(node, "id", "") == "mapping" else []
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name!r:.40} stands there twice", where=path)


def _check(matrix: Matrix, path: Path) -> None:
    for key in LISTS:
        values = getattr(matrix, key)
        if not values:
            raise UsageError("is empty", where=f"{path}: {key}")
        if len(set(values)) < len(values):
            raise UsageError("has a value twice", where=f"{path}: {key}")
    plain = [model for model in matrix.models if parse_name(model).label == model]
    _check_names("model", plain, list_models(), f"{path}: models")
    _check_names("toggle", matrix.isa, [*list_toggles(), LADDER_TOGGLE], f"{path}: isa")
    _check_names("dtype", matrix.dtypes, DTYPES, f"{path}: dtypes")
    _check_names("backend", [matrix.backend], BACKENDS, f"{path}: backend")
    _check_names("runner", [matrix.runner], KINDS, f"{path}: runner")
    kinds = {form.partition("[")[0].partition(":")[0]: form for form in TARGETS}
    for target in matrix.targets:
        if target.partition(":")[0] not in kinds:
            raise unknown_name("target", target, kinds.values(), f"{path}: targets")
    for key, least in (("runs", 1), ("warmup", 0), ("processes", 1), ("budget_s", 0)):
        if not least <= getattr(matrix, key) <= MOST_NUMBER:
            raise UsageError("is out of range", where=f"{path}: {key}")
    for key in ("precision", "timeout_s", "export_limit_s"):
        value = getattr(matrix, key)
        if not (math.isfinite(value) and 0 < value <= MOST_NUMBER):
            raise UsageError("is out of range", where=f"{path}: {key}")
    if not all(1 <= count <= 1024 for count in matrix.threads):
        raise UsageError("is out of range", where=f"{path}: threads")
    for exclusion in matrix.exclude:
        _check_exclusion(exclusion, matrix, f"{path}: exclude")
    axes = (matrix.models, matrix.dtypes, matrix.targets, matrix.isa)
    if math.prod(map(len, axes)) > MOST_CELLS:
        raise UsageError(f"has more than {MOST_CELLS} cells", where=path)


def _check_names(what: str, names: Iterable[str], valid: Iterable[str], where: str) -> None:
    for name in names:
        if name not in valid:
            raise unknown_name(what, name, valid, where)


def _check_exclusion(exclusion: Exclusion, matrix: Matrix, where: str) -> None:
    said = {f.name: getattr(exclusion, f.name) for f in fields(exclusion)}
    if not any(said.values()):
        raise UsageError("one says nothing", where=where)
    axes = (matrix.models, matrix.dtypes, matrix.targets, matrix.isa)
    for (key, value), axis in zip(said.items(), axes, strict=True):
        if value and value not in axis:
            raise unknown_name(key, value, axis, where)


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
        source = identify_export(model) | {"settings": ""}
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

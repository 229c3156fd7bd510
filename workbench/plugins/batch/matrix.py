"""The matrix of a batch: models, dtypes, targets and CPU extensions, and the cells they form."""

import contextlib
import fnmatch
import glob
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from workbench import ExportOptions, MeasureOptions, Program, list_models, open_program
from workbench.api import UsageError
from workbench.jobs import (
    check_request,
    load_record,
    parse_name,
    safe_name,
    structure,
    unknown_name,
)
from workbench.plugins.batch.matrix_document import EXPORT_KEYS, LISTS, MEASURE_KEYS

HOST = "host"
#: In ``isa``: every level of the CPU.
LADDER = "ladder"
#: Limits of a file that a person writes.
MAX_CELLS, MAX_NUMBER = 10_000, 1_000_000
#: What tells cells apart.
AXES = ("model", "dtype", "target", "isa")
#: The least value of every number.
LEAST: dict[str, float] = {"runs": 1, "warmup": 0, "processes": 0, "budget_s": 0}
LEAST |= dict.fromkeys(("timeout_s", "export_limit_s"), 1e-9)


@dataclass(frozen=True)
class Cell:
    """A model in a dtype on a target, with a CPU extension off and on: one run measures it.

    ``model`` is what ``load_model`` takes, ``label`` its name in tables, ``stem`` that of its
    files. ``state`` is ``open``, ``done`` or ``failed``; ``doing`` is what happens to an open cell.
    ``program``, ``run`` and ``report`` are paths in the portfolio; ``rows`` are the measurements of
    the run, one for each comparison, and ``problem`` is a reason to doubt them.
    """

    model: str
    label: str
    dtype: str
    target: str
    isa: str
    stem: str
    state: str = "open"
    doing: str = ""
    error: str = ""
    retry: str = ""
    program: str = ""
    run: str = ""
    report: str = ""
    problem: str = ""
    rows: tuple[dict[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """``model/dtype/target/isa``."""
        return "/".join((self.label, self.dtype, self.target, self.isa))

    @property
    def folder(self) -> str:
        """The folder of its program and run."""
        return f"out_{self.stem}"

    @property
    def log(self) -> str:
        """The file with the traceback of its error."""
        return f"logs/{safe_name(self.name)}.log"

    @property
    def todo(self) -> tuple[str, ...]:
        """The stages that are not known to be finished."""
        finished = bool(self.program) + bool(self.run) + (self.state == "done")
        return ("export", "measure", "report")[finished:]


@dataclass(frozen=True)
class Matrix:
    """The content of ``MATRIX.yaml``.

    ``programs`` are finished ones, measured as they are; ``dtypes`` are those of ``models``.
    ``isa`` has CPU extensions to switch off and on, as ``--toggle`` does, or ``ladder`` for every
    ISA level. Cells with all values of an entry of ``exclude`` are left out. ``notebook`` is the
    template of the reports. An export that takes longer than ``export_limit_s`` seconds is killed.
    The file has all options in one mapping.
    """

    models: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("fp32",)
    targets: tuple[str, ...] = (HOST,)
    isa: tuple[str, ...] = ("auto",)
    exclude: tuple[dict[str, str], ...] = ()
    notebook: str = ""
    export_limit_s: float = 3600.0
    export: ExportOptions = field(default_factory=ExportOptions)
    measure: MeasureOptions = field(default_factory=MeasureOptions)

    def measure_options(self, target: str, isa: str) -> MeasureOptions:
        """How to measure the cells of a target and a CPU extension."""
        if isa == LADDER:
            return replace(self.measure, target=target, toggle="auto", isa_ladder=True)
        return replace(self.measure, target=target, toggle=isa, isa_ladder=False)


def read_matrix(path: Path) -> Matrix:
    """Read and check a matrix; paths of model files become absolute."""
    data: dict[str, Any] = load_record(dict, path)
    data |= {key: [data[key]] for key in LISTS if isinstance(data.get(key), str | int)}
    export = {key: data.pop(key) for key in EXPORT_KEYS if key in data}
    measure = {key: data.pop(key) for key in MEASURE_KEYS if key in data}
    keys = {each.name for each in fields(Matrix)} - {"export", "measure"}
    for key in data:
        if key not in keys:
            raise unknown_name("key", key, [*keys, *EXPORT_KEYS, *MEASURE_KEYS], where=path)
    matrix, folder = structure(Matrix, data, path), path.parent
    options = structure(MeasureOptions, measure, path)
    against = tuple(
        str((folder / text).resolve()) if Path(text).suffix else text  # a file, or a runtime
        for text in options.against
    )
    matrix = replace(
        matrix,
        models=tuple(find_model_file(name, folder) for name in matrix.models),
        programs=find_programs(matrix.programs, folder, f"{path}: programs"),
        exclude=tuple(
            {k: find_model_file(v, folder) if k == "model" else v for k, v in exclusion.items()}
            for exclusion in matrix.exclude
        ),
        export=structure(ExportOptions, export, path),
        measure=replace(options, against=against),
        notebook=str((folder / matrix.notebook).resolve()) if matrix.notebook else "",
    )
    _check(matrix, path)
    return matrix


def find_model_file(name: str, folder: Path) -> str:
    """The name; if it is ``path/to/file.py:NAME`` of an existing file, with an absolute path.

    So is that of a program.
    """
    if name.endswith(Program.SUFFIXES):
        return str((folder / name).resolve())
    file, colon, inner = name.rpartition(":")
    for place in (Path(file), folder / file):
        if colon and place.suffix == ".py" and place.is_file():
            return f"{place.resolve()}:{inner}"
    return name


def find_programs(patterns: Iterable[str], folder: Path, where: str) -> tuple[str, ...]:
    """The absolute paths of the ``.pte`` files that match, each once, in order."""
    programs = dict[str, None]()
    for pattern in patterns:
        # Path.glob takes no absolute pattern.
        files = glob.iglob(str(folder / pattern), recursive=True)  # noqa: PTH207
        matching = filter(lambda file: file.endswith(Program.SUFFIXES), files)
        named = sorted(str(Path(file).resolve()) for file in matching)
        if not named:
            raise UsageError(f"no .pte file matches {pattern!r:.80}", where=where)
        programs |= dict.fromkeys(named)
    return tuple(programs)


def _check(matrix: Matrix, path: Path) -> None:
    """Refuse values that are empty, unknown, given twice or out of range."""
    names = (*matrix.models, *matrix.programs)
    axes = dict(zip(AXES, (names, matrix.dtypes, matrix.targets, matrix.isa), strict=True))
    lists = dict(zip(LISTS, (*axes.values(), matrix.measure.threads), strict=False))
    for key, values in lists.items():
        if not values:
            raise UsageError("is empty", where=f"{path}: {key}")
        if len(set(values)) < len(values):
            raise UsageError("has a value twice", where=f"{path}: {key}")
    _check_axes(matrix, path)
    _check_numbers(matrix, path)
    for exclusion in matrix.exclude:
        if not exclusion:
            raise UsageError("an exclusion needs a model, dtype, target or isa", where=path)
        _check_names("key", exclusion, AXES, f"{path}: exclude")
        for key, value in exclusion.items():
            _check_names(key, [value], axes[key], f"{path}: exclude")
    if math.prod(map(len, axes.values())) > MAX_CELLS:
        raise UsageError(f"has more than {MAX_CELLS} cells", where=path)
    if matrix.notebook:
        from workbench.jobs import read_template

        read_template(Path(matrix.notebook), {"run_dir": ""})


def _check_axes(matrix: Matrix, path: Path) -> None:
    parsed = map(parse_name, matrix.models)
    plain = [model.name for model in parsed if not model.library and not model.file]
    _check_names("model", plain, list_models(), f"{path}: models")
    check_request(export=replace(matrix.export, rewrite=()), measure=matrix.measure)
    for isa in matrix.isa:
        with _named(f"{path}: isa"):
            check_request(measure=matrix.measure_options(HOST, isa))
    for dtype in matrix.dtypes:
        with _named(f"{path}: dtypes"):
            check_request(export=replace(matrix.export, dtype=dtype, rewrite=()))
    for target in matrix.targets:
        with _named(f"{path}: targets"):
            check_request(measure=matrix.measure_options(target, "none"))


@contextlib.contextmanager
def _named(where: str) -> Iterator[None]:
    """Say of an error which key of a matrix it is about."""
    try:
        yield
    except UsageError as error:
        raise UsageError(error.what, where=where, hint=error.hint) from None


def _check_numbers(matrix: Matrix, path: Path) -> None:
    numbers = {**vars(matrix.measure), "export_limit_s": matrix.export_limit_s}
    for key, least in LEAST.items():
        if not least <= numbers[key] <= MAX_NUMBER:
            raise UsageError("is out of range", where=f"{path}: {key}")
    if not all(0 <= count <= 1024 for count in matrix.measure.threads):
        raise UsageError("is out of range", where=f"{path}: threads")


def _check_names(what: str, names: Iterable[str], valid: Iterable[str], where: str) -> None:
    for name in names:
        if name not in valid:
            raise unknown_name(what, name, valid, where)


def plan_cells(matrix: Matrix) -> list[Cell]:
    """The cells of a matrix, without those excluded, in the order of its axes."""
    cells, models = [], dict[str, str]()
    for model in (*matrix.models, *matrix.programs):
        label, stems = _name_programs(model, matrix)
        for name in {safe_name(label), *stems.values()}:
            if (other := models.setdefault(name, model)) != model:
                reason = f"{model} and {other} would both be called {name}"
                raise UsageError(reason, where="models", hint="rename one, or write two matrices")
        for dtype, target, isa in product(stems, matrix.targets, matrix.isa):
            axes = dict(zip(AXES, (model, dtype, target, isa), strict=True))
            if not any(exclusion.items() <= axes.items() for exclusion in matrix.exclude):
                cells.append(Cell(model, label, dtype, target, isa, stems[dtype]))
    if not cells:
        raise UsageError("every cell is excluded", where="exclude")
    return cells


def _name_programs(model: str, matrix: Matrix) -> tuple[str, dict[str, str]]:
    """The name of a model or program in tables, and by dtype that of its files."""
    if model not in matrix.programs:
        label = parse_name(model).label
        name, backend = safe_name(label), matrix.export.backend
        return label, {dtype: f"{name}_{backend}_{dtype}" for dtype in matrix.dtypes}
    program = open_program(model)
    label = program.path.stem
    if label != safe_name(label):
        hint = "rename it: letters, digits, '.', '_' and '-'"
        raise UsageError("cannot name a folder of results", where=model, hint=hint)
    return label, {program.export.dtype if program.export else "pte": label}


def select_cells(cells: list[Cell], pattern: str) -> list[Cell]:
    """The cells whose name matches a pattern such as ``toy_cnn/*``; without a pattern, all."""
    selected = [cell for cell in cells if fnmatch.fnmatchcase(cell.name, pattern or "*")]
    if not selected:
        names = ", ".join(cell.name for cell in cells[:3])
        raise UsageError(f"no cell {pattern!r}", where="--only", hint=f"cells: {names}, ...")
    return selected

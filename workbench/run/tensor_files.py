"""A program's input and output files, and whether two experiments computed the same."""

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from workbench.errors import RunnerError, StoreError
from workbench.export.program import Program
from workbench.records.exports import Tensor
from workbench.records.runs import Agreement, Experiment, Plan, PlannedProgram, RunRecord
from workbench.run.session import RunnerSession
from workbench.store import atomic_write, sha256_of

RANDOM_SOURCE = "seeded random: normal for floats, 0 or 1 for integers"


#: The input files of every experiment by its name: a list for each execution that fills the
#: program's state, and last those to measure with.
Inputs: TypeAlias = Mapping[str, Sequence[Sequence[Path]]]


def locate_inputs(plan: Plan, run_dir: Path) -> Inputs:
    """The input files of every experiment."""
    files = {}
    for experiment in plan.experiments:
        program, phase = plan.program_of(experiment), plan.phase_of(experiment)
        folder, saved = run_dir / "inputs" / program.name / phase.name, Path(program.pte).parent
        files[experiment.name] = [
            _locate(tensors, saved, folder / (f"{n}" if n else ""))
            for n, tensors in enumerate((*phase.before, phase.inputs))
        ]
    return files


def _locate(tensors: Sequence[Tensor], folder: Path, fresh: Path) -> list[Path]:
    """The input files in order: those in the ``folder`` (checked), or ``fresh`` random ones."""
    paths = []
    for number, tensor in enumerate(tensors):
        if not tensor.file:
            path = fresh / f"input{number}.bin"
            paths.append(atomic_write(path, random_bytes(tensor, seed=number)))
            continue
        path = folder / tensor.file
        if sha256_of(path) != tensor.sha256:
            raise StoreError("is not the input that was exported", where=path, hint="export again")
        if path.suffix == ".npy":
            array = np.load(path, allow_pickle=False)
            path = atomic_write(fresh / f"input{number}.bin", array.tobytes())
        paths.append(path)
    return paths


def random_bytes(tensor: Tensor, seed: int) -> bytes:
    """Raw bytes for one input: normally distributed floats, or integers as `Tensor` says."""
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
    if tensor.first is not None:
        last = tensor.first + math.prod(tensor.shape)
        return np.arange(tensor.first, last, dtype=dtype).tobytes()
    return rng.integers(0, tensor.below or 2, tensor.shape).astype(dtype).tobytes()


#: Largest difference, relative to the largest value, that counts as agreement. Reordered sums
#: differ by a few ulp (between ISA levels 6e-7 in fp32 and 6.5e-3 in fp16); the bounds leave room
#: for deep models. Integers must be equal.
TOLERANCE = {"float64": 1e-8, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}


def read_output(path: Path, dtype: str) -> np.ndarray:
    """A runner's output file as a flat array; ``bfloat16`` is widened to ``float32``."""
    stored = "uint16" if dtype == "bfloat16" else dtype
    try:
        values = np.frombuffer(path.read_bytes(), dtype=stored)
    except (OSError, TypeError, ValueError) as error:
        raise RunnerError(f"output cannot be read as {dtype}: {error}", where=path) from None
    if dtype == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values


#: So many values are compared at a time, in double precision.
_BLOCK = 2**20


def _split(*tensors: np.ndarray) -> Iterator[list[np.ndarray]]:
    """The same blocks of flat tensors, in double precision."""
    for start in range(0, tensors[0].size, _BLOCK):
        yield [tensor[start : start + _BLOCK].astype(np.float64) for tensor in tensors]


def compare_output_bytes(
    baseline: np.ndarray,
    candidate: np.ndarray,
    *,
    names: tuple[str, str],
    threads: int,
    output: int,
    dtype: str,
    least_sqnr_db: float | None = None,
) -> Agreement:
    """Compare two outputs; NaN and infinities must be in the same positions.

    With ``least_sqnr_db``, the signal to noise ratio decides instead of the largest difference.
    """
    tolerance = TOLERANCE.get(dtype, 0.0)
    comparable = baseline.shape == candidate.shape
    differences, scales = [0.0], [0.0]
    for a, b in _split(baseline, candidate) if comparable else ():
        special, other = (np.where(np.isfinite(values), 0.0, values) for values in (a, b))
        comparable = comparable and np.array_equal(special, other, equal_nan=True)
        finite = np.isfinite(a) & np.isfinite(b)
        scales.append(float(np.abs(a[finite]).max(initial=0.0)))
        differences.append(float(np.abs(a[finite] - b[finite]).max(initial=0.0)))
    max_abs, scale = (max(differences), max(scales)) if comparable else (None, 0.0)
    agree = max_abs is not None and max_abs <= tolerance * scale
    sqnr = None
    if max_abs and scale and least_sqnr_db is not None:
        signal, noise = 0.0, 0.0
        for a, b in _split(baseline, candidate):
            finite = np.isfinite(a)
            signal += float(np.square(a[finite] / scale).sum())
            noise += float(np.square((a[finite] - b[finite]) / scale).sum())
        sqnr = float(10 * np.log10(signal / noise))
        agree = sqnr >= least_sqnr_db
    return Agreement(
        *names, threads, output, dtype, max_abs, scale, tolerance, agree, sqnr, least_sqnr_db
    )


#: What outputs of one quantised program keep at any ISA level. If every value of 8 bits is rounded
#: to the next step, about 36 dB are left (values of a quarter of the range, root mean square).
ROUNDED_SQNR_DB = 30.0
#: What outputs of a bundled program keep of those that it expects, which may be of an unquantised
#: model: what exports in int8 are held to.
BUNDLED_SQNR_DB = 10.0


def compare_experiments(
    sessions: dict[str, RunnerSession],
    run: RunRecord,
    threads: int,
    programs: Mapping[str, Program] = {},
) -> list[Agreement]:
    """Compare the outputs of every pair, and those of the first experiment with all others.

    Those of a bundled program are compared with what it expects: both sides have one name.
    """
    with tempfile.TemporaryDirectory() as folder:
        outputs = {
            name: session.output(Path(folder) / str(number))
            for number, (name, session) in enumerate(sessions.items())
        }
        values = {
            name: [read_output(Path(tensor.file), tensor.dtype) for tensor in tensors]
            for name, tensors in outputs.items()
        }
    experiments = {e.name: e for e in run.plan.experiments}
    agreements: list[Agreement] = []
    for name in sessions:
        bundled = programs.get(experiments[name].program)
        if bundled and not experiments[name].phase:
            agreements += _compare_with_bundled(bundled, name, values[name], threads)
    first: dict[str, str] = {}
    pairs = [(p.baseline, p.candidate) for p in run.plan.pairs]
    pairs += [(first.setdefault(experiments[name].phase, name), name) for name in sessions]
    for pair in dict.fromkeys(pairs):
        if sessions.keys() >= set(pair) and pair[0] != pair[1]:
            sides = tuple(experiments[name] for name in pair)
            agreements += _compare_pair(run, sides, outputs, values, threads)
    return agreements


def _compare_with_bundled(
    bundled: Program, name: str, values: Sequence[np.ndarray], threads: int
) -> Iterator[Agreement]:
    """The outputs of an experiment against those that its bundled program expects."""
    for number, (tensor, given) in enumerate(zip(bundled.expected, values, strict=False)):
        wanted = read_output(bundled.path.parent / tensor.file, tensor.dtype)
        yield compare_output_bytes(
            wanted, given, names=(name, name), threads=threads, output=number,
            dtype=tensor.dtype, least_sqnr_db=BUNDLED_SQNR_DB,
        )  # fmt: skip


def _compare_pair(
    run: RunRecord,
    sides: tuple[Experiment, ...],
    outputs: Mapping[str, Sequence[Tensor]],
    values: Mapping[str, Sequence[np.ndarray]],
    threads: int,
) -> Iterator[Agreement]:
    """The outputs of two experiments, if they had the same inputs."""
    one, other = sides
    names = one.name, other.name
    if difference := _name_difference(run.plan, sides, outputs):
        yield Agreement(*names, threads, 0, "", None, 0.0, 0.0, False, note=difference)
        return
    programs = run.plan.program_of(one), run.plan.program_of(other)
    least = least_sqnr(run, *programs)
    tensors = zip(outputs[one.name], values[one.name], values[other.name], strict=True)
    for number, (tensor, a, b) in enumerate(tensors):
        agreement = compare_output_bytes(
            a, b, names=names, threads=threads, output=number, dtype=tensor.dtype,
            least_sqnr_db=least,
        )  # fmt: skip
        if programs[0] != programs[1] and not agreement.agree and a.dtype.kind not in "fV":
            agreement = replace(agreement, note="integer outputs of two programs differ")
        yield agreement


def _name_difference(
    plan: Plan, sides: Sequence[Experiment], outputs: Mapping[str, Sequence[Tensor]]
) -> str:
    """Why outputs of two experiments cannot be compared; empty if they can."""
    described = [
        (
            _describe(plan.phase_of(experiment).inputs),
            _describe(outputs[experiment.name]),
            plan.program_of(experiment).input_source,
        )
        for experiment in sides
    ]
    for kind, one, other in zip(("inputs", "shapes", "inputs"), *described, strict=True):
        if one != other:
            return f"their {kind} differ: {one} and {other}"
    return ""


def _describe(tensors: Sequence[Tensor]) -> str:
    return ", ".join(f"{t.dtype} {'x'.join(map(str, t.shape))}" for t in tensors)


def least_sqnr(run: RunRecord, one: PlannedProgram, other: PlannedProgram) -> float | None:
    """The signal to noise ratio that outputs must have, in dB; None if their values decide.

    Two programs may each differ from the model by what is tolerated in their dtypes. A quantised
    program may round to the next step on another ISA level.
    """
    exports = [run.export_of(program) for program in (one, other)]
    if one == other:
        options = exports[0].options if exports[0] else {}
        is_quantized = options.get("quantized") or options.get("module_dtypes")
        return ROUNDED_SQNR_DB if is_quantized else None
    ratios = [f.least_sqnr_db for export in exports if export for f in export.fidelity]
    return min(ratios) - 10 * math.log10(2) if ratios else None

"""The files of the workbench: their paths, atomic writes, the cache, and records as files."""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from workbench.errors import StoreError, UsageError, WorkbenchError
from workbench.names import LONGEST_NOTE, check_label
from workbench.records.codec import (
    check_keys,
    check_version,
    parse_json,
    structure,
    to_json,
)
from workbench.records.exports import Export
from workbench.records.layer_sidecar import Layers
from workbench.records.recipe import Recipe
from workbench.records.runs import Note, Notes, RunRecord

T = TypeVar("T")

MANIFEST = "manifest.json"
METRICS = "metrics.json"
SUMMARY = "analysis_summary.json"
CHECKS = "checks.json"
APPLIED = "applied.json"
NOTES = "notes.json"
REPORT_HTML = "report.html"
REPORT_MD = "report.md"
REPORT_IPYNB = "report.ipynb"
#: Ending of the folder for files about a recording of another tool; with a dot, since a folder
#: called ``workbench`` would hide the package from Python that is started beside it.
OUTPUT = ".workbench"
LAYERS = "layers.json"
ETRECORD = "etrecord.bin"  #: As upstream's scripts name it.
FUNCTIONS = "functions.json"
RUNS = "runs"
#: In a checkout, ``workbench/data`` is a link.
DATA = (Path(__file__).parent / "data").resolve()
#: The recorded runs, one output folder per model.
SAMPLES = DATA / "samples"

#: In bytes: larger than any file of a run but traces.
_LARGEST = 2**28
#: Suffix of a file that is still being written, here and in the runner (``native/files.h``).
PARTIAL = ".partial"
_LEFTOVER = re.compile(rf"^\..+\.\w{{8}}{PARTIAL}$|\.(etdump|samples){PARTIAL}$")


def atomic_write(path: Path, content: bytes | str) -> Path:
    """Write a file so that a reader sees all of it or the old one; returns its path.

    Of a text, what UTF-8 lacks, as in names of another encoding, becomes a question mark.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PARTIAL)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode(errors="replace") if isinstance(content, str) else content)
        temporary.chmod(0o644)
        return temporary.replace(path)
    except BaseException as error:
        if temporary:
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise StoreError(f"cannot be written: {error.strerror}", where=path) from None
        raise


def write_changed(path: Path, content: bytes | str) -> Path:
    """Write a file unless it has this content: who reads or measures it is not disturbed."""
    data = content.encode() if isinstance(content, str) else content
    with contextlib.suppress(OSError):
        if path.stat().st_size == len(data) and path.read_bytes() == data:
            return path
    return atomic_write(path, data)


def check_writable(pte: Path) -> None:
    """Fail before a program is made if it cannot be written; makes no folder for it yet."""
    try:
        folder = next(path for path in pte.absolute().parents if path.exists())
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{layers_path(pte).name}."):
            pass
    except OSError as error:
        what = f"cannot be written: {error.strerror}"
        raise StoreError(what, where=pte, hint="choose another --out") from None


@contextlib.contextmanager
def lock_writers(folder: Path) -> Iterator[None]:
    """Lock a folder for one writer; others wait. A file system without locks lets all write."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise StoreError(f"cannot be written: {error.strerror}", where=folder) from None
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def remove_partials(folder: Path) -> None:
    """Delete the leftovers of killed writers below a folder, in which no writer may be active."""
    for path in folder.rglob(f"*{PARTIAL}"):
        if _LEFTOVER.search(path.name):
            with contextlib.suppress(OSError):  # harmless if it stays
                path.unlink()


def cache_folder() -> Path:
    """The workbench's cache: ``$XDG_CACHE_HOME/executorch-workbench``, or below ``~/.cache``."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The specification ignores relative paths.
    return (base if base.is_absolute() else Path.home() / ".cache") / "executorch-workbench"


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The file or folder ``name`` in the cache; if it is missing, ``make`` creates it."""
    path, hint = cache_folder() / name, "set XDG_CACHE_HOME to a writable folder"
    try:
        if path.exists():
            if path.stat().st_uid != os.geteuid():
                raise WorkbenchError("belongs to another user", where=path, hint=hint)
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        # Several processes may make it: one of them stays.
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".new-") as temporary:
            fresh = Path(temporary) / path.name
            try:
                make(fresh)
            except OSError as error:
                reason = f"{type(error).__name__}: {error}"
                raise WorkbenchError(f"cannot be made: {reason}", where=path.name) from error
            for part in (fresh, *fresh.rglob("*")):
                if part.is_file():
                    with open(part, "rb") as file:
                        os.fsync(file.fileno())
            if not path.exists():
                with contextlib.suppress(FileExistsError if fresh.is_file() else OSError):
                    fresh.replace(path)
    except OSError as error:
        what = f"cannot write the cache: {error.strerror}"
        raise WorkbenchError(what, where=path.parent, hint=hint) from None
    return path


def open_file(path: Path) -> BufferedReader:
    """Open a file for reading; OSError for a pipe or a device, which would block."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(mode := os.fstat(handle).st_mode):
        os.close(handle)
        what = "Is a directory" if stat.S_ISDIR(mode) else "is not a regular file"
        raise OSError(errno.EINVAL, what, str(path))
    return open(handle, "rb")


def read_file(path: Path, most: int = _LARGEST) -> bytes:
    """The bytes of an untrusted file; StoreError if it is no regular file, or too large."""
    try:
        with open_file(path) as file:
            if os.fstat(file.fileno()).st_size > most:
                raise StoreError(f"too large: more than {most} bytes", where=path)
            return file.read()
    except OSError as error:
        raise StoreError(error.strerror or str(error), where=path) from None


def read_json(path: Path, most: int = _LARGEST) -> dict[str, Any]:
    """The object in an untrusted JSON file, of so many bytes at most."""
    return parse_json(read_file(path, most), path)


def load_record(cls: type[T], path: Path) -> T:
    """Read a record from an untrusted JSON file; from one of another name, as YAML."""
    data = read_json(path) if path.suffix == ".json" else read_yaml(path)
    return structure(cls, check_version(data, path), path)


#: The SHA-256 of each state of a file that was hashed in this process.
_hashes: dict[tuple[int, ...], str] = {}
#: The clock of a file's times advances in steps of up to 10 ms: until then, a change can be hidden.
_SETTLED_NS = 20_000_000


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal; computed once for each state of the file."""
    try:
        with open_file(path) as file:
            status = os.fstat(file.fileno())
            state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            if digest := _hashes.get(state):
                return digest
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            if time.time_ns() - status.st_mtime_ns > _SETTLED_NS:
                _hashes[state] = sha256
            return sha256
    except OSError as error:
        raise StoreError(error.strerror or str(error), where=path) from None


#: What follows a model in its program's stem: a hash, rewrites, the backend, the dtype.
_PARTS = r"(?:-[0-9a-f]{8})?((?:-(?:channels_last|[^_-]+))*)_[a-z]+_(\w+)"


def name_programs(programs: Sequence[tuple[str, str]]) -> list[str]:
    """Short names of programs, made of the models and stems; a dtype only if there are several.

    Rewrites are named. A file that was renamed is called as it is.

    Examples
    --------
    >>> from workbench.store import name_programs
    >>> name_programs([("Net", "Net-5f9ab53e_xnnpack_fp32"), ("Edited", "Edited_xnnpack_fp32")])
    ['Net', 'Edited']
    >>> name_programs([("Net", "Net_xnnpack_fp32"), ("Net", "Net_xnnpack_int8")])
    ['Net fp32', 'Net int8']
    >>> name_programs([("Net", "Net_xnnpack_fp32"), ("Net", "Net-constants_xnnpack_fp32")])
    ['Net', 'Net-constants']
    """
    names, dtypes = [], []
    for model, stem in programs:
        parts = re.fullmatch(re.escape(safe_name(model)) + _PARTS, stem)
        names.append(model + parts[1] if parts else stem)
        dtypes.append(parts[2] if parts else "")
    several = len(set(filter(None, dtypes))) > 1
    return [
        f"{name} {dtype}" if dtype and several else name
        for name, dtype in zip(names, dtypes, strict=True)
    ]


def safe_name(text: str) -> str:
    """``text`` as a file name: letters, digits, ``._-`` only, never hidden, never empty."""
    return re.sub(r"[^\w.-]+", "_", text, flags=re.ASCII).strip("._-") or "model"


def default_root(model: str) -> Path:
    """The output folder of a model: ``out_<model>`` in the working directory."""
    return Path(f"out_{safe_name(model)}")


def artifacts_dir(root: Path) -> Path:
    """The folder of a model's exported programs."""
    return root / "artifacts"


def export_record_path(pte: Path) -> Path:
    """The record beside a ``.pte``."""
    return pte.with_name(pte.name + ".export.json")


def save_export(export: Export, directory: Path) -> Path:
    """Write the record of an export beside its ``.pte``; returns the record's path."""
    return atomic_write(export_record_path(directory / export.pte), to_json(export))


def layers_path(pte: Path) -> Path:
    """The sidecar beside a ``.pte``, which maps its instructions to the model."""
    return pte.with_name(f"{pte.name}.{LAYERS}")


def save_layers(layers: Layers, path: Path) -> Path:
    """Write a sidecar; returns its path."""
    return write_changed(path, to_json(layers, compact=True))  # one for every operator


def kept_layers(run_dir: Path, program: str) -> Path:
    """The sidecar of one of a run's programs in its folder."""
    return run_dir / (f"{program}.{LAYERS}" if program else LAYERS)


def load_layers(path: Path, sha256: str) -> Layers | None:
    """Read the sidecar of the program with this SHA-256; None if there is none for it."""
    if not path.is_file():
        return None
    layers = read_layers(path)
    return layers if layers.sha256 == sha256 else None


def read_layers(path: Path) -> Layers:
    """Read a sidecar; StoreError if it refers to an operator or tensor that it lacks."""
    layers = load_record(Layers, path)
    for method in layers.methods:
        numbers = {None, *range(len(method.origins))}
        for call in method.instructions:
            nodes = call.xnodes
            origins = chain(*call.events.values(), *(n.origins + n.absorbed for n in nodes))
            if not (
                all(node.inputs and node.outputs for node in nodes)
                and {call.origin, *origins} <= numbers
                and {n.borrows for n in nodes} <= {None, *range(len(nodes))}
                and {*chain(*(n.inputs + n.outputs for n in nodes))} <= {v.id for v in call.xvalues}
                and {*call.inputs, *call.outputs} <= method.values.keys()
            ):
                raise StoreError("refers to an operator or tensor that it lacks", where=path)
    return layers


def ceilings_path(folder: Path, isa: str, threads: int | str) -> Path:
    """The file of the peaks at an ISA level and thread count."""
    return folder / f"ceilings_{isa}_t{threads}.json"


def trace_path(run_dir: Path, stem: str, experiment: str, threads: int, process: int) -> Path:
    """The ETDump of one traced process; the first has the plain name."""
    part = f"_p{process + 1}" if process else ""
    return run_dir / experiment / f"{stem}_{experiment}_t{threads}{part}.etdump"


def samples_path(run_dir: Path, stem: str, experiment: str, threads: int) -> tuple[Path, Path]:
    """The PC samples of one process, and the ETDump of the same process."""
    base = run_dir / experiment / f"{stem}_{experiment}_t{threads}"
    return base.with_name(f"{base.name}.samples"), base.with_name(f"{base.name}_sampled.etdump")


def new_run_dir(root: Path, name: str) -> Path:
    """A new folder for a run, which overwrites none: ``runs/<name>``, ``<name>-2``, ..."""
    number, path = 1, root / RUNS / name
    while True:
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            number += 1
            path = path.with_name(f"{name}-{number}")
        except OSError as error:
            what, hint = f"cannot be created: {error.strerror}", "choose another --out"
            raise StoreError(what, where=path, hint=hint) from None


def save_run(run: RunRecord, run_dir: Path) -> Path:
    """Write ``manifest.json``; returns its path."""
    return atomic_write(run_dir / MANIFEST, to_json(run))


def is_ours(run_dir: Path) -> bool:
    """Whether a folder has a manifest of the workbench, even a broken one, and of no other tool."""
    try:
        text = read_file(run_dir / MANIFEST)
    except StoreError:
        return False
    try:
        return b'"plan"' in text or not parse_json(text, run_dir)
    except StoreError:
        return True


def output_folder(path: Path) -> Path:
    """Where files about a recorded run are written: for others' recordings, beside or in these."""
    if is_ours(path):
        return path
    return path / f"results{OUTPUT}" if path.is_dir() else path.with_suffix(OUTPUT)


def load_run(run_dir: Path) -> RunRecord:
    """Read ``manifest.json``."""
    if not is_ours(run_dir):
        runs = ", ".join(str(p) for p in find_runs(run_dir)) or "none below it"
        what = f"recorded by another tool, or no run: no {MANIFEST} of the workbench"
        raise UsageError(what, where=run_dir, hint=f"runs: {runs}")
    return read_manifest(run_dir / MANIFEST)


def read_manifest(path: Path) -> RunRecord:
    """The record in a manifest, which may have another name."""
    run = load_record(RunRecord, path)
    _check_names(run, path)
    return run


#: Notes of a run.
_MOST_NOTES = 100


def load_notes(folder: Path) -> tuple[Note, ...]:
    """The notes in a run's folder, the oldest first."""
    path = folder / NOTES
    return load_record(Notes, path).notes if path.is_file() else ()


def add_note(folder: Path, text: str) -> None:
    """Add a note to a run's folder; UsageError if it is empty, or there are too many."""
    text, where = text.strip(), folder / NOTES
    if not 0 < len(text) <= LONGEST_NOTE:
        raise UsageError(f"a note has 1 to {LONGEST_NOTE} letters, not {len(text)}", where=where)
    with lock_writers(folder):
        notes = load_notes(folder)
        if len(notes) >= _MOST_NOTES:
            raise UsageError(f"has {len(notes)} notes", where=where, hint="edit the file")
        written = Note(datetime.now(UTC).isoformat(timespec="seconds"), text)
        atomic_write(where, to_json(Notes((*notes, written))))


#: What becomes part of a file's name.
_NAME = re.compile(r"\w[\w.+-]{0,199}", re.ASCII)


def _check_names(run: RunRecord, path: Path) -> None:
    """StoreError if a manifest, which may be a stranger's, has a name that is unsafe or unknown."""
    plan, experiments = run.plan, {e.name for e in run.plan.experiments}
    names = [name for program in plan.programs for name in (program.name, program.stem)]
    names += [plan.stem, *experiments, *(e.isa for e in plan.experiments)]
    if unsafe := [name for name in names if not _NAME.fullmatch(name)]:
        raise StoreError(f"{unsafe[0]!r:.60} is no valid name", where=path)
    try:
        check_label(plan.label)
    except UsageError as error:
        raise StoreError(f"its label {error.what}", where=path) from None
    used = [side for pair in plan.pairs for side in (pair.baseline, pair.candidate)]
    used += [session.experiment for session in run.sessions]
    used += [sampling.experiment for sampling in run.samplings]
    used += [side for a in run.agreements for side in (a.baseline, a.candidate)]
    if unknown := [name for name in used if name not in experiments]:
        raise StoreError(f"experiment {unknown[0]!r:.60} is not in its plan", where=path)
    if any(s.complete and s.traced and not s.etdump for s in run.sessions):
        raise StoreError("a traced process has no trace", where=path)


#: In a manifest, this comes before all that is long.
_STARTED = re.compile(rb'"started": "([^"]{1,40})"')


def find_runs(*roots: Path) -> list[Path]:
    """All run folders below ``roots``, by the time at which they were started, the oldest first."""
    runs = []
    patterns = (f"runs/*/{MANIFEST}", f"out_*/runs/*/{MANIFEST}")
    for path in chain.from_iterable(root.glob(p) for root in roots for p in patterns):
        with contextlib.suppress(OSError), open_file(path) as file:  # it may be deleted meanwhile
            modified = os.fstat(file.fileno()).st_mtime
            match = _STARTED.search(file.read(2**20))
            started = match[1].decode(errors="replace") if match else ""
            started = started or datetime.fromtimestamp(modified, UTC).isoformat()
            runs.append((started, modified, path.parent))
    return [run_dir for *_, run_dir in sorted(runs)]


def find_nearby() -> list[Path]:
    """The run folders in the working folder, above it, and where notebooks of both write theirs.

    A kernel stands where its notebook does, a terminal mostly one folder above.
    """
    here = Path.cwd()
    roots = (folder for place in (here, here.parent) for folder in (place, place / "notebooks"))
    return find_runs(*dict.fromkeys(roots))


def inside(run_dir: Path, name: str) -> Path:
    """The path of a file that a manifest names."""
    path = run_dir / name
    if not path.resolve().is_relative_to(run_dir.resolve()):
        raise StoreError("names a file outside its folder", where=run_dir / MANIFEST)
    return path


def check_inside(run_dir: Path, names: Iterable[str]) -> None:
    """StoreError if one of the files that a manifest names is outside of the run's folder.

    Each folder is resolved once: runs have hundreds of files in a few.
    """
    names = dict.fromkeys(names)
    odd = [name for name in names if name.endswith("..") or (run_dir / name).is_symlink()]
    for name in dict.fromkeys([*(str(Path(name).parent) for name in names), *odd]):
        inside(run_dir, name)


def load_recipe(path: Path) -> Recipe:
    """Read a recipe."""
    content = load_record(dict, path)
    recipe = structure(Recipe, content, path)
    check_keys(recipe, content, path)
    return recipe


#: Limits of a YAML file that a person writes.
_MAX_BYTES, _MAX_DEPTH = 100_000, 4


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file as a mapping. No duplicate keys; no aliases, which can expand to gigabytes."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    text = read_file(path, _MAX_BYTES)
    try:
        for event in yaml.parse(text, loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > _MAX_DEPTH:
                raise StoreError("has aliases (*) or is nested too deeply", where=path)
        root: Any = yaml.compose(text, loader)
        data = yaml.load(text, loader)  # noqa: S506
    except (yaml.YAMLError, ValueError) as error:
        reason = getattr(error, "problem", None) or str(error)
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark else ""
        raise StoreError(f"not YAML: {reason}{line}", where=path) from None
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise StoreError("expected a mapping of keys", where=path)
    names = [key.value for key, _ in root.value]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"duplicate key {name!r:.40}", where=path)
    return data

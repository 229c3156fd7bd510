"""PC samples, where the CPU was while a program ran, and the functions that they fell into.

The native runner writes a JSON object: ``format``, ``version``, ``machine``, ``hz`` (samples a
second of each thread, on average), ``lost`` (how many did not fit), ``modules`` (loaded files, each
with ``path`` and ``build_id``), and an array each of ``time_ns`` (on the clock of the ETDump),
``cpu_ns`` (on the thread's CPU clock), ``thread``, ``module`` (position in ``modules``, -1 for
none) and ``address`` (the program counter as a virtual address in the module's file).

Once the operators of the samples are known, the file also has ``operators`` (of each its ``key``,
``operator`` and ``kind``, as in the ledger), and an array each of ``place`` (position in
``operators``, -1 outside any inference) and ``sure`` (0 or 1).
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.errors import StoreError, TraceError
from workbench.frames import FUNCTIONS, SAMPLES
from workbench.store import atomic_write, read_json
from workbench.trace.functions import find_functions

_VERSION = 1
_ARRAYS = ("time_ns", "cpu_ns", "thread", "module", "address")
_PLACES = ("place", "sure")
#: What names the operator of a sample.
_OPERATOR = ["key", "operator", "kind"]

_INSTRUCTION = re.compile(r"[0-9a-f]{1,16} \S.{,199}")

#: The runner keeps 65536 samples, which take about 4 MB.
_LARGEST = 64 * 2**20
#: A thread that computed for less than this part of the sampling period was waiting.
_BUSY = 0.25


def read_samples(path: str | Path) -> pd.DataFrame:
    """Read the PC samples of one process, in the order of time.

    A waiting thread is sampled too, but is not ``busy`` by its CPU clock. Nor is the first sample
    of a thread, for lack of an earlier clock reading. If their operators are known, there are
    columns for ``key``, ``operator``, ``kind`` and ``sure``.
    """
    path = Path(path)
    content = _load(path, "samples")
    placed = "operators" in content
    arrays = {name: _array(content, name, path) for name in (*_ARRAYS, *_PLACES * placed)}
    lengths = {name: len(values) for name, values in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise TraceError(f"arrays of different lengths: {lengths}", where=path)
    hz = content.get("hz")
    if type(hz) is not int or not 0 < hz <= 10**6:
        raise TraceError(f"a rate of {hz!r} samples a second", where=path)
    modules = _modules(content, path)
    module = arrays["module"]
    if len(module) and not -1 <= module.min() <= module.max() < len(modules):
        raise TraceError(f"a sample in module {module.max()} of {len(modules)}", where=path)
    # -1 picks the last: code outside any file
    names = np.array([*modules, ("", "")], object)[module]
    columns = arrays | {"busy": _busy(arrays, hz), "library": names[:, 0], "build_id": names[:, 1]}
    frame = pd.DataFrame(columns)[SAMPLES.names]
    if placed:
        frame = frame.assign(**_places(content, arrays, path))
    return SAMPLES.check(frame.sort_values("time_ns", kind="stable", ignore_index=True))


def _places(
    content: dict[str, Any], arrays: dict[str, np.ndarray], path: Path
) -> dict[str, np.ndarray]:
    """The operator of each sample, NaN outside any inference."""
    operators, place = content["operators"], arrays["place"]
    if not isinstance(operators, list) or not all(map(_is_operator, operators)):
        raise TraceError("its operators lack key, operator or kind", where=path)
    if len(place) and not -1 <= place.min() <= place.max() < len(operators):
        raise TraceError(f"a sample in operator {place.max()} of {len(operators)}", where=path)
    columns = np.array([*operators, [np.nan] * len(_OPERATOR)], object)[place].T
    return dict(zip(_OPERATOR, columns, strict=True)) | {"sure": arrays["sure"] != 0}


def _is_operator(row: object) -> bool:
    return isinstance(row, list) and len(row) == len(_OPERATOR) and all(type(t) is str for t in row)


def write_places(samples: pd.DataFrame, path: Path) -> Path:
    """Add the operators of samples, as `read_samples` orders them, to their file."""
    content = _load(path, "samples")
    order = np.argsort(_array(content, "time_ns", path), kind="stable")
    texts = samples[_OPERATOR].astype(object)
    place, operators = pd.factorize(pd.MultiIndex.from_frame(texts.fillna("")))
    place = np.where(texts["key"].isna(), -1, place)
    for name, values in (("place", place), ("sure", samples["sure"].to_numpy(int))):
        in_file = np.empty(len(order), int)
        in_file[order] = values
        content[name] = in_file.tolist()
    content["operators"] = [list(operator) for operator in operators]
    return atomic_write(path, json.dumps(content, separators=(",", ":")) + "\n")


def _load(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in a file of samples or of functions."""
    try:
        content = read_json(path, _LARGEST)
    except StoreError as error:
        raise TraceError(error.what, where=path) from None
    if content.get("format") != f"workbench {what}":
        raise TraceError(f"is no file of {what}", where=path)
    if content.get("version") != _VERSION:
        raise TraceError(f"version {content.get('version')!r}, this reads {_VERSION}", where=path)
    return content


def _array(content: dict[str, Any], name: str, path: Path) -> np.ndarray:
    values = content.get(name)
    if values == []:
        return np.zeros(0, np.int64)
    try:
        array = np.array(values if isinstance(values, list) else None)
        # Numbers beyond 64 bits, and lists in the list, become objects or another shape.
        if array.ndim == 1 and array.dtype == np.int64:
            return array
    except (ValueError, TypeError, OverflowError):
        pass
    raise TraceError(f"{name!r} is no list of whole numbers", where=path)


def _modules(content: dict[str, Any], path: Path) -> list[tuple[str, str]]:
    try:
        modules = [(m["path"], m["build_id"]) for m in content["modules"]]
    except (KeyError, TypeError):
        modules = [(None, None)]
    if not all(isinstance(text, str) for module in modules for text in module):
        raise TraceError("its modules lack path or build_id", where=path)
    return modules


def _busy(arrays: dict[str, np.ndarray], hz: int) -> np.ndarray:
    """Whether each sample's thread computed for a while before it."""
    order = np.lexsort((arrays["time_ns"], arrays["thread"]))
    thread, clock = arrays["thread"][order], arrays["cpu_ns"][order]
    busy = np.zeros(len(order), bool)
    same = thread[1:] == thread[:-1]
    # As floats: differences of any two 64-bit numbers fit.
    spent = clock[1:].astype(float) - clock[:-1]
    busy[order[1:]] = same & (spent >= _BUSY * 1e9 / hz)
    return busy


def resolve_functions(
    samples: Iterable[pd.DataFrame], folders: Sequence[Path] = ()
) -> pd.DataFrame:
    """The functions that busy samples fell into, of the libraries found, by their build id.

    ``folders`` hold copies of the libraries, for samples of another machine.
    """
    busy = pd.concat([s[s["busy"]] for s in samples], ignore_index=True)
    frames = []
    for (library, build_id), part in busy[busy["build_id"] != ""].groupby(["library", "build_id"]):
        name = Path(library).name
        for path in (Path(library), *(folder / name for folder in folders)):
            functions = find_functions(path, build_id, part["address"].to_numpy())
            if functions is not None:
                frames.append(functions)
                break
    filled = [frame for frame in frames if len(frame)] or [pd.DataFrame(columns=FUNCTIONS.names)]
    return FUNCTIONS.check(pd.concat(filled, ignore_index=True))


def locate_samples(samples: pd.DataFrame, functions: pd.DataFrame) -> pd.DataFrame:
    """The samples with ``function`` and ``code``; where unknown, ``[library]`` and ``unknown``."""
    library, paths = pd.factorize(samples["library"])
    names = np.array([f"[{Path(path).name or 'no file'}]" for path in paths], object)[library]
    codes = np.full(len(samples), "unknown", object)
    for build_id, part in functions.groupby("build_id"):
        part = part.sort_values("start")
        rows = np.flatnonzero(samples["build_id"] == build_id)
        address = samples["address"].to_numpy()[rows]
        starts, sizes = part["start"].to_numpy(np.int64), part["size"].to_numpy(np.int64)
        place = np.searchsorted(starts, address, side="right") - 1
        inside = (place >= 0) & (address - starts[place] < sizes[place])
        names[rows[inside]] = part["name"].to_numpy()[place[inside]]
        codes[rows[inside]] = part["code"].to_numpy()[place[inside]]
    return samples.assign(function=names, code=codes)


def count_instructions(samples: pd.DataFrame, functions: pd.DataFrame) -> dict[str, pd.Series]:
    """Busy samples at every instruction of the hot loops, by function; indexed by its text."""
    hits_of = {}
    for build_id, part in samples[samples["busy"]].groupby("build_id"):
        counts = part["address"].value_counts()
        here = functions[(functions["build_id"] == build_id) & (functions["loop"] != "")]
        for name, loop in zip(here["name"], here["loop"], strict=True):
            places = [int(line.partition(" ")[0], 16) for line in loop.splitlines()]
            hits = counts.reindex(places, fill_value=0).to_numpy()
            hits_of[name] = pd.Series(hits, index=loop.splitlines())
    return hits_of


def write_functions(functions: pd.DataFrame, path: Path) -> Path:
    """Write the functions as JSON; returns the path."""
    head = {"format": "workbench functions", "version": _VERSION}
    content = {**head, "functions": functions.to_dict("records")}
    return atomic_write(path, json.dumps(content, indent=0) + "\n")


def read_functions(path: Path) -> pd.DataFrame:
    """Read what :func:`write_functions` wrote."""
    content = _load(path, "functions")
    try:
        rows = [
            tuple({"loop": "", **row}[name] for name in FUNCTIONS.names)
            for row in content["functions"]
        ]
    except (TypeError, KeyError):
        raise TraceError("is no table of functions", where=path) from None
    kinds = tuple(int if kind == "int" else str for _, kind, *_ in FUNCTIONS.columns)
    for row in rows:
        fits = tuple(map(type, row)) == kinds and all(0 <= n < 2**62 for n in row[2:4])
        if not fits or not all(map(_INSTRUCTION.fullmatch, row[-1].splitlines())):
            raise TraceError(f"a malformed function: {row!r:.80}", where=path)
    return pd.DataFrame(rows, columns=FUNCTIONS.names)

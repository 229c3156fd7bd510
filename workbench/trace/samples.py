"""Files of PC samples: where the CPU was while a program ran.

The native runner writes one JSON object: ``format`` ("workbench samples"), ``version`` (1),
``machine`` (x86_64 or aarch64), ``hz`` (samples a second of each thread, on average), ``lost``
(how many did not fit), ``modules`` (loaded files, each with ``path`` and ``build_id``), and one
array each with a value for every sample: ``time_ns`` on the clock of the ETDump of the same
process, ``cpu_ns`` on the thread's CPU clock, ``thread``, ``module`` (position in ``modules``, -1
for none) and ``address`` (the program counter as a virtual address in the module's file).

Samples to functions, and the table that lets another machine do it without the libraries.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from workbench.errors import TraceError
from workbench.frames import FUNCTIONS, SAMPLES, check
from workbench.store import atomic_write
from workbench.trace.functions import find_functions

FORMAT, VERSION = "workbench samples", 1
_ARRAYS = ("time_ns", "cpu_ns", "thread", "module", "address")

#: The runner keeps 65536 samples, which take about 4 MB.
_LARGEST = 64 * 2**20

#: A thread that computed for less than this part of the sampling period was waiting.
_BUSY = 0.25


def read_samples(path: str | Path) -> pd.DataFrame:
    """Read the PC samples of one process, in the order of time.

    A thread's timer counts real time, so a waiting thread is sampled too; its CPU clock shows it,
    and it is not ``busy``. Nor is the first sample of a thread, of which nothing is known.

    Returns
    -------
    DataFrame
        Columns of :data:`workbench.schema.SAMPLES`.

    Raises
    ------
    TraceError
        The file cannot be read, is of another format or version, or is malformed.
    """
    path = Path(path)
    content = _load(path)
    arrays = {name: _array(content, name, path) for name in _ARRAYS}
    lengths = {name: len(values) for name, values in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise TraceError(f"arrays of different lengths: {lengths}", where=path)
    libraries, build_ids = _modules(content, path)
    module = arrays["module"]
    if len(module) and not -1 <= module.min() <= module.max() < len(libraries):
        raise TraceError(f"a sample in module {module.max()} of {len(libraries)}", where=path)
    frame = pd.DataFrame(
        {
            "time_ns": arrays["time_ns"],
            "thread": arrays["thread"],
            "busy": _busy(arrays, _rate(content, path)),
            # -1 picks the last: code outside any file
            "library": np.array([*libraries, ""], object)[module],
            "build_id": np.array([*build_ids, ""], object)[module],
            "address": arrays["address"],
        }
    )
    return check(frame.sort_values("time_ns", kind="stable", ignore_index=True), SAMPLES)


def _load(path: Path) -> dict:
    try:
        with open(path, "rb") as file:
            text = file.read(_LARGEST + 1)
        content = json.loads(text) if len(text) <= _LARGEST else None
    except OSError as error:
        raise TraceError(error.strerror or str(error), where=path) from None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise TraceError("is no file of samples", where=path)
    if content.get("version") != VERSION:
        raise TraceError(f"version {content.get('version')!r}, this reads {VERSION}", where=path)
    return content


def _array(content: dict, name: str, path: Path) -> np.ndarray:
    values = content.get(name)
    try:
        array = np.array(values if isinstance(values, list) else None)
        if not len(values):
            return np.zeros(0, np.int64)
        # Numbers beyond 64 bits, and lists in the list, become objects or another shape.
        if array.ndim == 1 and array.dtype == np.int64:
            return array
    except (ValueError, TypeError, OverflowError):
        pass
    raise TraceError(f"{name!r} is no list of whole numbers", where=path)


def _modules(content: dict, path: Path) -> tuple[list[str], list[str]]:
    try:
        modules = [(m["path"], m["build_id"]) for m in content["modules"]]
    except (KeyError, TypeError):
        modules = [(None, None)]
    if not all(isinstance(text, str) for module in modules for text in module):
        raise TraceError("its modules lack path or build_id", where=path)
    return [path for path, _ in modules], [build_id for _, build_id in modules]


def _rate(content: dict, path: Path) -> int:
    hz = content.get("hz")
    if not isinstance(hz, int) or isinstance(hz, bool) or not 0 < hz <= 10**6:
        raise TraceError(f"a rate of {hz!r} samples a second", where=path)
    return hz


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


FUNCTIONS_FORMAT, FUNCTIONS_VERSION = "workbench functions", 1
_LARGEST_FUNCTIONS = 64 * 2**20


def resolve_functions(
    samples: Iterable[pd.DataFrame], folders: Sequence[Path] = ()
) -> pd.DataFrame:
    """The functions that busy samples fell into.

    Parameters
    ----------
    samples
        Frames of ``schema.SAMPLES``.
    folders
        Where copies of the libraries lie, for samples of another machine; a library is known by
        its build id.

    Returns
    -------
    DataFrame
        ``schema.FUNCTIONS``; none of libraries that are not found.
    """
    places = pd.concat([s[s["busy"]] for s in samples], ignore_index=True)
    found = [pd.DataFrame(columns=FUNCTIONS.names)]
    for (library, build_id), part in places.groupby(["library", "build_id"]):
        addresses = part["address"].to_numpy()
        name = Path(library).name
        for path in (Path(library), *(folder / name for folder in folders)):
            functions = find_functions(path, build_id, addresses) if build_id else None
            if functions is not None:
                found.append(functions)
                break
    filled = [frame for frame in found if len(frame)] or found
    return check(pd.concat(filled, ignore_index=True), FUNCTIONS)


def locate_samples(samples: pd.DataFrame, functions: pd.DataFrame) -> pd.DataFrame:
    """The samples with the columns ``function`` and ``code``: of the function that each fell into.

    Where that is not known, ``function`` is ``<library>`` in brackets, and ``code`` is ``unknown``.
    """
    names = np.array([f"[{Path(p).name or 'no file'}]" for p in samples["library"]], object)
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


def write_functions(functions: pd.DataFrame, path: Path) -> Path:
    """Write the functions as JSON; returns the path."""
    content = {
        "format": FUNCTIONS_FORMAT,
        "version": FUNCTIONS_VERSION,
        "functions": functions.to_dict("records"),
    }
    return atomic_write(path, json.dumps(content, indent=0) + "\n")


def read_functions(path: Path) -> pd.DataFrame:
    """Read what ``write_functions`` wrote.

    Raises
    ------
    TraceError
        The file cannot be read, or is malformed.
    """
    try:
        with open(path, "rb") as file:
            content = json.loads(file.read(_LARGEST_FUNCTIONS))
        if (content["format"], content["version"]) != (FUNCTIONS_FORMAT, FUNCTIONS_VERSION):
            raise TypeError
        rows = [tuple(row[name] for name in FUNCTIONS.names) for row in content["functions"]]
    except OSError as error:
        raise TraceError(error.strerror or str(error), where=path) from None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise TraceError("is no table of functions", where=path) from None
    kinds = tuple(int if column.kind == "int" else str for column in FUNCTIONS.columns)
    for row in rows:
        if tuple(map(type, row)) != kinds or not all(0 <= n < 2**62 for n in row[2:4]):
            raise TraceError(f"a function that is none: {row!r:.80}", where=path)
    return pd.DataFrame(rows, columns=FUNCTIONS.names)

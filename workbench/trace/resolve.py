"""Samples to functions, and the table that lets another machine do it without the libraries."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from workbench.errors import TraceError
from workbench.schema import FUNCTIONS, check
from workbench.store import write_whole
from workbench.trace.functions import find_functions

FORMAT, VERSION = "workbench functions", 1
_LARGEST = 64 * 2**20


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
    content = {"format": FORMAT, "version": VERSION, "functions": functions.to_dict("records")}
    return write_whole(path, json.dumps(content, indent=0) + "\n")


def read_functions(path: Path) -> pd.DataFrame:
    """Read what ``write_functions`` wrote.

    Raises
    ------
    TraceError
        The file cannot be read, or is malformed.
    """
    try:
        with open(path, "rb") as file:
            content = json.loads(file.read(_LARGEST))
        if (content["format"], content["version"]) != (FORMAT, VERSION):
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

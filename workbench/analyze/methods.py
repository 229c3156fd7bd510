"""Which method of a program each run executed: a trace does not name it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

import numpy as np
import pandas as pd

from workbench.analyze.rows import METHOD, Rows, arrange_rows

# More methods than this are no methods, but calls whose events differ from run to run.
_MOST = 16

# Any odd number mixes places into the hashes of what is done there.
_MIX = np.uint64(0x9E37_79B9_7F4A_7C15)


@dataclass(frozen=True)
class Methods:
    """The methods of a program, from :func:`find_methods`.

    Of each one's first run, the places of the instructions that it executed and hashes of what
    they did; methods are numbered in that order. None if calls differ from run to run.
    """

    first_runs: tuple[tuple[np.ndarray, np.ndarray], ...] | None = ()


def find_methods(chunks: Iterable[pd.DataFrame]) -> Methods:
    """Tell apart the methods of a trace that is read in chunks, so that their keys are the same.

    Runs are of one method if their instructions do the same: what a call of an instruction does is
    the bag of operators within it. Runs need only agree on the instructions that both executed, for
    control flow may have skipped some.

    Parameters
    ----------
    chunks
        Frames of :data:`workbench.schema.EVENTS`, in the order of the trace.

    Returns
    -------
    :class:`Methods`
        For ``build_ledger`` of every chunk.
    """
    methods = Methods()
    for events in chunks:
        _, methods = number_methods(arrange_rows(events), methods)
    return methods


def number_methods(rows: Rows, known: Methods) -> tuple[np.ndarray, Methods]:
    """The index of each row's method; and the methods, with those that were not known before."""
    if known.first_runs is None:
        return np.zeros(len(rows.run), np.int64), known
    first_runs = list(known.first_runs)
    run = rows.run - rows.run.min(initial=0)
    deed = _deeds(rows)
    method_of_run = np.zeros(run.max(initial=-1) + 1, np.int64)
    left = np.flatnonzero((rows.top == np.arange(len(run))) & (rows.kind != METHOD))
    for index in count():
        if not len(left):
            return method_of_run[run], Methods(tuple(first_runs))
        if index == _MOST:
            return np.zeros(len(run), np.int64), Methods(None)
        if index == len(first_runs):
            first = left[run[left] == run[left[0]]]
            first_runs.append((np.unique(rows.place[first]), np.unique(deed[first])))
        places, deeds = first_runs[index]
        method_of_run[run[left]] = index
        differs = np.isin(rows.place[left], places) & ~np.isin(deed[left], deeds)
        left = left[np.isin(run[left], run[left[differs]])]


def _deeds(rows: Rows) -> np.ndarray:
    """Hashes of what each call of an instruction does, and where, at the rows of the calls."""
    texts = np.asarray(rows.base.categories, object)
    weights = pd.util.hash_array(texts, categorize=False)
    bag = np.zeros(len(rows.run), np.uint64)
    np.add.at(bag, rows.top, weights[rows.base.codes])
    return bag + rows.place.astype(np.uint64) * _MIX

"""Which span contains which: by order and instruction ids, since a delegate's times are synthetic.

The runtime writes an event when it ends. So, within a block of the file:

- A ``Method::execute`` contains the events since the previous one. An event outside any instruction
  (chain -1) counts only if it also began after the method did.
- A ``DELEGATE_CALL`` or ``OPERATOR_CALL`` contains the events since the previous call that have its
  chain and instruction: kernels, operators of the delegate, the user's own events.
- Among events of one parent and instruction that were timed by the runtime's clock (kernels and the
  user's own events; not operators of a delegate), one contains another that ended earlier but did
  not begin earlier. So ``Program::load_method`` contains ``Method::init``.
"""

import re
from collections.abc import Callable

import numpy as np
import pandas as pd

#: Values of the column ``kind``; their positions are the codes below.
KINDS = ("method", "delegate_call", "operator_call", "kernel", "delegate_operator", "other")
METHOD, DELEGATE_CALL, OPERATOR_CALL, KERNEL, DELEGATE_OPERATOR, OTHER = range(len(KINDS))

_CALLS = {"DELEGATE_CALL": DELEGATE_CALL, "OPERATOR_CALL": OPERATOR_CALL}
_KIND_OF = {"Method::execute": METHOD, **_CALLS}
_KERNEL_PREFIX = "native_call_"
#: XNNPACK numbers operators of one name: ``Add (ND) #3``.
_ORDINAL = re.compile(r" #\d+\Z")


def classify(name: np.ndarray, texts: list[str], delegated: np.ndarray) -> np.ndarray:
    """Codes of :data:`KINDS` for events by name; with a delegate's id, an operator of it."""
    by_name = [_KIND_OF.get(t, KERNEL if t.startswith(_KERNEL_PREFIX) else OTHER) for t in texts]
    kind = np.array(by_name, np.int8)[name]
    kind[delegated] = DELEGATE_OPERATOR
    return kind


def strip_ordinal(name: str) -> str:
    """The name of an operator without its number."""
    return _ORDINAL.sub("", name)


def map_names(names: pd.Categorical, rename: Callable[[str], str]) -> pd.Categorical:
    """Names with each distinct one renamed; several may get one name."""
    texts = np.array([rename(text) for text in names.categories], object)
    codes, distinct = pd.factorize(texts)
    return pd.Categorical.from_codes(codes[names.codes], distinct)


def nest(
    block: np.ndarray,
    kind: np.ndarray,
    chain: np.ndarray,
    instruction: np.ndarray,
    start: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The run of each event, and the row of its parent; -1 for none. ``kind`` are codes."""
    is_method, in_instruction = kind == METHOD, chain >= 0
    is_call = (kind == DELEGATE_CALL) | (kind == OPERATOR_CALL)

    run, method = _next(is_method)
    inside = (method >= 0) & (block[method] == block)
    inside &= in_instruction | (start >= start[method])

    call = _next(is_call)[1]
    in_call = (call >= 0) & in_instruction & ~is_call & ~is_method
    in_call &= (block[call] == block) & (run[call] == run)
    in_call &= (chain[call] == chain) & (instruction[call] == instruction)

    run[~inside] = -1
    parent = np.where(in_call, call, np.where(inside & ~is_method, method, -1))
    timed = np.flatnonzero((kind == KERNEL) | (kind == OTHER))
    _nest_timed(timed, parent, block, chain, instruction, start)
    return run, parent


def _next(wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each row, the ordinal and the row of the first ``wanted`` one from there on, or -1."""
    ordinal = np.cumsum(wanted, dtype=np.int32) - wanted
    return ordinal, np.append(np.flatnonzero(wanted), -1)[ordinal]


def _nest_timed(
    rows: np.ndarray,
    parent: np.ndarray,
    block: np.ndarray,
    chain: np.ndarray,
    instruction: np.ndarray,
    start: np.ndarray,
) -> None:
    """Nest the ``rows`` that were timed by one clock; changes ``parent``."""
    # Most kernels are alone in their call: leave them out before sorting.
    above = parent[rows]
    same = (above[1:] == above[:-1]) | (above[1:] < 0)
    crowd = np.append(same, False) | np.append(False, same) | (chain[rows] < 0)
    rows = rows[crowd]
    keys = (instruction[rows], chain[rows], block[rows], parent[rows])
    order = np.lexsort(keys)
    rows = rows[order]
    same = np.ones(max(len(rows) - 1, 0), bool)
    for key in keys:
        same &= np.diff(key[order]) == 0
    group = np.append(0, np.cumsum(~same))[: len(rows)]
    began_earlier = same & (np.diff(start[rows]) <= 0)
    nested = np.isin(group, group[1:][began_earlier])

    enclosing: list[tuple[int, int, int]] = []
    columns = (values[nested][::-1].tolist() for values in (rows, group, start[rows]))
    for row, its_group, began in zip(*columns, strict=True):
        while enclosing and (enclosing[-1][1] != its_group or enclosing[-1][2] > began):
            enclosing.pop()
        if enclosing:
            parent[row] = enclosing[-1][0]
        enclosing.append((row, its_group, began))


def are_leaves(events: pd.DataFrame) -> np.ndarray:
    """Which events of a frame contain no others."""
    return ~events["event"].isin(events["parent"]).to_numpy()

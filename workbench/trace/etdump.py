"""ETDump files to the events frame, straight from the bytes as they lie in memory.

The runtime starts a block for loading and one for every execution. It writes an event when it ends,
and a delegate's times are synthetic: spans nest by order and instruction ids. Within a block,

- A ``Method::execute`` contains the events since the previous one. An event outside any instruction
  (chain -1) counts only if it also began after the method did.
- A ``DELEGATE_CALL`` or ``OPERATOR_CALL`` contains the events since the previous call that have its
  chain and instruction: kernels, operators of the delegate, the user's own events.
- Among events of one parent and instruction that were timed by the runtime's clock (kernels and the
  user's own events; not operators of a delegate), one contains another that ended earlier but did
  not begin earlier. So ``Program::load_method`` contains ``Method::init``.
"""

import contextlib
import json
import mmap
import os
import re
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.errors import TraceError, printable
from workbench.frames import EVENTS
from workbench.store import open_file
from workbench.trace.flatbuffer import LONGEST, Contents, FlatBuffer, Tables

IDENTIFIER, VERSION = b"ED00", 0
# The fields of the tables in ExecuTorch's etdump_schema_flatcc.fbs, by number.
ETDump = IntEnum("ETDump", "VERSION RUN_DATA", start=0)
RunData = IntEnum("RunData", "NAME BUNDLED_INPUT ALLOCATORS EVENTS", start=0)
PROFILE = 0  # of an event, beside allocations and outputs for debugging
Profile = IntEnum(
    "Profile", "NAME CHAIN INSTRUCTION DELEGATE_INT DELEGATE_STR METADATA START END", start=0
)

# Size prefix, reference to the root, identifier.
_HEADER = 12
# Events processed at a time: the arrays then stay in the processor's cache.
_CHUNK = 1 << 14
# The most bytes of metadata that are shown, as text and in hexadecimal.
_MOST_METADATA, _MOST_HEX = 1 << 12, 32
# Beyond this, sums of durations would no longer fit 64 bits.
_LONGEST_NS = 2**62

#: Values of the column ``kind``; their positions are the codes below.
KINDS = ("method", "delegate_call", "operator_call", "kernel", "delegate_operator", "other")
METHOD, DELEGATE_CALL, OPERATOR_CALL, KERNEL, DELEGATE_OPERATOR, OTHER = range(len(KINDS))

#: The event of the workbench's runner for what its tracer adds to an inference.
TRACING = "tracing"
_CALLS = {"DELEGATE_CALL": DELEGATE_CALL, "OPERATOR_CALL": OPERATOR_CALL}
_KIND_OF = {"Method::execute": METHOD, **_CALLS}
_KERNEL_PREFIX = "native_call_"
#: XNNPACK numbers operators of one name: ``Add (ND) #3``.
_ORDINAL = re.compile(r" #\d+\Z")

Arrays = dict[str, np.ndarray]


def read_etdump(path: str | Path) -> pd.DataFrame:
    """Read the profile events of an ETDump, one row each, in the order of the file.

    Children precede their parent; :mod:`workbench.trace.etdump` describes how ``parent`` and
    ``run`` are found. Allocation and debug events get no row, but ``event`` counts them. A run that
    never reached the end of its ``Method::execute`` keeps its rows, with ``run`` -1 and a warning;
    statistics leave it out.

    Parameters
    ----------
    path
        An ETDump (identifier ``ED00``), with or without the 4-byte size prefix.

    Returns
    -------
    pandas.DataFrame
        Columns of :data:`workbench.frames.EVENTS`; and ``bundled_input``, the index of the block's
        bundled input or -1, and ``metadata``, the bytes that a delegate added. Text and bytes are
        categorical. A delegate's event without a name is named by its integer id.

    Raises
    ------
    TraceError
        The file cannot be read, is no ETDump, is cut short, or is malformed at some byte.

    Examples
    --------
    >>> import workbench as wb
    >>> trace = wb.sample_run("toy_cnn") / "sme2_on" / "toy_cnn_xnnpack_fp32_sme2_on_t1.etdump"
    >>> events = wb.read_etdump(trace)
    >>> events[events["run"] == 0][["kind", "name"]].tail(3)
                     kind                                name
    10  delegate_operator  Fully Connected (NC, PF32) GEMM #1
    11      delegate_call                       DELEGATE_CALL
    12             method                     Method::execute
    """
    trace = Trace(Path(path))
    return _frame(trace, _decode_events(trace))


# --- the file and its blocks ---------------------------------------------------------------------


class Trace:
    """An ETDump, mapped into memory, and the texts that were read so far.

    Of every block: the code of its name, its bundled input, the position of the references to its
    events, and their number.
    """

    def __init__(self, path: Path):
        data, base = _map_file(path)
        self.buffer = buffer = FlatBuffer(data, path)
        self.block_names = Contents(buffer, "the name of a block", bytes.decode, LONGEST)
        self.names = Contents(buffer, "a name", bytes.decode, LONGEST)
        self.metadata = Contents(buffer, "a delegate's metadata", bytes)
        root = buffer.root(base)
        version = int(buffer.i32(root.field(ETDump.VERSION), VERSION)[0])
        if version != VERSION:
            raise TraceError(f"ETDump version {version}, this reads {VERSION}", where=path)
        vector = buffer.follow(root.field(ETDump.RUN_DATA), "the blocks")
        (references,), (count,) = buffer.vectors(vector, "the blocks")
        at = buffer.follow(references + 4 * np.arange(count), "a block")
        runs = Tables(buffer, at, "a block")
        name = buffer.follow(runs.field(RunData.NAME), "the name of a block")
        vectors = buffer.follow(runs.field(RunData.EVENTS), "the events of a block")
        self.entries, self.counts = buffer.vectors(vectors, "the events of a block")
        total = np.cumsum(self.counts)
        # Shared events would let a small file list huge numbers of them.
        fits = LEAST_BYTES * total <= buffer.size
        fits |= 4 * total <= min(buffer.size, _SMALL)
        buffer.require(fits, vectors, "the events of a block overlap")
        self.name = self.block_names.intern(name)
        self.bundled_input = buffer.i32(runs.field(RunData.BUNDLED_INPUT), -1)

    def find_events(self) -> Iterator[tuple[np.ndarray, ...]]:
        """Blocks, numbers in the file and positions of profile events, some thousand at a time."""
        buffer = self.buffer
        block = np.repeat(np.arange(len(self.counts), dtype=np.int32), self.counts)
        first = np.cumsum(self.counts) - self.counts
        for begin in range(0, max(len(block), 1), _CHUNK):  # without events, one empty part
            its = block[begin : begin + _CHUNK]
            event = np.arange(begin, begin + len(its))
            references = self.entries[its] + 4 * (event - first[its])
            events = Tables(buffer, buffer.follow(references, "an event"), "an event")
            at = events.field(PROFILE)
            if not (has := at > 0).all():
                its, event, at = its[has], event[has], at[has]
            yield its, event, buffer.follow(at, "a profile event")


#: An event with its reference takes no less in a file: its table, that of its content, and times.
LEAST_BYTES = 28
_SMALL = 1 << 16  #: Bytes of references up to which events may be shared.

_UNTRACED = "build its runner with -DEXECUTORCH_ENABLE_EVENT_TRACER=ON (ET_EVENT_TRACER_ENABLED)"


def _map_file(path: Path) -> tuple[np.ndarray, int]:
    """The bytes of a mapped file, and where the reference to its root table is stored."""
    try:
        with open_file(path) as file:
            if not file.seek(0, os.SEEK_END):
                raise TraceError("is empty", where=path, hint=_UNTRACED)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise TraceError(error.strerror or str(error), where=path) from None
    data = np.frombuffer(mapped, np.uint8)
    head = data[:_HEADER].tobytes()
    if head[4:8] == IDENTIFIER:
        return data, 0
    if head[8:12] != IDENTIFIER:
        raise TraceError("is not an ETDump", where=path, hint=_recognise(head))
    size = 4 + int.from_bytes(head[:4], "little")
    if size < _HEADER:
        raise TraceError(f"states a size of {size} bytes", where=path, offset=0)
    if size <= len(data):
        return data[:size], 4
    cut = f"is cut short: {len(data)} of {size} bytes"
    raise TraceError(cut, where=path, hint="copy it again")


def _recognise(head: bytes) -> str:
    if head[4:6] == b"ET":
        return "this is a program (.pte); run it with tracing on to get a trace"
    if head.startswith(b"PK"):
        return "this is an archive, such as an .etrecord; the trace is the .etdump"
    return "the trace is the .etdump that the runner wrote"


# --- from blocks to spans ------------------------------------------------------------------------


def _decode_events(trace: Trace) -> Arrays:
    """The profile events of a trace; names and metadata as codes, times in nanoseconds."""
    parts = [
        {"block": block, "event": event, **_decode(trace, at)}
        for block, event, at in trace.find_events()
    ]
    spans = {name: np.concatenate([part.pop(name) for part in parts]) for name in [*parts[0]]}
    kind = classify(spans["name"], trace.names.values, spans.pop("delegated"))
    ids = (spans["chain"], spans["instruction"])
    run, parent = nest(spans["block"], kind, *ids, spans["start"])
    parent = np.where(parent >= 0, spans["event"][parent], -1)
    return spans | {"kind": kind, "run": run, "parent": parent}


def _decode(trace: Trace, at: np.ndarray) -> Arrays:
    """The fields of the profile events at the positions ``at``."""
    buffer = trace.buffer
    table = Tables(buffer, at, "a profile event")
    chain = buffer.i32(table.field(Profile.CHAIN), 0).clip(-1)
    instruction = buffer.i32(table.field(Profile.INSTRUCTION), -1)
    # Outside any instruction the runtime logs instruction 0 of chain -1.
    instruction[chain < 0] = -1
    delegate_id = buffer.i32(table.field(Profile.DELEGATE_INT), -1)
    metadata = buffer.follow(table.field(Profile.METADATA), "a delegate's metadata")
    text = buffer.follow(table.field(Profile.NAME), "a name")
    label = buffer.follow(table.field(Profile.DELEGATE_STR), "a delegate's name")
    start, end = (buffer.u64(table.field(slot, 8), 0) for slot in (Profile.START, Profile.END))
    buffer.require(end < np.uint64(2**63), at, "an event ends after the year 2262")
    buffer.require(start <= end, at, "an event ends before it starts")
    labelled = label > 0
    labelled[labelled] = buffer.words[label[labelled] >> 2] > 0
    return {
        "name": _name(np.where(text > 0, text, label), delegate_id, trace.names),
        "delegated": (delegate_id != -1) | labelled,
        "chain": chain,
        "instruction": instruction,
        "delegate_id": delegate_id,
        "metadata": trace.metadata.intern(metadata),
        "start": start.view(np.int64),
        "end": end.view(np.int64),
    }


def _name(at: np.ndarray, delegate_id: np.ndarray, names: Contents[str]) -> np.ndarray:
    """Codes of the names at ``at``; where there is none, of the delegate's id if it has one."""
    if at.all():
        return names.intern(at)
    codes = np.empty(len(at), np.int32)
    named = at > 0
    codes[named] = names.intern(at[named])
    which, ids = pd.factorize(delegate_id[~named])
    texts = ["" if number == -1 else str(number) for number in ids.tolist()]
    codes[~named] = np.array([names.code(text) for text in texts], np.int32)[which]
    return codes


# --- which span contains which -------------------------------------------------------------------


def classify(name: np.ndarray, texts: list[str], delegated: np.ndarray) -> np.ndarray:
    """Codes of :data:`KINDS` for events by name; with a delegate's id, an operator of it."""
    by_name = [_KIND_OF.get(t, KERNEL if t.startswith(_KERNEL_PREFIX) else OTHER) for t in texts]
    kind = np.array(by_name, np.int8)[name]
    kind[delegated] = DELEGATE_OPERATOR
    return kind


def strip_ordinal(name: str) -> str:
    """The name of an operator without its number."""
    return _ORDINAL.sub("", name)


def describe_metadata(data: bytes) -> str:
    """What a delegate added to an event as text: fields of JSON as Core ML has them, or texts.

    Other bytes are hexadecimal.
    """
    data = data[:_MOST_METADATA]
    try:
        text = data.rstrip(b"\0").decode().replace("\0", " ")
    except UnicodeDecodeError:
        return data[:_MOST_HEX].hex(" ")
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(content := json.loads(text), dict):
            text = ", ".join(f"{name}={value}" for name, value in content.items())
    return printable(text)


def map_names(names: pd.Categorical, rename: Callable[[Any], str]) -> pd.Categorical:
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


# --- the frame -----------------------------------------------------------------------------------


def _frame(trace: Trace, spans: Arrays) -> pd.DataFrame:
    path, block = trace.buffer.path, spans["block"]
    duration = spans["end"] - spans["start"]
    if duration.sum(dtype=float) > _LONGEST_NS:
        raise TraceError("the durations add up to more than a century", where=path)
    if unfinished := np.count_nonzero((spans["run"] < 0) & (spans["chain"] >= 0)):
        warnings.warn(f"{path}: {unfinished} events are of a run without an end", stacklevel=3)
    frame = {
        "block": block,
        "block_name": _categorical(trace.name[block], trace.block_names.values),
        "bundled_input": trace.bundled_input[block],
        **{name: spans[name] for name in ("run", "event", "parent")},
        "kind": _categorical(spans["kind"], KINDS),
        "name": _categorical(spans["name"], trace.names.values),
        **{name: spans[name] for name in ("chain", "instruction", "delegate_id")},
        "metadata": _categorical(spans["metadata"], trace.metadata.values),
        "start_ns": spans["start"],
        "duration_ns": duration,
    }
    return EVENTS.check(pd.DataFrame(frame, copy=False))


def _categorical(codes: np.ndarray, values: Iterable[Hashable]) -> pd.Categorical:
    return pd.Categorical.from_codes(codes, list(values), validate=False)

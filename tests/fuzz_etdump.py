"""Mutated traces: each is read for what it says or refused, soon and in little memory.

    python3 dev.py fuzz [--count 100000 | --seconds 60] [--seed 0]

Mutants come from real traces and from built ones, by edits of bits, bytes and words anywhere, of
references, layouts and lengths where these are, and by cuts, splices and copies. A mutant fails if
anything but a TraceError comes out; if a table comes out that breaks its schema, or whose ledger
does not close, or that has more events than the file can list; if the same file reads otherwise in
chunks, or without the short cut for blocks that repeat; if it takes more than a second of CPU time,
or more memory than the readers need for any small file. Mutant n of a seed is always the same.
"""

import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from etdump_builder import Allocation, Block, Debug, Profile, Tensor, build_etdump

from workbench.analysis.ledger import build_ledger
from workbench.errors import TraceError
from workbench.frames import EVENTS, check
from workbench.trace.etdump import Event, Trace, read_etdump

DATA = Path(__file__).parent / "data" / "etdump"
LARGEST_SEED = 5_000
SECONDS_EACH = 1.0
MEMORY_MB = 64
# Every so many mutants are also read in other ways, which takes longer.
# So many ledgers are checked together.
TOGETHER = 64

WORDS = np.array([0, 1, 2, 3, 4, 8, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1])


def make_seeds() -> list[bytes]:
    """Small real traces, and built ones of what these lack."""
    run = [
        Profile(None, 0, 0, delegate_int=3, metadata=b"ab", start=3, end=5),
        Profile("DELEGATE_CALL", 0, 0, start=2, end=6),
        Profile("native_call_add.out", 0, 1, start=7, end=8),
        Profile("OPERATOR_CALL", 0, 1, start=6, end=9),
        Profile("own", -1, 0, start=9, end=10),
        Profile("Method::execute", -1, 0, start=1, end=12),
    ]
    debug = [
        Debug(None, 5),
        Debug("x", 0.5, delegate_str="y", output=True),
        Debug(None, [Tensor(6, (2, 3), (3, 1), 8), Tensor(0, (0,), (1,), -1)], chain=-1),
        Allocation(1, 64),
    ]
    built = [
        [Block("Execute", run, bundled_input=1)] * 6,
        [Block("Default", debug, allocators=["a", None]), Block("Execute", [*run[:-1], *debug])],
        [Block("Execute", run[:3]), Block("Execute", [None, *run, run[0]]), Block(None, [])],
    ]
    real = [path.read_bytes() for path in sorted(DATA.glob("*.etdump"))]
    seeds = [data for data in real if len(data) <= LARGEST_SEED]
    return seeds + [build_etdump(blocks) for blocks in built]


def find_landmarks(path: Path) -> np.ndarray:
    """Offsets of the words that hold a trace together: references, lengths, fields and layouts."""
    trace = Trace(path)
    buffer = trace.buffer
    found = [np.arange(0, 48, 4), trace.entries - 4]

    for slot in Event:
        for _, _, at in trace.find_events(slot, "a table"):
            layout = (at - buffer.signed_words[at >> 2]) & ~3
            found.extend(start + 4 * word for start in (at, layout) for word in range(8))
    offsets = np.unique(np.concatenate(found))
    return offsets[(offsets >= 0) & (offsets + 4 <= buffer.size)]


class Mutator:
    """Makes mutant ``n`` of the seeds, always the same one."""

    def __init__(self, seed: int, folder: Path):
        self.seed = seed
        self.seeds = make_seeds()
        self.landmarks = []
        for data in self.seeds:
            path = folder / "seed.etdump"
            path.write_bytes(data)
            self.landmarks.append(find_landmarks(path))

    def make(self, n: int) -> bytes:
        """The bytes of the mutant."""
        rng = np.random.default_rng((self.seed, n))
        which = int(rng.integers(len(self.seeds)))
        data = bytearray(self.seeds[which])
        for _ in range(rng.geometric(0.6)):
            edit = rng.choice([self._flip, self._poke, self._nudge, self._copy, self._resize])
            data = edit(rng, data, self.landmarks[which])
            if len(data) < 16:
                break
        if rng.random() < 0.5 and len(data) >= 4:
            data[:4] = (len(data) - 4).to_bytes(4, "little")
        return bytes(data)

    def _flip(self, rng, data: bytearray, _) -> bytearray:
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        return data

    def _poke(self, rng, data: bytearray, landmarks: np.ndarray) -> bytearray:
        width = int(rng.choice([1, 2, 4]))
        at = self._place(rng, data, landmarks, width)
        value = rng.choice([rng.choice(WORDS), rng.integers(len(data)), rng.integers(2**32)])
        data[at : at + width] = int(value % 256**width).to_bytes(width, "little")
        return data

    def _nudge(self, rng, data: bytearray, landmarks: np.ndarray) -> bytearray:
        width = int(rng.choice([2, 4]))
        at = self._place(rng, data, landmarks, width)
        value = int.from_bytes(data[at : at + width], "little") + int(rng.integers(-16, 17))
        data[at : at + width] = (value % 256**width).to_bytes(width, "little")
        return data

    def _copy(self, rng, data: bytearray, landmarks: np.ndarray) -> bytearray:
        source = data if rng.random() < 0.5 else self.seeds[rng.integers(len(self.seeds))]
        length = int(4 * rng.integers(1, 33))
        here, there = (self._place(rng, part, landmarks, 4) for part in (data, source))
        piece = source[there : there + length]
        data[here : here + len(piece)] = piece
        return data

    def _resize(self, rng, data: bytearray, _) -> bytearray:
        at = int(4 * rng.integers(len(data) // 4))
        if rng.random() < 0.5:
            return data[:at]
        length = int(4 * rng.integers(1, 65))
        return data[:at] + data[at : at + length] + data[at:]

    @staticmethod
    def _place(rng, data: bytes, landmarks: np.ndarray, width: int) -> int:
        """Any offset, or one that holds the trace together."""
        landmarks = landmarks[landmarks + 4 <= len(data)]
        if len(landmarks) and rng.random() < 0.7:
            return int(rng.choice(landmarks)) + width * int(rng.integers(4 // width))
        return int(rng.integers(max(len(data) - width, 1)))


def examine(path: Path, data: bytes) -> pd.DataFrame | None:
    """Read a mutant: its events, or None if it is refused; raises if it does neither well."""
    path.write_bytes(data)
    begin = time.process_time()
    try:
        events = read_etdump(path)
    except TraceError:
        events = None
    seconds = time.process_time() - begin
    assert seconds < SECONDS_EACH, f"took {seconds:.1f} s"
    assert events is None or 4 * len(events) <= len(data), f"{len(events)} events"
    return events


def check_ledgers(tables: Sequence[pd.DataFrame]) -> None:
    """Fail unless all tables are well formed and their ledgers close: as one, which is quicker."""
    columns = {name: [np.empty(0, np.int64)] for name in EVENTS.names}
    runs = first = 0
    for events in tables:
        check(events, EVENTS)
        for name, parts in columns.items():
            values = events[name].to_numpy()
            if name in ("run", "event", "parent"):
                values = np.where(values < 0, -1, values + (runs if name == "run" else first))
            parts.append(values)
        runs += events["run"].to_numpy().max(initial=-1) + 1
        first += events["event"].to_numpy().max(initial=-1) + 1
    joined = pd.DataFrame({name: np.concatenate(parts) for name, parts in columns.items()})
    methods = joined[joined["kind"] == "method"]
    sums = build_ledger(joined).groupby("run")["duration_ns"].sum()
    assert sums.to_dict() == methods.set_index("run")["duration_ns"].to_dict(), "does not close"


def fuzz(seed: int, numbers: Iterable[int], folder: Path) -> Counter:
    """Examine the mutants of these numbers; how often they were read and refused.

    Raises
    ------
    AssertionError
        With the number of the mutant that failed; its bytes are kept in ``folder``.
    """
    warnings.simplefilter("ignore")
    mutator = Mutator(seed, folder)
    path = folder / "mutant.etdump"
    check_ledgers([examine(path, data) for data in mutator.seeds])
    before = peak_mb()
    ends: Counter = Counter()
    unchecked: dict[int, pd.DataFrame] = {}
    for n in numbers:
        try:
            events = examine(path, mutator.make(n))
            assert peak_mb() - before < MEMORY_MB, "took too much memory"
        except Exception as error:
            kept = path.rename(folder / f"mutant_{seed}_{n}.etdump")
            raise AssertionError(f"mutant {n} of seed {seed}, {kept}: {error!r}") from error
        ends["refused" if events is None else "read"] += 1
        if events is not None:
            unchecked[n] = events
        if len(unchecked) == TOGETHER:
            close(seed, unchecked)
    close(seed, unchecked)
    return ends


def close(seed: int, tables: dict[int, pd.DataFrame]) -> None:
    """Check the ledgers of some mutants, by their numbers, and forget them."""
    try:
        check_ledgers([*tables.values()])
    except Exception as error:
        raise AssertionError(f"one of the mutants {[*tables]} of seed {seed}: {error!r}") from error
    tables.clear()


def peak_mb() -> float:
    """The most memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3

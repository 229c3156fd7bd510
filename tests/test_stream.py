"""Traces read in chunks: the same events, the same ledger, in memory that does not grow."""

import itertools
import tracemalloc
from pathlib import Path

import pandas as pd
import pytest
from etdump_builder import Block, Profile, build_etdump, repeat_block
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.analysis.ledger import build_ledger, find_methods
from workbench.errors import TraceError, UsageError
from workbench.trace.etdump import read_etdump, stream_etdump

GOLDEN = sorted((Path(__file__).parent / "data" / "etdump").glob("*.etdump"))
RUN = (
    Profile(delegate_str="Softmax (NC, F32) #1", instruction=0, start=4, end=9),
    Profile("DELEGATE_CALL", instruction=0, start=3, end=10),
    Profile("native_call_mean.out", instruction=1, start=11, end=12),
    Profile("OPERATOR_CALL", instruction=1, start=11, end=13),
    Profile("Method::execute", chain=-1, instruction=0, start=1, end=20),
)


def join(chunks) -> pd.DataFrame:
    return pd.concat([chunk.astype(object) for chunk in chunks], ignore_index=True)


@pytest.mark.parametrize("runs_per_chunk", [1, 2, 3, 1000])
@pytest.mark.parametrize("trace", GOLDEN, ids=lambda path: path.stem)
def test_chunks_make_up_the_trace(trace, runs_per_chunk):
    chunks = list(stream_etdump(trace, runs_per_chunk))
    assert all(chunk["block"].nunique() <= runs_per_chunk for chunk in chunks)
    pd.testing.assert_frame_equal(join(chunks), read_etdump(trace).astype(object))


@pytest.mark.parametrize("trace", GOLDEN, ids=lambda path: path.stem)
def test_ledgers_of_chunks_make_up_the_ledger(trace):
    whole = build_ledger(read_etdump(trace))
    methods = find_methods(stream_etdump(trace, 1))
    parts = [build_ledger(chunk, methods) for chunk in stream_etdump(trace, 1)]
    pd.testing.assert_frame_equal(join(parts), whole.astype(object), check_dtype=False)


@pytest.mark.filterwarnings("ignore:.*without an end")
@settings(deadline=None)
@given(
    cuts=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    runs_per_chunk=st.integers(1, 5),
)
def test_runs_are_counted_through_chunks(tmp_path_factory, cuts, runs_per_chunk):
    """A block holds so many whole runs, and perhaps one that was cut off."""
    blocks = [Block("Execute", [*RUN * (cut // 2), *RUN[: 3 * (cut % 2)]]) for cut in cuts]
    path = tmp_path_factory.getbasetemp() / "chunks.etdump"
    path.write_bytes(build_etdump(blocks))
    chunks = list(stream_etdump(path, runs_per_chunk))
    events = read_etdump(path)
    if len(events):
        pd.testing.assert_frame_equal(join(chunks), events.astype(object))
    else:
        assert sum(map(len, chunks)) == 0


def test_memory_does_not_grow_with_the_trace(tmp_path):
    path = tmp_path / "trace.etdump"
    peaks = []
    for times in (4_000, 40_000):
        path.write_bytes(repeat_block(Block("Execute", RUN), times))
        tracemalloc.start()
        assert sum(map(len, stream_etdump(path, 1_000))) == times * len(RUN)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0] < path.stat().st_size


def test_what_is_malformed_is_told_after_the_chunks_before_it(tmp_path):
    path = tmp_path / "trace.etdump"
    path.write_bytes(build_etdump([Block("", RUN), Block("", [Profile(start=2, end=1)])]))
    chunks = stream_etdump(path, 1)
    assert len(next(chunks)) == len(RUN)
    with pytest.raises(TraceError, match="ends before it starts"):
        next(chunks)


def test_a_chunk_holds_at_least_one_run():
    with pytest.raises(UsageError, match="at least 1"):
        next(itertools.chain(stream_etdump(GOLDEN[0], 0)))

"""Blocks that repeat another are not decoded; whatever differs in them must not be overlooked."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from etdump_builder import Allocation, Block, Debug, Profile, build_etdump
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.errors import TraceError
from workbench.trace import etdump as repeats
from workbench.trace.etdump import Trace, read_etdump

RUN = (
    Profile(None, 0, 0, delegate_str="Add (ND, F32) #1", metadata=b"ab", start=4, end=5),
    Profile(None, 0, 0, delegate_int=7, start=5, end=9),
    Profile("DELEGATE_CALL", 0, 0, start=3, end=8),
    Profile("native_call_mean.out", 0, 1, start=10, end=12),
    Profile("OPERATOR_CALL", 0, 1, start=9, end=13),
    Profile("own", -1, 0, start=14, end=15),
    Profile("Method::execute", -1, 0, start=1, end=20),
)


def write(folder: Path, blocks: list[Block]) -> Path:
    path = folder / "repeats.etdump"
    path.write_bytes(build_etdump(blocks))
    return path


def later(run, ticks):
    """The same events at another time, each as long as it likes."""
    return [replace(e, start=e.start + ticks, end=e.end + ticks * 2) for e in run]


def find(path: Path) -> list[int]:
    trace = Trace(path)
    (blocks,) = trace.blocks()
    return repeats.find_repeats(trace.buffer, blocks).tolist()


def read_plainly(path: Path) -> pd.DataFrame:
    """The events with every block decoded by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "find_repeats", lambda _, blocks: np.arange(len(blocks.counts)))
        return read_etdump(path)


def test_only_times_may_differ(tmp_path):
    path = write(tmp_path, [Block("Execute", later(RUN, n)) for n in range(12)])
    # Before the first few lie the layouts that they brought along.
    assert find(path)[3:] == [3] * 9
    pd.testing.assert_frame_equal(read_etdump(path), read_plainly(path))


CHANGES = {
    "name": ("native_call_mean.in", 3),
    "chain": (1, 3),
    "instruction": (2, 3),
    "delegate_int": (8, 1),
    "delegate_str": ("Sub (ND, F32) #1", 0),
    "metadata": (b"ac", 0),
}


@pytest.mark.parametrize("field", CHANGES)
def test_a_block_that_differs_otherwise_is_no_repeat(tmp_path, field):
    value, position = CHANGES[field]
    changed = list(RUN)
    changed[position] = replace(RUN[position], **{field: value})
    order = [0, 1, *[0] * 8, 1, *[0] * 3, *[1] * 5]
    path = write(tmp_path, [Block("Execute", changed if which else RUN) for which in order])
    twins = find(path)
    assert len(set(twins)) < len(twins)
    assert [order[twin] for twin in twins] == order
    events = read_etdump(path)
    pd.testing.assert_frame_equal(events, read_plainly(path))
    column = {"delegate_int": "delegate_id", "delegate_str": "name"}.get(field, field)
    value = 8 if field == "delegate_int" else value
    assert events.loc[events["block"] == 1, column].tolist()[position] == value


def test_a_few_blocks_are_not_worth_the_comparison(tmp_path):
    assert find(write(tmp_path, [Block("Execute", RUN)] * 3)) == [0, 1, 2]


def test_no_blocks(tmp_path):
    assert find(write(tmp_path, [])) == []
    assert find(write(tmp_path, [Block("", [])] * 6)) == [0, 1, 2, 3, 4, 5]


EVENTS = st.one_of(
    st.sampled_from(RUN),
    st.sampled_from([None, Debug("x", 3), Debug("x", None), Allocation(1, 64)]),
    st.builds(
        Profile,
        name=st.sampled_from([None, "", "a", "aa", "Method::execute", "DELEGATE_CALL"]),
        chain=st.integers(-1, 1),
        instruction=st.integers(-1, 2),
        delegate_int=st.integers(-1, 1),
        delegate_str=st.sampled_from([None, "", "b"]),
        metadata=st.sampled_from([None, b"", b"ab", b"abcde"]),
        start=st.integers(0, 5),
        end=st.integers(5, 9),
    ),
)


@pytest.mark.filterwarnings("ignore:.*without an end")
@settings(max_examples=200, deadline=None)
@given(
    runs=st.lists(st.lists(EVENTS, max_size=5), min_size=1, max_size=3),
    order=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=32),
)
def test_with_and_without_the_short_cut_a_trace_reads_the_same(tmp_path_factory, runs, order):
    blocks = []
    for which, ticks in order:
        events = [
            later([event], ticks)[0] if isinstance(event, Profile) else event
            for event in runs[which % len(runs)]
        ]
        blocks.append(Block("Execute", events))
    path = write(tmp_path_factory.getbasetemp(), blocks)
    pd.testing.assert_frame_equal(read_etdump(path), read_plainly(path))


@pytest.mark.filterwarnings("ignore:.*without an end")
def test_forged_words_are_not_overlooked_in_a_repeat(tmp_path):
    path = write(tmp_path, [Block("Execute", later(RUN, n)) for n in range(12)])
    data = bytearray(path.read_bytes())
    trace = Trace(path)
    (blocks,) = trace.blocks()
    rng = np.random.default_rng(0)
    outcomes = set()
    for _ in range(300):
        forged = bytearray(data)
        at = int(rng.integers(blocks.entries.min(), len(data) - 4)) & ~3
        forged[at : at + 4] = int(rng.integers(0, 400)).to_bytes(4, "little")
        path.write_bytes(forged)
        results = []
        for read in (read_etdump, read_plainly):
            try:
                results.append(read(path).astype(object).to_csv())
            except TraceError:
                results.append("refused")
        assert results[0] == results[1]
        outcomes.add(results[0] == "refused")
    assert outcomes == {True, False}

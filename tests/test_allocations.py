"""Allocation events: what the runtime took, and from whom."""

from pathlib import Path

import pytest
from etdump_builder import Allocation, Block, Debug, Profile, build_etdump

from workbench.errors import TraceError
from workbench.trace.etdump import read_allocations, read_etdump

TRACE = Path(__file__).parent / "data" / "etdump" / "allocations.etdump"


@pytest.fixture
def read(tmp_path):
    def read_blocks(*blocks):
        path = tmp_path / "trace.etdump"
        path.write_bytes(build_etdump(blocks))
        return read_allocations(path)

    return read_blocks


def test_what_the_runtime_logged():
    """What ``writer.cpp`` took: two allocators of the first block are named for all."""
    taken = read_allocations(TRACE)
    assert taken.values.tolist() == [
        [0, 0, "planned memory", 1, 4096],
        [0, 1, "scratch", 2, 128],
        [0, 2, "scratch", 2, 2**40],
        [1, 3, "planned memory", 1, 8],
    ]
    assert read_etdump(TRACE)["event"].tolist() == [4]


def test_names_are_those_of_the_block_or_of_the_last_that_gave_any(read):
    taken = read(
        Block(None, [Allocation(1, 1)]),
        Block(None, [Allocation(1, 2), Allocation(2, 3)], allocators=["a", None]),
        Block(None, [Allocation(1, 4)]),
        Block(None, [Allocation(1, 5), Allocation(2, 6)], allocators=["b"]),
        Block(None, [Allocation(1, 7)], allocators=[]),
    )
    assert taken["allocator"].tolist() == ["", "a", "", "a", "b", "", ""]
    assert taken["size"].tolist() == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("number", [-1, 0, 3, 2**31 - 1])
def test_a_number_that_no_allocator_has(read, number):
    taken = read(Block(None, [Allocation(number, 1)], allocators=["a", "b"]))
    assert taken[["allocator", "allocator_id"]].values.tolist() == [["", number]]


def test_other_events_are_counted_but_have_no_row(read):
    events = [Profile("x"), Debug("y", 1), Allocation(0, 9), None]
    assert read(Block(None, events), Block(None, events))["event"].tolist() == [2, 6]


def test_no_allocations(read):
    assert len(read(Block(None, [Profile("x")]))) == 0
    assert len(read()) == 0


def test_more_than_any_memory(read):
    with pytest.raises(TraceError, match="more than 2\\*\\*63 bytes"):
        read(Block(None, [Allocation(0, 2**63)]))

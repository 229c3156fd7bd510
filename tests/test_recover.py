"""Traces that were cut short: the newest whole runs, or an error; never another table."""

import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from etdump_builder import Block, Profile, build_etdump

from workbench.analysis.ledger import build_ledger
from workbench.errors import TraceError
from workbench.trace.etdump import read_etdump

DATA = Path(__file__).parent / "data" / "etdump"
GOLDEN = sorted(DATA.glob("*.etdump"))
SAME = ["block_name", "kind", "name", "chain", "instruction", "delegate_id", "metadata"]
SAME += ["start_ns", "duration_ns"]


def read_cut(path: Path, data: bytes) -> pd.DataFrame | None:
    """What is read of the beginning of a trace, if anything is."""
    path.write_bytes(data)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            events = read_etdump(path, partial=True)
        except TraceError as error:
            assert "\n" not in str(error)
            return None
    (warning,) = caught
    assert re.search("is cut short: .* blocks were read", str(warning.message))
    return events


@pytest.mark.parametrize("trace", GOLDEN, ids=lambda path: path.stem)
def test_a_cut_anywhere_gives_the_newest_runs_or_an_error(trace, tmp_path):
    data, whole = trace.read_bytes(), read_etdump(trace)
    blocks = []
    for length in range(12, len(data), 68):
        events = read_cut(tmp_path / "cut.etdump", data[:length])
        if events is None:
            blocks.append(0)
            continue
        rest = whole[whole["block"] > whole["block"].max() - events["block"].nunique()]
        pd.testing.assert_frame_equal(
            events[SAME].astype(object), rest[SAME].astype(object).reset_index(drop=True)
        )
        assert events.loc[events["run"] >= 0, "run"].min() == 0
        e2e = events.loc[events["kind"] == "method", "duration_ns"].sum()
        assert build_ledger(events)["duration_ns"].sum() == e2e
        blocks.append(events["block"].nunique())
    # Every byte more gives as many runs or more.
    assert blocks == sorted(blocks)
    if trace.stem in ("two_methods", "control_flow", "native_int8", "primitive_operators"):
        assert max(blocks) >= whole["block"].max()


@pytest.mark.parametrize("trace", GOLDEN, ids=lambda path: path.stem)
def test_a_whole_file_is_read_as_ever(trace):
    pd.testing.assert_frame_equal(read_etdump(trace, partial=True), read_etdump(trace))


def test_without_partial_a_cut_file_is_an_error(tmp_path):
    path = tmp_path / "cut.etdump"
    path.write_bytes(GOLDEN[-1].read_bytes()[:-8])
    with pytest.raises(TraceError, match=r"is cut short: .* partial=True"):
        read_etdump(path)


def test_another_writer_lays_tables_out_another_way(tmp_path):
    run = [Profile("Method::execute", -1, 0, start=1, end=9)]
    data = build_etdump([Block("Execute", run)] * 4)
    for length in range(12, len(data), 4):
        assert read_cut(tmp_path / "cut.etdump", data[:length]) is None


@pytest.mark.filterwarnings("ignore")
def test_what_is_also_damaged_gives_a_table_that_closes_or_an_error(tmp_path):
    data = (DATA / "two_methods.etdump").read_bytes()
    rng = np.random.default_rng(0)
    path = tmp_path / "cut.etdump"
    for _ in range(300):
        damaged = bytearray(data[: int(rng.integers(600, len(data)))])
        at = int(rng.integers(12, len(damaged) - 4)) & ~3
        damaged[at : at + 4] = int(rng.integers(0, 600)).to_bytes(4, "little")
        path.write_bytes(damaged)
        try:
            events = read_etdump(path, partial=True)
        except TraceError:
            continue
        e2e = events.loc[events["kind"] == "method", "duration_ns"].sum()
        assert build_ledger(events)["duration_ns"].sum() == e2e

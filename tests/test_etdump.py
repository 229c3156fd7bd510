"""The ETDump reader: against golden tables, the FlatBuffers library and flatc."""

import contextlib
import struct
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from etdump_builder import (
    Block,
    Other,
    Profile,
    Recorder,
    build_etdump,
    check_events,
    repeat_block,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

import workbench as wb

DATA = Path(__file__).parent / "data" / "etdump"
pytestmark = pytest.mark.filterwarnings("ignore:.*without an end")
GOLDEN = sorted(DATA.glob("*.etdump"))
TWO_METHODS = DATA / "two_methods.etdump"
golden = pytest.mark.parametrize("trace", GOLDEN, ids=lambda path: path.stem)

RUN = (
    Profile(delegate_str="Transpose (ND, X32) #1", metadata=b"", instruction=0, start=4, end=4),
    Profile(delegate_int=7, instruction=0, start=4, end=9),
    Profile("DELEGATE_CALL", instruction=0, start=3, end=8),
    Profile("native_call_mean.out", instruction=1, start=10, end=12),
    Profile("OPERATOR_CALL", instruction=1, start=9, end=13),
    Profile("Method::execute", chain=-1, instruction=0, start=1, end=20),
)
LOAD = (
    Profile("Method::init", chain=-1, instruction=0, start=2, end=7),
    Profile("Program::load_method", chain=-1, instruction=0, start=1, end=9),
)


@pytest.fixture
def read(tmp_path):
    """Reads a trace from bytes."""

    def read_bytes(data: bytes, **options) -> pd.DataFrame:
        path = tmp_path / "trace.etdump"
        path.write_bytes(data)
        return wb.read_etdump(path, **options)

    return read_bytes


# --- real traces ---------------------------------------------------------------------------------


@golden
def test_golden_trace_gives_its_golden_table(trace):
    table = wb.read_etdump(trace).to_csv(index=False, lineterminator="\n")
    assert table == trace.with_suffix(".csv").read_text()


@golden
@pytest.mark.cases
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_flatc_decodes_the_same_events(trace):
    serialize = pytest.importorskip("executorch.devtools.etdump.serialize")
    blocks = serialize.deserialize_from_etdump_flatcc(trace.read_bytes()).run_data
    logged = [event for block in blocks for event in block.events]
    profiled = [(at, e.profile_event) for at, e in enumerate(logged) if e.profile_event]
    expected = [
        (
            at,
            event.name or event.delegate_debug_id_str or str(event.delegate_debug_id_int),
            event.chain_index,
            event.instruction_id if event.chain_index >= 0 else -1,
            event.delegate_debug_id_int,
            event.start_time,
            event.end_time - event.start_time,
        )
        for at, event in profiled
    ]
    columns = ["event", "name", "chain", "instruction", "delegate_id", "start_ns", "duration_ns"]
    events = wb.read_etdump(trace)
    assert list(events[columns].itertuples(index=False, name=None)) == expected
    names = events.drop_duplicates("block").set_index("block")["block_name"]
    assert names.to_dict() == {
        n: block.name
        for n, block in enumerate(blocks)
        if any(event.profile_event for event in block.events)
    }


# --- the format ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"size_prefixed": False},
        {"share_strings": True},
        {"unknown_fields": 3},
    ],
    ids=str,
)
def test_every_way_to_write_a_trace_reads_the_same(read, options):
    events = read(build_etdump([Block("Default", LOAD), Block("Execute", RUN)], **options))
    assert events["name"].tolist() == [
        "Method::init",
        "Program::load_method",
        "Transpose (ND, X32) #1",
        "7",
        "DELEGATE_CALL",
        "native_call_mean.out",
        "OPERATOR_CALL",
        "Method::execute",
    ]
    assert events["kind"].tolist() == [
        "other",
        "other",
        "delegate_operator",
        "delegate_operator",
        "delegate_call",
        "kernel",
        "operator_call",
        "method",
    ]
    assert events["parent"].tolist() == [1, -1, 4, 4, 7, 6, 7, -1]
    assert events["run"].tolist() == [-1, -1, 0, 0, 0, 0, 0, 0]
    assert events["chain"].tolist() == [-1, -1, 0, 0, 0, 0, 0, -1]
    assert events["instruction"].tolist() == [-1, -1, 0, 0, 0, 1, 1, -1]
    assert events["delegate_id"].tolist() == [-1, -1, -1, 7, -1, -1, -1, -1]
    assert events["duration_ns"].tolist() == [5, 8, 0, 5, 5, 2, 4, 19]
    assert events["block_name"].tolist() == ["Default"] * 2 + ["Execute"] * 6
    check_events(events)


def test_other_events_get_no_row_but_are_counted(read):
    logged = [Other(2), RUN[0], None, Other(1), *RUN[1:]]
    events = read(build_etdump([Block("Execute", logged)]))
    assert events["event"].tolist() == [1, 4, 5, 6, 7, 8]
    assert events["parent"].tolist() == [5, 5, 8, 7, 8, -1]


@pytest.mark.parametrize("blocks", [[], [Block(None, [])], [Block("Execute", [None])]], ids=len)
def test_a_trace_without_profile_events_is_an_empty_frame(read, blocks):
    events = read(build_etdump(blocks))
    assert len(events) == 0
    assert {"run", "kind", "name", "duration_ns", "chain", "instruction"} <= set(events.columns)
    assert len(wb.build_ledger(events)) == 0


def test_an_event_belongs_to_no_call_of_another_block_or_run(read):
    lost = RUN[0]
    events = read(build_etdump([Block("Execute", [lost]), Block("Execute", [lost, RUN[-1], *RUN])]))
    assert events["parent"].tolist()[:4] == [-1, 2, -1, 5]
    assert events["run"].tolist()[:4] == [-1, 0, 0, 1]
    events = read(build_etdump([Block("Execute", [lost]), Block("Execute", RUN)]))
    assert events["parent"].tolist()[:2] == [-1, 3]


def test_of_events_that_begin_together_the_longer_one_is_the_parent(read):
    outer = Profile("Program::load_method", chain=-1, start=2, end=8)
    events = read(build_etdump([Block("Default", [LOAD[0], outer])]))
    assert events["parent"].tolist() == [1, -1]


def test_every_negative_chain_means_no_chain(read):
    events = read(build_etdump([Block("Execute", [Profile("x", chain=-5, instruction=3)])]))
    assert events[["chain", "instruction"]].to_numpy().tolist() == [[-1, -1]]


def test_an_event_without_a_name(read):
    events = read(build_etdump([Block(None, [Profile(), *RUN])]))
    assert events["name"][0] == ""
    assert events["block_name"].unique().tolist() == [""]


def test_an_incomplete_last_run_keeps_its_rows(read):
    with pytest.warns(UserWarning, match="4 events are of a run without an end"):
        events = read(build_etdump([Block("Execute", RUN), Block("Execute", RUN[:-2])]))
    assert events["run"].tolist() == [0] * 6 + [-1] * 4
    assert events["parent"].tolist()[6:] == [8, 8, -1, -1]
    assert set(wb.build_ledger(events)["run"]) == {0}


def test_padding_is_no_part_of_a_name(read):
    data = build_etdump([Block("Execute", [Profile("add"), Profile("add"), Profile("adds")])])
    at = data.index(b"add\0")
    events = read(data[: at + 3] + b"s" + data[at + 4 :])
    assert events["name"].tolist() == ["add", "add", "adds"]


@given(texts=st.lists(st.text(max_size=40).map(lambda s: s.encode()[:900].decode(errors="ignore"))))
@example(texts=["", "a", "a\0", "a\0\0", "ab", "é", "a" * 1020, "a" * 1019 + "b", "a"])
def test_names_of_any_length_are_distinguished(tmp_path_factory, texts):
    path = tmp_path_factory.getbasetemp() / "names.etdump"
    path.write_bytes(build_etdump([Block("Execute", [Profile(text) for text in texts])]))
    events = wb.read_etdump(path)
    assert events["name"].tolist() == texts
    assert set(events["name"].cat.categories) == set(texts)


# --- nesting -------------------------------------------------------------------------------------

TREES = st.recursive(
    st.just(()), lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6
)
OPERATORS = st.lists(st.integers(0, 5), max_size=4).map(tuple)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("delegate"), st.integers(0, 3), OPERATORS),
        st.tuples(st.just("kernels"), st.integers(4, 7), st.lists(TREES, max_size=2)),
        st.tuples(st.just("jump"), st.integers(8, 9), st.just(())),
        st.tuples(st.just("own"), st.just(0), TREES),
    ),
    max_size=6,
)
RUNS = st.lists(st.tuples(STEPS, TREES, st.booleans()), max_size=4)


def record(recorder: Recorder, steps) -> None:
    """One ``Method::execute``; an instruction may come up many times, as in a loop."""
    with recorder.span("Method::execute"):
        for kind, instruction, content in steps:
            if kind == "delegate":
                with recorder.span("DELEGATE_CALL", 0, instruction) as start:
                    # Whole microseconds laid end to end from the call's start, as XNNPACK does.
                    for n, microseconds in enumerate(content):
                        end = start + 1_000 * microseconds
                        label = {"delegate_int": n} if n % 2 else {"delegate_str": f"Op #{n}"}
                        recorder.log(Profile(None, 0, instruction, **label, start=start, end=end))
                        start = end
                    recorder.tick(800 * sum(content))
            elif kind == "kernels":
                with recorder.span("OPERATOR_CALL", 0, instruction):
                    for tree in content:
                        record_tree(recorder, tree, 0, instruction, "native_call_")
            elif kind == "jump":
                with recorder.span("JF_CALL", 0, instruction):
                    pass
            else:
                record_tree(recorder, content, -1, 0)


def record_tree(recorder: Recorder, tree, chain: int, instruction: int, prefix: str = "") -> None:
    with recorder.span(f"{prefix}own {len(tree)}", chain, instruction):
        for branch in tree:
            record_tree(recorder, branch, chain, instruction)


@settings(max_examples=2 * settings().max_examples)
@given(runs=RUNS, cut=st.integers(0, 6))
def test_any_nesting_is_found_and_closes(tmp_path_factory, runs, cut):
    blocks, parents = [], []
    recorder = Recorder()
    for steps, between, new_block in runs:
        if new_block:
            blocks.append(recorder.events)
            parents += [p if p < 0 else p + len(parents) for p in recorder.parents]
            recorder = Recorder()
        record_tree(recorder, between, -1, 0)
        record(recorder, steps)
    kept = max(len(recorder.events) - cut, 0)
    blocks.append(recorder.events[:kept])
    parents += [p + len(parents) if 0 <= p < kept else -1 for p in recorder.parents[:kept]]

    path = tmp_path_factory.getbasetemp() / "nesting.etdump"
    path.write_bytes(build_etdump([Block("Execute", events) for events in blocks]))
    events = wb.read_etdump(path)
    assert events["parent"].tolist() == parents
    check_events(events)

    run = -1
    for row in events.itertuples():
        if row.kind == "method":
            run += 1
            assert row.run == run
        elif row.parent >= 0:
            assert row.run == events["run"][row.parent]
        else:
            assert row.run == -1


# --- what must not hurt --------------------------------------------------------------------------


def test_python_work_does_not_grow_with_the_events(tmp_path):
    calls = {}
    for times in (10, 3_000):
        path = tmp_path / "trace.etdump"
        path.write_bytes(repeat_block(Block("Execute", RUN), times))
        counter = Counter()
        sys.setprofile(lambda frame, event, arg, counter=counter: counter.update([event]))
        try:
            assert len(wb.read_etdump(path)) == times * len(RUN)
        finally:
            sys.setprofile(None)
        calls[times] = counter.total()
    assert calls[3_000] < 1.5 * calls[10]


@pytest.mark.whole
def test_memory_stays_near_the_size_of_the_file(tmp_path):
    path = tmp_path / "trace.etdump"
    path.write_bytes(repeat_block(Block("Execute", RUN), 50_000))
    wb.read_etdump(path)
    tracemalloc.start()
    wb.read_etdump(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * path.stat().st_size


def patched(data: bytes, offset: int, fmt: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(fmt, changed, offset, value)
    return bytes(changed)


PLAIN = build_etdump([Block("Execute", RUN)], size_prefixed=False)
ROOT = int.from_bytes(PLAIN[:4], "little")
LAYOUT = ROOT - int.from_bytes(PLAIN[ROOT : ROOT + 4], "little", signed=True)
MALFORMED = {
    "empty": (b"", "is empty"),
    "a few bytes": (b"ED00", "is not an ETDump"),
    "text": (b"name,duration_ms\n" * 9, "is not an ETDump"),
    "a program": (b"\x1c\0\0\0ET12" + bytes(40), "this is a program"),
    "an archive": (b"PK\x03\x04" + bytes(40), "this is an archive"),
    "cut short": (TWO_METHODS.read_bytes()[:-1], "is cut short: 3639 of 3640 bytes"),
    "bare header": (b"\x08\0\0\0ED00", r"leads nowhere \(at byte 0\)"),
    "small size": (b"\x03\0\0\0\x08\0\0\0ED00" + bytes(9), "states a size of 7 bytes"),
    "root outside": (patched(PLAIN, 0, "<I", 4000), r"the root leads nowhere \(at byte 0\)"),
    "root misaligned": (patched(PLAIN, 0, "<I", 17), r"the root leads nowhere \(at byte 0\)"),
    "layout outside": (patched(PLAIN, ROOT, "<i", -len(PLAIN)), "layout of the root lies outside"),
    "layout too long": (
        patched(PLAIN, LAYOUT, "<H", 0xFFF0),
        "the layout of the root is malformed",
    ),
    "table too long": (patched(PLAIN, LAYOUT + 2, "<H", 0xFFF0), "root reaches beyond the end"),
    "newer version": (build_etdump([], version=7), "ETDump version 7, this reads 0"),
    "backwards": (build_etdump([Block("", [Profile(start=2, end=1)])]), "ends before it starts"),
    "far future": (build_etdump([Block("", [Profile(end=2**63)])]), "after the year 2262"),
    "ages": (build_etdump([Block("", [Profile(end=2**62)] * 3)]), "more than a century"),
    "not UTF-8": (build_etdump([Block("", [Profile(b"\xff")])]), "a name is not UTF-8"),
    "long name": (build_etdump([Block("", [Profile("x" * 1021)])]), "more than 1020 bytes"),
    "shared events": (build_etdump([Block("", RUN)], repeat=99), "events of a block overlap"),
}


@pytest.mark.parametrize("data, message", MALFORMED.values(), ids=MALFORMED)
def test_malformed_trace_gives_one_clear_line(read, tmp_path, data, message):
    with pytest.raises(wb.WorkbenchError, match=message) as caught:
        read(data)
    text = str(caught.value)
    assert text.startswith(str(tmp_path / "trace.etdump")) and "\n" not in text


@pytest.mark.parametrize("name", ["absent.etdump", "."])
def test_a_path_that_is_not_a_file(tmp_path, name):
    with pytest.raises(wb.WorkbenchError, match=r"No such file|Is a directory"):
        wb.read_etdump(tmp_path / name)


@pytest.mark.parametrize(
    "value",
    [
        8,
        0xFFFFFFFC,
        *(
            pytest.param(n, marks=pytest.mark.cases)
            for n in (0, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
        ),
    ],
)
def test_any_word_may_be_forged(read, value):
    for offset in range(0, len(PLAIN), 4):
        with contextlib.suppress(wb.WorkbenchError):
            check_events(read(patched(PLAIN, offset, "<I", value)))


def test_a_ledger_that_does_not_close_is_noticed(read):
    events = read(build_etdump([Block("Execute", RUN)] * 3))
    check_events(events)
    with pytest.raises(AssertionError, match="does not close"):
        check_events(events.assign(parent=-1))

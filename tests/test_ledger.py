"""The ledger adds up to Method::execute; adding up spans does not."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import workbench as wb

DATA = Path(__file__).parent / "data" / "etdump"
GOLDEN = sorted(DATA.glob("*.etdump"))
KINDS = {"delegated", "portable", "delegate_overhead", "call_overhead", "framework"}

#: One inference: (kind, name, parent, instruction, duration).
CONVOLUTION = [
    ("delegate_operator", "Transpose (ND, X32) #1", 4, 0, 3_000),
    ("delegate_operator", "Convolution (NHWC, F32) IGEMM #1", 4, 0, 40_000),
    ("delegate_operator", "Convolution (NHWC, F32) IGEMM #2", 4, 0, 20_000),
    ("delegate_operator", "Transpose (ND, X32) #2", 4, 0, 1_000),
    ("delegate_call", "DELEGATE_CALL", 9, 0, 63_900),
    ("kernel", "native_call_mean.out", 6, 1, 5_000),
    ("operator_call", "OPERATOR_CALL", 9, 1, 5_100),
    ("operator_call", "OPERATOR_CALL", 9, 2, 70),
    ("other", "JF_CALL", 9, 3, 30),
    ("method", "Method::execute", -1, -1, 70_000),
]


def frame(*runs) -> pd.DataFrame:
    """The events frame of some runs; chain 0 wherever there is an instruction."""
    parts = []
    for number, run in enumerate(runs):
        first = sum(len(part) for part in parts)
        part = pd.DataFrame(run, columns=["kind", "name", "parent", "instruction", "duration_ns"])
        part["parent"] = part["parent"].where(part["parent"] < 0, part["parent"] + first)
        parts.append(part.assign(run=number, block=number))
    events = pd.concat(parts, ignore_index=True)
    events["event"] = events.index
    events["chain"] = np.where(events["instruction"] < 0, -1, 0)
    return events.assign(delegate_id=-1, start_ns=0, block_name="Execute")


def renamed(run, old: str, new: str):
    return [(kind, name.replace(old, new), *rest) for kind, name, *rest in run]


def test_each_row_is_what_belongs_to_it_alone():
    ledger = wb.build_ledger(frame(CONVOLUTION))
    assert list(ledger[["kind", "key", "duration_ns"]].itertuples(index=False, name=None)) == [
        ("delegated", "0/Transpose/0", 3_000),
        ("delegated", "0/Convolution/0", 40_000),
        ("delegated", "0/Convolution/1", 20_000),
        ("delegated", "0/Transpose/1", 1_000),
        # The operators of a delegate are rounded to microseconds: the rest may be negative.
        ("delegate_overhead", "0/DELEGATE_CALL/0", -100),
        ("portable", "1/native_call_mean.out/0", 5_000),
        ("call_overhead", "1/OPERATOR_CALL/0", 100),
        ("portable", "2/OPERATOR_CALL/0", 70),
        ("call_overhead", "3/JF_CALL/0", 30),
        ("framework", "-1/Method::execute/0", 900),
    ]
    assert ledger["duration_ns"].sum() == 70_000
    assert ledger["row"].tolist() == list(range(10))
    assert ledger["operator"][1] == "Convolution (NHWC, F32) IGEMM"
    assert ledger["name"][1] == "Convolution (NHWC, F32) IGEMM #1"


def test_a_delegate_that_logs_nothing_is_delegated_time():
    events = frame(
        [
            ("delegate_call", "DELEGATE_CALL", 1, 0, 50),
            ("method", "Method::execute", -1, -1, 60),
        ]
    )
    ledger = wb.build_ledger(events)
    assert ledger["kind"].tolist() == ["delegated", "framework"]
    assert ledger["duration_ns"].tolist() == [50, 10]


def test_several_kernels_and_a_users_own_events_in_a_call():
    events = frame(
        [
            ("other", "pack", 1, 0, 10),
            ("kernel", "native_call_a.out", 3, 0, 30),
            ("kernel", "native_call_b.out", 3, 0, 20),
            ("operator_call", "OPERATOR_CALL", 6, 0, 60),
            ("other", "warm", 6, -1, 5),
            ("other", "copy", 6, 1, 4),
            ("method", "Method::execute", -1, -1, 100),
        ]
    )
    ledger = wb.build_ledger(events)
    assert list(ledger[["kind", "duration_ns"]].itertuples(index=False, name=None)) == [
        ("portable", 10),
        ("portable", 20),
        ("portable", 20),
        ("call_overhead", 10),
        ("framework", 5),
        ("call_overhead", 4),
        ("framework", 31),
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [("F32", "PF32"), ("F32", "QC8"), ("F32", "PQS8, QS8, QC8W"), ("IGEMM", "Subconv2D"),
     (" IGEMM", "")],
)  # fmt: skip
def test_keys_pair_what_another_isa_level_renames(old, new):
    other = renamed(CONVOLUTION, old, new)
    assert other != CONVOLUTION
    a, b = wb.build_ledger(frame(CONVOLUTION)), wb.build_ledger(frame(other))
    assert a["key"].tolist() == b["key"].tolist()
    assert a["operator"].tolist() != b["operator"].tolist()


def test_a_loop_counts_occurrences_through_the_run():
    once = [row for row in CONVOLUTION if row[3] == 1]
    method = ("method", "Method::execute", -1, -1, 100_000)
    loop = [
        (*row[:2], 2 * n + 1 if i == 0 else 6, *row[3:])
        for n in range(3)
        for i, row in enumerate(once)
    ]
    ledger = wb.build_ledger(frame([*loop, method]))
    assert ledger["key"].tolist() == [
        f"1/{name}/{n}" for n in range(3) for name in ("native_call_mean.out", "OPERATOR_CALL")
    ] + ["-1/Method::execute/0"]


def test_methods_are_told_apart_by_what_their_instructions_do():
    decode = renamed(CONVOLUTION, "Convolution", "Fully Connected")
    skips = [*CONVOLUTION[:5], CONVOLUTION[-1]]
    skips = [(*row[:2], 5 if row[2] == 9 else row[2], *row[3:]) for row in skips]
    ledger = wb.build_ledger(frame(CONVOLUTION, decode, CONVOLUTION, skips, decode))
    methods = ledger.groupby("run")["method"].unique().map(list).tolist()
    assert methods == [[0], [1], [0], [0], [1]]
    keys = ledger.groupby("run")["key"].agg(list)
    assert (
        keys[1]
        == keys[4]
        == ["m1/" + key.replace("Convolution", "Fully Connected") for key in keys[0]]
    )
    assert set(keys[3]) < set(keys[0])


def test_a_loop_whose_turns_differ_is_still_one_method():
    delegate = [row for row in CONVOLUTION if row[3] == 0]
    turns = [(*row[:2], 4 if i < 4 else 8, *row[3:]) for i, row in enumerate(delegate)]
    turns += [(*row[:2], 7 if i < 2 else 8, *row[3:]) for i, row in enumerate(delegate[2:])]
    turns.append(CONVOLUTION[-1])
    decode = renamed(CONVOLUTION, "Convolution", "Fully Connected")
    ledger = wb.build_ledger(frame(turns, decode, turns))
    assert ledger.groupby("run")["method"].first().tolist() == [0, 1, 0]


def test_calls_that_differ_in_every_run_are_no_methods():
    runs = [renamed(CONVOLUTION, "Convolution", f"Token {n}") for n in range(30)]
    assert set(wb.build_ledger(frame(*runs))["method"]) == {0}


def test_a_second_chain_shows_in_the_key():
    events = frame(CONVOLUTION)
    events.loc[events["instruction"] == 1, "chain"] = 1
    assert "1:1/native_call_mean.out/0" in wb.build_ledger(events)["key"].tolist()


def test_half_a_run_is_refused():
    events = frame(CONVOLUTION)
    with pytest.raises(Exception, match="event 0 lies in event 4, which is missing"):
        wb.build_ledger(events[events["kind"] != "delegate_call"])


def test_two_traces_in_one_frame_are_refused():
    events = frame(CONVOLUTION)
    with pytest.raises(Exception, match="from several traces"):
        wb.build_ledger(pd.concat([events, events]))


@pytest.mark.parametrize("trace", GOLDEN, ids=lambda path: path.stem)
def test_real_traces_close(trace):
    events = wb.read_etdump(trace)
    ledger = wb.build_ledger(events)
    latency = events[events["kind"] == "method"].set_index("run")["duration_ns"]
    assert ledger.groupby("run")["duration_ns"].sum().to_dict() == latency.to_dict()
    assert not ledger.duplicated(["run", "key"]).any()
    positive = ledger[ledger["kind"] != "delegate_overhead"]
    assert (positive["duration_ns"] >= 0).all()


def test_two_real_methods_are_told_apart():
    ledger = wb.build_ledger(wb.read_etdump(DATA / "two_methods.etdump"))
    assert ledger.groupby("run")["method"].first().tolist() == [0, 0, 1, 1, 1, 0]


def test_branches_of_one_real_method_are_not():
    ledger = wb.build_ledger(wb.read_etdump(DATA / "control_flow.etdump"))
    assert set(ledger["method"]) == {0}
    cos = ledger[ledger["key"] == "8/native_call_cos.out/0"]
    assert cos["run"].tolist() == [1]


@st.composite
def forests(draw):
    """Runs of any nesting, kinds and names at all: children precede their parent."""
    runs = []
    for _ in range(draw(st.integers(0, 4))):
        size = draw(st.integers(0, 12))
        rows = [
            (
                draw(
                    st.sampled_from(
                        ["delegate_call", "operator_call", "kernel", "delegate_operator", "other"]
                    )
                ),
                draw(st.sampled_from(["a", "a (F32)", "a (F16) GEMM #2", "b #1", "m1/0/a", ""])),
                draw(st.integers(position + 1, size)),
                draw(st.integers(-1, 3) | st.sampled_from([-(2**31), 2**31 - 1])),
                draw(st.integers(0, 2**55)),
            )
            for position in range(size)
        ]
        runs.append([*rows, ("method", "Method::execute", -1, -1, draw(st.integers(0, 2**55)))])
    return runs


@settings(max_examples=3 * settings().max_examples)
@given(runs=forests().filter(bool), chain=st.integers(-1, 1))
def test_anything_closes(runs, chain):
    events = frame(*runs)
    events["chain"] = events["chain"].where(events.index % 2 == 0, chain)
    events = events.astype({"chain": "int32", "instruction": "int32"})
    ledger = wb.build_ledger(events)
    assert set(ledger["kind"]) <= KINDS
    for run, rows in ledger.groupby("run"):
        assert sum(rows["duration_ns"].tolist()) == runs[run][-1][-1]
        assert rows["row"].tolist() == list(range(len(runs[run])))
        assert rows["key"].is_unique
    own = events["duration_ns"].tolist()
    for parent, duration in zip(events["parent"], events["duration_ns"], strict=True):
        if parent >= 0:
            own[parent] -= duration
    assert ledger["duration_ns"].tolist() == own

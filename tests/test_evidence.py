"""Which machine code ran: joined to operators by time, counted, and compared."""

import time

import numpy as np
import pandas as pd
import pytest
from recorded import recorded

from workbench.analysis.machine_code import (
    UNSURE,
    compare_evidence,
    explain_unchanged,
    find_operators,
    gather_evidence,
    name_kernels,
    prove_change,
    split_code,
)
from workbench.frames import EVIDENCE

#: An inference of 100 us: 5 us before the delegate's first operator, then operators of which
#: XNNPACK logs whole microseconds: (name, true duration, logged duration) in ns.
OPERATORS = [("Transpose (ND, X32) #1", 9_600, 9_000)] + [
    (f"Convolution (NHWC, F32) IGEMM #{n}", 8_500, 8_000) for n in range(1, 9)
]
FIRST, PERIOD = 5_000, 100_000


def trace(runs=1):
    """The events of some inferences, as XNNPACK logs them, and when each operator truly ran."""
    rows, truth = [], []
    for run in range(runs):
        begin, call = run * PERIOD, len(rows) + len(OPERATORS)
        logged = true = begin + FIRST
        for name, lasted, noted in OPERATORS:
            rows.append(("delegate_operator", name, call, 0, logged, noted, run))
            truth.append((run, name, true, true + lasted))
            logged, true = logged + noted, true + lasted
        rows.append(("delegate_call", "DELEGATE_CALL", call + 3, 0, begin + 2_000, 84_000, run))
        rows.append(("kernel", "native_call_mean.out", call + 2, 1, begin + 90_000, 4_000, run))
        rows.append(("operator_call", "OPERATOR_CALL", call + 3, 1, begin + 89_000, 6_000, run))
        rows.append(("method", "Method::execute", -1, -1, begin, 99_000, run))
    columns = ["kind", "name", "parent", "instruction", "start_ns", "duration_ns", "run"]
    events = pd.DataFrame(rows, columns=columns)
    events["event"] = events.index
    events["chain"] = np.where(events["instruction"] < 0, -1, 0)
    events = events.assign(block=0, delegate_id=-1, block_name="Execute")
    return events, pd.DataFrame(truth, columns=["run", "name", "start", "end"])


def test_a_time_belongs_to_the_innermost_span():
    events, _ = trace()
    times = np.array([-5, 500, 3_000, 9_000, 88_000, 89_500, 92_000, 97_000, 99_500])
    found = find_operators(events, times)
    assert found["key"].fillna("").tolist() == [
        "",
        "-1/Method::execute/0",
        "0/DELEGATE_CALL/0",
        "0/Transpose/0",
        "-1/Method::execute/0",
        "1/OPERATOR_CALL/0",
        "1/native_call_mean.out/0",
        "-1/Method::execute/0",
        "",
    ]
    assert found["sure"].tolist() == [False, *[True] * 7, False]


def test_what_rounding_took_is_given_back():
    """The middle of the last operator lies in it, though what was logged ends before."""
    events, truth = trace(runs=3)
    for _, operator in truth.iterrows():
        middle = (operator["start"] + operator["end"]) / 2
        found = find_operators(events, np.array([middle])).iloc[0]
        assert found["operator"] == operator["name"].partition(" #")[0]
        assert found["key"].endswith(f"/{max(0, int(operator['name'][-1]) - 1)}")
        assert found["sure"]


def test_times_near_a_boundary_are_not_sure():
    events, truth = trace()
    last = truth.iloc[-1]
    times = last["start"] + np.array([-400, 0, 400, 4_000])
    assert find_operators(events, times)["sure"].tolist() == [False, False, False, True]
    # Kernels are timed by the runtime's own clock.
    assert find_operators(events, np.array([89_999, 90_001]))["sure"].all()


def test_exact_times_of_a_delegate_stay():
    events, _ = trace()
    events.loc[events["kind"] == "delegate_operator", "duration_ns"] -= 500
    found = find_operators(events, np.array([FIRST + 9_000 - 400]))
    assert found["operator"].tolist() == ["DELEGATE_CALL"]


def samples_of(times, functions):
    """Samples at the times, one function each, of a library whose name tells nothing."""
    return pd.DataFrame(
        {
            **{"time_ns": times, "thread": 1, "busy": True, "library": "/x/libxnn.so"},
            **{"build_id": "aa", "address": 0, "function": functions, "code": "avx2"},
        }
    )


def test_samples_are_counted_by_operator_and_function():
    events, truth = trace(runs=20)
    transposes = truth[truth["name"].str.startswith("Transpose")]
    middle = ((transposes["start"] + transposes["end"]) / 2).to_numpy()
    functions = ["a"] * 15 + ["b"] * 5
    samples = samples_of(middle, functions)
    waiting = samples.assign(busy=False, function="idle")
    outside = samples_of([-100.0, 10 * PERIOD - 500], ["c", "c"])
    unsure = samples_of(transposes["end"].to_numpy()[:3], ["d", "d", "d"])
    evidence = gather_evidence(events, pd.concat([samples, waiting, outside, unsure]))
    rows = evidence.set_index("function")
    assert rows["samples"].to_dict() == {"a": 15, "b": 5, "d": 3}
    assert rows.loc["a", ["key", "category", "library"]].tolist() == [
        *("0/Transpose/0", "Data Movement", "libxnn.so")
    ]
    assert rows.loc["a", ["share", "low", "high"]].tolist() == pytest.approx(
        [0.75, 0.5313, 0.8881],
        abs=1e-4,  # Wilson's interval of 15 in 20
    )
    assert rows.loc["d", ["key", "operator"]].tolist() == ["", UNSURE]
    kernels = name_kernels(evidence)
    assert kernels["function"].to_dict() == {"0/Transpose/0": "a"}
    code = split_code(evidence)
    assert code[["part", "code", "samples", "share"]].values.tolist() == [["E2E", "avx2", 23, 1]]


def test_without_samples_there_is_no_evidence():
    events, _ = trace()
    nothing = samples_of(np.array([]), [])
    evidence = gather_evidence(events, nothing)
    assert evidence.empty
    assert split_code(evidence).empty
    assert prove_change(evidence, evidence).outcome == "not shown"
    assert compare_evidence(evidence, evidence).empty


def evidence_of(counts, key="0/Convolution/0", code=None):
    """The evidence of one operator from samples by function."""
    total = sum(counts.values())
    rows = [
        {
            **{"key": key, "operator": "Convolution (NHWC, F32) IGEMM", "kind": "delegated"},
            **{"category": "Convolution", "family": "convolution", "library": "libxnn.so"},
            **{"function": function, "code": (code or {}).get(function, "avx2")},
            **{"samples": n, "share": n / total, "low": 0.0, "high": 1.0},
        }
        for function, n in sorted(counts.items(), key=lambda item: -item[1])
        if n
    ]
    return pd.DataFrame(rows, columns=EVIDENCE.names)


def test_another_function_is_a_change():
    classes = {"on": "avx512"}
    before = evidence_of({"off": 500, "shared": 40})
    after = evidence_of({"on": 200, "shared": 45}, code=classes)
    proof = prove_change(before, after)
    assert proof.outcome == "changed"
    assert (proof.appeared, proof.vanished) == pytest.approx((200 / 245, 500 / 540))
    assert proof.after == pytest.approx({"avx512": 200 / 245, "avx2": 45 / 245})
    row = compare_evidence(before, after).iloc[0]
    assert (row["baseline_kernel"], row["candidate_kernel"], row["change"]) == (
        *("off", "on", "changed"),
    )


def test_other_shares_of_the_same_functions_are_no_change():
    before, after = evidence_of({"a": 400, "b": 100}), evidence_of({"a": 250, "b": 250})
    assert prove_change(before, after).outcome == "same"
    assert compare_evidence(before, after)["change"].tolist() == ["same"]


def test_a_few_samples_prove_nothing():
    for before, after in [({"a": 4}, {"b": 4}), ({"a": 60}, {"a": 60}), ({"a": 500}, {"a": 3})]:
        proof = prove_change(evidence_of(before), evidence_of(after))
        assert proof.outcome == "not shown", (before, after)
    few = compare_evidence(evidence_of({"a": 6}), evidence_of({"a": 6}))
    assert few["change"].tolist() == ["not shown"]


def test_two_samplings_of_the_same_code_hardly_ever_differ():
    """Shares as lopsided as in a real run, with many rare functions."""
    rng = np.random.default_rng(0)
    changed = 0
    for _ in range(100):
        shares = rng.dirichlet(1 / np.arange(1, 60))
        draws = [rng.multinomial(int(n), shares) for n in rng.integers(50, 2000, 2)]
        before, after = (evidence_of({f"f{i}": int(n) for i, n in enumerate(d)}) for d in draws)
        changed += prove_change(before, after).outcome == "changed"
    assert changed <= 1


def test_a_share_that_would_be_noticed_is_noticed():
    rng = np.random.default_rng(0)
    before = evidence_of({"a": 900, "b": 100})
    for _ in range(20):
        after = evidence_of({"a": 900, "b": 100})
        noticed = prove_change(before, after).noticed
        moved = int(np.ceil(noticed * 1000)) + int(rng.integers(0, 3))
        after = evidence_of({"a": 900, "b": 100 - moved, "new": moved})
        assert prove_change(before, after).outcome == "changed"


def test_many_calls_of_delegates_are_read_in_one_pass():
    """With a pass over the trace for every call, this took several seconds."""
    events, truth = trace(runs=20_000)
    start = time.process_time()
    found = find_operators(events, (truth["start"] + truth["end"]).to_numpy() / 2)
    assert time.process_time() - start < 1
    assert found["sure"].mean() > 0.99


def test_likely_reasons_why_a_toggle_had_no_effect():
    ab = recorded("toy_cnn").compare()
    proof, ledger = ab.proof, ab.baseline.ledger
    portable = ledger.assign(kind="portable")
    assert "100 % of the time is outside" in explain_unchanged(proof, {"sme2"}, portable)
    assert "no such feature to hide" in explain_unchanged(proof, set(), ledger)

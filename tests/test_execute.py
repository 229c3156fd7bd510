"""Plans carried out on a real program, interrupted, crashed and resumed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned import make_plan, run_plan

import workbench as wb
from workbench import store
from workbench.errors import RunnerError, StoreError, UsageError
from workbench.options import MeasureOptions
from workbench.records.exports import Tensor
from workbench.records.layer_sidecar import Layers
from workbench.records.pairing import BY_ORDER, pair_experiments
from workbench.run import steps as timing
from workbench.run.build import installed_compiler
from workbench.run.locks import runner_options
from workbench.run.recorder import begin_run, name_run
from workbench.run.runner import find_runner
from workbench.run.session import RunnerSession
from workbench.run.tensor_files import (
    compare_output_bytes,
    locate_inputs,
    random_bytes,
    read_output,
)

needs_compiler = pytest.mark.skipif(installed_compiler() is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def runner():
    return find_runner()


@pytest.fixture
def plan(conv_pte, runner, tmp_path):
    pte = shutil.copy(conv_pte, tmp_path / "conv.pte")
    return replace(
        make_plan(
            Path(pte), MeasureOptions(runs=8, processes=2, warmup=1, cold_start=False), runner
        ),
        batch_ms=1.0,
        traced_runs=4,
        sampled_ms=0.0,
    )


def batches_of(run, experiment, traced=False):
    return [
        b
        for s in run.sessions
        if (s.experiment, s.traced) == (experiment, traced)
        for b in s.batches
    ]


def test_a_folder_is_named_after_what_was_measured():
    run = store.load_run(wb.sample_run("mobilenet_v3_small_int8"))
    started = "2026-11-22T14:33:59+00:00"
    assert name_run(replace(run, started=started)) == (
        "mobilenet_v3_small-int8-linux-20261122-1433"
    )
    far = replace(run.export, model="my/net.py:Net", dtype="8da4w")
    phone = replace(run, started=started, export=far, platform="android")
    assert name_run(phone) == "my_net.py_Net-8da4w-android-20261122-1433"
    assert name_run(replace(run, started=started, export=None)).startswith(f"{run.plan.stem}-linux")


def test_an_executorch_that_is_not_tested_is_in_the_manifest(plan, runner, monkeypatch):
    programs = [wb.open_program(plan.pte)]
    assert begin_run(plan, programs, runner).missing == {}
    monkeypatch.setattr("workbench.upstream.TESTED", ("1.4.0",))
    (note,) = begin_run(plan, programs, runner).missing.values()
    assert "is not among the tested versions, 1.4.0" in note


def test_everything_is_measured_and_recorded(plan, runner, tmp_path):
    layers = Layers(plan.sha256, ())
    store.save_layers(layers, store.layers_path(Path(plan.pte)))
    run_dir = run_plan(plan, runner, tmp_path / "out")
    run = store.load_run(run_dir)
    assert store.load_layers(run_dir / store.LAYERS, plan.sha256) == layers
    masked, pair = {s.experiment: set(s.masked) for s in run.sessions}, plan.pairs[0]
    assert masked["control"] == masked[pair.baseline]
    assert plan.toggle == "none" or masked[pair.baseline] > masked[pair.candidate]
    if sys.platform == "linux":
        assert run.missing == {}
        times = wb.open_run(run_dir).measurements[0].ledger.query("kind == 'delegated'")
        assert (times["duration_ns"] % 1000 > 0).mean() > 0.5
        measured = wb.open_run(run_dir).measurements[0]
        assert 0 < measured.times.tracing_ms < 0.01
        assert "tracing" not in {*measured.ledger["kind"], *measured.operators["name"]}
    assert run.state == "complete"
    assert run_dir.parent == tmp_path / "out" / "runs"
    assert re.fullmatch(rf"conv-{run.platform}-\d{{8}}-\d{{4}}", run_dir.name)
    for experiment in plan.experiments:
        times = [t for b in batches_of(run, experiment.name) for t in b.wall_ns]
        assert len(times) >= plan.runs
        assert min(times) > 0
    for session in run.sessions:
        assert (session.etdump != "") is session.traced
        if session.traced:
            assert (run_dir / session.etdump).stat().st_size > 0
    assert len(run.agreements) == len(plan.experiments) - 1
    assert all(agreement.agree for agreement in run.agreements)
    kit = json.loads((run_dir / "manifest.json").read_text())
    assert kit["model"] == plan.pte
    assert {each["experiment"] for each in kit["results"]} == {e.name for e in plan.experiments}


names = st.lists(st.text(min_size=1), min_size=1, max_size=5, unique=True)


@given(names, st.integers(1, 20))
def test_linear_drift_cancels_in_every_round(names, rounds):
    for order in timing.interleave(names, rounds):
        assert Counter(order) == dict.fromkeys(names, 2)
        places = {name: [i for i, n in enumerate(order) if n == name] for name in names}
        assert {sum(place) for place in places.values()} == {len(order) - 1}


@given(names, st.integers(1, 9))
def test_every_experiment_takes_every_position_and_follows_several(names, rounds):
    """Squares of rounds go on across restarts, however many rounds a restart has."""
    restarts = [timing.interleave(names, rounds, restart) for restart in range(2 * len(names))]
    orders = [order[: len(names)] for restart in restarts for order in restart]
    for places in zip(*orders, strict=True):
        assert Counter(places) == dict.fromkeys(names, 2 * rounds)
    pairs = {pair for order in orders for pair in pairwise(order)}
    assert len(names) < 4 or len(pairs) > len(names)


def interrupt_after(monkeypatch, calls, error):
    """The nth burst of a runner fails."""
    left = iter(range(calls))
    real = RunnerSession.run

    def run(self, count, **traced):
        if next(left, None) is None:
            raise error
        return real(self, count, **traced)

    monkeypatch.setattr(RunnerSession, "run", run)


def test_a_traced_batch_that_is_shorter_than_others_is_warmed_up(
    plan, runner, tmp_path, monkeypatch
):
    """Its inferences would be the coldest ones of an untraced batch."""
    bursts = []
    real = RunnerSession.run

    def run(self, count, traced=True):
        bursts.append((id(self), count, traced))
        return real(self, count, traced=traced)

    monkeypatch.setattr(RunnerSession, "run", run)
    monkeypatch.setattr(timing, "MAX_TRACED_BATCH", 2)
    run_plan(replace(plan, batch_ms=10.0), runner, tmp_path / "out")
    before = [earlier for earlier, burst in pairwise(bursts) if burst[1:] == (2, True)]
    assert len(before) >= 2 * len(plan.experiments)
    assert all(burst[1:] == (timing.WARM_UP, False) for burst in before)


def test_an_interrupted_run_continues(plan, runner, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_after(patch, 120, KeyboardInterrupt())
        run_plan(plan, runner, tmp_path / "out")
    (run_dir,) = store.find_runs(tmp_path / "out")
    partial = store.load_run(run_dir)
    assert partial.state == "incomplete"
    assert any(s.batches and not s.complete for s in partial.sessions)
    finished = [s for s in partial.sessions if s.complete]
    assert finished

    left = run_dir / ".manifest.json.abcd1234.partial"
    left.write_text("{")
    assert run_plan(plan, runner, tmp_path / "out") == run_dir
    assert not left.exists()
    run = store.load_run(run_dir)
    assert run.state == "complete"
    assert set(finished) < set(run.sessions)
    assert all(s.complete for s in run.sessions)
    steps = [(s.experiment, s.process, s.traced) for s in run.sessions]
    assert len(steps) == len(set(steps)) == 2 * 2 * len(plan.experiments)


def test_another_plan_starts_a_new_run(plan, runner, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_after(patch, 30, KeyboardInterrupt())
        run_plan(plan, runner, tmp_path / "out")
    other = run_plan(replace(plan, runs=9), runner, tmp_path / "out")
    assert other.name.endswith("-2")


def test_a_crash_keeps_earlier_measurements(plan, runner, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(RunnerError):
        interrupt_after(patch, 120, RunnerError("killed by SIGSEGV"))
        run_plan(plan, runner, tmp_path / "out")
    (run_dir,) = store.find_runs(tmp_path / "out")
    run = store.load_run(run_dir)
    assert run.state == "failed"
    assert any(s.complete for s in run.sessions)


def test_a_crash_at_one_isa_level_names_the_level_that_works(runner, conv_pte, tmp_path):
    plan = make_plan(conv_pte, MeasureOptions(toggle="auto", runs=4, processes=1), runner)
    off, on = (plan.experiments[number].isa for number in (0, 1))
    run = RunnerSession.run

    def crash(self, count, **options):
        if f"--isa {on}" in " ".join(self.command):
            raise RunnerError("killed by SIGILL", kind="crash", hint="anything")
        return run(self, count, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunnerSession, "run", crash)
        with pytest.raises(RunnerError, match=f"SIGILL; at the level {off} it runs") as caught:
            run_plan(plan, runner, tmp_path / "out")
    assert caught.value.hint.startswith("use the level below: --toggle ")
    with pytest.MonkeyPatch.context() as patch:
        on = ""
        patch.setattr(RunnerSession, "run", crash)
        with pytest.raises(RunnerError, match="SIGILL") as caught:
            run_plan(plan, runner, tmp_path / "other")
    assert caught.value.hint == "anything", "it crashes at every level"


def test_inputs_of_a_foreign_program_are_random_but_the_same_every_time(plan, tmp_path):
    name = plan.experiments[0].name
    ((path,),) = locate_inputs(plan, tmp_path)[name]
    values = np.frombuffer(path.read_bytes(), np.float32)
    assert values.size == 3 * 64 * 64
    assert 0.9 < values.std() < 1.1
    assert locate_inputs(plan, tmp_path / "again")[name][0][0].read_bytes() == path.read_bytes()


def test_a_saved_input_that_is_not_the_exported_one_is_refused(plan, tmp_path):
    (Path(plan.pte).parent / "x.bin").write_bytes(b"other")
    bad = replace(plan, inputs=(Tensor("float32", (1, 3, 64, 64), "x.bin", "0" * 64),))
    with pytest.raises(StoreError, match="not the input that was exported"):
        locate_inputs(bad, tmp_path)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"toggle": "avx1024"}, "unknown toggle 'avx1024'"),
        ({"runs": 0}, "--runs: runs must be at least 1"),
        ({"threads": ()}, "--threads: threads must be at least 1"),
        ({"processes": -1}, "--processes"),
    ],
)
def test_a_bad_choice_is_refused_before_anything_runs(conv_pte, runner, choices, words):
    with pytest.raises(UsageError, match=words):
        make_plan(conv_pte, MeasureOptions(**choices), runner)


@pytest.mark.parametrize(
    ("content", "error"),
    [(None, StoreError), (b"", RunnerError), (b"\x7fELF" + bytes(200), RunnerError)],
)
def test_a_bad_program_is_refused_before_a_folder_is_made(tmp_path, runner, content, error):
    pte = tmp_path / "bad.pte"
    if content is not None:
        pte.write_bytes(content)
    with pytest.raises(error, match=r"bad\.pte"):
        make_plan(pte, MeasureOptions(), runner)
    assert not (tmp_path / "out").exists()


@pytest.mark.whole
@needs_compiler
def test_ctrl_c_ends_with_130_and_leaves_no_runner_behind(conv_pte, own_cache, tmp_path):
    pte = shutil.copy(conv_pte, tmp_path / "conv.pte")
    command = [sys.executable, "-m", "workbench", "run", str(pte), "--runs", "100000"]
    root = tmp_path / "out_conv"
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "XDG_CACHE_HOME": str(own_cache)},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # nohup ignores it
    )
    try:
        deadline = time.monotonic() + 300  # on a busy machine, a second of work takes long
        while _runners(pte, process.pid)[1] < 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "again to resume" in errors
    run = json.loads((store.find_runs(root)[0] / store.MANIFEST).read_text())
    assert run["state"] == "incomplete"
    assert any(session["batches"] for session in run["sessions"])
    assert _runners(pte, process.pid)[0] == []


def _runners(pte, parent):
    """The processes that run a program, and their CPU time in seconds."""
    paths = [path.parent for path in Path("/proc").glob("[0-9]*/cmdline")]
    paths = [path for path in paths if path.name != str(parent)]
    paths = [path for path in paths if str(pte) in _command(path / "cmdline")]
    stats = [_command(path / "stat").rpartition(")")[2].split() for path in paths]
    ticks = sum(int(stat[11]) + int(stat[12]) for stat in stats if len(stat) > 12)
    return paths, ticks / os.sysconf("SC_CLK_TCK")


def _command(path):
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return os.devnull


@pytest.mark.whole
@pytest.mark.parametrize("budget_s", [0.0, pytest.param(0.5, marks=pytest.mark.cases)])
def test_traces_stay_small_however_many_inferences_and_restarts(
    plan, runner, tmp_path, monkeypatch, budget_s
):
    """Unless that allows less than one inference in each batch: the longest batch decides."""
    most = 100_000
    monkeypatch.setattr("workbench.run.recorder.TRACES_BYTES", most)
    plan = replace(plan, traced_runs=100_000, runs=400, budget_s=budget_s)
    run_dir = run_plan(plan, runner, tmp_path / "out")
    sizes = [path.stat().st_size for path in run_dir.rglob("*.etdump")]
    assert len(sizes) >= 6 and sum(sizes) <= 1.3 * most
    assert budget_s or max(sizes) * len(sizes) >= 0.5 * most


@needs_compiler
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sampler needs Linux")
def test_every_experiment_is_sampled_in_its_own_process(plan, runner, tmp_path):
    plan = replace(plan, processes=1, sampled_ms=30.0)
    run_dir = run_plan(plan, runner, tmp_path / "out")
    run = store.load_run(run_dir)
    assert [s.experiment for s in run.samplings] == [
        e.name for e in plan.experiments if not e.control
    ]
    assert len(run.sessions) == 2 * len(plan.experiments)
    for sampling in run.samplings:
        assert sampling.problem == ""
        assert sampling.runs > 0
        for path in (sampling.samples, sampling.etdump):
            assert (run_dir / path).stat().st_size > 0
    name = f"{plan.stem}_{plan.experiments[0].name}_t1.samples"
    assert Path(run.samplings[0].samples).name == name


@needs_compiler
def test_a_failure_while_sampling_loses_only_the_samples(plan, runner, tmp_path, monkeypatch):
    held = []

    def fail(self, path):
        held.append(runner_options()["pass_fds"])
        raise RunnerError("this system's threads have no timers", kind="usage")

    monkeypatch.setattr(RunnerSession, "samples", fail)
    run_dir = run_plan(replace(plan, processes=1, sampled_ms=1.0), runner, tmp_path / "out")
    run = store.load_run(run_dir)
    assert run.state == "complete"
    assert {s.problem for s in run.samplings} == {"this system's threads have no timers"}
    assert all(s.samples == "" for s in run.samplings)
    assert held and all(held), "runners that are sampled hold the machine's lock, too"


# Which side of a comparison is the baseline: by names, by what ran, by order, or as asked for.


def sides(names, **options):
    pairs, how = pair_experiments(names.split(), **options)
    return " ".join(f"{pair.baseline}>{pair.candidate}" for pair in pairs), how


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        ("mac_sme2_on mac_sme2_off", "mac_sme2_off>mac_sme2_on"),
        ("android_sme2_on android_sme2_off", "android_sme2_off>android_sme2_on"),
        ("a_on a_off b_on b_off", "a_off>a_on b_off>b_on"),
        ("sme2 nosme2", "nosme2>sme2"),
        ("sme2 no_sme2", "no_sme2>sme2"),
        ("sme2on sme2off", "sme2off>sme2on"),
        ("Sme2On Sme2Off", "Sme2Off>Sme2On"),
        ("with-sve without-sve", "without-sve>with-sve"),
        ("sme2 baseline sve2", "baseline>sme2 baseline>sve2"),
        ("mac-arm64 mac-arm64-sme2-off", "mac-arm64-sme2-off>mac-arm64"),
        ("sme2_on generic", "generic>sme2_on"),
        ("all no_sme no_sve", "no_sme>all no_sve>all"),
    ],
)
def test_names_say_where_the_extension_is_off(names, pairs):
    found, how = sides(names)
    assert found == pairs
    assert how.endswith(", by name")


@pytest.mark.parametrize(
    "names", ["b a", "north node", "deit_base_x deit_base_y", "base_1_off base_2_off", "x_on y_on"]
)
def test_names_that_say_nothing_leave_the_order(names):
    first, second = names.split()
    assert sides(names) == (f"{first}>{second}", BY_ORDER)


def test_what_ran_decides_after_names_and_a_choice_before_them():
    lacking = {"lacking": ["b"], "evidence": "b, by its kernels"}
    assert sides("a b c", **lacking) == ("b>a b>c", "b, by its kernels")
    assert sides("a_off b", **lacking) == ("a_off>b", "a_off, by name")
    assert sides("a_off b", baseline="b", **lacking)[0] == "b>a_off"
    assert sides("a b", lacking=["a", "b"], evidence="neither") == ("a>b", BY_ORDER)
    with pytest.raises(UsageError, match="unknown experiment 'x' -> valid: a, b"):
        sides("a b", baseline="x")


# --- input and output files -----------------------------------------------------------------------


def agreement(a, b, dtype="float32"):
    a, b = np.asarray(a, dtype=np.float32), np.asarray(b, dtype=np.float32)
    return compare_output_bytes(a, b, names=("a", "b"), threads=1, output=0, dtype=dtype)


def test_outputs_of_any_size_are_compared_whole():
    values = np.random.default_rng(0).standard_normal(2**20 + 3).astype(np.float32)
    values[0] = np.inf
    other = values.copy()
    other[-1] += 0.5
    assert agreement(values, values).agree
    different = agreement(values, other)
    assert not different.agree and different.max_abs == pytest.approx(0.5)
    other[-1] = np.nan
    assert agreement(values, other).max_abs is None


@pytest.mark.parametrize(
    ("dtype", "error", "agree"),
    [
        ("float32", 5e-5, True),
        ("float32", 5e-4, False),
        ("float16", 5e-4, True),
        ("float16", 5e-2, False),
        ("int8", 0.0, True),
        ("int8", 1.0, False),
    ],
)
def test_the_tolerance_is_relative_to_the_largest_value(dtype, error, agree):
    values = np.array([1.0, 100.0])
    assert agreement(values, values + 100 * error, dtype).agree is agree


@pytest.mark.parametrize(
    ("a", "b"),
    [([np.nan, 1], [1, 1]), ([1, 1], [np.inf, 1]), ([np.inf], [-np.inf]), ([1, 2], [1, 2, 3])],
)
def test_what_cannot_be_subtracted_does_not_agree(a, b):
    result = agreement(a, b)
    assert result.max_abs is None
    assert not result.agree


def test_nan_in_both_agrees():
    assert agreement([np.nan, 1], [np.nan, 1]).agree


def test_bfloat16_is_widened(tmp_path):
    values = np.array([1.0, -2.5], dtype=np.float32)
    path = tmp_path / "out.bin"
    path.write_bytes((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())
    np.testing.assert_array_equal(read_output(path, "bfloat16"), values)


@pytest.mark.parametrize("dtype", ["float32", "no such dtype"])
def test_an_incomplete_output_is_refused(tmp_path, dtype):
    (tmp_path / "out.bin").write_bytes(b"abc")
    with pytest.raises(RunnerError, match="cannot be read"):
        read_output(tmp_path / "out.bin", dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int64", "uint8", "bool"])
def test_random_inputs_of_every_dtype(dtype):
    size = {"float16": 2, "bfloat16": 2, "int64": 8, "uint8": 1, "bool": 1}[dtype]
    data = random_bytes(Tensor(dtype, (5, 7)), seed=1)
    assert len(data) == 35 * size
    assert len(set(data)) > 1

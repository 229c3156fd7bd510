"""How many restarts and rounds a run has."""

import itertools
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from planned import make_plan, record_in, run_plan

import workbench as wb
from workbench import store, workflow
from workbench.errors import UsageError
from workbench.records.runs import Batch, Session
from workbench.run.allocation import (
    LEAST_SCATTER,
    MOST_RESTARTS,
    MOST_ROUNDS,
    MOST_SCATTER,
    SCATTER,
    count_rounds,
    measure_scatter,
)
from workbench.run.execute import restarts
from workbench.run.recorder import Step
from workbench.run.runner import find_runner
from workbench.run.steps import tracing_cost


@pytest.fixture
def plan(conv_pte, tmp_path):
    pte = shutil.copy(conv_pte, tmp_path / "conv.pte")
    options = wb.MeasureOptions(toggle="none", evidence=False, cold_start=False)
    return make_plan(Path(pte), options, find_runner())


def session(experiment, process, wall_ns, cpu_ns=None):
    batch = Batch(
        0, 0, tuple(wall_ns), tuple(wall_ns if cpu_ns is None else cpu_ns), (0,) * len(wall_ns)
    )
    return Session(experiment, 1, process, False, (), 1.0, 1.0, (batch,))


def count_restarts(plan, folder, restart_s, on_core=1.0):
    """The restarts of a run, each of which takes so long."""
    recorder = record_in(folder, plan, find_runner())
    names, count = [e.name for e in plan.experiments], 0
    for process in restarts(recorder):
        recorder.add_sessions(session(name, process, [10**6], [10**6 * on_core]) for name in names)
        recorder.update(spent_s=recorder.run.spent_s + restart_s)
        count += 1
    return count


@pytest.mark.parametrize(
    ("restart_s", "count"),
    [
        (0.01, MOST_RESTARTS),
        (0.25, 24),
        (0.5, 20),
        (0.8, 15),
        (1.8, 5),
        (5.5, 5),
        (7.2, 4),
        (20, 3),
    ],
)
def test_restarts_are_as_many_as_fit_and_longer_programs_get_up_to_twice_the_seconds(
    plan, tmp_path, restart_s, count
):
    assert len(plan.experiments) == 3
    assert count_restarts(plan, tmp_path / "run", restart_s) in (count, count + 1)


def test_beside_other_programs_a_run_takes_longer_rather_than_fewer_restarts(plan, tmp_path):
    quiet = count_restarts(plan, tmp_path / "quiet", 0.5)
    assert count_restarts(plan, tmp_path / "busy", 1.0, on_core=0.5) in (quiet, quiet + 1)


def test_a_given_number_of_restarts_and_a_budget_keep_their_meaning(plan, tmp_path):
    assert count_restarts(replace(plan, processes=7), tmp_path / "number", 20.0) == 7
    assert count_restarts(replace(plan, budget_s=10.0), tmp_path / "budget", 0.5) == 20
    assert count_restarts(replace(plan, budget_s=0.1), tmp_path / "brief", 0.5) == 3


@pytest.mark.parametrize("scatter", [0.1, 1.0, 4.0])
@pytest.mark.parametrize(("fixed_s", "round_s"), [(0.15, 0.12), (3.0, 0.12), (1.0, 2.0)])
def test_rounds_give_the_least_variance_for_given_seconds(plan, fixed_s, round_s, scatter):
    variances = [
        (1 + scatter / rounds) * (fixed_s + rounds * round_s)
        for rounds in range(1, MOST_ROUNDS + 1)
    ]
    rounds = count_rounds(plan, 1, fixed_s, round_s, scatter)
    assert variances[rounds - 1] <= 1.05 * min(variances)


def test_a_given_number_of_restarts_fills_the_seconds_with_rounds(plan):
    few = replace(plan, processes=5)
    assert count_rounds(few, 1, 0.2, 0.1) == 10
    assert count_rounds(few, 1, 0.2, 10.0) == 1
    assert count_rounds(replace(plan, processes=2), 1, 0.2, 0.01) == MOST_ROUNDS
    assert count_rounds(replace(few, budget_s=50.0), 1, 1.0, 0.1) == 90


@pytest.mark.parametrize("within", [0.002, 0.02])
def test_scatter_is_that_of_the_sessions(plan, tmp_path, within):
    """Of a restart that differs by 1 % from another, and what the machine does to all sides."""
    rng, names = np.random.default_rng(1), [e.name for e in plan.experiments]
    recorder = record_in(tmp_path / "run", plan, find_runner())
    assert measure_scatter(recorder.run, 1) == SCATTER
    for process in range(40):
        shared = rng.normal(0, 0.2)
        for name in names:
            logs = 14 + shared + rng.normal(0, 0.01) + rng.normal(0, within, 16)
            new = session(name, process, np.exp(logs).astype(int).tolist())
            step = Step(1, process, (False,))
            recorder.add_sessions((*recorder.sessions_of(step, traced=False), new))
    expected = min(MOST_SCATTER, max(LEAST_SCATTER, (within / 0.01) ** 2 / 16))
    assert measure_scatter(recorder.run, 1) == pytest.approx(expected, rel=0.6)


def test_rounds_of_several_threads_are_planned_by_wall_times(plan, tmp_path):
    """The CPU times of idle threads that wait for work are no part of a latency."""
    rng, sessions = np.random.default_rng(0), []
    for name, process, traced in itertools.product("ab", range(40), (False, True)):
        wall = np.exp(14 + rng.normal(0, 0.01) + rng.normal(0, 0.04, 16)) * (1.3 if traced else 1)
        made = session(name, process, wall.astype(int), rng.integers(1e6, 9e6, 16))
        sessions.append(replace(made, threads=2, traced=traced))
    run = record_in(tmp_path, replace(plan, threads=(2,)), find_runner()).run
    run = replace(run, sessions=tuple(sessions))
    assert measure_scatter(run, 2) == pytest.approx(1.0, rel=0.6)
    assert tracing_cost(run, "a") == pytest.approx(0.3, abs=0.02)


def test_as_many_inferences_are_traced_as_not(plan, tmp_path):
    brief = replace(plan, processes=3, batch_ms=0.2)
    run = store.load_run(run_plan(brief, find_runner(), tmp_path / "out"))
    counts = Counter()
    for each in run.sessions:
        rounds = {batch.round: len(batch.wall_ns) for batch in each.batches}
        counts[each.traced] += sum(list(rounds.values())[:1])
        assert len(rounds) >= 1
    assert counts[True] == pytest.approx(counts[False], rel=0.5)
    firsts = {min((b.batch, s.traced) for s in run.sessions for b in s.batches if b.round == 0
                  and s.process == process)[1] for process in range(3)}  # fmt: skip
    assert firsts == {True, False}, "which comes first changes with the restart"


def test_quick_leaves_what_the_command_line_says(cli, conv_pte, monkeypatch):
    """Also an option that is given its default: only those that are not given are an effort's."""
    asked = []

    def stop(*_, measure, **__):
        asked.append(measure)
        raise UsageError("enough")

    monkeypatch.setattr(workflow, "profile", stop)
    for words in ((), ("--measure", "evidence=yes"), ("--processes", "4"), ("--budget", "9s")):
        assert cli("profile", conv_pte, "--effort", "quick", *words)[0] == 2
    figures = [(m.budget_s, m.evidence, m.roof, m.processes) for m in asked]
    assert figures == [(3, False, False, 0), (3, True, False, 0), (0, False, False, 4),
                       (9, False, False, 0)]  # fmt: skip

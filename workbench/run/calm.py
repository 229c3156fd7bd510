"""Steps measured with an eye on the machine: read before and after, repeated if disturbed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from workbench.records import Reading, Session
from workbench.run.environment import read_environment
from workbench.run.journal import Journal
from workbench.run.measure import Step, measure_step
from workbench.run.runner import Runner
from workbench.run.target import Host

#: The part of the wall time that a step was off its core from which on it is measured once more.
#: Half of it is what one other busy program takes; taking turns and CPU time cope with that
#: (``tests/benchmarks/null.py`` and ``ab_spread.py`` are run so).
DISTURBED = 0.5


def measure_calmly(journal: Journal, runner: Runner, inputs: Sequence[Path], step: Step) -> None:
    """Measure a step, read the machine before and after, and note how long it took.

    An untraced step that was disturbed is measured a second time after a pause, as long as the
    plan has repetitions left; of the two the quieter one stays, and says that there were two. A
    repetition that does not come to its end takes nothing away.

    Raises
    ------
    StoreError, RunnerError, TargetError
        As from `measure_step`.
    """
    plan, started = journal.run.plan, time.monotonic()
    journal.note_readings([read_now(runner.target, step, "before")])
    measure_step(journal, runner, inputs, step)
    first = journal.sessions_of(step.threads, step.process, step.traced)
    # A budget is better spent on another restart.
    left = 0 if plan.budget_s else plan.retries - count_repeated(journal.run.sessions)
    if not step.traced and left > 0 and disturbance(first) > DISTURBED:
        try:
            time.sleep(plan.cool_down_s)
            measure_step(journal, runner, inputs, step)
        except BaseException:
            journal.note_sessions(first)
            raise
        second = journal.sessions_of(step.threads, step.process, step.traced)
        quieter = min((first, second), key=disturbance)
        journal.note_sessions(replace(session, attempts=2) for session in quieter)
    journal.note_readings([read_now(runner.target, step, "after")])
    journal.note_time(time.monotonic() - started)


def read_now(target: Host, step: Step, moment: str) -> Reading:
    """What the target tells of itself around a step."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Reading(
        time=now,
        moment=moment,
        threads=step.threads,
        process=step.process,
        traced=step.traced,
        **read_environment(target),
    )


def disturbance(sessions: Sequence[Session]) -> float:
    """The part of the wall time that others had the cores; 0 where CPU time does not tell.

    With several threads CPU time adds up over them, so the part of inferences that were
    interrupted stands in.
    """
    batches = [batch for session in sessions for batch in session.batches]
    if not batches:
        return 0.0
    if sessions[0].threads > 1:
        interrupted = [count > 0 for batch in batches for count in batch.preempted]
        return sum(interrupted) / len(interrupted)
    wall, cpu = (sum(sum(getattr(b, clock)) for b in batches) for clock in ("wall_ns", "cpu_ns"))
    return max(0.0, 1 - cpu / max(wall, 1))


def count_repeated(sessions: Sequence[Session]) -> int:
    """How many steps were measured twice."""
    return len({(s.threads, s.process, s.traced) for s in sessions if s.attempts > 1})

"""The manifest of a run in progress: grows with each step, always on disk."""

import contextlib
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from workbench.errors import TargetError, WorkbenchError
from workbench.export.program import Program
from workbench.options import Progress, silent
from workbench.records.runs import (
    Experiment,
    Plan,
    Reading,
    RunRecord,
    Sampling,
    Session,
    Start,
    kit_result,
)
from workbench.run.allocation import MOST_RESTARTS
from workbench.run.runner import Runner
from workbench.run.session import RunnerSession
from workbench.run.tensor_files import Inputs
from workbench.store import (
    MANIFEST,
    find_runs,
    kept_layers,
    load_run,
    new_run_dir,
    remove_partials,
    safe_name,
    save_run,
)
from workbench.upstream import describe_version

#: Without it, XNNPACK's delegate reports operators to every tracer (``native/upstream.h``).
PROFILER = "profiler symbol"

#: Bytes of an event in a trace, and of all traces of a run.
EVENT_BYTES, TRACES_BYTES = 92, 24_000_000


@dataclass(frozen=True)
class Step:
    """A fresh process of every experiment at a thread count: which restart, and how it is timed.

    ``kinds`` says whether inferences are traced; with both kinds, they alternate in one process.
    """

    threads: int
    restart: int
    kinds: tuple[bool, ...]


@dataclass
class RunRecorder:
    """A run in progress: its folder and its manifest so far; what is measured, and by what."""

    run_dir: Path
    run: RunRecord
    programs: Sequence[Program]
    runner: Runner
    inputs: Inputs = field(default_factory=dict)
    #: Whether the machine was read since the run began or went on.
    is_read: bool = False

    def update(self, **fields: Any) -> None:
        """Replace fields of the manifest in memory."""
        self.run = replace(self.run, **fields)

    def save(self) -> None:
        """Write the manifest."""
        keys = dict.fromkeys((s.experiment, s.threads) for s in self.run.sessions if s.complete)
        results = tuple(_outline(self.run, *key) for key in keys)
        self.run = replace(self.run, model=self.run.plan.pte, results=results)
        save_run(self.run, self.run_dir)

    def has(self, step: Step) -> bool:
        """Whether this step was completed."""
        return all(
            any(session.complete for session in self.sessions_of(step, traced=traced))
            for traced in step.kinds
        )

    @property
    def alternates(self) -> bool:
        """Whether a process can be traced in some inferences only, as far as is known."""
        return PROFILER not in self.run.missing

    def most_traced(self, experiment: Experiment) -> int:
        """How many inferences of a process may be traced, so that a run's traces stay small."""
        plan = self.run.plan
        programs = dict(zip(plan.all_programs, self.programs, strict=True))
        layers = programs[plan.program_of(experiment)].layers
        method = plan.phase_of(experiment).method
        methods = layers.methods if layers else ()
        events = [m.event_count for m in methods if method in ("", m.name)][:1] or [1]
        given = plan.processes and not plan.budget_s
        restarts = plan.processes if given else MOST_RESTARTS
        traces = restarts * len(plan.threads) * len(plan.experiments)
        return max(1, TRACES_BYTES // (EVENT_BYTES * events[0] * traces))

    def add_missing(self, sessions: Iterable[RunnerSession]) -> None:
        """Add what runners say that their ExecuTorch lacks."""
        missing = {name: text for each in sessions for name, text in each.ready.missing.items()}
        if not missing.items() <= self.run.missing.items():
            self.update(missing={**self.run.missing, **missing})

    def sessions_of(self, step: Step, *, traced: bool) -> tuple[Session, ...]:
        """The sessions of a step with traced or untraced times."""
        wanted = (step.threads, step.restart, traced)
        return tuple(session for session in self.run.sessions if _place(session) == wanted)

    def add_sessions(self, sessions: Iterable[Session]) -> None:
        """Add the sessions of a step; replaces those of an interrupted attempt."""
        new = tuple(sessions)
        places = set(map(_place, new))
        earlier = tuple(s for s in self.run.sessions if _place(s) not in places)
        self.update(sessions=earlier + new)

    def add(self, name: str, *records: Reading | Sampling | Start) -> None:
        """Add records to ``readings``, ``samplings`` or ``starts``."""
        self.update(**{name: (*getattr(self.run, name), *records)})


def _place(session: Session) -> tuple[int, int, bool]:
    """Which step a session belongs to, and whether it is traced."""
    return session.threads, session.process, session.traced


@contextlib.contextmanager
def open_record(
    plan: Plan,
    programs: Sequence[Program],
    runner: Runner,
    root: Path,
    progress: Progress = silent,
) -> Iterator[RunRecorder]:
    """Record a run of a plan on a locked device; continues an interrupted run of the same plan."""
    with runner.lock(progress):
        run_dir = find_run(plan, runner, root, "incomplete")
        begun = begin_run(plan, programs, runner)
        run_dir = run_dir or new_run_dir(root, name_run(begun))
        remove_partials(run_dir)
        run = replace(load_run(run_dir), plan=plan) if (run_dir / MANIFEST).exists() else begun
        recorder = RunRecorder(run_dir, run, programs, runner)
        recorder.save()
        for planned, program in zip(plan.all_programs, programs, strict=True):
            program.keep_layers(kept_layers(run_dir, planned.name))
        try:
            with runner.target.prepared():
                yield recorder
        except TargetError:  # a run that lost its device can continue
            raise
        except WorkbenchError:
            recorder.update(state="failed", finished=timestamp())
            recorder.save()
            raise
        recorder.update(state="complete", finished=timestamp())
        recorder.save()


def begin_run(plan: Plan, programs: Sequence[Program], runner: Runner) -> RunRecord:
    """The manifest of a run without measurements."""
    from executorch import version

    versions = {name: metadata.version(name) for name in ("executorch", "executorch-workbench")}
    untested = describe_version(versions["executorch"])
    named = zip(plan.all_programs, programs, strict=True)
    exports = {planned.name: program.export for planned, program in named}
    return RunRecord(
        plan=plan,
        platform=runner.target.platform,
        emulated=runner.target.emulated,
        state="incomplete",
        started=timestamp(),
        finished="",
        host=runner.target.outline(),
        runner=runner.description,
        versions={**versions, "python": platform.python_version()},
        missing={"tested version": untested} if untested else {},
        export=exports.pop(""),
        exports={name: export for name, export in exports.items() if export},
        executorch={"version": version.__version__, "sha": version.git_version},
    )


def name_run(run: RunRecord) -> str:
    """The label, or model, dtype, platform, UTC time, as ``toy_cnn-fp32-linux-20261122-1433``."""
    if run.plan.label:
        return safe_name(run.plan.label)
    program = [run.export.model, run.export.dtype] if run.export else [run.plan.stem]
    time = f"{datetime.fromisoformat(run.started):%Y%m%d-%H%M}"
    return "-".join([*(safe_name(part)[:60] for part in program), run.platform, time])


#: Properties of a machine on which a run can go on: other cores are another machine.
_MACHINE = ("machine", "cpu", "cores_usable")


def find_run(plan: Plan, runner: Runner, root: Path, state: str) -> Path | None:
    """The folder of the latest run of the same plan, runner and CPU in that state, if any.

    Its programs may have moved.
    """
    runs = find_runs(root)
    here = runner.target.outline() if runs else {}
    for run_dir in reversed(runs):
        with contextlib.suppress(WorkbenchError):  # an unreadable run cannot continue
            run = load_run(run_dir)
            same = all(run.host.get(name) == here.get(name) for name in _MACHINE)
            same = same and _name_files(run.plan) == _name_files(plan)
            if same and run.state == state and run.runner == runner.description:
                return run_dir
    return None


def _name_files(plan: Plan) -> Plan:
    """A plan without the folders of its programs, which have SHA-256."""
    programs = tuple(replace(p, pte=Path(p.pte).name, data="") for p in plan.programs)
    return replace(plan, pte=Path(plan.pte).name, data="", programs=programs)


def timestamp() -> str:
    """The time now, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _outline(run: RunRecord, experiment: str, threads: int) -> dict[str, Any]:
    """What a manifest of the kit says of an experiment."""
    sessions = [s for s in run.sessions if (s.experiment, s.threads) == (experiment, threads)]
    batches = [batch for session in sessions if not session.traced for batch in session.batches]
    first = next((session for session in sessions if session.etdump), sessions[0])
    runs = sum(len(batch.wall_ns) for batch in batches)
    return kit_result(experiment, threads, runs or run.plan.runs, first)

"""Start the runner of an experiment."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from workbench.options import RUNTIMES
from workbench.records.runs import Experiment
from workbench.run.recorder import RunRecorder
from workbench.run.session import RunnerSession
from workbench.run.sides import Settings, command_of


def start_runner(
    recorder: RunRecorder, experiment: Experiment, threads: int, core: int | None, *more: str
) -> RunnerSession:
    """A live runner of one experiment; paths in ``more`` flags are paths on its target."""
    plan, runner, target = recorder.run.plan, recorder.runner, recorder.runner.target
    if experiment.runner in RUNTIMES:
        return start_runtime(recorder, experiment, threads, core, traced=bool(more))
    program, phase = plan.program_of(experiment), plan.phase_of(experiment)
    flags = ["--model_path", target.push(Path(program.pte)), "--cpu_threads", str(threads)]
    flags += ["--data_path", target.push(Path(program.data))] if program.data else []
    flags += ["--isa", experiment.isa]
    if phase.method:
        flags += ["--method_name", phase.method]
    flags += _list_inputs(recorder, experiment)
    if core is not None:
        flags += ["--cpus", str(core)]
    return runner.open([*flags, *more], timeout_s=plan.timeout_s)


def _list_inputs(recorder: RunRecorder, experiment: Experiment) -> Iterator[str]:
    """The flags of an experiment's inputs, and of those that prepare it."""
    phase, target = recorder.run.plan.phase_of(experiment), recorder.runner.target
    sets, paths_of = (*phase.before, phase.inputs), recorder.inputs[experiment.name]
    for number, (tensors, paths) in enumerate(zip(sets, paths_of, strict=True)):
        if number:
            yield "--then"
        for path in paths:
            yield from ("--inputs", target.push(path))
        if phase.name or any(tensor.dynamic for tensor in tensors):
            for tensor in tensors:
                yield from ("--input_shape", "x".join(map(str, tensor.shape)))


def start_runtime(
    recorder: RunRecorder, experiment: Experiment, threads: int, core: int | None, *, traced: bool
) -> RunnerSession:
    """A live process of another runtime."""
    plan, paths = recorder.run.plan, recorder.inputs[experiment.name][-1]
    program = plan.program_of(experiment)
    inputs = zip(program.inputs, paths, strict=True)
    settings = Settings(
        experiment.runner,
        str(Path(program.pte).resolve()),
        threads,
        tuple(replace(tensor, file=str(path.resolve())) for tensor, path in inputs),
        () if core is None else (core,),
        traced,
    )
    return RunnerSession(command_of(settings), timeout_s=plan.timeout_s)

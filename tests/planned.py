"""Plan and execute as `wb.measure` does, with a plan to change in between."""

from pathlib import Path

import workbench as wb
from workbench.records.runs import Plan
from workbench.run import plan as planning
from workbench.run.execute import measure_rest, measure_restarts
from workbench.run.recorder import RunRecorder, begin_run, open_record
from workbench.run.runner import Runner
from workbench.run.tensor_files import locate_inputs


def make_plan(pte: Path, options: wb.MeasureOptions, runner: Runner) -> Plan:
    """The plan for a program and those in ``options.against``."""
    programs = [wb.open_program(path) for path in (pte, *options.against)]
    return planning.make_plan(programs, options, runner)


def run_plan(plan: Plan, runner: Runner, root: Path) -> Path:
    """Carry out a plan; returns the run's folder."""
    programs = [wb.open_program(program.pte) for program in plan.all_programs]
    with open_record(plan, programs, runner, root) as recorder:
        measure_restarts(recorder)
        measure_rest(recorder)
    return recorder.run_dir


def record_in(folder: Path, plan: Plan, runner: Runner) -> RunRecorder:
    """A recorder of a new run in a folder, with the inputs of every experiment."""
    programs = [wb.open_program(program.pte) for program in plan.all_programs]
    recorder = RunRecorder(folder, begin_run(plan, programs, runner), programs, runner)
    recorder.inputs = locate_inputs(plan, folder)
    return recorder

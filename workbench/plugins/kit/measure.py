"""Measure what a config describes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from workbench import Run, find_runner, open_run
from workbench.api import Progress, silent
from workbench.jobs import Experiment, carry_out, open_target, write_files
from workbench.plugins.kit.config import (
    output_place,
    plan_config,
    read_config,
    select_experiments,
)
from workbench.plugins.kit.custom_runner import run_processes


def run_config(
    path: str | Path,
    *,
    root: str | Path | None = None,
    only: Sequence[str] = (),
    target: str = "",
    power: str = "",
    ops: Sequence[str] = (),
    baseline: str = "",
    progress: Progress = silent,
) -> Run:
    """Measure the experiments of a config file, the kit's or ours.

    Experiments of mode ``xnntrace`` alone make a run without times: only `Run.kernel_changes`.

    Parameters
    ----------
    path
        The JSON file, as `read_config` describes it.
    root
        The output folder; None takes the config's ``output_root``, or ``out_<model>``.
    only
        Names of the experiments to run; all by default.
    target, power
        Where to run, and the Android power mode; empty for the config's.
    ops
        Shared libraries that register operators; a config cannot name them.
    baseline
        The experiment to compare all others with; by default the config's comparisons, else the
        side whose name says that the extension is off.
    progress
        Called with what is being done and the fraction done.

    Raises
    ------
    UsageError, StoreError
        The config is malformed, or names what does not exist.
    RunnerError
        A runner failed.

    Examples
    --------
    >>> wb.run_config("mac_sme2.json").findings  # doctest: +SKIP
    """
    path = Path(path)
    config = read_config(path, progress)
    config = replace(config, target=target or config.target, power=power or config.power)
    config = select_experiments(config, only) if only else config
    place, name = output_place(config, root)
    with open_target(config.target, power=config.power) as there:
        if config.experiments[0].runner == Experiment.runner:
            runner = find_runner(there, ops)
            plan, programs = plan_config(config, path.parent, baseline, runner)
            run = carry_out(plan, programs, runner, place, progress)
        else:
            plan, programs = plan_config(config, path.parent, baseline)
            run_dir = run_processes(plan, programs, place, name, target=there, progress=progress)
            run = open_run(run_dir)
    write_files(run, progress)
    return run

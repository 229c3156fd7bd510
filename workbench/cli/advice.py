"""The commands that advise: what to do next, how near to the roof a run is, a layer alone."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from workbench.cli.answers import Answer, command
from workbench.cli.options import PATH, show_progress


@command()
@click.argument("run_dir", type=PATH)
@click.option("--experiment", default="", help="Which one [default: the first candidate].")
@click.option("--threads", type=int, help="At which thread count [default: the first].")
def findings(run_dir: Path, experiment: str, threads: int | None) -> Answer:
    """Say what to do next about a run, what brings most first."""
    from workbench.report import analyze_run, find_next_steps, list_findings

    analysis = analyze_run(run_dir)
    found = find_next_steps(analysis, experiment, threads)
    lines = list_findings(found, rows=len(found)) or ["nothing stands out"]
    record = {"run_dir": run_dir, "emulated": analysis.run.emulated, "findings": found}
    return Answer(lines, record)


@command()
@click.argument("run_dir", type=PATH)
@click.option("--again", is_flag=True, help="Measure anew what is kept of this machine.")
@click.option("--top", default=12, show_default=True, help="Operators to list.")
def roofline(run_dir: Path, again: bool, top: int) -> Answer:
    """Measure what this machine can do, and how near a run's operators come to it."""
    from workbench.report import (
        analyze_run,
        describe_roofline,
        find_roofline,
        list_ceilings,
        measure_roof,
        write_artifacts,
    )

    with show_progress() as progress:
        measure_roof(run_dir, again=again, progress=progress)
    analysis = analyze_run(run_dir)
    write_artifacts(analysis)
    record = {
        "run_dir": run_dir,
        "ceilings": list_ceilings(analysis),
        "operators": find_roofline(analysis),
    }
    return Answer([describe_roofline(analysis, top)], record)


@command()
@click.argument("run_dir", type=PATH)
@click.option("--layer", required=True, help="Path of the module, such as features.3.block.0.")
@click.option("--model", default="", help="What was exported [default: the run's model].")
@click.option("--runs", default=50, show_default=True, help="Least timed inferences of each.")
@click.option("--processes", default=5, show_default=True, help="Restarts of every runner.")
def replay(run_dir: Path, layer: str, **choices) -> Answer:
    """Measure one layer of a run's model alone, against its time within the model."""
    from workbench.report import replay_layer

    with show_progress() as progress:
        result = replay_layer(run_dir, layer, progress=progress, **choices)
    return Answer([*result.texts, result.run_dir], asdict(result))


COMMANDS = (findings, roofline, replay)

"""The command ``workbench replay``."""

from dataclasses import asdict
from pathlib import Path

import click

from workbench.cli.options import EXISTING, TARGET, Output, call, command
from workbench.options import MeasureOptions
from workbench.progress import show_progress


@command()
@click.argument("run_dir", type=EXISTING)
@click.option("--layer", required=True, help="Path of the module, such as features.3.block.0.")
@click.option("--model", default="", help="The model that was exported [default: the run's].")
@click.option("--runs", default=50, show_default=True, help="Minimum timed inferences.")
@click.option("--processes", default=5, show_default=True, help="Restarts of every runner process.")
@TARGET
def replay(run_dir: Path, layer: str, model: str, runs: int, processes: int, target: str) -> Output:
    """Measure one layer of a model alone, and compare with its time in the model."""
    from workbench.plugins.replay.layer import replay_layer

    options = MeasureOptions(runs=runs, processes=processes)
    with show_progress() as progress:
        result = replay_layer(
            run_dir, layer, options, model=model, target=target, progress=progress
        )
    step = call("report", result.run_dir)
    return Output([*result.texts, result.run_dir], asdict(result), step=step)

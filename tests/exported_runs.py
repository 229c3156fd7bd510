"""Runs of exports that are long enough to be looked at, and no longer."""

from dataclasses import replace

from planned import make_plan, run_plan

import workbench as wb


def make_model(name, module, inputs):
    """A module as `load_model` returns it."""
    return replace(wb.load_model("toy_cnn"), name=name, module=module.eval(), example_inputs=inputs)


def measure_briefly(model, root, *, processes=2, traced=4, **options):
    """Export a model and measure it for a moment; returns the run's folder."""
    pte = wb.export_model(model, options=wb.ExportOptions(**options), root=root).path
    runner = wb.find_runner()
    plan = make_plan(
        pte,
        wb.MeasureOptions(toggle="none", runs=2, warmup=1, processes=processes, evidence=False),
        runner,
    )
    plan = replace(plan, batch_ms=0.1, traced_runs=traced, retries=0)
    return run_plan(plan, runner, root)

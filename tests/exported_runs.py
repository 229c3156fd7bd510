"""Runs of exports that are long enough to be looked at, and no longer."""

from dataclasses import replace

import workbench as wb


def make_model(name, module, inputs):
    """A module as `load_model` returns it."""
    return replace(wb.load_model("toy_cnn"), name=name, module=module.eval(), example_inputs=inputs)


def measure_briefly(model, root, *, processes=2, **options):
    """Export a model and measure it for a moment; returns the run's folder."""
    program = wb.export_model(model, options=wb.ExportOptions(**options), root=root)
    brief = wb.MeasureOptions(
        toggle="none", runs=2, processes=processes, evidence=False, cold_start=False, roof=False
    )
    return wb.measure(program, options=brief, root=root, artifacts=False).path

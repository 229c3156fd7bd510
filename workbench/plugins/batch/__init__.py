"""Plug-in: many models by a matrix, its cells on Dask's workers, and the page of all."""

from workbench.api import Plugin

_HERE = "workbench.plugins.batch"
PLUGIN = Plugin(
    commands={"batch": f"{_HERE}.batch_command:batch"},
    attributes={
        "workbench.batch": f"{_HERE}.batches:batch",
        "workbench.collect_runs": f"{_HERE}.collect:collect_runs",
    },
)

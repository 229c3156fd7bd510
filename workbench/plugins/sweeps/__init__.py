"""Plug-in: what more ISA levels, threads and sizes bring."""

from workbench.api import Attribute, Plugin

_HERE = "workbench.plugins.sweeps"
PLUGIN = Plugin(
    attributes={
        "Run.isa_levels": Attribute(f"{_HERE}.sweep_tables:list_isa_levels", summary="ladder"),
        "Run.scaling": Attribute(f"{_HERE}.sweep_tables:sweep_threads", summary="scaling"),
        "Run.crossovers": Attribute(
            f"{_HERE}.sweep_tables:describe_threads", summary="crossovers", printed=True
        ),
        "Run.size_changes": Attribute(f"{_HERE}.sweep_tables:describe_sizes", printed=True),
    },
    views={"sweeps": f"{_HERE}.sweep_view:SWEEPS", "sweeps of a run": f"{_HERE}.sweep_view:OF_RUN"},
)

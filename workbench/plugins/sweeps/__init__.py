"""Plug-in: what more ISA levels, threads and sizes bring."""

from workbench.api import Plugin, Section

_HERE = "workbench.plugins.sweeps"
PLUGIN = Plugin(
    attributes={
        "Run.isa_levels": f"{_HERE}.tables:list_isa_levels",
        "Run.scaling": f"{_HERE}.tables:sweep_threads",
        "Run.crossovers": f"{_HERE}.tables:describe_threads",
        "Run.size_fits": f"{_HERE}.tables:fit_sizes",
        "Run.size_changes": f"{_HERE}.tables:describe_sizes",
    },
    summary={
        "ladder": "isa_levels",
        "scaling": "scaling",
        "size_fits": "size_fits",
        "crossovers": "crossovers",
    },
    texts=("crossovers", "size_changes"),
    views={"sweeps": f"{_HERE}.view:SWEEPS", "sweeps of a run": f"{_HERE}.view:OF_RUN"},
    sections=(
        Section(
            "What do extensions, threads and sizes bring?",
            "Each level hides the features above it; hollow dots are steps without a significant "
            "change.",
            "sweeps of a run",
            after="How long does one inference take?",
            folded=False,
        ),
    ),
)

"""A plug-in as somebody else writes it: a command, an attribute, a rule, a view, and a section."""

from pathlib import Path

import click

import workbench as wb
from workbench.api import Finding, Gain, Output, Plugin, Section, View, command, show_table

PLUGIN = Plugin(
    commands={"depthwise": "depthwise:depthwise"},
    attributes={"Measurement.depthwise": "depthwise:list_depthwise"},
    rules={"depthwise": "depthwise:find_depthwise"},
    views={"depthwise": "depthwise:VIEW"},
)


def list_depthwise(m):
    return m.operators[m.operators["operator"].str.contains("DWConv")]


@command()
@click.argument("run_dir", type=click.Path(path_type=Path))
def depthwise(run_dir: Path) -> Output:
    """List the depthwise convolutions of a run."""
    rows = wb.open_run(run_dir).subject.depthwise
    return Output([show_table(rows, ["name", "mean_ms"])], {"keys": list(rows["key"])})


def find_depthwise(m, keys):
    rows = m.depthwise
    gain = Gain.at_most(float(rows["mean_ms"].sum()))
    yield Finding("depthwise convolutions", gain, tuple(rows["key"]), "fuse them", "")


SECTION = Section(
    "Which convolutions are depthwise?", "By their time.", after="Which layers and lines?"
)
VIEW = View((wb.Measurement,), lambda m, top: [show_table(m.depthwise, top=top)], SECTION)

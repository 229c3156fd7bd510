"""Plug-in: traces as files of other tools: tables as CSV, timelines for Perfetto."""

from workbench.api import Plugin

_HERE = "workbench.plugins.convert"
PLUGIN = Plugin(
    commands={"trace": f"{_HERE}.trace_command:convert_trace"},
    attributes={
        "workbench.export_trace": f"{_HERE}.traces:export_trace",
        "workbench.write_csvs": f"{_HERE}.csv_tables:write_csvs",
    },
)

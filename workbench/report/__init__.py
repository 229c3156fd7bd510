"""Runs to analyses, analyses to reports, and the main job that does it all."""

from workbench.report.analysis import Analysis, Comparison, analyze_run
from workbench.report.axes import show_axes
from workbench.report.checks import check_run
from workbench.report.comparison import compare_runs, is_slower_by
from workbench.report.exchange import describe_spans, export_trace
from workbench.report.exports import compare_exports, list_partition, read_exports
from workbench.report.facts import describe_run
from workbench.report.findings import find_next_steps, list_findings, show_findings
from workbench.report.kernels import show_code, show_kernels
from workbench.report.live import LiveRun
from workbench.report.notebooks import execute_notebook, notebooks_dir, open_app, open_lab
from workbench.report.notes import show_layers, show_undelegated, show_verdicts
from workbench.report.pipeline import (
    Profile,
    make_report,
    measure_config,
    measure_program,
    profile_model,
    write_artifacts,
)
from workbench.report.runs import list_runs
from workbench.report.side_by_side import align_measurements, compare_many, show_aligned
from workbench.report.timeline import show_timeline

__all__ = [
    "Analysis",
    "Comparison",
    "LiveRun",
    "Profile",
    "align_measurements",
    "analyze_run",
    "check_run",
    "compare_exports",
    "compare_many",
    "compare_runs",
    "describe_run",
    "describe_spans",
    "execute_notebook",
    "export_trace",
    "find_next_steps",
    "is_slower_by",
    "list_findings",
    "list_partition",
    "list_runs",
    "make_report",
    "measure_config",
    "measure_program",
    "notebooks_dir",
    "open_app",
    "open_lab",
    "profile_model",
    "read_exports",
    "show_aligned",
    "show_axes",
    "show_code",
    "show_findings",
    "show_kernels",
    "show_layers",
    "show_timeline",
    "show_undelegated",
    "show_verdicts",
    "write_artifacts",
]

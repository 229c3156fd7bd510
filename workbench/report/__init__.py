"""Runs to analyses, analyses to reports, and the main job that does it all."""

from workbench.report.analysis import Analysis, Comparison, analyze_run
from workbench.report.axes import show_axes
from workbench.report.ceilings import (
    describe_roofline,
    find_roofline,
    list_ceilings,
    measure_roof,
    show_roofline,
)
from workbench.report.checks import check_run, describe_quality, grade_quality, show_quality
from workbench.report.comparison import Measurement, compare_runs, find_measurement
from workbench.report.documents import (
    VERSION,
    describe_contract,
    describe_document,
    list_documents,
    read_document,
)
from workbench.report.earlier import compare_with_metrics
from workbench.report.exchange import describe_spans, export_trace
from workbench.report.exports import compare_exports, list_partition, read_exports
from workbench.report.facts import describe_run, identify_run
from workbench.report.findings import find_next_steps, list_findings, show_findings
from workbench.report.gates import Compared, show_aligned, write_gate_summary, write_junit
from workbench.report.kernels import show_code, show_kernels, show_proof
from workbench.report.live import LiveRun
from workbench.report.notebooks import execute_notebook, notebooks_dir, open_app, open_lab
from workbench.report.notes import (
    show_layers,
    show_note,
    show_speedups,
    show_tree,
    show_undelegated,
    show_verdicts,
)
from workbench.report.picker import compare_picked, pick_measurements
from workbench.report.pipeline import (
    Profile,
    make_report,
    measure_config,
    measure_program,
    profile_model,
    write_artifacts,
)
from workbench.report.replay import Replay, replay_layer
from workbench.report.rungs import explore_ladder, show_rung
from workbench.report.runs import list_measurements, list_runs
from workbench.report.side_by_side import align_measurements, compare_many
from workbench.report.skills import Skill, find_skill, list_skills
from workbench.report.summary import outline_run
from workbench.report.timeline import show_timeline
from workbench.report.validate import validate_run

__all__ = [
    "VERSION",
    "Analysis",
    "Compared",
    "Comparison",
    "LiveRun",
    "Measurement",
    "Profile",
    "Replay",
    "Skill",
    "align_measurements",
    "analyze_run",
    "check_run",
    "compare_exports",
    "compare_many",
    "compare_picked",
    "compare_runs",
    "compare_with_metrics",
    "describe_contract",
    "describe_document",
    "describe_quality",
    "describe_roofline",
    "describe_run",
    "describe_spans",
    "execute_notebook",
    "explore_ladder",
    "export_trace",
    "find_measurement",
    "find_next_steps",
    "find_roofline",
    "find_skill",
    "grade_quality",
    "identify_run",
    "list_ceilings",
    "list_documents",
    "list_findings",
    "list_measurements",
    "list_partition",
    "list_runs",
    "list_skills",
    "make_report",
    "measure_config",
    "measure_program",
    "measure_roof",
    "notebooks_dir",
    "open_app",
    "open_lab",
    "outline_run",
    "pick_measurements",
    "profile_model",
    "read_document",
    "read_exports",
    "replay_layer",
    "show_aligned",
    "show_axes",
    "show_code",
    "show_findings",
    "show_kernels",
    "show_layers",
    "show_note",
    "show_proof",
    "show_quality",
    "show_roofline",
    "show_rung",
    "show_speedups",
    "show_timeline",
    "show_tree",
    "show_undelegated",
    "show_verdicts",
    "validate_run",
    "write_artifacts",
    "write_gate_summary",
    "write_junit",
]

from .analysis.compare_runs import align_measurements, compare
from .analysis.exports import read_exports
from .analysis.ledger import build_ledger
from .analysis.open import open_run
from .analysis.operators import add_categories, add_up_spans, summarize_categories
from .analysis.roofline import place_layers
from .analysis.run import Comparison, Measurement, Run
from .analysis.variants import read_study
from .analysis.what_if import bottleneck_shift, predict_what_if, rank_bottlenecks
from .cli.options import show_progress
from .convert import export_trace
from .datasets import load_case_study, sample_exports, sample_model, sample_run
from .explorer.page import explore
from .explorer.widgets import list_runs, pick_measurements, pick_run
from .export.artifact import export_model
from .export.program import Program, open_program
from .live import LiveRun
from .models.loader import load_model
from .models.registry import EagerModelBase, list_models, register_model
from .optimize.search import optimize
from .options import ExportOptions, MeasureOptions, OptimizeOptions
from .plots.categories import plot_categories
from .plots.history import plot_history
from .plots.latencies import plot_iterations, plot_latencies
from .plots.layers import plot_layer_types, plot_layers
from .plots.machine_code import plot_machine_code
from .plots.operators import plot_operators
from .plots.roofline import plot_roofline
from .plots.shift import plot_shift
from .plots.speedups import plot_heatmap, plot_speedups
from .plots.stack import plot_stack
from .plots.sweeps import plot_isa_levels, plot_sizes, plot_threads
from .plots.timeline import plot_timeline
from .plots.variants import plot_variants
from .plots.views import show
from .plots.what_if import plot_bottlenecks, plot_what_if
from .portfolio.combined import combine_runs
from .portfolio.history import read_history
from .portfolio.scheduler import batch
from .replay import replay_layer
from .report.gate import validate_run
from .report.report import make_report
from .run.ceilings import measure_roof
from .run.doctor import examine_machine
from .run.isa import read_isa
from .run.runner import find_runner
from .trace.etdump import read_etdump
from .trace.xnn_log import read_xnn_log
from .workflow import measure, profile, run_config

__all__ = [
    "Comparison",
    "EagerModelBase",
    "ExportOptions",
    "LiveRun",
    "MeasureOptions",
    "Measurement",
    "OptimizeOptions",
    "Program",
    "Run",
    "add_categories",
    "add_up_spans",
    "align_measurements",
    "batch",
    "bottleneck_shift",
    "build_ledger",
    "combine_runs",
    "compare",
    "examine_machine",
    "explore",
    "export_model",
    "export_trace",
    "find_runner",
    "list_models",
    "list_runs",
    "load_case_study",
    "load_model",
    "make_report",
    "measure",
    "measure_roof",
    "open_program",
    "open_run",
    "optimize",
    "pick_measurements",
    "pick_run",
    "place_layers",
    "plot_bottlenecks",
    "plot_categories",
    "plot_heatmap",
    "plot_history",
    "plot_isa_levels",
    "plot_iterations",
    "plot_latencies",
    "plot_layer_types",
    "plot_layers",
    "plot_machine_code",
    "plot_operators",
    "plot_roofline",
    "plot_shift",
    "plot_sizes",
    "plot_speedups",
    "plot_stack",
    "plot_threads",
    "plot_timeline",
    "plot_variants",
    "plot_what_if",
    "predict_what_if",
    "profile",
    "rank_bottlenecks",
    "read_etdump",
    "read_exports",
    "read_history",
    "read_isa",
    "read_study",
    "read_xnn_log",
    "register_model",
    "replay_layer",
    "run_config",
    "sample_exports",
    "sample_model",
    "sample_run",
    "show",
    "show_progress",
    "summarize_categories",
    "validate_run",
]  # fmt: skip

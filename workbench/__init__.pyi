from .analysis.categories import add_categories as add_categories
from .analysis.categories import tabulate_rules as tabulate_rules
from .analysis.compare_runs import align_measurements as align_measurements
from .analysis.compare_runs import compare as compare
from .analysis.exports import (
    compare_exports as compare_exports,
)
from .analysis.exports import (
    list_partition as list_partition,
)
from .analysis.exports import (
    read_exports as read_exports,
)
from .analysis.ledger import build_ledger as build_ledger
from .analysis.open import open_run as open_run
from .analysis.operators import (
    add_up_spans as add_up_spans,
)
from .analysis.operators import (
    summarize_categories as summarize_categories,
)
from .analysis.roofline import place_layers as place_layers
from .analysis.run import (
    Comparison as Comparison,
)
from .analysis.run import (
    Measurement as Measurement,
)
from .analysis.run import (
    Run as Run,
)
from .analysis.shift import bottleneck_shift as bottleneck_shift
from .analysis.variants import read_study as read_study
from .analysis.what_if import (
    predict_what_if as predict_what_if,
)
from .analysis.what_if import (
    rank_bottlenecks as rank_bottlenecks,
)
from .cli.options import show_progress as show_progress
from .datasets import (
    load_case_study as load_case_study,
)
from .datasets import (
    sample_exports as sample_exports,
)
from .datasets import (
    sample_model as sample_model,
)
from .datasets import (
    sample_run as sample_run,
)
from .explorer.page import explore as explore
from .explorer.widgets import (
    list_runs as list_runs,
)
from .explorer.widgets import (
    pick_measurements as pick_measurements,
)
from .explorer.widgets import (
    pick_run as pick_run,
)
from .export.artifact import export_model as export_model
from .live import LiveRun as LiveRun
from .models.loader import load_model as load_model
from .models.registry import (
    EagerModelBase as EagerModelBase,
)
from .models.registry import (
    list_models as list_models,
)
from .models.registry import (
    register_model as register_model,
)
from .optimize.search import optimize as optimize
from .options import ExportOptions as ExportOptions
from .options import MeasureOptions as MeasureOptions
from .options import OptimizeOptions as OptimizeOptions
from .plots.categories import plot_categories as plot_categories
from .plots.history import plot_history as plot_history
from .plots.latencies import plot_iterations as plot_iterations
from .plots.latencies import plot_latencies as plot_latencies
from .plots.layers import plot_layer_types as plot_layer_types
from .plots.layers import plot_layers as plot_layers
from .plots.machine_code import plot_machine_code as plot_machine_code
from .plots.operators import plot_operators as plot_operators
from .plots.roofline import plot_roofline as plot_roofline
from .plots.shift import plot_shift as plot_shift
from .plots.speedups import plot_heatmap as plot_heatmap
from .plots.speedups import plot_speedups as plot_speedups
from .plots.stack import plot_stack as plot_stack
from .plots.sweeps import plot_isa_levels as plot_isa_levels
from .plots.sweeps import plot_sizes as plot_sizes
from .plots.sweeps import plot_threads as plot_threads
from .plots.tables import show as show
from .plots.tables import show_answer as show_answer
from .plots.tables import show_table as show_table
from .plots.text import (
    show_code as show_code,
)
from .plots.text import (
    show_dtypes as show_dtypes,
)
from .plots.text import (
    show_findings as show_findings,
)
from .plots.text import (
    show_kernels as show_kernels,
)
from .plots.text import (
    show_latencies as show_latencies,
)
from .plots.text import (
    show_layers as show_layers,
)
from .plots.text import (
    show_operators as show_operators,
)
from .plots.text import (
    show_quality as show_quality,
)
from .plots.text import (
    show_roofline as show_roofline,
)
from .plots.text import (
    show_speedups as show_speedups,
)
from .plots.text import (
    show_sweeps as show_sweeps,
)
from .plots.text import (
    show_times as show_times,
)
from .plots.text import (
    show_undelegated as show_undelegated,
)
from .plots.text import (
    show_verdicts as show_verdicts,
)
from .plots.timeline import plot_timeline as plot_timeline
from .plots.variants import plot_variants as plot_variants
from .plots.variants import show_variants as show_variants
from .plots.what_if import (
    plot_bottlenecks as plot_bottlenecks,
)
from .plots.what_if import (
    plot_what_if as plot_what_if,
)
from .portfolio.combined import combine_runs as combine_runs
from .portfolio.history import read_history as read_history
from .portfolio.scheduler import batch as batch
from .report.artifacts import make_report as make_report
from .report.validate import validate_run as validate_run
from .run.doctor import examine_machine as examine_machine
from .run.isa import read_isa as read_isa
from .run.runner import find_runner as find_runner
from .trace.etdump import read_etdump as read_etdump
from .trace.xnn_log import read_xnn_log as read_xnn_log
from .workflow import (
    export_trace as export_trace,
)
from .workflow import (
    measure as measure,
)
from .workflow import (
    measure_roof as measure_roof,
)
from .workflow import (
    profile as profile,
)
from .workflow import (
    replay_layer as replay_layer,
)
from .workflow import (
    run_config as run_config,
)

__all__ = [
    "Comparison",
    "EagerModelBase",
    "ExportOptions",
    "LiveRun",
    "MeasureOptions",
    "Measurement",
    "OptimizeOptions",
    "Run",
    "add_categories",
    "add_up_spans",
    "align_measurements",
    "batch",
    "bottleneck_shift",
    "build_ledger",
    "combine_runs",
    "compare",
    "compare_exports",
    "examine_machine",
    "explore",
    "export_model",
    "export_trace",
    "find_runner",
    "list_models",
    "list_partition",
    "list_runs",
    "load_case_study",
    "load_model",
    "make_report",
    "measure",
    "measure_roof",
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
    "show_answer",
    "show_code",
    "show_dtypes",
    "show_findings",
    "show_kernels",
    "show_latencies",
    "show_layers",
    "show_operators",
    "show_progress",
    "show_quality",
    "show_roofline",
    "show_speedups",
    "show_sweeps",
    "show_table",
    "show_times",
    "show_undelegated",
    "show_variants",
    "show_verdicts",
    "summarize_categories",
    "tabulate_rules",
    "validate_run",
]

"""From frames to frames: ledger, categories, statistics, comparisons, bottleneck shift."""

from workbench.analyze.across import Traced, align_runs, tabulate_runs
from workbench.analyze.attribution import attribute_layers, find_method
from workbench.analyze.case_study import CaseStudy, load_case_study
from workbench.analyze.categories import Category, add_categories, categorize, tabulate_rules
from workbench.analyze.compare import (
    compare_apart,
    compare_latencies,
    compare_restarts,
    list_restarts,
    typical_restarts,
)
from workbench.analyze.evidence import gather_evidence, name_kernels, split_code
from workbench.analyze.findings import Facts, Rival, find_bottlenecks
from workbench.analyze.history import find_changes
from workbench.analyze.kernels import compare_kernels
from workbench.analyze.ladder import climb_ladder
from workbench.analyze.latencies import add_traced, clock_of, pick_timed, tabulate_latencies
from workbench.analyze.layers import add_layers, name_layer, place_rows, summarize_layers
from workbench.analyze.ledger import build_ledger
from workbench.analyze.methods import Methods, find_methods
from workbench.analyze.naive import add_up_spans
from workbench.analyze.operators import summarize_categories, summarize_operators, total_runs
from workbench.analyze.outcome import FALSE_DISCOVERIES, judge
from workbench.analyze.parts import compare_categories, compare_layers, compare_operators
from workbench.analyze.proof import Proof, compare_evidence, prove_change
from workbench.analyze.quality import grade_run, summarize_quality
from workbench.analyze.quiet import find_quiet_runs, undisturbed_times
from workbench.analyze.roofline import (
    Roof,
    build_roof,
    place_layers,
    place_operators,
    tabulate_ceilings,
)
from workbench.analyze.shift import bottleneck_shift, bound_shift
from workbench.analyze.statistics import describe, describe_latencies
from workbench.analyze.threads import find_crossovers, sweep_threads
from workbench.analyze.tree import build_model_tree
from workbench.analyze.verdict import Verdict, reach_verdict, summarize_verdict
from workbench.analyze.what_if import predict_what_if, rank_bottlenecks

__all__ = [
    "FALSE_DISCOVERIES",
    "CaseStudy",
    "Category",
    "Facts",
    "Methods",
    "Proof",
    "Rival",
    "Roof",
    "Traced",
    "Verdict",
    "add_categories",
    "add_layers",
    "add_traced",
    "add_up_spans",
    "align_runs",
    "attribute_layers",
    "bottleneck_shift",
    "bound_shift",
    "build_ledger",
    "build_model_tree",
    "build_roof",
    "categorize",
    "climb_ladder",
    "clock_of",
    "compare_apart",
    "compare_categories",
    "compare_evidence",
    "compare_kernels",
    "compare_latencies",
    "compare_layers",
    "compare_operators",
    "compare_restarts",
    "describe",
    "describe_latencies",
    "find_bottlenecks",
    "find_changes",
    "find_crossovers",
    "find_method",
    "find_methods",
    "find_quiet_runs",
    "gather_evidence",
    "grade_run",
    "judge",
    "list_restarts",
    "load_case_study",
    "name_kernels",
    "name_layer",
    "pick_timed",
    "place_layers",
    "place_operators",
    "place_rows",
    "predict_what_if",
    "prove_change",
    "rank_bottlenecks",
    "reach_verdict",
    "split_code",
    "summarize_categories",
    "summarize_layers",
    "summarize_operators",
    "summarize_quality",
    "summarize_verdict",
    "sweep_threads",
    "tabulate_ceilings",
    "tabulate_latencies",
    "tabulate_rules",
    "tabulate_runs",
    "total_runs",
    "typical_restarts",
    "undisturbed_times",
]

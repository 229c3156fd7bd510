import typing

from .analysis.compare_exports import read_exports
from .analysis.compare_runs import combine_runs, compare
from .analysis.ledger import build_ledger
from .analysis.open import open_run
from .analysis.run import Comparison, Measurement, Run
from .datasets import sample_file, sample_run
from .errors import WorkbenchError
from .export.artifact import export_model
from .export.given import rewrite
from .export.program import Program, open_program
from .magics import load_ipython_extension
from .models.loader import load_model
from .models.registry import EagerModelBase, list_models, register_model
from .options import ExportOptions, MeasureOptions
from .plots.breakdown import plot_categories, plot_roofline
from .plots.changes import plot_shift, plot_speedups
from .plots.latencies import plot_iterations, plot_latencies
from .plots.pickers import explore, pick, pick_measurements, pick_run
from .plots.views import show
from .report.report import make_report
from .run.ceilings import measure_roof
from .run.doctor import examine_machine
from .run.isa import read_isa
from .run.runner import find_runner
from .trace.etdump import read_etdump
from .workflow import measure, profile

__all__ = [
    "Comparison", "EagerModelBase", "ExportOptions", "MeasureOptions", "Measurement",
    "Program", "Run", "WorkbenchError", "build_ledger",
    "combine_runs", "compare", "examine_machine", "explore", "export_model",
    "find_runner", "list_models", "load_ipython_extension", "load_model",
    "make_report", "measure", "measure_roof", "open_program", "open_run", "pick",
    "pick_measurements", "pick_run", "plot_categories", "plot_iterations",
    "plot_latencies", "plot_roofline", "plot_shift",
    "plot_speedups",
    "profile", "read_etdump", "read_exports", "read_isa",
    "register_model", "rewrite", "sample_file", "sample_run", "show",
]  # fmt: skip

def __getattr__(name: str) -> typing.Any: ...  # names of plug-ins

from .analysis.attribution import find_method
from .analysis.findings.commands import write_command
from .analysis.findings.text import abridge_gain, describe_cause
from .analysis.layers import THE_MODEL
from .cli.options import with_limits
from .export.accuracy import compare_samples
from .export.artifact import apply_recipe, identify_export
from .export.lower import measure_layer_noise
from .export.precision import keep_accuracy
from .export.program import SUFFIXES
from .models.loader import run_file
from .models.registry import parse_name
from .options import REWRITES, help_of
from .plots.bars import draw_shares
from .plots.views import list_classes, show_phases
from .records.codec import upgrade_rewrites
from .records.exports import contrast_models
from .records.pairing import pair_experiments
from .records.recipe import Recipe
from .records.runs import TRACED_CLOCK, Experiment, Pair, Plan, Session
from .report.artifacts import write_artifacts
from .report.html import render_page
from .report.kernel import read_template
from .report.report import is_reported
from .run.locks import device_behind, lock_folder, runner_options, share_machine
from .run.plan import check_toggle, plan_given
from .run.recorder import Step, open_record
from .run.runner import Runner, identify_runner
from .run.steps import interleave
from .run.targets import TARGETS, open_target
from .run.targets.host import HOST, Host
from .store import (
    cache_folder,
    default_root,
    new_run_dir,
    read_yaml,
    remove_partials,
    save_recipe,
    sha256_of,
    stem_of,
    trace_path,
    write_changed,
)
from .upstream import list_llm_transforms
from .workflow import carry_out, list_subjects, write_files

__all__ = [
    "HOST", "REWRITES", "SUFFIXES", "TARGETS", "THE_MODEL", "TRACED_CLOCK", "Experiment",
    "Host", "Pair", "Plan", "Recipe", "Runner", "Session", "Step", "abridge_gain",
    "apply_recipe", "cache_folder", "carry_out", "check_toggle", "compare_samples",
    "contrast_models", "default_root", "describe_cause", "device_behind", "draw_shares",
    "find_method", "help_of", "identify_export", "identify_runner", "interleave", "is_reported",
    "keep_accuracy", "list_classes", "list_llm_transforms", "list_subjects", "lock_folder",
    "measure_layer_noise", "new_run_dir", "open_record", "open_target", "pair_experiments",
    "parse_name", "plan_given", "read_template", "read_yaml", "remove_partials", "render_page",
    "run_file", "runner_options", "save_recipe", "sha256_of", "share_machine", "show_phases",
    "stem_of", "trace_path", "upgrade_rewrites", "with_limits", "write_artifacts",
    "write_changed", "write_command", "write_files",
]  # fmt: skip

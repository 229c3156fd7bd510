from .analysis.findings.commands import write_command
from .cli.checks import check_request
from .cli.command import EXISTING, options_of, with_limits
from .errors import RunnerError, TargetError, unknown_name
from .export.accuracy import compare_samples
from .export.artifact import apply_recipe
from .models.loader import run_file
from .models.registry import parse_name
from .names import LONGEST_LABEL
from .options import REWRITES, Options, Progress, option, silent
from .progress import show_progress
from .records.codec import SCHEMA_VERSION, structure, to_json, to_plain
from .records.exports import contrast_models
from .records.recipe import Recipe
from .records.trials import Applied, Trial
from .report.artifacts import write_artifacts
from .report.kernel import read_template
from .report.report import is_reported
from .run.build import Toolchain
from .run.locks import device_behind, lock_device, lock_folder
from .run.plan import check_toggle
from .run.runner import Runner
from .run.targets import open_target
from .store import atomic_write, default_root, load_record, safe_name
from .trace.writers import to_csv
from .upstream import list_llm_transforms
from .workflow import list_subjects

__all__ = [
    "EXISTING", "LONGEST_LABEL", "REWRITES", "SCHEMA_VERSION", "Applied", "Options",
    "Progress", "Recipe", "Runner", "RunnerError", "TargetError", "Toolchain", "Trial",
    "apply_recipe", "atomic_write", "check_request", "check_toggle", "compare_samples",
    "contrast_models", "default_root", "device_behind", "is_reported", "list_llm_transforms",
    "list_subjects", "load_record", "lock_device", "lock_folder", "open_target", "option",
    "options_of", "parse_name", "read_template", "run_file", "safe_name", "show_progress", "silent",
    "structure", "to_csv", "to_json", "to_plain", "unknown_name", "with_limits", "write_artifacts",
    "write_command",
]  # fmt: skip

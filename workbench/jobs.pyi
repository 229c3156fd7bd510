from .analysis.findings.commands import write_command
from .analysis.findings.text import abridge_gain
from .cli.options import with_limits
from .errors import TargetError
from .export.accuracy import compare_samples
from .export.artifact import apply_recipe
from .models.loader import run_file
from .models.registry import parse_name
from .names import LONGEST_LABEL
from .options import REWRITES
from .plots.views import list_classes
from .records.exports import contrast_models
from .records.recipe import Recipe
from .report.artifacts import write_artifacts
from .report.html import render_page
from .report.kernel import read_template
from .report.report import is_reported
from .run.build import Toolchain
from .run.locks import device_behind, lock_folder
from .run.plan import check_toggle
from .run.runner import Runner
from .run.targets import open_target
from .run.targets.host import Host
from .store import default_root
from .upstream import list_llm_transforms
from .workflow import list_subjects

__all__ = [
    "LONGEST_LABEL", "REWRITES", "Host", "Recipe", "Runner", "TargetError", "Toolchain",
    "abridge_gain", "apply_recipe", "check_toggle", "compare_samples", "contrast_models",
    "default_root", "device_behind", "is_reported", "list_classes", "list_llm_transforms",
    "list_subjects", "lock_folder", "open_target", "parse_name", "read_template", "render_page",
    "run_file", "with_limits", "write_artifacts", "write_command",
]  # fmt: skip

from .analysis.exports import find_run_model
from .analysis.findings.finding import Change
from .analysis.trials import BEST, keep_trial
from .export.accuracy import compare_with_model, describe_problem, run_program
from .export.constants import add_constant, fake_mode_of
from .export.dependence import Dependence
from .export.edit import Replacement
from .export.identity import hash_code, versions
from .export.layers import count_calls, read_interface
from .export.lower import Lowered, lower_model
from .export.part import Parts, list_sources
from .export.precision import DTYPES, PRECISIONS
from .export.program import cast_floats, raw_bytes
from .export.purity import (
    PRODUCTS,
    VIEWS,
    drop_unused,
    find_root,
    function_of,
    is_overwritten,
    is_pure,
    list_aliases,
    mark_overwritten,
    overwrites,
    readers,
)
from .export.reload import read_options
from .export.split import split_model
from .export.traced import TracedModel, trace_model
from .models.loader import LoadedModel
from .models.sources import reason
from .process import silence
from .records.exports import SPLIT, Fidelity, find_worst
from .records.trials import TOGETHER
from .run.locks import lock_device
from .run.runner import open_runner
from .run.session import RunnerSession
from .run.tensor_files import locate_inputs, read_output
from .upstream import (
    find_eager_function,
    find_schema,
    fold_constants,
    operator_label,
    tree_flatten,
    tree_leaves,
    tree_unflatten,
)

__all__ = [
    "BEST", "DTYPES", "PRECISIONS", "PRODUCTS", "SPLIT", "TOGETHER", "VIEWS", "Change",
    "Dependence", "Fidelity", "LoadedModel", "Lowered", "Parts", "Replacement", "RunnerSession",
    "TracedModel", "add_constant", "cast_floats", "compare_with_model", "count_calls",
    "describe_problem", "drop_unused", "fake_mode_of", "find_eager_function", "find_root",
    "find_run_model", "find_schema", "find_worst", "fold_constants", "function_of", "hash_code",
    "is_overwritten", "is_pure", "keep_trial", "list_aliases", "list_sources", "locate_inputs",
    "lock_device", "lower_model", "mark_overwritten", "open_runner", "operator_label",
    "overwrites", "raw_bytes", "read_interface", "read_options", "read_output", "readers",
    "reason", "run_program", "silence", "split_model", "trace_model", "tree_flatten",
    "tree_leaves", "tree_unflatten", "versions",
]  # fmt: skip

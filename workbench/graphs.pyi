from .analysis.attribution import predict_calls
from .analysis.caches import list_caches
from .analysis.findings.finding import Change
from .export.constants import add_constant, fake_mode_of
from .export.dependence import Dependence
from .export.identity import versions
from .export.lower import lower_model, walk_quantised
from .export.lowered import Lowered
from .export.part import cut_out, record_values
from .export.precision import PRECISIONS
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
from .export.rewriter import find_rewriter
from .export.sidecar import resize
from .export.traced import TracedModel, trace_model
from .export.write import Replacement, Unwritable
from .models.loader import LoadedModel
from .models.sources import reason
from .process import silence
from .run.sides import Graph
from .upstream import find_eager_function, find_schema, fold_constants, tree_leaves, tree_map

__all__ = [
    "PRECISIONS", "PRODUCTS", "VIEWS", "Change", "Dependence", "Graph", "LoadedModel", "Lowered",
    "Replacement", "TracedModel", "Unwritable", "add_constant", "cut_out", "drop_unused",
    "fake_mode_of", "find_eager_function", "find_rewriter", "find_root", "find_schema",
    "fold_constants", "function_of", "is_overwritten", "is_pure", "list_aliases", "list_caches",
    "lower_model", "mark_overwritten", "overwrites", "predict_calls", "readers", "reason",
    "record_values", "resize", "silence", "trace_model", "tree_leaves", "tree_map", "versions",
    "walk_quantised",
]  # fmt: skip

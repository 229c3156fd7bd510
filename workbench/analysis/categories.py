"""Which category and family an operator belongs to, by an ordered table of rules."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import pandas as pd

from workbench.errors import unknown_name

#: The five categories of the field, in the order in which every table and figure shows them.
#: Convolution and GEMM multiply matrices; Data Movement changes where or how values are stored;
#: Elementwise computes each value by itself (arithmetic and activations); Other is the rest
#: (normalisation, pooling, softmax, reductions, resizing, overheads).
CATEGORIES = ("Convolution", "GEMM", "Data Movement", "Elementwise", "Other")

_ORDINAL = re.compile(r" #\d+$")
_XNNPACK_NAME = re.compile(r"(?P<type>[^(]+?)(?: \([^)]*\)(?: (?P<microkernel>.+))?)?")
_KERNEL_PREFIX = re.compile(r"(?:native_call_)?(?:\w+::)?")


@dataclass(frozen=True)
class Rule:
    """One line of the table: what the ``pattern`` matches in whole gets category and family.

    A delegated operator is matched as ``<type>`` or ``<type>/<microkernel>``, without layout and
    data types; a portable kernel as ``<operator>.<overload>``, without its namespace.
    """

    name: str
    kind: str
    pattern: str
    category: str
    family: str
    why: str


@dataclass(frozen=True)
class Category:
    """Where an operator belongs, and the name of the rule that says so."""

    category: str
    family: str
    rule: str


def _types(*names: str) -> str:
    """The pattern of XNNPACK operator types, whichever microkernel runs them."""
    return f"(?:{'|'.join(names)})(?:/.+)?"


def _kernels(names: str) -> str:
    """The pattern of portable kernels, whichever overload."""
    return f"(?:{'|'.join(names.split())})(?:\\..+)?"


#: The first rule that matches wins.
RULES = (
    Rule(
        "depthwise convolution", "delegated", "Convolution/(?:DWConv|VMulCAddC)",
        "Convolution", "depthwise",
        "one filter per channel: bound by memory, and without matrix extensions",
    ),
    Rule(
        "convolution", "delegated", _types("Convolution"),
        "Convolution", "convolution",
        "runs as (indirect) GEMM over the pixels; so do depthwise ones without a DWConv kernel",
    ),
    Rule(
        "deconvolution", "delegated", _types("Deconvolution"),
        "Convolution", "deconvolution", "a transposed convolution",
    ),
    Rule(
        "fully connected", "delegated", _types("Fully Connected", "Dynamic Fully Connected"),
        "GEMM", "gemm",
        "a linear layer, or a 1x1 convolution with stride 1, which XNNPACK runs as one",
    ),
    Rule(
        "batch matrix multiply", "delegated", _types("Batch Matrix Multiply"),
        "GEMM", "bmm", "a product of two activations, mostly of attention",
    ),
    Rule(
        "convert", "delegated", _types("Convert"),
        "Data Movement", "convert", "quantise, dequantise or cast: the same values, stored anew",
    ),
    Rule(
        "layout", "delegated",
        _types(
            "Transpose", "Depth To Space", "Space To Depth", "Pack LH",
            "Static Reshape", "Static Expand Dims", "Fuse Dims", "Split Dims",
        ),
        "Data Movement", "layout", "the same values in another order or shape",
    ),
    Rule(
        "copy", "delegated", _types("Copy", "Slice", "Constant Pad"),
        "Data Movement", "copy", "concatenation (logged as Copy), slice or padding",
    ),
    Rule(
        "softmax", "delegated", _types("Softmax"),
        "Other", "softmax", "exponential and a sum along one axis",
    ),
    Rule(
        "normalisation", "delegated", _types("Normalize"),
        "Other", "normalisation", "statistics along an axis, then scaling",
    ),
    Rule(
        "pooling", "delegated",
        _types("Average Pooling", "Max Pooling", "ArgMax Pooling", "Unpooling"),
        "Other", "pooling", "a reduction over a window",
    ),
    Rule(
        "resize", "delegated", _types("Resize Bilinear"),
        "Other", "resize", "interpolation between pixels",
    ),
    Rule(
        "reduction", "delegated",
        _types("Mean", "Mean Squared", "Sum", "Reduce Max", "Reduce Min"),
        "Other", "reduction", "one value from many",
    ),
    Rule(
        "activation", "delegated",
        _types(
            "Clamp", "ELU", "GELU", "ApproxGELU", "HardSwish", "LeakyReLU", "PReLU", "Sigmoid",
            "TanH",
        ),
        "Elementwise", "activation", "a non-linear function of each value; Clamp is ReLU or ReLU6",
    ),
    Rule(
        "lookup table", "delegated", "Invalid Unary Op",
        "Elementwise", "activation", "what XNNPACK logs for an int8 activation by lookup table",
    ),
    Rule(
        "elementwise", "delegated",
        _types(
            "Abs", "Add", "Bankders Rounding", "Binary Elementwise", "Bitwise And", "Bitwise Not",
            "Bitwise Or", "Bitwise Xor", "Ceiling", "Copy Sign", "Cosine", "Count Leading Zeros",
            "Cube Root", "Divide", "Exp", "Floor", "Invalid Binary Op", "Log", "Maximum",
            "Minimum", "Modulus", "Multiply", "Negate", "Population Count", "Power",
            "Reciprocal Square Root", "RoPE", "Shift Left", "Shift Right Arithmetic",
            "Shift Right Logical", "Sign", "Sine", "Square", "Square Root", "Squared Difference",
            "Subtract", "Unary Elementwise",
        ),
        "Elementwise", "elementwise", "arithmetic on each value by itself",
    ),
    Rule(
        "opaque delegate", "delegated", "DELEGATE_CALL",
        "Other", "opaque delegate", "a whole delegate call: this delegate logs no operators",
    ),
    Rule(
        "runtime primitive", "portable", "OPERATOR_CALL",
        "Other", "scalar", "a call without a kernel: the runtime's own arithmetic on sizes",
    ),
    Rule(
        "scalar", "portable", r"\w+\.(?:Scalar|int)|(?:sym_numel|_local_scalar_dense)",
        "Other", "scalar", "arithmetic on sizes and single numbers, not on tensors",
    ),
    Rule(
        "convolution kernel", "portable", _kernels("convolution convolution_backward"),
        "Convolution", "convolution", "a convolution that the delegate did not take",
    ),
    Rule(
        "matrix kernel", "portable", _kernels("addmm linear mm"),
        "GEMM", "gemm", "a matrix product that the delegate did not take",
    ),
    Rule(
        "batch matrix kernel", "portable", _kernels("bmm custom_sdpa sdpa_with_kv_cache"),
        "GEMM", "bmm", "products of activations that the delegate did not take",
    ),
    Rule(
        "convert kernel", "portable",
        _kernels("_to_copy _to_dim_order_copy (?:de)?quantize_per_\\w+ choose_qparams_\\w+"),
        "Data Movement", "convert", "quantise, dequantise or cast: the same values, stored anew",
    ),
    Rule(
        "layout kernel", "portable",
        _kernels(
            "_clone_dim_order as_strided_copy et_view permute_copy pixel_shuffle pixel_unshuffle "
            "squeeze_copy t_copy transpose_copy unsqueeze_copy view_as_real_copy view_copy"
        ),
        "Data Movement", "layout", "the same values in another order or shape",
    ),
    Rule(
        "copy kernel", "portable",
        _kernels(
            "_d2h_copy _h2d_copy alias_copy cat clone constant_pad_nd copy copy_ detach_copy "
            "diagonal_copy et_copy_index expand_copy flip lift_fresh_copy narrow_copy "
            "reflection_pad[123]d repeat repeat_interleave replication_pad[123]d roll select_copy "
            "select_scatter slice_copy slice_scatter split_copy split_with_sizes_copy stack tril "
            "unbind_copy unfold_copy update_cache"
        ),
        "Data Movement", "copy", "copies, joins, cuts or pads tensors",
    ),
    Rule(
        "gather kernel", "portable",
        _kernels(
            "embedding gather index index_put index_put_ index_select masked_scatter masked_select "
            "nonzero scatter scatter_add"
        ),
        "Data Movement", "gather", "reads or writes at computed places",
    ),
    Rule(
        "fill kernel", "portable",
        _kernels("_empty_dim_order arange empty fill full full_like ones scalar_tensor zeros"),
        "Data Movement", "fill", "writes a tensor without computing anything",
    ),
    Rule(
        "softmax kernel", "portable", _kernels("_log_softmax _softmax"),
        "Other", "softmax", "exponential and a sum along one axis",
    ),
    Rule(
        "normalisation kernel", "portable",
        _kernels(
            "_native_batch_norm_legit _native_batch_norm_legit_no_training native_group_norm "
            "native_layer_norm"
        ),
        "Other", "normalisation", "statistics along an axis, then scaling",
    ),
    Rule(
        "pooling kernel", "portable",
        _kernels(
            "_adaptive_avg_pool2d avg_pool2d max_pool2d_with_indices "
            "max_pool2d_with_indices_backward"
        ),
        "Other", "pooling", "a reduction over a window",
    ),
    Rule(
        "resize kernel", "portable",
        _kernels(
            "_upsample_bilinear2d_aa grid_sampler_2d upsample_bilinear2d upsample_nearest2d"
        ),
        "Other", "resize", "interpolation between pixels",
    ),
    Rule(
        "reduction kernel", "portable",
        _kernels("amax amin any argmax argmin cumsum max mean min prod sum topk var var_mean"),
        "Other", "reduction", "one value from many, a running one, or the largest of them",
    ),
    Rule(
        "distance kernel", "portable", _kernels("_cdist_forward _pdist_forward"),
        "Other", "distance", "distances between all pairs of rows",
    ),
    Rule(
        "Fourier kernel", "portable", _kernels("_fft_c2r _fft_r2c"),
        "Other", "fourier", "a Fourier transform",
    ),
    Rule(
        "random kernel", "portable", _kernels("rand randn"),
        "Other", "random", "draws random numbers",
    ),
    Rule(
        "activation kernel", "portable",
        _kernels("clamp elu gelu glu hardtanh leaky_relu relu sigmoid tanh"),
        "Elementwise", "activation", "a non-linear function of each value",
    ),
    Rule(
        "elementwise kernel", "portable",
        _kernels(
            "_conj_physical abs acos acosh add asin asinh atan atan2 atanh bitwise_\\w+ ceil cos "
            "cosh div eq erf exp expm1 floor floor_divide fmod ge gt isinf isnan le log log10 "
            "log1p log2 logical_\\w+ logit lt masked_fill maximum minimum mul native_dropout ne "
            "neg pow reciprocal remainder round rsqrt rsub sign sin sinh sqrt sub tan trunc where"
        ),
        "Elementwise", "elementwise", "arithmetic, comparison or choice on each value by itself",
    ),
    Rule(
        "delegate overhead", "delegate_overhead", ".*",
        "Other", "delegate overhead", "time of a delegate call that none of its operators owns",
    ),
    Rule(
        "call overhead", "call_overhead", ".*",
        "Other", "call overhead", "time of an operator call outside its kernel",
    ),
    Rule(
        "framework", "framework", ".*",
        "Other", "framework", "time of Method::execute outside all calls",
    ),
    Rule(
        "unknown operator", "delegated", ".*",
        "Other", "unknown", "no rule knows this name, as of a delegate that is not XNNPACK",
    ),
    Rule(
        "unknown kernel", "portable", ".*",
        "Other", "unknown", "no rule knows this name, as of a custom operator",
    ),
)  # fmt: skip

KINDS = tuple(dict.fromkeys(rule.kind for rule in RULES))


@cache
def categorize(name: str, kind: str = "delegated") -> Category:
    """The category of one ledger row.

    Parameters
    ----------
    name
        As logged, or without the ordinal: ``Convolution (NHWC, F32) IGEMM #3``,
        ``native_call_add.out``.
    kind
        The row's kind in the ledger.

    Raises
    ------
    UsageError
        The kind is none of the ledger's.

    Examples
    --------
    >>> categorize("Convolution (NHWC, F32) DWConv #3")
    Category(category='Convolution', family='depthwise', rule='depthwise convolution')
    """
    if kind not in KINDS:
        raise unknown_name("kind of ledger row", kind, KINDS)
    subject = _subject(name, kind)
    rule = next(r for r in RULES if r.kind == kind and re.fullmatch(r.pattern, subject, re.DOTALL))
    return Category(rule.category, rule.family, rule.name)


def add_categories(ledger: pd.DataFrame) -> pd.DataFrame:
    """The ledger with the columns ``category``, ``family`` and ``rule`` added.

    Parameters
    ----------
    ledger
        ``schema.LEDGER``; left unchanged.
    """
    names = ledger[["operator", "kind"]].drop_duplicates()
    placed = [categorize(name, kind) for name, kind in names.itertuples(index=False)]
    found = names.assign(
        category=[c.category for c in placed],
        family=[c.family for c in placed],
        rule=[c.rule for c in placed],
    )
    bare = ledger.drop(columns=["category", "family", "rule"], errors="ignore")
    return bare.merge(found, on=["operator", "kind"], how="left", validate="many_to_one")


def tabulate_rules() -> pd.DataFrame:
    """The rules as a table, the first match first: name, kind, pattern, category, family, why."""
    return pd.DataFrame(RULES)


def _subject(name: str, kind: str) -> str:
    """The part of a name that the patterns of its kind are written for."""
    bare = _ORDINAL.sub("", name)
    if kind == "portable":
        return _KERNEL_PREFIX.sub("", bare, count=1)
    parts = _XNNPACK_NAME.fullmatch(bare)
    if parts is None:
        return bare
    return "/".join(part for part in parts.group("type", "microkernel") if part)

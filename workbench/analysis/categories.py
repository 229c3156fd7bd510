"""The category and family of an operator, by an ordered table of rules."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import pandas as pd

from workbench.errors import unknown_name

#: The five categories, in the order in which every table and figure shows them, and the families
#: of each. Convolution and GEMM multiply matrices; Data Movement changes where or how values are
#: stored; Elementwise computes each value by itself (arithmetic and activations); Other is the
#: rest (normalisation, pooling, softmax, reductions, resizing, overheads).
_FAMILIES = {
    "Convolution": ("depthwise", "convolution", "deconvolution"),
    "GEMM": ("gemm", "bmm"),
    "Data Movement": ("convert", "layout", "copy", "gather", "fill"),
    "Elementwise": ("activation", "elementwise"),
    "Other": (
        "softmax", "normalisation", "pooling", "resize", "reduction", "opaque delegate", "scalar",
        "distance", "fourier", "random", "delegate overhead", "call overhead", "framework",
        "unknown",
    ),
}  # fmt: skip
CATEGORIES = tuple(_FAMILIES)
_CATEGORY_OF = {family: name for name, families in _FAMILIES.items() for family in families}

_ORDINAL = re.compile(r" #\d+$")
_XNNPACK_NAME = re.compile(r"(?P<type>[^(]+?)(?: \([^)]*\)(?: (?P<microkernel>.+))?)?")
_KERNEL_PREFIX = re.compile(r"(?:native_call_)?(?:\w+::)?")


@dataclass(frozen=True)
class Rule:
    """Names that ``pattern`` matches completely get this category and family.

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
    """Category and family of an operator, and the name of the rule that matched."""

    category: str
    family: str
    rule: str


def _types(names: str) -> str:
    """The pattern of XNNPACK operator types, with any microkernel."""
    return f"(?:{names})(?:/.+)?"


def _kernels(names: str) -> str:
    """The pattern of portable kernels, with any overload."""
    return f"(?:{'|'.join(names.split())})(?:\\..+)?"


#: By kind, the rules: name, family, pattern, and why. The first rule that matches wins.
_TABLE = {
    "delegated": (
        ("depthwise convolution", "depthwise", "Convolution/(?:DWConv|VMulCAddC)",
         "one filter per channel: memory-bound, does not use matrix extensions"),
        ("convolution", "convolution", _types("Convolution"),
         "runs as (indirect) GEMM over the pixels; so do depthwise ones without a DWConv kernel"),
        ("deconvolution", "deconvolution", _types("Deconvolution"), "a transposed convolution"),
        ("fully connected", "gemm", _types("Fully Connected|Dynamic Fully Connected"),
         "a linear layer, or a 1x1 convolution with stride 1, which XNNPACK runs as one"),
        ("batch matrix multiply", "bmm", _types("Batch Matrix Multiply"),
         "a product of two activations, mostly of attention"),
        ("convert", "convert", _types("Convert"),
         "quantise, dequantise or cast: the same values in another type"),
        ("layout", "layout", _types(
            "Transpose|Depth To Space|Space To Depth|Pack LH|Static Reshape|Static Expand Dims|"
            "Fuse Dims|Split Dims"), "the same values in another order or shape"),
        ("copy", "copy", _types("Copy|Slice|Constant Pad"),
         "concatenation (logged as Copy), slice or padding"),
        ("softmax", "softmax", _types("Softmax"), "exponential and a sum along one axis"),
        ("normalisation", "normalisation", _types("Normalize"),
         "statistics along an axis, then scaling"),
        ("pooling", "pooling", _types("Average Pooling|Max Pooling|ArgMax Pooling|Unpooling"),
         "a reduction over a window"),
        ("resize", "resize", _types("Resize Bilinear"), "interpolation between pixels"),
        ("reduction", "reduction", _types("Mean|Mean Squared|Sum|Reduce Max|Reduce Min"),
         "one value from many"),
        ("activation", "activation", _types(
            "Clamp|ELU|GELU|ApproxGELU|HardSwish|LeakyReLU|PReLU|Sigmoid|TanH"),
         "a non-linear function of each value; Clamp is ReLU or ReLU6"),
        ("lookup table", "activation", "Invalid Unary Op",
         "the name that XNNPACK logs for an int8 activation by lookup table"),
        ("elementwise", "elementwise", _types(
            "Abs|Add|Bankders Rounding|Binary Elementwise|Bitwise And|Bitwise Not|Bitwise Or|"
            "Bitwise Xor|Ceiling|Copy Sign|Cosine|Count Leading Zeros|Cube Root|Divide|Exp|Floor|"
            "Invalid Binary Op|Log|Maximum|Minimum|Modulus|Multiply|Negate|Population Count|Power|"
            "Reciprocal Square Root|RoPE|Shift Left|Shift Right Arithmetic|Shift Right Logical|"
            "Sign|Sine|Square|Square Root|Squared Difference|Subtract|Unary Elementwise"),
         "arithmetic on each value by itself"),
        ("opaque delegate", "opaque delegate", "DELEGATE_CALL",
         "a whole delegate call: the delegate logs no operators"),
        ("unknown operator", "unknown", ".*",
         "unknown name, for example of a delegate other than XNNPACK"),
    ),
    "portable": (
        ("runtime primitive", "scalar", "OPERATOR_CALL",
         "a call without a kernel: the runtime's own arithmetic on sizes"),
        ("scalar", "scalar", r"\w+\.(?:Scalar|int)|(?:sym_numel|_local_scalar_dense)",
         "arithmetic on sizes and single numbers, not on tensors"),
        ("convolution kernel", "convolution", _kernels("convolution convolution_backward"),
         "a convolution that was not delegated"),
        ("matrix kernel", "gemm", _kernels("addmm linear mm"),
         "a matrix product that was not delegated"),
        ("batch matrix kernel", "bmm", _kernels("bmm custom_sdpa sdpa_with_kv_cache"),
         "products of activations that were not delegated"),
        ("convert kernel", "convert", _kernels(
            "_to_copy _to_dim_order_copy (?:de)?quantize_per_\\w+ choose_qparams_\\w+"),
         "quantise, dequantise or cast: the same values in another type"),
        ("layout kernel", "layout", _kernels(
            "_clone_dim_order as_strided_copy et_view permute_copy pixel_shuffle pixel_unshuffle "
            "squeeze_copy t_copy transpose_copy unsqueeze_copy view_as_real_copy view_copy"),
         "the same values in another order or shape"),
        ("copy kernel", "copy", _kernels(
            "_d2h_copy _h2d_copy alias_copy cat clone constant_pad_nd copy copy_ detach_copy "
            "diagonal_copy et_copy_index expand_copy flip lift_fresh_copy narrow_copy "
            "reflection_pad[123]d repeat repeat_interleave replication_pad[123]d roll select_copy "
            "select_scatter slice_copy slice_scatter split_copy split_with_sizes_copy stack tril "
            "unbind_copy unfold_copy update_cache"), "copies, joins, cuts or pads tensors"),
        ("gather kernel", "gather", _kernels(
            "embedding gather index index_put index_put_ index_select masked_scatter masked_select "
            "nonzero scatter scatter_add"), "reads or writes at computed positions"),
        ("fill kernel", "fill", _kernels(
            "_empty_dim_order arange empty fill full full_like ones scalar_tensor zeros"),
         "writes a tensor without computing anything"),
        ("softmax kernel", "softmax", _kernels("_log_softmax _softmax"),
         "exponential and a sum along one axis"),
        ("normalisation kernel", "normalisation", _kernels(
            "_native_batch_norm_legit _native_batch_norm_legit_no_training native_group_norm "
            "native_layer_norm"), "statistics along an axis, then scaling"),
        ("pooling kernel", "pooling", _kernels(
            "_adaptive_avg_pool2d avg_pool2d max_pool2d_with_indices "
            "max_pool2d_with_indices_backward"), "a reduction over a window"),
        ("resize kernel", "resize", _kernels(
            "_upsample_bilinear2d_aa grid_sampler_2d upsample_bilinear2d upsample_nearest2d"),
         "interpolation between pixels"),
        ("reduction kernel", "reduction", _kernels(
            "amax amin any argmax argmin cumsum max mean min prod sum topk var var_mean"),
         "one value from many, a running one, or the largest of them"),
        ("distance kernel", "distance", _kernels("_cdist_forward _pdist_forward"),
         "distances between all pairs of rows"),
        ("Fourier kernel", "fourier", _kernels("_fft_c2r _fft_r2c"), "a Fourier transform"),
        ("random kernel", "random", _kernels("rand randn"), "draws random numbers"),
        ("activation kernel", "activation", _kernels(
            "clamp elu gelu glu hardtanh leaky_relu relu sigmoid tanh"),
         "a non-linear function of each value"),
        ("elementwise kernel", "elementwise", _kernels(
            "_conj_physical abs acos acosh add asin asinh atan atan2 atanh bitwise_\\w+ ceil cos "
            "cosh div eq erf exp expm1 floor floor_divide fmod ge gt isinf isnan le log log10 "
            "log1p log2 logical_\\w+ logit lt masked_fill maximum minimum mul native_dropout ne "
            "neg pow reciprocal remainder round rsqrt rsub sign sin sinh sqrt sub tan trunc where"),
         "arithmetic, comparison or choice on each value by itself"),
        ("unknown kernel", "unknown", ".*", "unknown name, for example of a custom operator"),
    ),
    "delegate_overhead": (("delegate overhead", "delegate overhead", ".*",
                           "time of a delegate call outside its operators"),),
    "call_overhead": (("call overhead", "call overhead", ".*",
                       "time of an operator call outside its kernel"),),
    "framework": (("framework", "framework", ".*", "time of Method::execute outside all calls"),),
}  # fmt: skip

RULES = tuple(
    Rule(name, kind, pattern, _CATEGORY_OF[family], family, why)
    for kind, rules in _TABLE.items()
    for name, family, pattern, why in rules
)
KINDS = tuple(_TABLE)


@cache
def categorize(name: str, kind: str = "delegated") -> Category:
    """The category of one ledger row, by its name as logged (or without the ordinal)."""
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
        ``frames.LEDGER``; not modified.

    Examples
    --------
    >>> import pandas as pd
    >>> import workbench as wb
    >>> ledger = pd.DataFrame({"operator": ["Add (ND)"], "kind": ["delegated"]})
    >>> wb.add_categories(ledger)["category"].tolist()
    ['Elementwise']
    """
    (operator, operators), (kind, kinds) = (
        pd.factorize(ledger[column].astype(object)) for column in ("operator", "kind")
    )
    code, pairs = pd.factorize(operator * len(kinds) + kind)
    placed = [categorize(operators[p // len(kinds)], kinds[p % len(kinds)]) for p in pairs]
    added = {
        name: pd.array([getattr(c, name) for c in placed], dtype="str").take(code)
        for name in ("category", "family", "rule")
    }
    return ledger.drop(columns=list(added), errors="ignore").reset_index(drop=True).assign(**added)


def tabulate_rules() -> pd.DataFrame:
    """The rules of every kind as a table, in the order in which they are tried.

    Examples
    --------
    >>> import workbench as wb
    >>> wb.tabulate_rules().columns.tolist()
    ['name', 'kind', 'pattern', 'category', 'family', 'why']
    """
    return pd.DataFrame(RULES)


def _subject(name: str, kind: str) -> str:
    """The part of a name that the patterns of its kind match."""
    bare = _ORDINAL.sub("", name)
    if kind == "portable":
        return _KERNEL_PREFIX.sub("", bare, count=1)
    parts = _XNNPACK_NAME.fullmatch(bare)
    if parts is None:
        return bare
    return "/".join(part for part in parts.group("type", "microkernel") if part)

"""What to do about an operator that no delegate took.

Rules that look at the graph: what broke it, what it does in vain, what it does twice.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import pandas as pd

from workbench.analysis.findings.context import (
    Finding,
    Gain,
    RuleContext,
    count,
    instruction_of,
    layers_of,
)
from workbench.analysis.findings.dataflow import POINTWISE, Dataflow, Step, elements
from workbench.records.runs import Partition


@dataclass(frozen=True)
class Advice:
    """How to spell an operator so that XNNPACK takes it.

    ``passes`` counts the operators of the delegate that take its place; None where none can, or
    nobody knows: then only an upper bound of the gain is known.
    """

    action: str
    hint: str
    passes: int | None = None


_GELU = (
    "0.5 * x * (1 + torch.tanh(0.7978846 * (x + 0.044715 * x * x * x)))"
    "  # `workbench export --rewrite` does it in half precision"
)

#: By name of the kernel; each spelling computes the same.
ADVICE = {
    "gelu": Advice("spell GELU by tanh, which XNNPACK takes in every dtype", _GELU, 9),
    "elu": Advice(
        "spell ELU by relu and exp, which XNNPACK takes",
        "torch.relu(x) - torch.relu(1 - torch.exp(x))",
        5,
    ),
    "mean": Advice(
        "keep the dimensions and drop them afterwards", "x.mean((2, 3), keepdim=True).flatten(1)", 1
    ),
    "mm": Advice("multiply as a batch of one", "torch.bmm(a[None], b[None])[0]", 1),
    "select_copy": Advice(
        "slice and reshape instead of selecting", "x[:, :1].flatten(1)  # for x[:, 0]", 1
    ),
    "squeeze_copy": Advice(
        "reshape instead of squeezing or unbinding",
        "q, k, v = qkv.chunk(3, dim=-1)  # for qkv.reshape(..., 3, ...).unbind(...)",
        1,
    ),
    "expand_copy": Advice(
        "drop expansions to the shape that is there already; let arithmetic broadcast the others",
        "workbench export MODEL  # --rewrite, the default, drops the former",
        1,
    ),
    "hardsigmoid": Advice("spell it by clamp", "torch.clamp(x + 3, 0, 6) / 6", 3),
    "pow": Advice("multiply instead of raising to a power", "x * x", 1),
    "native_layer_norm": Advice(
        "normalise over channels that a convolution can absorb (batch norm), or normalise less "
        "often: XNNPACK has no layer norm",
        "nn.BatchNorm2d(channels)  # where the architecture leaves the choice",
    ),
    "upsample_nearest2d": Advice(
        "resize bilinearly, which XNNPACK takes, or repeat by concatenation",
        'F.interpolate(x, scale_factor=2, mode="bilinear")  # another function: retrain or check',
    ),
    "_to_dim_order_copy": Advice(
        "keep everything in one dtype: each cast breaks the graph",
        "workbench export MODEL  # --rewrite, the default, makes casts of constants at export",
    ),
    "_softmax": Advice(
        "take the softmax over the last dimension, the only one that XNNPACK knows",
        "x.transpose(dim, -1).softmax(-1).transpose(dim, -1)",
        3,
    ),
    "index": Advice(
        "slice or concatenate instead of indexing with a tensor", "x[:, start:stop]  # for x[ids]"
    ),
    "where": Advice(
        "multiply by a mask, or clamp, instead of choosing", "x * mask + y * (1 - mask)", 3
    ),
}

_REASONS = (
    ("dynamic", "make its shape static", "example inputs of the one size that is deployed"),
    ("dtype", "compute it in a dtype that XNNPACK takes", "x.float()"),
    ("type", "compute it in a dtype that XNNPACK takes", "x.float()"),
)


def advise(operator: str, reason: str) -> Advice:
    """What to do about an operator, given what the partitioner said of it."""
    if operator in ADVICE:
        return ADVICE[operator]
    for word, action, hint in _REASONS:
        if word in reason.lower():
            return Advice(action, hint)
    return Advice(
        "spell it in operators that XNNPACK takes, or take it out of the model",
        "workbench export MODEL  # says what the partitioner left behind, and where",
    )


_SAFE_SOFTMAX = {"eq", "logical_not", "any", "where"}
#: What a delegate computes with channels last: the exporter changes the layout around it.
_CHANNELS_LAST = frozenset(
    """
    Conv2d DepthwiseConv2d ConvTranspose2d AvgPooling2d MaxPooling2d ArgMaxPooling2d
    GlobalAvgPooling2d StaticResizeBilinear2D
    """.split()  # noqa: SIM905
)
_BATCH_NORM = "BatchNorm"
#: Pointwise operators in a row from which on it is a chain.
_CHAIN = 3


def find_fixed(context: RuleContext, left: Collection[str]) -> Iterator[Finding]:
    """Work that depends on no input, and is done again at every inference."""
    if not context.flow:
        return
    keys = [key for key in context.keys_within(context.flow.fixed) if key in left]
    if not keys:
        return
    keys += context.call_keys(keys)
    gain = context.spent(keys)
    rows = context.rows.loc[keys]
    yield Finding(
        "work that depends on no input is done again at every inference: "
        f"{_names(rows)} in {layers_of(rows)}",
        Gain(gain.ms, gain.low, gain.high + _breaks(context, keys)),
        tuple(keys),
        "compute it once, when the model is made, and keep the result as a buffer",
        'self.register_buffer("table", compute_table(...))  # in __init__; forward() only reads it',
    )


def find_safe_softmax(context: RuleContext, left: Collection[str]) -> Iterator[Finding]:
    """Attention whose guard against rows that are masked completely runs outside the delegate."""
    if not context.flow:
        return
    places = _by_place(context.flow.steps)
    guarded = [steps for steps in places.values() if {step.type for step in steps} >= _SAFE_SOFTMAX]
    keys = [key for key in context.keys_of(s for steps in guarded for s in steps) if key in left]
    if not keys:
        return
    rows, calls = context.rows.loc[keys], context.call_keys(keys)
    gain = context.replaced(keys, 0)
    around = context.spent(calls)
    yield Finding(
        f"no delegate takes the guard of {count(len(guarded), 'softmax')} against rows that are "
        f"masked completely: {_names(rows)} in {layers_of(rows)}",
        Gain(gain.ms + around.ms, gain.low, gain.high + around.high + _breaks(context, keys)),
        tuple(keys + calls),
        "write attention as two matrix products and a softmax",
        "((q * d**-0.5) @ k.transpose(-2, -1)).softmax(-1) @ v"
        "  # `workbench export --rewrite`, the default, does it where there is no mask",
    )


def find_undelegated(context: RuleContext, left: Collection[str]) -> Iterator[Finding]:
    """Kernels outside of the delegate, one finding for each operator, with what they break."""
    rows = context.rows[context.rows["kind"] == "portable"]
    rows = rows[rows.index.isin(left) & (rows["category"] != "")]
    names = rows["operator"].map(_kernel_name)
    for name, part in rows.groupby(names, sort=False):
        if name == "OPERATOR_CALL":
            continue
        keys = list(part.index)
        reason, source = _why(context, name)
        advice = advise(name, reason)
        layouts = [key for key in _layouts_around(context, keys) if key in left]
        # Only what treats all elements alike can join the delegates around it, layout and all.
        joins = layouts if name in POINTWISE else []
        calls = context.call_keys(keys)
        if advice.passes is None or "bytes" not in rows:
            gain = Gain.at_most(context.spent(keys + layouts + calls).ms)
        else:
            gain = context.replaced(keys, advice.passes, [*joins, *calls])
        changes = f", with {count(len(layouts), 'change of layout')} around it" if layouts else ""
        because = f" ({reason})" if reason else ""
        yield Finding(
            f"{name} runs outside of the delegate{because}: {_times(part)}{changes}; in "
            f"{layers_of(part) or source or 'no layer that is known'}",
            gain,
            (*keys, *layouts, *calls),
            advice.action,
            advice.hint,
        )


def find_needless_transposes(context: RuleContext, left: Collection[str]) -> Iterator[Finding]:
    """Pairs of transposes that undo one another, with nothing between that minds the layout."""
    if not context.flow:
        return
    pairs: dict[tuple[int, int], Step] = {}
    between: set[str] = set()
    for step in context.flow.steps:
        found = _undone(context.flow, step) if step.permutation else None
        if found:
            ends, passed = found
            pairs.update({each.id: each for each in (step, *ends)})
            between |= passed
    keys = [key for key in context.keys_of(pairs.values()) if key in left]
    if not keys:
        return
    gain = context.spent(keys)
    passed = f"nothing but {', '.join(sorted(between))}" if between else "nothing"
    yield Finding(
        f"{len(keys)} transposes undo one another with {passed} between; in "
        f"{layers_of(context.rows.loc[keys])}",
        gain,
        tuple(keys),
        "keep the graph in one piece: the exporter changes the layout wherever a delegate ends"
        if all(step.made_up for step in pairs.values())
        else "leave both out: what lies between treats every element alike",
        "workbench export MODEL  # says which operators break the graph, and where"
        if all(step.made_up for step in pairs.values())
        else "torch.relu(x)  # for x.permute(0, 2, 3, 1).relu().permute(0, 3, 1, 2)",
    )


def find_layout_changes(context: RuleContext, left: Collection[str]) -> Iterator[Finding]:
    """Transposes, by what they are for."""
    if not context.flow:
        return
    causes: dict[str, list[str]] = {}
    for step in context.flow.steps:
        if step.type in ("StaticTranspose", "permute_copy", "transpose_copy"):
            for key in context.keys_of([step]):
                if key in left:
                    causes.setdefault(_cause(context.flow, step), []).append(key)
    for cause, keys in causes.items():
        edge = cause == "the program's inputs and outputs"
        yield Finding(
            f"{count(len(keys), 'change of layout')} for {cause}",
            Gain.at_most(context.spent(keys).ms),
            tuple(keys),
            "hand images over with channels last, as XNNPACK computes with them"
            if edge
            else "keep one layout through the block: images with channels last throughout, or "
            "tokens that are reshaped once",
            "example_inputs = (x.to(memory_format=torch.channels_last),)"
            if edge
            else "x = x.flatten(2).transpose(1, 2)  # once, before the blocks, not in each",
        )


def find_fragments(context: RuleContext, left: Collection[str]) -> Iterator[Finding]:
    """Many delegates: what passing from one to the next costs."""
    overhead = context.rows.index[context.rows["kind"] == "delegate_overhead"]
    keys = [key for key in overhead if key in left]
    if len(keys) < 2:
        return
    edges = _boundary_layouts(context.flow) if context.flow else []
    layouts = [key for key in context.keys_of(edges) if key in left]
    gain, calls = context.spent(keys + layouts), context.spent(keys)
    each = "" if context.emulated else f" of {calls.ms / len(keys) * 1e3:.0f} µs each"
    breakers = context.rows[context.rows["kind"] == "portable"]["operator"].map(_kernel_name)
    common = ", ".join(breakers.value_counts().index[:3])
    yield Finding(
        f"the graph falls into {len(keys)} delegates, with calls{each} and "
        f"{count(len(layouts), 'change of layout')} at their ends; it breaks at "
        f"{common or 'no kernel'}",
        Gain.at_most(gain.ms * (1 - 1 / len(keys))),
        tuple(keys + layouts),
        "remove the operators at which it breaks, the most frequent first",
        "workbench export MODEL  # says which operators were left, where and why",
    )


def find_batch_norm(context: RuleContext, left: Collection[str]) -> Iterator[Finding]:
    """Batch norms that were not folded into a convolution."""
    if "module_class" not in context.rows:
        return
    kinds = context.rows["module_class"].fillna("").astype(str)
    norms = context.rows[kinds.str.startswith(_BATCH_NORM) & (context.rows["role"] == "compute")]
    keys = [key for key in norms.index if key in left]
    if not keys:
        return
    gain = context.spent(keys)
    yield Finding(
        f"{count(len(keys), 'operator of batch norms')} not folded into a convolution; in "
        f"{layers_of(norms.loc[keys])}",
        gain,
        tuple(keys),
        "put the norm right after a convolution whose result nothing else reads: it then costs "
        "nothing; one before a convolution can be folded into its weights by hand",
        "torch.nn.utils.fusion.fuse_conv_bn_eval(conv, norm)",
    )


def find_chains(context: RuleContext, left: Collection[str]) -> Iterator[Finding]:
    """Pointwise operators in a row, each of which reads and writes a whole tensor."""
    if not context.flow:
        return
    keys: list[str] = []
    kept = 0.0
    examples: list[str] = []
    for chain in _chains(context.flow):
        rows = [key for key in context.keys_of(chain) if key in left]
        if len(rows) >= _CHAIN:
            keys += rows
            kept += max(context.spent([key]).ms for key in rows)
            examples.append(" ".join(step.type for step in chain))
    if not keys:
        return
    spent = context.spent(keys)
    yield Finding(
        f"{count(len(examples), 'chain of pointwise operators')} ({examples[0]}), each of which "
        "reads and writes a whole tensor",
        Gain.at_most(max(0.0, spent.ms - kept)),
        tuple(keys),
        "use the one operator that XNNPACK has for it (Hardswish, GELU, Sigmoid ...), or move "
        "factors and offsets into the weights of the layer before",
        "F.hardswish(x)  # for x * torch.clamp(x + 3, 0, 6) / 6",
    )


def _names(rows: pd.DataFrame) -> str:
    """The kernels of some rows by their time, at most four."""
    names = rows[rows["kind"] != "call_overhead"]["operator"].map(_kernel_name)
    return ", ".join(list(dict.fromkeys(names))[:4])


def _kernel_name(operator: str) -> str:
    """``gelu`` of ``native_call_gelu.out``; an operator of a delegate without its types."""
    return operator.removeprefix("native_call_").partition(".")[0].partition(" (")[0]


def _times(rows: pd.DataFrame) -> str:
    count = len(rows)
    return "once" if count == 1 else f"{count} times"


def _why(context: RuleContext, name: str) -> tuple[str, str]:
    """What the partitioner said of an operator, and one line of the source it is in."""
    found: Iterable[Partition] = context.export.partition if context.export else ()
    for row in found:
        if not row.delegated and row.operator.partition(".")[2].partition(".")[0] == name:
            return row.reason, row.source
    return "", ""


def _breaks(context: RuleContext, keys: Collection[str]) -> float:
    """The most that fewer delegates save: one call's overhead for every group of kernels."""
    calls = context.rows[context.rows["kind"] == "delegate_overhead"]["mean_ms"]
    numbers = sorted({instruction_of(key) for key in keys})
    groups = sum(1 for _ in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]))
    return float(calls.mean() * min(groups, len(calls) - 1)) if len(calls) > 1 else 0.0


def _by_place(steps: Iterable[Step]) -> dict[tuple[str, str], list[Step]]:
    """Kernels by layer and line of the source."""
    places: dict[tuple[str, str], list[Step]] = {}
    for step in steps:
        if step.is_kernel and step.origin:
            places.setdefault((step.origin.module, step.origin.source), []).append(step)
    return places


def _layouts_around(context: RuleContext, keys: Collection[str]) -> list[str]:
    """The rows that change the layout for some kernels, on the exporter's own account."""
    if not context.flow:
        return []
    kernels = [context.flow.by_id[s] for key in keys for s in context.node_ids.get(key, ())
               if s in context.flow.by_id]  # fmt: skip
    around = [s for kernel in kernels for s in (*context.flow.before(kernel),
                                                *context.flow.after(kernel))]  # fmt: skip
    return context.keys_of(step for step in around if step.made_up)


def _undone(flow: Dataflow, start: Step) -> tuple[list[Step], set[str]] | None:
    """The transposes that undo ``start``, and what lies between; None if anything minds."""
    back = _inverse(start.permutation)
    reached, ends, passed = [start], {}, {}
    while reached:
        step = reached.pop()
        if flow.returns(step):
            return None
        for user in flow.after(step):
            if user.permutation == back:
                ends[user.id] = user
            elif user.type in POINTWISE and user.id not in passed:
                passed[user.id] = user
                reached.append(user)
            elif user.id not in passed:
                return None
    inside = {start.id, *passed}
    for step in passed.values():
        others = (place for place in step.reads if not _is_small(flow, place))
        makers = (flow.makers.get(place) for place in others)
        if any(maker is None or not _from_within(maker, inside, start) for maker in makers):
            return None
    return list(ends.values()), {step.type for step in passed.values()}


def _from_within(maker: Step, inside: Collection[tuple[int, int]], start: Step) -> bool:
    return maker.id in inside or maker.permutation == start.permutation


def _is_small(flow: Dataflow, place: tuple[int, int]) -> bool:
    """Whether an operand can be reordered in advance: a constant, or a single value."""
    tensor = flow.tensors[place]
    return tensor.constant or elements(tensor) == 1


def _inverse(permutation: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(permutation)), key=permutation.__getitem__))


def _cause(flow: Dataflow, step: Step) -> str:
    """What a change of layout is for: its neighbour that does not compute with channels last."""
    neighbours = [*flow.before(step), *flow.after(step)]
    others = [s.type for s in neighbours if s.type not in _CHANNELS_LAST and not s.permutation]
    if step.made_up and (flow.returns(step) or len(flow.before(step)) == 0):
        return "the program's inputs and outputs"
    return min(others, key=lambda kind: (kind in POINTWISE, kind), default="convolutions")


def _boundary_layouts(flow: Dataflow) -> list[Step]:
    """Changes of layout where a delegate hands over to something else than the caller."""
    return [
        step
        for step in flow.steps
        if step.made_up
        and any(other.id[0] != step.id[0] for other in (*flow.before(step), *flow.after(step)))
    ]


def _chains(flow: Dataflow) -> Iterator[list[Step]]:
    """Pointwise operators of a delegate, each the only reader of the one before."""
    seen: set[tuple[int, int]] = set()
    for step in flow.steps:
        chain: list[Step] = []
        current: Step | None = step
        while current and current.id not in seen and _can_fuse(flow, current, chain):
            seen.add(current.id)
            chain.append(current)
            users = flow.after(current)
            current = users[0] if len(users) == 1 and not flow.returns(current) else None
        if len(chain) >= _CHAIN:
            yield chain


def _can_fuse(flow: Dataflow, step: Step, chain: list[Step]) -> bool:
    if step.is_kernel or step.type not in POINTWISE or step.type == "Convert":
        return False
    size = elements(flow.tensors[step.writes[0]])
    same = not chain or size == elements(flow.tensors[chain[0].writes[0]])
    return same and size > 1 and math.isfinite(size)

"""Rules that look at the graph: what splits it, what is needless, what is repeated."""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import groupby

import numpy as np
import pandas as pd

from workbench.analysis import dataflow
from workbench.analysis.dataflow import POINTWISE, WEIGHTED, Dataflow, FlowStep, NodeId, TensorId
from workbench.analysis.findings import commands, gains
from workbench.analysis.findings.gains import Finding, Gain, keys_of, time_spent
from workbench.analysis.run import Measurement
from workbench.records.layers import Value
from workbench.records.runs import Rewrite
from workbench.remedies import NEAREST, NO_REMEDY, REMEDIES, find_nearest
from workbench.wording import format_size, plural

#: What to do, and the same in code.
Advice = tuple[str, str]

#: Operators of a delegate that compute channels last: the exporter converts the layout around them.
_CHANNELS_LAST = frozenset(
    """
    Conv2d DepthwiseConv2d ConvTranspose2d AvgPooling2d MaxPooling2d ArgMaxPooling2d
    GlobalAvgPooling2d StaticResizeBilinear2D
    """.split()  # noqa: SIM905
)
_ONE_LAYOUT = (
    "keep one layout through the block: tokens that are reshaped once",
    "x = x.flatten(2).transpose(1, 2)  # once, before the blocks, not in each",
)
_SQUEEZE = (
    "compute the factors of the channels as images of one pixel, with 1x1 convolutions",
    "x * torch.sigmoid(fc2(F.relu(fc1(x.mean((2, 3), keepdim=True)))))  # fc1, fc2: nn.Conv2d",
)
#: Converts the dtype, such as to int8, and no layout.
_CAST = "Convert"
_TRANSPOSES = ("StaticTranspose", "permute_copy", "transpose_copy")
#: Share of the latency from which the head is worth a finding: more than layers of its size take.
_HEAD = 0.25
#: Least number of pointwise operators in a row that make a chain.
_CHAIN = 3
_PROGRAM_EDGE = "the program's inputs and outputs"
#: Products of activations, whose operands the model itself transposes: heads, and keys.
_OF_HEADS = "BatchMatrixMultiply"
#: Kernels that XNNPACK computes only with constant weights.
_WEIGHED = ("mm", "addmm", "convolution")


def find_fixed(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Work that depends on no input, repeated at every inference."""
    # Rows that execute nothing else.
    keys = [k for k, nodes in m.nodes.items() if k in unclaimed and m.flow.fixed.issuperset(nodes)]
    keys = [key for key in keys if m.costs.at[key, "module_class"] not in dataflow.SEALED]
    if not keys:
        return
    keys += gains.call_keys(m, keys)
    gain = time_spent(m, keys)
    rows = m.costs.loc[keys]
    # Once their weights are constants, these products are delegated.
    steps = (s for s in m.flow.steps if s.is_kernel and s.type in _WEIGHED)
    late = (s for s in steps if any(b.id in m.flow.fixed for b in m.flow.before(s)))
    waiting, outside = keys_of(m, late, unclaimed), ""
    if waiting := [key for key in waiting if key not in keys]:
        saved = gains.gain_of_replacing(m, waiting, 1)
        gain = Gain(gain.ms + saved.ms, gain.low + saved.low, gain.high + saved.high, saved.basis)
        outside = f", and keeps {_names(m.costs.loc[waiting])} outside the delegate"
    yield Finding(
        f"input-independent work is recomputed on every inference: {_names(rows)}{outside}",
        replace(gain, high=gain.high + _joined_calls_ms(m, keys + waiting)),
        keys + waiting,
        "compute it once, when the model is built, and keep the result as a buffer",
        commands.apply(m, "constants"),
        remedy="constants",
    )


def find_replaceable(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Operators for which the export has shown that a remedy computes the same."""
    claimed = set[str]()
    for rewrite in m.export.rewrites if m.export else ():
        remedy, nodes = REMEDIES.get(rewrite.name), {*rewrite.nodes}
        steps = [s for s in m.flow.steps if s.origin and s.origin.node in nodes]
        keys = keys_of(m, steps, unclaimed)
        if remedy is None or claimed.issuperset(keys):
            continue  # an earlier remedy is the better one
        claimed |= {*keys}
        kinds = m.costs["kind"]
        kernels = [key for key in keys if kinds[key] == "portable"]
        if kernels and rewrite.kept == 1:  # its other operators stay
            keys = kernels
        outside = time_spent(m, kernels).ms > time_spent(m, keys).ms / 2
        extra = [key for key in _layouts_around(m, keys) if key in unclaimed and key not in keys]
        extra += gains.call_keys(m, keys)
        if outside:
            reasons = dict.fromkeys(_reason_of(m, step) for step in steps if step.is_kernel)
            because = "; ".join(filter(None, reasons)) if len(reasons) < 3 else ""
            title = f"outside the delegate: {_names(m.costs.loc[kernels])}"
            title += f" ({because})" if because else ""
        else:
            title = f"less work computes the same: {rewrite.text}"
        proof = f"; another function: {remedy.differs}" if remedy.differs else ""
        if not remedy.differs and rewrite.sqnr_db is not None:
            proof = f"; on random tensors, the results agree ({rewrite.sqnr_db:.0f} dB)"
        gain = _gain_of_remedy(m, rewrite, keys, extra, outside)
        yield Finding(
            title,
            gain,
            keys + extra,
            f"{rewrite.text if outside else 'write it so, or let the export do it'}{proof}",
            commands.apply(m, rewrite.name, rewrite.code),
            remedy=rewrite.name,
        )


def _gain_of_remedy(
    m: Measurement, rewrite: Rewrite, keys: list[str], extra: list[str], outside: bool
) -> Gain:
    """What a remedy saves: of kernels, what they take more than operators of the delegate do."""
    if outside and rewrite.passes and m.costs["bytes"].notna().any():
        gain = gains.gain_of_replacing(m, keys, rewrite.passes / len(keys), extra)
        if gain.ms > 0:
            return replace(gain, high=gain.high + _joined_calls_ms(m, keys))
    spent, around, kept = time_spent(m, keys), time_spent(m, extra), rewrite.kept
    most = spent.high + around.high + _joined_calls_ms(m, keys)
    if outside:
        return Gain.at_most(most)
    least, typical, worst = kept / 2 * spent.ms, kept * spent.ms, 2 * kept * spent.ms
    joined = 0.0
    if rewrite.name == "functions":
        # The delegates and layouts around it are joined, and its operators run like these.
        # XNNPACK computes some with the operator before, at no cost.
        joined, rows = around.ms, m.costs.loc[keys]
        rows = rows[(rows["kind"] == "delegated") & (rows["bytes"] > rows["bytes"].max() / 2)]
        if len(rows):
            pace = kept * len(rewrite.nodes) * rows["mean_ms"] / rows["calls"]
            least, typical, worst = 0.0, pace.median(), 2 * pace.max()
    low = max(0.0, spent.low - worst)
    return Gain(max(low, spent.ms + joined - typical), low, most - least, "twin")


#: Floating-point types that XNNPACK does not compute in.
_NOT_DELEGATED = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp64": "float64",
    "float64": "float64",
}
#: A part of the time from which on something needs a finding.
_LEAST_PART = 0.1


def find_dtype_outside(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Kernels in a floating-point type that is never delegated."""
    if m.export is None or m.export.backend == "portable":
        return
    steps: dict[str, list[FlowStep]] = {}
    for step in m.flow.steps:
        tensors = [m.flow.tensors[t] for t in (*step.reads, *step.writes) if t in m.flow.tensors]
        wide = [_NOT_DELEGATED[t.dtype] for t in tensors if t.dtype in _NOT_DELEGATED]
        if step.is_kernel and wide:
            steps.setdefault(wide[0], []).append(step)
    for dtype, kernels in steps.items():
        keys = keys_of(m, kernels, unclaimed)
        if not keys:
            continue
        spent = time_spent(m, keys + gains.call_keys(m, keys))
        whole = dtype == "bfloat16" and m.export.dtype == "bf16"
        title = f"XNNPACK computes nothing in {dtype}: {_names(m.costs.loc[keys])} run outside the "
        title += f"delegate, {100 * gains.share_of(m, spent.ms):.0f} % of the time"
        hint = commands.command(m, "profile", dtype="fp32")
        action = "export it in fp32 or fp16, which are delegated"
        remedy = "fp32"
        if not whole:
            action, remedy = "keep these tensors in single precision", "doubles"
            hint = commands.apply(m, "doubles")
        yield Finding(title, Gain.at_most(spent.high), keys, action, hint, remedy=remedy)


def find_logits(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Scores of the vocabulary for several tokens: the next token needs those of the last one."""
    for shape, weights, keys in _list_heads(m, unclaimed):
        tokens = math.prod(shape[:-1])
        if tokens < 2:
            continue
        spent = time_spent(m, keys)
        # One token is a matrix-vector product, which may wait for the weights.
        rest = max(spent.ms / tokens, weights / gains.find_best_rates(m)[1])
        yield Finding(
            f"logits of {tokens} tokens are computed; the next token needs the last one's",
            Gain(spent.ms - rest, max(0.0, spent.low - 2 * rest), spent.high - spent.ms / tokens),
            keys,
            "compute the logits of the last token only",
            "self.output(x[:, -1:])  # upstream's exporter: debug.generate_full_logits=False",
        )


def find_head(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Scores of the vocabulary that take much of the time, whatever the number of layers."""
    for shape, weights, keys in _list_heads(m, unclaimed):
        spent = time_spent(m, keys)
        if gains.share_of(m, spent.ms) >= _HEAD:
            yield Finding(
                f"the head scores {shape[-1]} tokens of the vocabulary: {format_size(weights)} of "
                f"weights, {100 * gains.share_of(m, spent.ms):.0f} % of the latency",
                Gain.at_most(spent.ms),
                keys,
                "check that no layers were left out, which makes the head's share larger; then "
                "quantise the head, use a smaller vocabulary, or draft tokens with a smaller model",
                commands.command(m, "profile", dtype="8da4w"),
            )


def _list_heads(
    m: Measurement, unclaimed: Collection[str]
) -> Iterator[tuple[tuple[int, ...], int, list[str]]]:
    """Shape, size of the weights and rows of each product that scores the vocabulary."""
    flow = m.flow
    words = {flow.tensors[s.reads[0]].shape[0] for s in flow.steps if "embedding" in s.type}
    for step in (step for step in flow.steps if step.type == "FullyConnected"):
        shape, keys = flow.tensors[step.writes[0]].shape, keys_of(m, [step], unclaimed)
        if shape[-1] in words and keys:
            read = map(flow.tensors.__getitem__, step.reads)
            yield shape, sum(t.size_bytes for t in read if t.constant), keys


def find_caches(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Attention with a KV cache in separate operators: caches are copied, masks undelegated."""
    steps = m.flow.steps
    places = {step.id: step.origin.module for step in steps if step.origin}
    caches = (places.get(step.id, "") for step in steps if step.type.startswith("index_put"))
    blocks = tuple({path.removesuffix(".kv_cache") for path in caches} - {""})
    if not blocks:
        return
    inside = (
        s for s in steps if places.get(s.id, "").startswith(blocks) and s.type not in WEIGHTED
    )
    keys = keys_of(m, [*inside, *(s for s in steps if s.type == "copy_")], unclaimed)
    keys += gains.call_keys(m, keys)
    rows, spent = m.costs.loc[keys], time_spent(m, keys)
    yield Finding(
        "attention copies its KV cache and computes masks outside the delegate: "
        f"{_names(rows[rows['kind'] == 'portable'])}",
        Gain.at_most(spent.high + _joined_calls_ms(m, keys)),
        keys,
        *NEAREST["index_put"],
    )


def find_undelegated(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Kernels outside the delegate, one finding for each operator, with what they split."""
    rows = m.costs[m.costs["kind"] == "portable"]
    rows = rows[rows.index.isin(unclaimed)]
    portable = m.export is None or m.export.backend == "portable"
    if portable and len(rows) and not (m.costs["kind"] == "delegated").any():
        keys = list(rows.index)
        title = f"nothing is delegated: {plural(len(rows), 'operator')} run in portable kernels"
        gain = Gain.at_most(time_spent(m, keys).ms)
        hint = commands.command(m, backend="xnnpack")
        yield Finding(title, gain, keys, "export the model for XNNPACK", hint)
        return
    if m.export and portable:
        return
    # Those around layer norms, which the export makes in half precision.
    norms = [step for step in m.flow.steps if step.type == "native_layer_norm"]
    beside = (step for norm in norms for step in m.flow.neighbours(norm))
    casts = keys_of(m, (step for step in beside if step.type == "_to_dim_order_copy"))
    names = rows["operator"].map(_kernel_name)
    names = names[names != "OPERATOR_CALL"]  # without a name in the trace
    reasons = {key: _reason_of_row(m, key) for key in names.index}
    groups = names.map(lambda name: find_nearest(name)[0] or name)  # what has one answer is one
    if m.export is None:  # those about which nothing is known are alike
        unknown = ~names.map(lambda name: bool(find_nearest(name)[0]))
        tiny = rows["mean_ms"].groupby(names).transform("sum") < gains.LEAST_SHARE * m.latency_ms
        groups = groups.mask(unknown & ~tiny, "")
    for _, part in rows.loc[names.index].groupby([groups, names.index.map(reasons)], sort=False):
        keys = [key for key in part.index if key not in casts]
        if not keys:
            continue
        part = part.loc[keys]
        if "native_layer_norm" in set(names[keys]):
            keys += [key for key in casts if key in unclaimed]
        layouts = [key for key in _layouts_around(m, keys) if key in unclaimed]
        calls = gains.call_keys(m, keys)
        spent = time_spent(m, keys + layouts + calls)
        gain = Gain.at_most(spent.high + _joined_calls_ms(m, keys))
        reason = reasons[keys[0]]
        times = "once" if len(part) == 1 else f"{len(part)} times"
        around = f", with {plural(len(layouts), 'layout conversion')}" if layouts else ""
        because = f" ({reason})" if reason else ""
        several = names[part.index].nunique() > 1
        title = f"{_names(part)} {'run' if several else 'runs'} outside the delegate{because}"
        title += f": {times}{around}"
        keys += [*layouts, *calls]
        action, hint = find_nearest(names[keys[0]])
        if not action:
            action, hint = _NOT_SEARCHED if m.export is None else (NO_REMEDY, "")
        yield Finding(title, gain, keys, action, hint, gains.layers_of(part))


#: Of a program that was not exported here, no graph was searched for remedies.
_NOT_SEARCHED = (
    "profile the model itself: remedies are looked for in its graph",
    "workbench profile MODEL",
)


def find_rest(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """What takes much of the time and has no finding."""
    rows = m.costs[m.costs.index.isin(unclaimed)]
    names = rows["operator"].where(rows["kind"] == "delegated", rows["operator"].map(_kernel_name))
    for name, part in rows.groupby(names.mask(~rows["kind"].isin(_OPERATOR_KINDS))):
        spent = time_spent(m, part.index)
        if gains.share_of(m, spent.ms) < _LEAST_PART:
            continue
        reason = "" if m.export is None else _reason_of_row(m, part.index[0])
        share = f"{100 * gains.share_of(m, spent.ms):.0f} % of the time"
        where = "in the delegate" if (part["kind"] == "delegated").all() else "outside of it"
        because = f"; ExecuTorch says: {reason}" if reason else ""
        title = f"{name} takes {share} {where}, and no remedy is known{because}"
        yield Finding(title, Gain.at_most(spent.high), [*part.index], NO_REMEDY, "")


#: Rows that execute an operator of the model.
_OPERATOR_KINDS = ["delegated", "portable"]


def find_overhead(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Delegates and calls that take more than their operators: these are many, and tiny."""
    # Several delegates are a finding of their own, and so are tiny kernels.
    kinds = ["delegate_overhead", "framework"]
    rows = m.costs[m.costs["kind"].isin(kinds) & m.costs.index.isin(unclaimed)]
    if (rows["kind"] == "delegate_overhead").sum() > 1:
        return
    spent = time_spent(m, rows.index)
    operators = m.costs[m.costs["kind"].isin(_OPERATOR_KINDS)]
    if gains.share_of(m, spent.ms) < _LEAST_PART or operators.empty:
        return
    layers = operators.groupby(operators["module"].fillna(""))["calls"].sum()
    busiest = layers.sort_values(ascending=False).index[0] or "the model"
    count = int(operators["calls"].sum())
    yield Finding(
        f"starting {plural(count, 'operator')} takes {100 * gains.share_of(m, spent.ms):.0f} % of "
        f"the time, {1e3 * spent.ms / max(count, 1):.2g} µs each; most are in {busiest}",
        Gain.at_most(spent.high),
        [*rows.index],
        "compute more with each operator: take what does not wait for an earlier step out of "
        "loops, and batch products of one weight or one input",
        "torch.stack(inputs) @ weight  # for [x @ weight for x in inputs]",
    )


def find_needless_transposes(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Pairs of transposes that cancel out, with nothing in between that depends on the layout."""
    pairs: dict[NodeId, FlowStep] = {}
    between: set[str] = set()
    for step in m.flow.steps:
        if inverses := _find_inverses(m.flow, step):
            ends, types = inverses
            pairs.update({each.id: each for each in (step, *ends)})
            between |= types
    keys = keys_of(m, pairs.values(), unclaimed)
    if not keys:
        return
    passed = f"only {', '.join(sorted(between))}" if between else "nothing"
    advice = _undo(m, list(pairs.values()), between)
    title = f"{len(keys)} transposes cancel out, with {passed} in between"
    yield Finding(title, time_spent(m, keys), keys, *advice)


def find_layout_changes(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Transposes, by their cause."""
    causes: dict[str, list[str]] = {}
    for step in m.flow.steps:
        cause = _cause(m.flow, step) if step.type in _TRANSPOSES else ""
        if cause and (step.made_up or cause != _OF_HEADS):
            causes.setdefault(cause, []).extend(keys_of(m, [step], unclaimed))
    causes = {cause: keys for cause, keys in causes.items() if keys}
    squeezed = _scales_channels(m.flow)
    mixed = squeezed or _leaves_delegates(m.flow)
    for cause, keys in causes.items():
        title, gain = f"{plural(len(keys), 'layout conversion')} for {cause}", time_spent(m, keys)
        if cause == _PROGRAM_EDGE:
            if mixed:
                continue
            action = "pass channels-last inputs, the layout that XNNPACK computes in"
            hint = "example_inputs = (x.to(memory_format=torch.channels_last),)"
            if any(map(_is_pixel, m.flow.tensors.values())):
                action += "; tensors of one pixel, as after pooling, are then copied between two "
                action += "delegates, which costs a part of that"
                gain = Gain.at_most(gain.ms)
            hint = f"{commands.command(m, channels_last=True)}\n# {hint}"
            yield Finding(title, gain, keys, action, hint, remedy="channels_last")
            continue
        action, hint = _ONE_LAYOUT
        if squeezed and cause in POINTWISE | {"mean"}:
            action, hint = _SQUEEZE
        elif not mixed:
            action += ", or channels-last images throughout"
        gain = Gain.at_most(gain.ms)
        yield Finding(title, gain, keys, action, hint)


def _scales_channels(flow: Dataflow) -> bool:
    """Whether images meet one value for each channel, as in squeeze-excite.

    The layout of such values is ambiguous: in channels-last programs, the exporter copies them
    outside the delegate (mobilenet_v3_small: 11 delegates instead of 1).
    """
    return any(step.type in POINTWISE and len(_images(flow, step)) > 1 for step in flow.steps)


def _leaves_delegates(flow: Dataflow) -> bool:
    """Whether kernels outside of delegates read images.

    In channels-last programs, the exporter copies these images, or the kernels refuse them.
    """
    return any(step.xnode is None and _images(flow, step) for step in flow.steps)


def _images(flow: Dataflow, step: FlowStep) -> set[int]:
    """The numbers of elements of the images that a step reads."""
    tensors = (flow.tensors[tensor] for tensor in step.reads)
    return {math.prod(t.shape) for t in tensors if not t.constant and len(t.shape) == 4}


def _is_pixel(tensor: Value) -> bool:
    """Whether a tensor is an image of one pixel with channels, in either layout."""
    shape = () if tensor.constant else tensor.shape
    return len(shape) == 4 and 1 < math.prod(shape[1:]) == max(shape[1:])


def find_fragments(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Many delegates: the cost of passing from one to the next."""
    overhead = m.costs.index[m.costs["kind"] == "delegate_overhead"]
    keys = [key for key in overhead if key in unclaimed]
    if len(keys) < 2:
        return
    boundary = (
        step
        for step in m.flow.steps
        if step.made_up and any(other.id[0] != step.id[0] for other in m.flow.neighbours(step))
    )
    layouts = keys_of(m, boundary, unclaimed)
    calls, around = time_spent(m, keys), time_spent(m, layouts)
    # A call that does little shows what each costs; the rest of a call is its operators'.
    fewer, least = len(keys) - 1, float(m.undisturbed[keys].mean().min())
    high = calls.ms * fewer / len(keys) + around.high
    gain = Gain(fewer * least + around.ms, fewer * least / 2 + around.low, high, "twin")
    costs = [plural(len(layouts), "layout conversion") if layouts else "no layout conversions"]
    if not m.emulated:
        costs.insert(0, f"{calls.ms / len(keys) * 1e3:.0f} µs per delegate call")
    kernels = m.costs[m.costs["kind"] == "portable"]["operator"].map(_kernel_name)
    named = kernels[kernels != "OPERATOR_CALL"]  # without a name in the trace
    common = ", ".join(named.value_counts().index[:3])
    yield Finding(
        f"the graph is split into {len(keys)} delegates{f' by {common}' if common else ''}: "
        f"{', '.join(costs)}",
        gain,
        keys + layouts,
        "replace the operators that split it, the most frequent first",
        f"{commands.command(m)}  # lists them, where and why",
    )


def find_batch_norm(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Batch norms that were not folded into a convolution."""
    kinds = m.costs["module_class"].fillna("").astype(str)
    norms = m.costs[kinds.str.startswith("BatchNorm") & (m.costs["role"] == "compute")]
    keys = [key for key in norms.index if key in unclaimed]
    for foldable, advice in ((True, _FOLD), (False, _MOVE_NORM)):
        if chosen := [key for key in keys if _folds(m, key) is foldable]:
            title = f"{plural(len(chosen), 'batch-norm operator')} not folded into a convolution"
            yield Finding(title, time_spent(m, chosen), chosen, *advice)


def find_chains(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Pointwise operators in a row, each of which reads and writes a whole tensor."""
    chains_of: dict[Advice, list[tuple[list[FlowStep], list[str]]]] = {}
    for chain in _chains(m.flow):
        if len(keys := keys_of(m, chain, unclaimed)) >= _CHAIN:
            chains_of.setdefault(_fusion(m, chain), []).append((chain, keys))
    for fusion, chains in chains_of.items():
        keys = [key for _, rows in chains for key in rows]
        gain, ms = time_spent(m, keys), m.undisturbed.mean()
        most, typical, least = (
            sum(f(ms[rows]) for _, rows in chains) for f in (max, np.median, min)
        )
        if fusion == _FEWER:
            gain = Gain.at_most(gain.ms - least)
        else:
            gain = Gain(gain.ms - typical, max(0.0, gain.low - most), gain.high - least, "twin")
        example = " ".join(step.type for step in chains[0][0])
        yield Finding(
            f"{plural(len(chains), 'pointwise chain')} ({example}): each operator reads and writes "
            "a whole tensor",
            gain,
            keys,
            *fusion,
        )


def _names(rows: pd.DataFrame) -> str:
    """The kernels of some rows by their time: four at most, then a count."""
    names = rows[rows["kind"] != "call_overhead"]["operator"].map(_kernel_name)
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def _kernel_name(operator: str) -> str:
    """``gelu`` for ``native_call_gelu.out``, without namespace; a delegate's without its types."""
    kernel = operator.removeprefix("native_call_").rpartition("::")[2]
    return kernel.partition(".")[0].partition(" (")[0]


def _reason_of_row(m: Measurement, key: str) -> str:
    """Why the partitioner left the operator of a row; empty if it gave no reason."""
    steps = [step for step in gains.steps_of(m, [key]) if step.is_kernel]
    return _reason_of(m, steps[0]) if steps else ""


def _reason_of(m: Measurement, step: FlowStep) -> str:
    """Why the partitioner left an operator of a line; of another line, only if it has no other."""
    rows = [
        row
        for row in (m.export.partition if m.export else ())
        if not row.delegated and row.operator.partition(".")[2].partition(".")[0] == step.type
    ]
    source = step.origin.source if step.origin else ""
    here = [row for row in rows if row.source == source]
    reasons = dict.fromkeys(row.reason for row in here or rows)
    return next(iter(reasons)) if len(reasons) == 1 else ""


def _joined_calls_ms(m: Measurement, keys: Collection[str]) -> float:
    """The most that fewer delegates save: one call's overhead for every group of kernels."""
    calls = m.costs[m.costs["kind"] == "delegate_overhead"]["mean_ms"]
    numbers = sorted({dataflow.instruction_of(key) for key in keys})
    groups = sum(1 for _ in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]))
    return float(calls.mean() * min(groups, len(calls) - 1)) if len(calls) > 1 else 0.0


def _layouts_around(m: Measurement, keys: Collection[str]) -> list[str]:
    """The rows of layout conversions that the exporter inserted around some kernels.

    Also those of what a kernel reads, as it is or after pointwise operators: the kernel ends the
    delegate, and values leave it in PyTorch's layout.
    """
    kernels, flow = gains.steps_of(m, keys), m.flow
    around = {step.id: step for kernel in kernels for step in flow.neighbours(kernel)}
    left = [u for kernel in kernels for tensor in kernel.reads for u in flow.users[tensor]]
    while left:
        step = left.pop()
        if step.id not in around and (step.made_up or step.type in POINTWISE):
            around[step.id] = step
            left += [] if step.made_up else flow.after(step)
    return keys_of(m, (step for step in around.values() if step.made_up))


def _folds(m: Measurement, key: str) -> bool:
    """Whether a norm's results are read only by convolutions that pad nothing."""
    steps = gains.steps_of(m, [key])
    if any(step.xnode and step.xnode.clamp for step in steps):
        return False
    users = [user for step in steps for user in m.flow.after(step) if user not in steps]
    return bool(users) and all(
        user.type in WEIGHTED
        and user.xnode is not None
        and not any(v for k, v in user.xnode.attributes.items() if k.startswith("padding"))
        for user in users
    )


_FOLD = (
    "fold the norm into the weights of the convolution after it, by hand",
    "w * scale[:, None, None], b + w.sum((2, 3)) @ shift  # scale and shift of each input",
)
_MOVE_NORM = (
    "put the norm directly after a convolution whose result nothing else reads, where it costs "
    "nothing (another network: retrain it)",
    "nn.Sequential(conv, norm, nn.ReLU())",
)
_REMOVE_BOTH = (
    "remove both: the operators in between treat every element alike",
    "torch.relu(x)  # for x.permute(0, 2, 3, 1).relu().permute(0, 3, 1, 2)",
)
_NO_PERMUTATION = (
    "do without the permutation, which undoes what the exporter converts: a 1x1 convolution, for "
    "example, computes a linear layer on channels",
    "nn.Conv2d(channels, wider, 1)  # for permute + nn.Linear + permute",
)
_ONE_DELEGATE = "keep both ends in one delegate: layouts are converted at delegate boundaries"
_FOUR_DIMENSIONS = (
    "use operands of four dimensions: around others, such as scalars, the exporter leaves channels "
    "last",
    'self.register_buffer("half", torch.full((1, 1, 1, 1), 0.5))  # x * self.half',
)
_HALF_GELU = (
    "use an activation that XNNPACK has in half precision: `--rewrite gelu` computes it with these "
    "operators, which is still faster than outside the delegate",
    "nn.Hardswish()  # or ReLU; another function: retrain or check",
)


def _undo(m: Measurement, ends: list[FlowStep], between: Collection[str]) -> Advice:
    """How to avoid transposes that cancel out."""
    made_up = [step.made_up for step in ends]
    if not all(made_up):
        return _NO_PERMUTATION if any(made_up) else _REMOVE_BOTH
    if _is_half(m) and "Tanh" in between:
        return _HALF_GELU
    if len({step.id[0] for step in ends}) == 1:
        return _FOUR_DIMENSIONS
    return _ONE_DELEGATE, f"{commands.command(m)}  # lists what was not delegated, where and why"


def _is_half(m: Measurement) -> bool:
    return m.export is not None and m.export.dtype.startswith("fp16")


def _find_inverses(flow: Dataflow, start: FlowStep) -> tuple[list[FlowStep], set[str]] | None:
    """The transposes that undo ``start``, and the types in between; None if one is needed."""
    if not start.permutation:
        return None
    inverse = tuple(sorted(range(len(start.permutation)), key=start.permutation.__getitem__))
    reached = [start]
    ends: dict[NodeId, FlowStep] = {}
    passed: dict[NodeId, FlowStep] = {}
    while reached:
        step = reached.pop()
        if flow.returns(step):
            return None
        for user in flow.after(step):
            if user.permutation == inverse:
                ends[user.id] = user
            elif user.id not in passed:
                if user.type not in POINTWISE:
                    return None
                passed[user.id] = user
                reached.append(user)
    inside = {start.id, *passed}
    for step in passed.values():
        if not all(_is_reordered(flow, operand, inside, start) for operand in step.reads):
            return None
    return list(ends.values()), {step.type for step in passed.values()}


def _is_reordered(
    flow: Dataflow, operand: TensorId, inside: Collection[NodeId], start: FlowStep
) -> bool:
    """Whether an operand has the order of a transpose, or can have it without work at run time.

    Constants and single values can be reordered in advance.
    """
    tensor, maker = flow.tensors[operand], flow.makers.get(operand)
    if tensor.constant or math.prod(tensor.shape) == 1:
        return True
    if maker is None:
        return False
    return maker.id in inside or maker.permutation == start.permutation


def _cause(flow: Dataflow, step: FlowStep) -> str:
    """The cause of a layout conversion: its neighbour that does not compute channels last."""
    before, after = (_skip_casts(step, way) for way in (flow.before, flow.after))
    casts = [each for each in flow.after(step) if each.type == _CAST]
    returned = any(flow.returns(each) for each in (step, *casts))
    if step.made_up and (returned or not before):
        return _PROGRAM_EDGE
    others = [
        s.type for s in (*before, *after) if s.type not in _CHANNELS_LAST and not s.permutation
    ]
    return min(others, key=lambda kind: (kind in POINTWISE, kind), default="convolutions")


def _skip_casts(step: FlowStep, way: Callable[[FlowStep], list[FlowStep]]) -> list[FlowStep]:
    """The steps before or after one, and in place of conversions of the dtype those beyond."""
    steps = way(step)
    ids = {each.id for each in steps}
    for each in steps:  # which grows
        if each.type == _CAST:
            beyond = [other for other in way(each) if other.id not in ids]
            ids |= {other.id for other in beyond}
            steps += beyond
    return [each for each in steps if each.type != _CAST]


def _chains(flow: Dataflow) -> Iterator[list[FlowStep]]:
    """Pointwise operators of a delegate, each the only reader of the one before."""
    seen: set[NodeId] = set()
    for step in flow.steps:
        chain: list[FlowStep] = []
        current: FlowStep | None = step
        while current and current.id not in seen and _can_fuse(flow, current, chain):
            seen.add(current.id)
            chain.append(current)
            users = flow.after(current)
            current = users[0] if len(users) == 1 and not flow.returns(current) else None
        if len(chain) >= _CHAIN:
            yield chain


_HARDSWISH = (
    "use the one operator that XNNPACK has for it",
    "F.hardswish(x)  # for x * torch.clamp(x + 3, 0, 6) / 6",
)
_FEWER = ("write it with fewer operators, or fold constants into the weights before", "x * c")


def _fusion(m: Measurement, chain: list[FlowStep]) -> Advice:
    """What a chain of pointwise operators can become."""
    flow, types = m.flow, [step.type for step in chain]
    source = {tensor for tensor in chain[0].reads if not flow.tensors[tensor].constant}
    gates = any(source & {*step.reads} for step in chain[2:] if step.type == "Multiply")
    if gates and types[:2] == ["Add", "Clamp"]:
        return _HARDSWISH
    if _is_half(m) and "Tanh" in types:
        return _HALF_GELU
    return _FEWER


def _can_fuse(flow: Dataflow, step: FlowStep, chain: list[FlowStep]) -> bool:
    if step.is_kernel or step.type not in POINTWISE or step.type == "Convert":
        return False
    size = math.prod(flow.tensors[step.writes[0]].shape)
    same = not chain or size == math.prod(flow.tensors[chain[0].writes[0]].shape)
    return same and size > 1

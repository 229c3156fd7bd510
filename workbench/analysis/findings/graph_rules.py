"""Rules that look at the graph: what splits it, what is needless, what is repeated."""

import math
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace

import pandas as pd

from workbench.analysis import dataflow
from workbench.analysis.caches import list_caches
from workbench.analysis.dataflow import POINTWISE, FlowStep, NodeId
from workbench.analysis.findings import commands, gains
from workbench.analysis.findings.finding import LEAST_SHARE, Finding, Gain
from workbench.analysis.findings.gains import joined_calls_ms, keys_of, time_spent
from workbench.analysis.needed import LEAST_PART
from workbench.analysis.run import Measurement
from workbench.records.exports import Rewrite
from workbench.remedies import REMEDIES, find_nearest
from workbench.wording import format_size, plural

#: Share of the latency from which the head is worth a finding: more than layers of its size take.
_HEAD = 0.25
#: Kernels that XNNPACK computes only with constant weights.
_WEIGHED = ("mm", "addmm", "convolution")
#: Kernels that copy what an index chooses.
_CHOOSING = {"index", "index_select", "embedding", "gather"}


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
        replace(gain, high=gain.high + joined_calls_ms(m, keys + waiting)),
        keys + waiting,
        "compute it once, when the model is built, and keep the result as a buffer",
        # Of what the exporter itself made of an operator, only the whole program shows it.
        rewrite=_find_rewrite(m, "constants") or _of_program("constants"),
        **commands.use_remedy(m, "constants"),
    )


def _find_rewrite(m: Measurement, remedy: str) -> Rewrite | None:
    """What the export has shown of a remedy that it offers once for the whole program."""
    rewrites = m.export.rewrites if m.export else ()
    return next((each for each in rewrites if each.name == remedy and each.parts), None)


def _of_program(remedy: str, kept: float = 0.0) -> Rewrite | None:
    """A remedy that is tried on the whole program, of which nothing was shown; None without it."""
    entry = REMEDIES.get(remedy)
    return Rewrite(remedy, entry.text, (), kept, None) if entry else None


def find_replaceable(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Operators for which the export has shown that a remedy computes the same."""
    claimed, kinds = set[str](), m.costs["kind"]
    for rewrite in m.export.rewrites if m.export else ():
        if rewrite.name == "constants" or rewrite.name not in REMEDIES:
            continue  # `find_fixed` is about constants
        steps = _list_steps(m, rewrite.nodes)
        every = keys_of(m, steps)
        keys = [key for key in every if key in unclaimed and key not in claimed]
        kernels = [key for key in keys if kinds[key] == "portable"]
        if rewrite.kept == 1 and kernels:  # its other operators stay, and may get faster
            keys = kernels
        outside = time_spent(m, kernels).ms > time_spent(m, keys).ms / 2
        layouts = [key for key in _layouts_around(m, keys) if key in unclaimed and key not in keys]
        stays = rewrite.kept == 1 and not kernels
        if stays:  # what converts layouts around its operators goes
            layouts = _layouts_in(m, rewrite, unclaimed)
        if not keys or (stays and not layouts):
            continue  # an earlier remedy is the better one, or nothing goes
        claimed |= {*every}
        extra = layouts + gains.call_keys(m, keys)
        advice = commands.use_remedy(m, rewrite.name)
        advice |= {} if rewrite.code is None else {"code": rewrite.code}
        title = f"less work computes the same: {rewrite.text}"
        if outside:
            title = f"outside the delegate: {_names(m.costs.loc[kernels])}{_describe_why(m, steps)}"
        elif stays:
            converted = plural(len(layouts), "layout conversion")
            title = f"{converted} around {_names(m.costs.loc[keys])}"
        what = f": {rewrite.text}" if outside or stays else ", or let the export do it"
        yield Finding(
            title,
            _gain_of_remedy(m, rewrite, keys, extra, outside),
            keys + extra,
            f"rewrite it{what}{_describe_proof(rewrite)}",
            rewrite=rewrite if rewrite.parts else None,
            beside=[key for key in every if key not in keys],
            **advice,
        )


def _list_steps(m: Measurement, nodes: Collection[str]) -> list[FlowStep]:
    """The steps that operators of the trace have become."""
    return [
        step
        for step in m.structure.steps
        if step.origin and (step.origin.traced or step.origin.node) in nodes
    ]


def _describe_why(m: Measurement, steps: Collection[FlowStep]) -> str:
    """Why the kernels among some steps are not delegated, in brackets; empty if that is long."""
    reasons = dict.fromkeys(_reason_of(m, step) for step in steps if step.is_kernel)
    because = "; ".join(filter(None, reasons)) if len(reasons) < 3 else ""
    return f" ({because})" if because else ""


def _describe_proof(rewrite: Rewrite) -> str:
    """What is known of the outputs with a remedy."""
    if differs := REMEDIES[rewrite.name].differs:
        return f"; another function: {differs}"
    if rewrite.sqnr_db is None:
        return ""
    return f"; on random tensors, the results agree ({rewrite.sqnr_db:.0f} dB)"


def _gain_of_remedy(
    m: Measurement, rewrite: Rewrite, keys: list[str], extra: list[str], outside: bool
) -> Gain:
    """What a remedy saves: of kernels, what they take more than operators of the delegate do."""
    if outside and rewrite.passes and m.costs["bytes"].notna().any():
        passes = rewrite.passes / len(keys)
        gain = gains.gain_of_replacing(m, keys, passes, extra, rewrite.flops)
        if gain.ms > 0:
            return replace(gain, high=gain.high + joined_calls_ms(m, keys))
    spent, around, work_share = time_spent(m, keys), time_spent(m, extra), rewrite.kept
    most = spent.high + around.high + joined_calls_ms(m, keys)
    if outside:
        return Gain.at_most(most)
    if work_share == 1:  # the operators stay, and what converts layouts around them goes
        return Gain(around.ms, 0.0, around.high, "removal")
    least, typical, worst = (
        work_share / 2 * spent.ms,
        work_share * spent.ms,
        2 * work_share * spent.ms,
    )
    joined = 0.0
    if rewrite.name == "functions":
        # The delegates and layouts around it are joined, and its operators run like these.
        # XNNPACK computes some with the operator before, at no cost.
        joined, rows = around.ms, m.costs.loc[keys]
        rows = rows[(rows["kind"] == "delegated") & (rows["bytes"] > rows["bytes"].max() / 2)]
        if len(rows):
            pace = work_share * len(rewrite.nodes) * rows["mean_ms"] / rows["calls"]
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
        action = "keep these tensors in single precision"
        advice = {"rewrite": _find_rewrite(m, "doubles"), **commands.use_remedy(m, "doubles")}
        if dtype == "bfloat16" and m.export.dtype == "bf16":
            action = "export it in fp32 or fp16, which are delegated"
            advice = commands.use_dtype(m, "fp32")
        yield Finding(
            f"XNNPACK computes nothing in {dtype}: {_names(m.costs.loc[keys])} run outside the "
            f"delegate, {_percent(m, spent.ms)} of the time",
            Gain.at_most(spent.high),
            keys,
            action,
            **advice,
        )


def _percent(m: Measurement, ms: float) -> str:
    return f"{100 * gains.share_of(m, ms):.0f} %"


def _feeds_layer(m: Measurement, step: FlowStep) -> bool:
    """Whether a layer or a product of matrices depends on a step's results."""
    later, reached = m.flow.after(step), set[NodeId]()
    while later:
        step = later.pop()
        if step.has_weights or step.type == "BatchMatrixMultiply":
            return True
        if step.id not in reached:
            reached.add(step.id)
            later += m.flow.after(step)
    return False


def find_head(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Scores of the vocabulary: for several tokens, or much of the time for one."""
    tensors = m.flow.tensors
    words = {tensors[s.reads[0]].shape[0] for s in m.flow.steps if "embedding" in s.type}
    for step in (step for step in m.flow.steps if step.type == "FullyConnected"):
        shape, keys = tensors[step.writes[0]].shape, keys_of(m, [step], unclaimed)
        if shape[-1] not in words or not keys or _feeds_layer(m, step):
            continue
        weights = sum(t.size_bytes for t in map(tensors.__getitem__, step.reads) if t.constant)
        tokens, spent = math.prod(shape[:-1]), time_spent(m, keys)
        if tokens > 1:
            # One token is a matrix-vector product, which may wait for the weights.
            rest = max(spent.ms / tokens, weights / gains.find_best_rates(m)[1])
            most = spent.high - spent.ms / tokens
            yield Finding(
                f"logits of {tokens} tokens are computed; the next token needs the last one's",
                Gain(spent.ms - rest, max(0.0, spent.low - 2 * rest), most),
                keys,
                "compute the logits of the last token only",
                "self.output(x[:, -1:])  # upstream's exporter: debug.generate_full_logits=False",
            )
        elif gains.share_of(m, spent.ms) >= _HEAD:
            yield Finding(
                f"the head scores {shape[-1]} tokens of the vocabulary: {format_size(weights)} of "
                f"weights, {_percent(m, spent.ms)} of the latency",
                Gain.at_most(spent.ms),
                keys,
                "check that no layers were left out, which makes the head's share larger; then "
                "quantise the head, use a smaller vocabulary, or draft tokens with a smaller model",
                command=commands.write_command(m, "profile", dtype="8da4w"),
            )


_OUTPUTS = "return the new keys and values as outputs, for the application to write"
_OUTPUTS_CODE = "return scores @ values, key, value  # instead of self.cache[:, position] = key"


def find_caches(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Caches that are buffers, which are copied to be written, and copied back as a whole."""
    copied = [cache for cache in list_caches(m.flow) if cache.copy]
    keys = keys_of(m, (step for cache in copied for step in cache.writers), unclaimed)
    keys += gains.call_keys(m, keys)
    if not keys:
        return
    spent, size = time_spent(m, keys), sum(cache.size_bytes for cache in copied)
    written = sum(cache.written_bytes for cache in copied)
    moved = format_size(sum(cache.moved_bytes for cache in copied))
    title = f"{plural(len(copied), 'cache')} of {format_size(size)} is copied twice to write "
    title = title.replace(" is ", " are ") if len(copied) > 1 else title
    title += f"{format_size(written)}: {_names(m.costs.loc[keys])} move {moved}"
    # ExecuTorch's kernel takes places along one dimension.
    along_one = all(c.write.type == "index_put" and len(c.write.reads) == 3 for c in copied)
    if not along_one:
        yield Finding(title, Gain.at_most(spent.high), keys, _OUTPUTS, _OUTPUTS_CODE)
        return
    written_share = written / size
    yield Finding(
        title,
        Gain(
            (1 - written_share) * spent.ms,
            (1 - 2 * written_share) * spent.low,
            spent.high,
            "removal",
        ),
        keys,
        f"let ExecuTorch write it in place; or {_OUTPUTS}",
        rewrite=_of_program("in_place", written_share),
        **commands.use_remedy(m, "in_place"),
    )


def find_portable(m: Measurement, _: Collection[str]) -> Iterator[Finding]:
    """That a program was exported for portable kernels; their remedies are findings, too."""
    rows = m.costs[m.costs["kind"] == "portable"]
    is_portable = m.export is not None and m.export.backend == "portable"
    if is_portable and len(rows) and not (m.costs["kind"] == "delegated").any():
        title = f"nothing is delegated: {plural(len(rows), 'operator')} run in portable kernels"
        gain = Gain.at_most(time_spent(m, rows.index).ms)
        command = commands.write_command(m, backend="xnnpack")
        yield Finding(title, gain, [*rows.index], "export the model for XNNPACK", command=command)


def find_undelegated(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Kernels outside the delegate, one finding for each operator, with what they split."""
    rows = m.costs[(m.costs["kind"] == "portable") & m.costs.index.isin(unclaimed)]
    if m.export and m.export.backend == "portable":  # as was asked for
        return
    # Those around layer norms, which the export makes in half precision.
    norms = [step for step in m.flow.steps if step.type == "native_layer_norm"]
    beside = (step for norm in norms for step in m.flow.neighbours(norm))
    casts = keys_of(m, (step for step in beside if step.type == "_to_dim_order_copy"))
    names = rows["operator"].map(name_kernel)
    names = names[(names != "OPERATOR_CALL") & ~names.index.isin(casts)]  # that has no name
    reasons = names.index.map(lambda key: _reason_of_row(m, key))
    groups = names.map(lambda name: find_nearest(name)[0] or name)  # what has one answer is one
    if m.export is None:  # those about which nothing is known are alike
        unknown = ~names.map(lambda name: bool(find_nearest(name)[0]))
        tiny = rows["mean_ms"].groupby(names).transform("sum") < LEAST_SHARE * m.latency_ms
        groups = groups.mask(unknown & ~tiny, "")
    for (_, reason), part in rows.loc[names.index].groupby([groups, reasons], sort=False):
        around = casts if "native_layer_norm" in set(names[part.index]) else []
        around = [key for key in around if key in unclaimed]
        yield _tell_undelegated(m, part, reason, around, unclaimed)


def _tell_undelegated(
    m: Measurement, part: pd.DataFrame, reason: str, casts: list[str], unclaimed: Collection[str]
) -> Finding:
    """A finding about kernels that have one answer, and one reason to be outside."""
    keys = [*part.index, *casts]
    layouts = [key for key in _layouts_around(m, keys) if key in unclaimed]
    calls = gains.call_keys(m, keys)
    spent = time_spent(m, keys + layouts + calls)
    times = "once" if len(part) == 1 else f"{len(part)} times"
    around = f", with {plural(len(layouts), 'layout conversion')}" if layouts else ""
    kernels = part["operator"].map(name_kernel)
    finding = Finding(
        f"{_names(part)} {'run' if kernels.nunique() > 1 else 'runs'} outside the delegate"
        f"{f' ({reason})' if reason else ''}: {times}{around}{_describe_copies(m, part)}",
        Gain.at_most(spent.high + joined_calls_ms(m, keys)),
        [*keys, *layouts, *calls],
        place=gains.layers_of(part),
    )
    action, code = find_nearest(kernels.iloc[0])
    if action:
        return replace(finding, action=action, code=code, nearest=kernels.iloc[0])
    if m.export is None:  # no graph was searched
        action = "profile the model, its ExportedProgram or an EdgeProgramManager with an "
        action += "ETRecord: remedies are looked for in its graph"
        return replace(finding, action=action, command="workbench profile MODEL")
    return finding


def _describe_copies(m: Measurement, part: pd.DataFrame) -> str:
    """How much kernels copy that an index chooses, and how fast; empty of others, or if small."""
    if m.roof is None or not _CHOOSING.issuperset(part["operator"].map(name_kernel)):
        return ""
    written = [tensor for step in gains.steps_of(m, part.index) for tensor in step.writes]
    size = sum(m.flow.tensors[each].size_bytes for each in written if each in m.flow.tensors)
    if time_spent(m, part.index).ms < LEAST_PART * m.latency_ms or not size:
        return ""
    # They are read, too.
    return f", {format_size(size)} at {gains.describe_speed(m, part.index, 2 * size)}"


def find_rest(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """What takes much of the time and has no finding."""
    rows = m.costs[m.costs["kind"].isin(_OPERATOR_KINDS) & m.costs.index.isin(unclaimed)]
    names = rows["operator"].where(rows["kind"] == "delegated", rows["operator"].map(name_kernel))
    for name, part in rows.groupby(names):
        spent, keys = time_spent(m, part.index), [*part.index]
        if gains.share_of(m, spent.ms) < LEAST_PART:
            continue
        is_inside = (part["kind"] == "delegated").all()
        reason = "" if m.export is None else _reason_of_row(m, keys[0])
        title = f"{name} takes {_percent(m, spent.ms)} of the time "
        title += "in the delegate" if is_inside else "outside of it"
        title += f", and no remedy is known{f'; ExecuTorch says: {reason}' if reason else ''}"
        if is_inside and (needs := _say_needed(m, keys)):
            title = f"{name} needs {_percent(m, spent.ms)} of the time: {needs}"
        yield Finding(title, Gain.at_most(spent.ms), keys)


#: The part of an operator's time of which a reason is known, if it is told.
_NEARLY_ALL = 0.9


def _say_needed(m: Measurement, keys: Collection[str]) -> str:
    """Why operators need their time, if that is known of nearly all of it."""
    rows = m.judged.set_index("key").loc[list(keys)]
    times = rows["mean_ms"].groupby(rows["reason"]).sum()
    if times.empty or times.idxmax() == "" or times.max() < _NEARLY_ALL * rows["mean_ms"].sum():
        return ""
    part = rows[rows["reason"] == times.idxmax()]
    share = (part["roof_share"] * part["mean_ms"]).sum() / part["mean_ms"].sum()
    return {
        "compute": f"{100 * share:.0f} % of the arithmetic that this core can do in that time",
        "memory": f"{100 * share:.0f} % of the bytes that this core can move in that time",
        "twins": "as fast as similar operators of the program",
    }[str(times.idxmax())]


#: Rows that execute an operator of the model.
_OPERATOR_KINDS = ["delegated", "portable"]


def find_calls(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Delegates and calls, which take time beside their operators: many delegates, or tiny ones."""
    rows = m.costs[m.costs.index.isin(unclaimed)]
    delegates = rows.loc[rows["kind"] == "delegate_overhead", "mean_ms"]
    calls = [*rows.index[rows["kind"].isin(["framework", "call_overhead"])]]
    if len(delegates) > 1:
        starting = [] if m.emulated else _find_starting(m, delegates)
        passed = [key for key in delegates.index if key not in starting]
        yield _tell_fragments(m, passed, len(delegates), unclaimed)
        calls += starting
    else:
        calls += [*delegates.index]
    spent = time_spent(m, calls)
    operators = m.costs[m.costs["kind"].isin(_OPERATOR_KINDS)]
    if gains.share_of(m, spent.ms) < LEAST_PART or operators.empty:
        return
    count = int(operators["calls"].sum())
    yield Finding(
        f"starting {plural(count, 'operator')} takes {_percent(m, spent.ms)} of the time, "
        f"{1e3 * spent.ms / max(count, 1):.2g} µs each",
        Gain(high=spent.high, low=0.0, basis="unknown"),
        calls,
        "compute more with each operator: take what does not wait for an earlier step out of "
        "loops, and batch products of one weight or one input",
    )


def _find_starting(m: Measurement, delegates: pd.Series) -> list[str]:
    """The call of a delegate that takes longer than all others together, as it starts more."""
    *other_calls, longest = delegates.sort_values().index
    counts = Counter(map(dataflow.instruction_of, m.costs.index))
    started = sum(counts[dataflow.instruction_of(key)] for key in other_calls)
    is_longer = delegates[longest] > delegates[other_calls].sum()
    return [longest] if is_longer and counts[dataflow.instruction_of(longest)] > started else []


def _tell_fragments(
    m: Measurement, keys: list[str], count: int, unclaimed: Collection[str]
) -> Finding:
    """Many delegates: the cost of passing from one to the next, as some of their calls show it."""
    boundary = (
        step
        for step in m.flow.steps
        if step.made_up and any(other.id[0] != step.id[0] for other in m.flow.neighbours(step))
    )
    layouts = keys_of(m, boundary, unclaimed)
    calls, around = time_spent(m, keys), time_spent(m, layouts)
    costs = [plural(len(layouts), "layout conversion")] if layouts else []
    if not m.emulated:
        costs.insert(0, f"{calls.ms / len(keys) * 1e3:.2g} µs per call of a delegate")
    kernels = m.costs[m.costs["kind"] == "portable"]["operator"].map(name_kernel)
    named = kernels[kernels != "OPERATOR_CALL"]  # without a name in the trace
    common = ", ".join(named.value_counts().index[:3])
    # How much of it goes with one delegate less depends on what takes the operators' place.
    most = calls.high * min(1.0, (count - 1) / len(keys)) + around.high
    return Finding(
        f"the graph is split into {count} delegates{f' by {common}' if common else ''}"
        f"{': ' * bool(costs)}{', '.join(costs)}",
        Gain(high=most, low=0.0, basis="unknown"),
        keys + layouts,
        "replace the operators that split it, the most frequent first",
        command=f"{commands.write_command(m)}  # lists them, where and why",
    )


def _names(rows: pd.DataFrame) -> str:
    """The kernels of some rows by their time: four at most, then a count."""
    names = rows[rows["kind"] != "call_overhead"]["operator"].map(name_kernel)
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def name_kernel(operator: str) -> str:
    """``gelu`` for ``native_call_gelu.out``, without namespace; a delegate's without its types."""
    kernel = operator.removeprefix("native_call_").rpartition("::")[2]
    return kernel.partition(".")[0].partition(" (")[0]


def _reason_of_row(m: Measurement, key: str) -> str:
    """Why the partitioner left the operator of a row; empty if it gave no reason."""
    steps = [step for step in gains.steps_of(m, [key], m.structure) if step.is_kernel]
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


def _layouts_in(m: Measurement, rewrite: Rewrite, unclaimed: Collection[str]) -> list[str]:
    """The rows of layout conversions beside what treats all elements alike in a remedy's parts."""
    steps = _list_steps(m, {name for part in rewrite.parts for name in part})
    inside = (step for step in steps if step.type in POINTWISE)
    around = {near.id: near for step in inside for near in m.flow.neighbours(step) if near.made_up}
    return keys_of(m, around.values(), unclaimed)


def _layouts_around(m: Measurement, keys: Collection[str]) -> list[str]:
    """The rows of layout conversions that the exporter inserted around some kernels.

    Also those of what a kernel reads, as it is or after pointwise operators: the kernel ends the
    delegate, and values leave it in PyTorch's layout.
    """
    flow = m.structure
    kernels = gains.steps_of(m, keys, flow)
    around = {step.id: step for kernel in kernels for step in flow.neighbours(kernel)}
    waiting = [u for kernel in kernels for tensor in kernel.reads for u in flow.users[tensor]]
    while waiting:
        step = waiting.pop()
        if step.id not in around and (step.made_up or step.type in POINTWISE):
            around[step.id] = step
            waiting += [] if step.made_up else flow.after(step)
    return keys_of(m, (step for step in around.values() if step.made_up))

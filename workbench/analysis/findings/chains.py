"""Rules on pointwise operators and norms that a layer before them could compute."""

import math
from collections.abc import Collection, Iterator

import numpy as np

from workbench.analysis.dataflow import POINTWISE, WEIGHTED, Dataflow, FlowStep, NodeId
from workbench.analysis.findings import gains
from workbench.analysis.findings.finding import Finding, Gain
from workbench.analysis.findings.gains import keys_of, time_spent
from workbench.analysis.run import Measurement
from workbench.wording import plural

#: What to do, and the same in code.
Advice = tuple[str, str]

HALF_GELU = (
    "use an activation that XNNPACK has in half precision: `--rewrite gelu` computes it with these "
    "operators, which is still faster than outside the delegate",
    "nn.Hardswish()  # or ReLU; another function: retrain or check",
)
#: Least number of pointwise operators in a row that make a chain.
_CHAIN = 3


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
    """Pointwise operators in a row: each reads and writes a whole tensor."""
    chains_of: dict[Advice, list[tuple[list[FlowStep], list[str]]]] = {}
    for chain in _chains(m.flow):
        keys, advice = keys_of(m, chain, unclaimed), _fusion(m, chain)
        if advice and len(keys) >= _CHAIN:
            chains_of.setdefault(advice, []).append((chain, keys))
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


_FEWER = (
    "fold the constants that it begins with into the weights of the layer before",
    "conv.weight.data *= factor[:, None, None, None]  # for conv(x) * factor[:, None, None]",
)
#: Operators that a layer before them can compute, with a constant.
_AFFINE = ("Add", "Subtract", "Multiply", "Divide")


def _fusion(m: Measurement, chain: list[FlowStep]) -> Advice | None:
    """What a chain of pointwise operators can become; None if nothing shorter is known."""
    flow, types = m.flow, [step.type for step in chain]
    source = {tensor for tensor in chain[0].reads if not flow.tensors[tensor].constant}
    gates = any(source & {*step.reads} for step in chain[2:] if step.type == "Multiply")
    if gates and types[:2] == ["Add", "Clamp"]:
        return _HARDSWISH
    if is_half(m) and "Tanh" in types:
        return HALF_GELU
    has_constant = any(flow.tensors[tensor].constant for tensor in chain[0].reads)
    return _FEWER if has_constant and types[0] in _AFFINE else None


def _can_fuse(flow: Dataflow, step: FlowStep, chain: list[FlowStep]) -> bool:
    if step.is_kernel or step.type not in POINTWISE or step.type == "Convert":
        return False
    size = math.prod(flow.tensors[step.writes[0]].shape)
    same = not chain or size == math.prod(flow.tensors[chain[0].writes[0]].shape)
    return same and size > 1


def is_half(m: Measurement) -> bool:
    """Whether the program computes in half precision."""
    return m.export is not None and m.export.dtype.startswith("fp16")

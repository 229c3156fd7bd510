"""Rules about memory, and the time until the first output."""

from collections.abc import Collection, Iterator

from workbench.analysis.findings.context import Finding, Gain, RuleContext
from workbench.analysis.findings.dataflow import WEIGHTED
from workbench.analysis.memory import activation_bytes

_CONCATENATIONS = ("Concatenate2", "Concatenate3", "Concatenate4", "Concatenate5")
#: Smaller parts of the memory, of the time to the first output, and times in ms, are no finding.
_LEAST_MEMORY, _LEAST_START, _LEAST_MS = 0.05, 0.4, 5.0
_SPLIT = "conv_a(a) + conv_b(b)  # for conv(torch.cat((a, b), 1)): split conv.weight by its inputs"


def find_memory_peak(facts: RuleContext, unclaimed: Collection[str]) -> Iterator[Finding]:
    """The concatenation without whose copy the activations need least memory.

    Applies if one layer with weights reads it: its products can be added instead.
    """
    flow = facts.flow
    if flow is None:
        return
    found = []
    for step in flow.steps:
        users = flow.after(step)
        if step.type not in _CONCATENATIONS or len(users) != 1 or users[0].type not in WEIGHTED:
            continue
        # Each product is as large as their sum, and takes the place of an operand.
        least = min(flow.tensors[tensor].size_bytes for tensor in step.reads)
        if flow.tensors[users[0].writes[0]].size_bytes <= least and not flow.returns(step):
            found.append((activation_bytes(flow, step), step))
    if not found:
        return
    before, (after, step) = activation_bytes(flow), min(found, key=lambda pair: pair[0])
    if before - after < _LEAST_MEMORY * before:
        return
    place = f" in {step.origin.module}" if step.origin and step.origin.module else ""
    line = f" ({step.origin.source})" if step.origin and step.origin.source else ""
    yield Finding(
        f"one concatenation{place}{line} sets the peak of activation memory: "
        f"{before / 1e6:.2f} MB, {after / 1e6:.2f} MB without its copy",
        Gain(basis="planned", share=(before - after) / before, of="activation memory"),
        tuple(facts.keys_of([step])),
        "apply the next layer to each part, and add the results",
        _SPLIT,
    )


def find_slow_start(facts: RuleContext, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Delegates whose set-up, which packs weights, dominates the time to the first output."""
    if facts.cold_start is None:
        return
    warm = facts.cold_start[facts.cold_start["cache"] == "warm"]
    setup = warm[warm["stage"].str.startswith("delegate")]
    share, ms = float(setup["share"].sum()), float(setup["mean_ms"].sum())
    if share < _LEAST_START or ms < _LEAST_MS:
        return
    yield Finding(
        f"setting up the delegates, which packs their weights, takes {ms:.1f} of "
        f"{float(warm['mean_ms'].sum()):.1f} ms from the start to the first output",
        Gain(basis="bound", share=share, of="time to the first output"),
        (),
        "keep the method loaded between inferences, or load it before it is needed; if starts "
        "matter, measure those of a program with fewer bytes of weights",
        "workbench run MODEL.pte --against OTHER.pte",
    )

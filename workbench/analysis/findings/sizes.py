"""Rules on sizes of layers: which change of one size may help, for a trial to show."""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from workbench.analysis import dtypes, needed
from workbench.analysis.dataflow import WEIGHTED, Dataflow, FlowStep
from workbench.analysis.findings import commands, gains
from workbench.analysis.findings.bounds import list_memory_bound
from workbench.analysis.findings.finding import Change, Finding, Gain
from workbench.analysis.findings.gains import keys_of, time_spent
from workbench.analysis.run import Measurement
from workbench.wording import plural

#: XNNPACK's depthwise kernels read at most 5x5 values; it runs larger filters as one matrix product
#: of a single column for each channel.
MOST_TAPS = 25
#: Channels of the narrowest tile of any CPU, and of a vector of the widest.
_TILE, _VECTOR = 8, 16
#: Up to this part of the channels may go where that makes whole tiles; else some are added.
_SPARE = 1 / 20
#: Groups of int4 weights from which on larger ones save little.
_LARGE_GROUP = 128
#: Findings with the most time that are told.
_MOST = 3

#: The size that changes, what it is, and what it would be.
Step = tuple[str, int, int]


@dataclass(frozen=True)
class _Text:
    """How a kind of change is told: what is slow, what to do, and what else that needs."""

    cause: str
    action: str
    needs: str = "another network: retrain it"


_TEXTS = {
    "channels": _Text(
        "with {now} channels, which fill no whole tiles", "{new} channels instead of {now}"
    ),
    "groups": _Text(
        "in {now} groups, which XNNPACK multiplies one by one, each padded to its tile",
        "{new} groups instead of {now}",
    ),
    "taps": _Text(
        "with filters of {now}x{now}, for which XNNPACK has no depthwise kernel",
        "filters of {new}x{new} instead of {now}x{now}",
    ),
    "group_size": _Text(
        "with int4 weights in groups of {now}, one scale per group",
        "groups of {new} weights instead of {now}",
        "check the accuracy",
    ),
}


def find_sizes(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Layers whose sizes fit the kernels badly, one finding for each change of a size.

    Not those near a peak of the machine, or limited by memory. What a change gains, only a trial of
    the layers alone shows.
    """
    near = m.judged["roof_share"] >= gains.EFFICIENCY[1]
    candidates = {*unclaimed} - {*m.judged["key"][near]} - {*list_memory_bound(m)}
    steps: dict[Step, list[FlowStep]] = {}
    for step in m.flow.steps:
        keys = keys_of(m, [step], candidates) if step.type in WEIGHTED and step.xnode else []
        for change in _list_changes(m, step, keys[0]) if keys else ():
            steps.setdefault(change, []).append(step)
    rows = {change: keys_of(m, each, candidates) for change, each in steps.items()}
    spent = {change: time_spent(m, keys) for change, keys in rows.items()}
    for change in sorted(rows, key=lambda each: -spent[each].ms)[:_MOST]:
        if gains.share_of(m, spent[change].ms) >= needed.LEAST_PART:
            yield _tell(m, change, steps[change], rows[change], spent[change].high)


def _tell(
    m: Measurement, change: Step, steps: list[FlowStep], keys: list[str], most_ms: float
) -> Finding:
    kind, now, new = change
    texts, rows = _TEXTS[kind], m.judged.set_index("key").loc[keys]
    rate = (rows["gflops"] * rows["mean_ms"]).sum() / rows["mean_ms"].sum()
    speed = f"; {rate:.0f} GFLOP/s" if rate >= 1 else ""
    roof = (rows["roof_share"] * rows["mean_ms"]).sum() / rows["mean_ms"].sum()
    speed += f", {100 * roof:.0f} % of what this core can" if speed and roof > 0 else ""
    origins = [step.origin for step in steps if step.origin]
    names = tuple(origin.traced or origin.node for origin in origins)
    action, name, parts = texts.action.format(now=now, new=new), f"{kind}_{new}", zip(names)
    command = ""
    if kind == "group_size":
        command = commands.write_command(m, "profile", dtype="8da4w", group_size=new)
    rewrite = Change(name, action, names, 1.0, None, 0, tuple(parts), of=kind, now=now, new=new)
    return Finding(
        f"{plural(len(keys), 'layer')} {texts.cause.format(now=now)}{speed}",
        Gain(math.nan, 0.0, most_ms, "unknown"),
        keys,
        f"{action} ({texts.needs})",
        command=command,
        rewrite=rewrite if names else None,
    )


def _list_changes(m: Measurement, step: FlowStep, key: str) -> Iterator[Step]:
    """The changes of one size that may make a layer faster."""
    shape = step.xnode.attributes if step.xnode else {}
    operator = str(m.costs.at[key, "operator"])
    groups, sides = shape.get("groups", 1), ("group_input_channels", "group_output_channels")
    width = min((shape[side] for side in sides if side in shape), default=0)
    if step.type == "DepthwiseConv2d":
        size = shape["kernel_height"]
        if "IGEMM" in operator and size == shape["kernel_width"] and size**2 > MOST_TAPS:
            yield "taps", size, math.isqrt(MOST_TAPS)
            return
    elif groups > 1:
        if "IGEMM" in operator and 0 < width < _VECTOR:
            whole = (each for each in range(1, groups) if groups % each == 0)
            yield (
                "groups",
                groups,
                max((each for each in whole if width * groups // each >= _VECTOR), default=1),
            )
        return
    if "QB4W" in operator and m.export and (size := dtypes.group_size(m.export)) < _LARGE_GROUP:
        yield "group_size", size, _LARGE_GROUP
        return
    counts = _count_channels(m.flow, step)
    for count in dict.fromkeys(counts):
        if count % _TILE and count > _TILE:
            more = math.ceil(count / _TILE) * _TILE
            fewer = more - _TILE
            yield "channels", count, fewer if count - fewer <= _SPARE * count else more


def _count_channels(flow: Dataflow, step: FlowStep) -> Iterator[int]:
    """The channels that a layer reads and writes, where the task does not fix them.

    Those of the program's inputs and outputs are fixed, with no other layer in between.
    """
    read, written = needed.count_channels(flow, step)
    if not _reaches_end(step, flow.before, lambda each: _reads_input(flow, each)):
        yield read
    if not _reaches_end(step, flow.after, flow.returns):
        yield written


def _reads_input(flow: Dataflow, step: FlowStep) -> bool:
    return any(t not in flow.makers and not flow.tensors[t].constant for t in step.reads)


def _reaches_end(
    start: FlowStep,
    way: Callable[[FlowStep], list[FlowStep]],
    is_end: Callable[[FlowStep], bool],
) -> bool:
    """Whether an end of the program is reached from a layer without passing another one."""
    steps = [start]
    seen = {start.id}
    for step in steps:  # which grows
        if is_end(step):
            return True
        beyond = [each for each in way(step) if each.id not in seen and each.type not in WEIGHTED]
        seen |= {each.id for each in beyond}
        steps += beyond
    return False

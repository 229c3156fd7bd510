"""A rule on int8: functions between quantised layers that run in floating point."""

from collections.abc import Collection, Iterator

from workbench.analysis import dtypes
from workbench.analysis.dataflow import POINTWISE, Dataflow, FlowStep, NodeId
from workbench.analysis.findings.finding import Change, Finding, Gain
from workbench.analysis.findings.gains import keys_of, time_spent
from workbench.analysis.run import Measurement
from workbench.wording import format_range, plural

#: Arithmetic that a quantiser has, which makes no function of one tensor by itself.
_ARITHMETIC = frozenset(
    ["Add", "Subtract", "Multiply", "Divide", "Convert", "add", "sub", "mul", "div"]
)
#: Functions whose times are told one by one.
_MOST = 3

Island = list[FlowStep]


def find_float_functions(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Functions that int8 layers wait for: dequantised, computed in fp32, quantised again."""
    if m.export is None or not dtypes.is_quantized(m.export.dtype):
        return
    rows = {}
    for number, island in enumerate(_list_islands(m.flow)):
        if keys := keys_of(m, island, unclaimed):
            rows[number] = (island, keys)
    every = [key for _, keys in rows.values() for key in keys]
    if not every:
        return
    islands = [island for island, _ in rows.values()]
    functions = dict.fromkeys(
        step.type for island in islands for step in island if step.type not in _ARITHMETIC
    )
    longest = sorted(rows.values(), key=lambda each: -time_spent(m, each[1]).ms)
    costs = ", ".join(_tell_cost(m, *each) for each in longest[:_MOST])
    more = f" and {len(rows) - _MOST} more" if len(rows) > _MOST else ""
    parts = tuple(part for island in islands if (part := _name_part(m.flow, island)))
    change = Change(
        "relu", "ReLU instead", tuple(name for part in parts for name in part), 0.0, None, 0, parts,
        of="relu",
    )  # fmt: skip
    yield Finding(
        f"{plural(len(rows), 'function')} between {m.export.dtype} layers run in fp32 "
        f"({', '.join(functions)}), between two conversions: {costs}{more}",
        Gain.at_most(time_spent(m, every).high),
        every,
        "use ReLU, which a layer computes with its results in int8 (another function: retrain it)"
        + ("" if "Hardswish" in functions else "; Hardswish is one operator, in fp32"),
        "nn.ReLU()  # for nn.SiLU() or nn.GELU()",
        rewrite=change if parts else None,
    )


def _tell_cost(m: Measurement, island: Island, keys: list[str]) -> str:
    spent = time_spent(m, keys)
    modules = (step.origin.module for step in island if step.origin and not _converts(step))
    ms, low, high = format_range(spent.ms, spent.low, spent.high)
    return f"{ms} ({low} to {high}) in {next(modules, '') or 'the model'}"


def _list_islands(flow: Dataflow) -> Iterator[Island]:
    """Pointwise operators in fp32, with a function, between quantised inputs and results."""
    seen = set[NodeId]()
    for start in flow.steps:
        if start.id in seen or not _converts(start, "dequantize"):
            continue
        island, is_open = [start], False
        ids = {start.id}
        for step in island:  # which grows
            around = [] if _converts(step, "quantize") else [*flow.after(step)]
            around += [] if _converts(step, "dequantize") else flow.before(step)
            is_open |= not _converts(step, "quantize") and flow.returns(step)
            for other in around:
                is_open |= not (_converts(other) or other.type in POINTWISE)
                if other.id not in ids:
                    ids.add(other.id)
                    island.append(other)
            if is_open:
                break
        seen |= ids
        if not is_open and any(step.type not in _ARITHMETIC | _CONVERSIONS for step in island):
            yield sorted(island, key=lambda step: step.id)


_CONVERSIONS = frozenset(("quantize_per_tensor", "dequantize_per_tensor"))


def _converts(step: FlowStep, way: str = "") -> bool:
    """Whether a step quantises or dequantises, or does so in one way."""
    role = step.xnode.role if step.xnode else step.type.removesuffix("_per_tensor")
    return role == way if way else role in ("quantize", "dequantize")


def _name_part(flow: Dataflow, island: Island) -> tuple[str, ...]:
    """The operators of the trace, if they compute one tensor from one; else none."""
    ends = [step for step in island if _converts(step)]
    read = {t for step in ends if _converts(step, "dequantize") for t in step.reads}
    written = [step for step in ends if _converts(step, "quantize")]
    origins = [step.origin for step in island if step.origin and not _converts(step)]
    names = dict.fromkeys(origin.traced for origin in origins)
    is_unary = len(read) == 1 and len({t for step in written for t in step.reads}) == 1
    return tuple(names) if is_unary and all(names) else ()

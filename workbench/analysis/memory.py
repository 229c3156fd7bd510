"""What a program needs besides time: memory, and the time until its first output."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from workbench import frames, wording
from workbench.analysis.compare import MARGIN, speedup_of_restarts
from workbench.analysis.dataflow import POINTWISE, Dataflow, FlowStep, TensorId
from workbench.analysis.statistics import half_width
from workbench.records.layers import FilePart, Layers
from workbench.records.runs import Export, Stage, Start

MB = 1e6
#: What happens in each stage of a start, in words.
STAGES = {
    "process": "the system starts the process and links the runner",
    "libraries": "kernels, backends and operators are loaded",
    "threads": "the thread pool is made",
    "file": "the program's file is opened and mapped",
    "program": "the program is parsed and checked",
    "arenas": "the planned memory is allocated",
    "operators": "libraries of operators are loaded, and the method again",
    "method": "the method's values and kernels are set up",
    "delegate": "the delegate compiles its graph and packs its weights",
    "delegates": "the delegates compile their graphs and pack their weights",
    "inputs": "the inputs are read",
    "first inference": "the first execution, which allocates the delegates' workspace",
}
_MOST_DELEGATES = 6  #: More of them are one row.
#: XNNPACK writes the result of these over their input if nothing else reads that.
_IN_PLACE = POINTWISE | {"Softmax", "StaticReshape", "Copy"}


def name_stages(stages: Sequence[Stage]) -> list[str]:
    """The stages up to the first output; a few delegates are numbered in order of their set-up."""
    names = [stage.name for stage in _until_output(stages)]
    count = names.count("delegate")
    if count > _MOST_DELEGATES:
        return ["delegates" if n == "delegate" else n for n in names]
    numbers = itertools.count(1) if count > 1 else itertools.repeat("")
    return [f"{n} {next(numbers)}".strip() if n == "delegate" else n for n in names]


def _until_output(stages: Sequence[Stage]) -> Sequence[Stage]:
    """The stages up to the first output."""
    ends = (number for number, stage in enumerate(stages, 1) if stage.name == "first inference")
    return stages[: next(ends, len(stages))]


def time_starts(starts: Iterable[Start], clock: str = "ns") -> pd.Series:
    """The time to the first output in ms of each start, by number."""
    times = {s.number: sum(getattr(e, clock) for e in _until_output(s.stages)) for s in starts}
    return pd.Series(times, dtype=float) / 1e6


def first_outputs(starts: Iterable[Start], clock: str = "ns") -> pd.DataFrame:
    """The time of every stage in ms: a row for each start by number, a column for each stage."""
    rows = {}
    for start in starts:
        names = name_stages(start.stages)
        times = pd.Series(
            [getattr(stage, clock) / 1e6 for stage in start.stages[: len(names)]], index=names
        )
        rows[start.number] = times.groupby(level=0, sort=False).sum()
    return pd.DataFrame.from_dict(rows, orient="index")


def tabulate_starts(starts: Sequence[Start]) -> pd.DataFrame | None:
    """The time from exec to the first output by stage: ``frames.COLD_START``."""
    tables = list[pd.DataFrame]()
    for cache, mode in (("warm", "time"), ("cold", "cold")):
        times = first_outputs(_in_mode(starts, mode))
        total = times.sum(axis=1).mean()
        # Other programs decided what took less time than the warm ones.
        if times.empty or total < sum(table["mean_ms"].sum() for table in tables[:1]):
            continue
        mean, half = times.mean(), pd.Series(half_width(times.to_numpy()), times.columns)
        half = half.where(half <= mean)
        meanings = [STAGES.get(name.rstrip("0123456789 "), "") for name in times.columns]
        table = {"cache": cache, "stage": times.columns, "meaning": meanings, "mean_ms": mean}
        table |= {"low_ms": mean - half, "high_ms": mean + half}
        table |= {"share": mean / mean.sum(), "starts": len(times)}
        tables.append(pd.DataFrame(table).reset_index(drop=True))
    return frames.check(pd.concat(tables, ignore_index=True), frames.COLD_START) if tables else None


def _in_mode(starts: Iterable[Start], mode: str) -> list[Start]:
    return [start for start in starts if start.mode == mode]


def check_starts(starts: Sequence[Start], subject: str) -> Iterator[tuple[str, str, str]]:
    """Times of starts that other programs decided, which are not stated: rows of checks."""
    warm, cold = (time_starts(_in_mode(starts, mode)) for mode in ("time", "cold"))
    used = [s.weights for s in starts if s.weights and s.mode in ("time", "cold")]
    if lacking := len(used) - used.count("mapped"):
        text = f"{lacking} of {len(used)} starts packed their weights: XNNPACK has none in this "
        yield (
            f"packed weights of {subject}",
            "note",
            f"{text}program, or another process had their file",
        )
    remedy = "stop other programs, and measure again with --processes "
    remedy += "5" if len(warm) < 5 else str(2 * len(warm))
    if len(cold) and len(warm) and cold.mean() < warm.mean():
        times = " against ".join(wording.format_range(cold.mean(), warm.mean()))
        text = f"faster from disk than from memory, {times}: the cold one is not stated; {remedy}"
        yield f"first output of {subject}", "note", text
    for name, times in (("first output", warm), ("cold first output", cold)):
        half = float(half_width(times.to_numpy())) if len(times) > 1 else 0.0
        if half > times.mean():
            mean = wording.format_ms(times.mean())
            text = f"{mean}, of {len(times)} starts that scatter too much for an interval"
            yield f"{name} of {subject}", "note", f"{text}; {remedy}"


def account_memory(starts: Sequence[Start]) -> pd.DataFrame | None:
    """The largest resident set of a process by what it holds: ``frames.MEMORY``.

    Arenas, inputs and the method are counted by the runner; delegates and the first inference are
    what malloc gave out meanwhile, without pages that nothing wrote to (where malloc does not
    count: what became resident). Pages of files and the rest are read from ``/proc``.
    """
    stages = next((s.stages for s in starts if s.mode == "memory" and s.memory.peak), ())
    if not {"threads", "first inference"} <= {stage.name for stage in stages}:
        return None
    names = name_stages(stages)
    loaded, last = stages[names.index("threads")], stages[-1]
    resident = last.anonymous + last.files + last.program + last.weights
    parts: dict[str, tuple[str, int]] = {
        "libraries": ("code and constants of the runner and its libraries", last.files),
        "runner": ("heap, stacks and data before the program is loaded", loaded.anonymous),
        "program file": ("pages of the program's file that were read", last.program),
        "packed weights": ("pages of the file of packed weights that were read", last.weights),
    }
    parts = {name: part for name, part in parts.items() if name != "packed weights" or part[1]}
    texts = {
        "arenas": "memory that the exporter planned for activations",
        "method": "the runtime's tables of values and kernels",
        "inputs": "inputs, and outputs outside of the arenas",
        "delegate": "packed weights and compiled graph",
    }
    for name, before, stage in zip(names[1:], stages, stages[1:], strict=False):
        if text := texts.get(stage.name):
            size = _allocated(before, stage) if stage.name == "delegate" else stage.bytes
            parts[name] = text, parts.get(name, ("", 0))[1] + size
    first = stages[len(names) - 2]
    text = "workspace and tables that the first inference allocates"
    parts["first inference"] = text, _allocated(first, last)
    if kept := last.kept - loaded.kept:
        parts["heap kept"] = "free again, and kept by malloc for later", kept
    if freed := last.peak - resident:
        parts["freed"] = "resident for a time while loading", freed
    rest = last.peak - sum(size for _, size in parts.values())
    parts["not accounted for"] = "unaccounted; negative if counted pages were not resident", rest
    rows = [(part, text, size, size / last.peak) for part, (text, size) in parts.items()]
    return frames.check(pd.DataFrame(rows, columns=frames.MEMORY.names), frames.MEMORY)


def _allocated(before: Stage, after: Stage) -> int:
    if min(before.heap, after.heap) < 0:
        return after.anonymous - before.anonymous
    return after.heap - before.heap - (after.unwritten - before.unwritten)


# --- activations ---------------------------------------------------------------------------------


def _lifetimes(flow: Dataflow, dropped: FlowStep | None = None) -> dict[TensorId, tuple[int, int]]:
    """When each tensor is written, and read last, by the number of the step.

    Without the step ``dropped``, those that read its results read its operands instead.
    """
    order = {step.id: number for number, step in enumerate(flow.steps)}
    lives = {}
    for tensor, info in flow.tensors.items():
        maker, users = flow.makers.get(tensor), flow.users.get(tensor, [])
        if info.constant or not (maker or users):
            continue
        first = order[maker.id] if maker else 0
        lives[tensor] = first, max((order[step.id] for step in users), default=len(order) - 1)
    for step in flow.steps:
        if step.xnode is None or step.type not in _IN_PLACE:
            continue
        target, size = step.writes[0], flow.tensors[step.writes[0]].size_bytes
        for source in step.reads:
            alike = source in lives and flow.tensors[source].size_bytes == size
            if alike and len(flow.users[source]) == 1 and -1 not in (source[0], target[0]):
                lives[source] = lives[source][0], lives[source][1] - 1
                break
    if dropped is not None:
        ends = [lives.pop(tensor)[1] for tensor in dropped.writes if tensor in lives]
        for source in dropped.reads:
            if source in lives:
                lives[source] = lives[source][0], max(lives[source][1], *ends)
    return lives


def _find_peaks(
    flow: Dataflow, lives: dict[TensorId, tuple[int, int]]
) -> dict[int, tuple[int, int]]:
    """Most live bytes, and at which step: of the method (-1), and of the delegate with the most.

    Delegates share one workspace.
    """
    changes: dict[int, np.ndarray] = {}
    for tensor, (first, last) in lives.items():
        change = changes.setdefault(tensor[0], np.zeros(len(flow.steps) + 1, dtype=np.int64))
        change[first] += flow.tensors[tensor].size_bytes
        change[last + 1] -= flow.tensors[tensor].size_bytes
    live = {place: change.cumsum() for place, change in changes.items()}
    peaks = {place: (int(bytes_.max()), int(bytes_.argmax())) for place, bytes_ in live.items()}
    largest = max((place for place in peaks if place >= 0), key=lambda p: peaks[p], default=-1)
    return {place: peaks[place] for place in sorted({-1, largest} & peaks.keys())}


def list_tensors(flow: Dataflow) -> pd.DataFrame:
    """Every activation and when it is live: ``frames.TENSORS``, the largest first."""
    lives = _lifetimes(flow)
    peaks, rows = _find_peaks(flow, lives), []
    for tensor, (first, last) in lives.items():
        maker, place = flow.makers.get(tensor), tensor[0]
        origin = maker.origin if maker else None
        memory = "arenas" if place < 0 else f"delegate of instruction {place}"
        layer = (origin.module, origin.source) if origin else ("", "")
        at_peak = place in peaks and first <= peaks[place][1] <= last
        size = flow.tensors[tensor].size_bytes
        rows.append((memory, maker.type if maker else "input", *layer, size, first, last, at_peak))
    table = pd.DataFrame(rows, columns=frames.TENSORS.names)
    table = table.sort_values("size_bytes", ascending=False, kind="stable", ignore_index=True)
    return frames.check(table, frames.TENSORS)


def track_live(tensors: pd.DataFrame) -> dict[str, np.ndarray]:
    """The bytes of ``frames.TENSORS`` that are live at every step, by memory."""
    found = {}
    for place, part in tensors.groupby("memory"):
        change = np.zeros(int(tensors["last"].max()) + 2, dtype=np.int64)
        np.add.at(change, part["first"], part["size_bytes"])
        np.add.at(change, part["last"] + 1, -part["size_bytes"])
        found[str(place)] = change.cumsum()[:-1]
    return found


def activation_bytes(flow: Dataflow, dropped: FlowStep | None = None) -> int:
    """The least memory for activations: in the arenas, and in the delegates' workspace.

    Without the results of the step ``dropped``, whose operands then live as long as they would.
    """
    return sum(size for size, _ in _find_peaks(flow, _lifetimes(flow, dropped)).values())


def _find_module(part: FilePart, layers: Layers) -> str:
    """The layer that a part's values are the weights of; empty if unknown."""
    method = dict(enumerate(layers.methods)).get(-1 if part.method is None else part.method)
    if method is None:
        return ""
    users = [call.origin for call in method.instructions if part.value in call.inputs]
    if part.instruction is not None:
        calls = method.instructions[part.instruction :][:1]
        nodes = [node for call in calls for node in call.xnodes if node.origins]
        users = [node.origins[0] for node in nodes if part.value in node.inputs]
    return next((method.origins[number].module for number in users if number is not None), "")


def list_file_parts(layers: Layers | None) -> pd.DataFrame | None:
    """The parts of a program's file, the largest first: ``frames.FILE_PARTS``."""
    if layers is None or not layers.file:
        return None
    rows = [(part.kind, _find_module(part, layers), part.size_bytes) for part in layers.file]
    table = pd.DataFrame(rows, columns=frames.FILE_PARTS.names[:3])
    table = table.groupby(["part", "module"], as_index=False, sort=False)["size_bytes"].sum()
    table = table.sort_values("size_bytes", ascending=False, kind="stable", ignore_index=True)
    return frames.check(
        table.assign(share=table["size_bytes"] / table["size_bytes"].sum()), frames.FILE_PARTS
    )


# --- side by side --------------------------------------------------------------------------------


def measure_resources(starts: Sequence[Start]) -> dict[str, tuple[str, pd.Series]]:
    """By resource, its unit and its value in every process, by number."""
    warm, cold = (_in_mode(starts, mode) for mode in ("time", "cold"))
    known = [start for start in warm if start.memory.peak]
    timed = [s for s in warm if min((stage.cpu_ns for stage in s.stages), default=-1) >= 0]
    numbers = [start.number for start in known]
    outputs = [time_starts(mode) for mode in (warm, cold)]
    if len(outputs[0]) and outputs[1].mean() < outputs[0].mean():
        outputs[1] = outputs[1][:0]
    found = {
        "first output": ("ms", outputs[0]),
        "CPU time of a start": ("ms", time_starts(timed, "cpu_ns")),
        "cold first output": ("ms", outputs[1]),
        "peak memory": ("MB", pd.Series([s.memory.peak / MB for s in known], numbers)),
        "anonymous memory": ("MB", pd.Series([s.memory.anonymous / MB for s in known], numbers)),
        "PSS": ("MB", pd.Series([s.memory.pss / MB for s in known], numbers)),
    }
    return {name: (unit, values) for name, (unit, values) in found.items() if len(values)}


def tabulate_resources(
    latency: pd.Series, starts: Sequence[Start], export: Export | None
) -> pd.DataFrame:
    """Latency, first output, memory and size of one measurement: ``frames.RESOURCES``.

    Without the columns that name the measurement.
    """
    rows = [("latency", "ms", *latency[["latency", "low", "high"]])]
    for resource, (unit, values) in measure_resources(starts).items():
        mean, half = values.mean(), float(half_width(values.to_numpy()))
        half = math.nan if half > mean else half  # so few starts that scatter so show no interval
        rows.append((resource, unit, mean, mean - half, mean + half))
    if export:
        rows.append(("size", "MB", *[export.size_bytes / MB] * 3))
    return pd.DataFrame(rows, columns=frames.RESOURCES.names[2:])


#: Columns of what a measurement needs besides time, as one row.
SUMMARY = ("first_output_ms", "peak_mb", "anonymous_mb", "size_mb")


def summarize_resources(starts: Sequence[Start], export: Export | None) -> dict[str, float]:
    """The first output, the memory and the size as one row, `SUMMARY`; NaN where unknown."""
    warm = _in_mode(starts, "time")
    held = [start.memory for start in warm if start.memory.peak]
    columns = (
        time_starts(warm).tolist(),
        [memory.peak / MB for memory in held],
        [memory.anonymous / MB for memory in held],
        [export.size_bytes / MB] if export else [],
    )
    means = (sum(values) / len(values) if values else math.nan for values in columns)
    return dict(zip(SUMMARY, means, strict=True))


def compare_resources(
    baseline: Sequence[Start],
    candidate: Sequence[Start],
    latency: pd.DataFrame | None,
    sizes: Sequence[int],
) -> pd.DataFrame:
    """Latency, sizes of two files, and what processes need: ``frames.RESOURCE_CHANGES``.

    Processes of equal number took turns; intervals are those of `speedup_of_restarts`.
    """
    rows: list[tuple[Any, ...]] = []
    if latency is not None:
        row = latency.iloc[0]
        ends = (1 / row[["speedup", "high", "low"]].astype(float)).tolist()
        outcome = {"faster": "less", "slower": "more"}.get(row["outcome"], row["outcome"])
        rows.append(("latency", "ms", row["baseline_ms"], row["candidate_ms"], *ends, outcome))
    if len(sizes) == 2:
        before, after = (size / MB for size in sizes)
        ratio = after / before
        rows.append(("size", "MB", before, after, *[ratio] * 3, judge_ratio(ratio, ratio)))
    rows += compare_measured(measure_resources(baseline), measure_resources(candidate))
    table = pd.DataFrame(rows, columns=frames.RESOURCE_CHANGES.names[:-1])
    return frames.check(table.assign(control=math.nan), frames.RESOURCE_CHANGES)


def compare_measured(
    baseline: Mapping[str, tuple[str, pd.Series]],
    candidate: Mapping[str, tuple[str, pd.Series]],
    separate: bool = False,
) -> list[tuple[Any, ...]]:
    """Rows of ``frames.RESOURCE_CHANGES`` for what both sides measured, by `measure_resources`."""
    rows = []
    for resource in (name for name in baseline if name in candidate):
        (unit, ours), (_, theirs) = baseline[resource], candidate[resource]
        if not separate:
            ours, theirs = ours.align(theirs, join="inner")
        if len(ours):
            found = speedup_of_restarts(theirs, ours, separate=separate)
            low, ratio, high = (float(end[0]) for end in (found.low, found.value, found.high))
            outcome = judge_ratio(low, high)
            rows.append((resource, unit, ours.mean(), theirs.mean(), ratio, low, high, outcome))
    return rows


def judge_ratio(low: float, high: float) -> str:
    """The outcome of a ratio with this interval: less, more, unchanged or inconclusive."""
    if low > 1 + MARGIN or high < 1 - MARGIN:
        return "more" if low > 1 else "less"
    return "unchanged" if low >= 1 - MARGIN and high <= 1 + MARGIN else "inconclusive"

"""What a process holds, how it starts, and what is in the program's file."""

import itertools
from collections.abc import Iterable
from typing import Any

import pandas as pd

from workbench import Measurement
from workbench.api import Frame
from workbench.pages import half_width

COLD_START = Frame.make(
    "cold start",
    ("cache", "text", "", "warm | cold: are files in the page cache"),
    ("stage", "text", "", "part of the time from exec to the first output, in order"),
    ("meaning", "text", "", "what happens in it"),
    ("mean_ms", "float", "ms", "over the starts; the rows of a cache sum to the whole"),
    *Frame.interval("its", "ms", suffix="_ms"),
    ("share", "float", "share", "of the whole"),
    ("starts", "int", "", "processes that were measured"),
)
MEMORY = Frame.make(
    "memory",
    ("part", "text", "", "part of the largest resident set"),
    ("meaning", "text", "", "what it is"),
    ("size_bytes", "int", "B", "its size; below 0: counted, but not resident"),
    ("share", "float", "share", "of the largest resident set, to which the rows sum"),
)
FILE_PARTS = Frame.make(
    "file",
    ("part", "text", "", "program | delegate | weights | state | other | padding"),
    ("module", "text", "", "layer whose weights these are; empty for what belongs to none"),
    ("size_bytes", "int", "B", "its size in the program's file"),
    ("share", "float", "share", "of the file, to which the rows sum"),
)

_MOST_DELEGATES = 6  #: More of them are one row.
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


def _name_stages(start: Any) -> list[str]:
    """The stages up to the first output; a few delegates are numbered in order of their set-up."""
    names = [stage.name for stage in start.until_output]
    count = names.count("delegate")
    if count > _MOST_DELEGATES:
        return ["delegates" if n == "delegate" else n for n in names]
    numbers = itertools.count(1) if count > 1 else itertools.repeat("")
    return [f"{n} {next(numbers)}".strip() if n == "delegate" else n for n in names]


def _first_outputs(starts: Iterable[Any]) -> pd.DataFrame:
    """The time of every stage in ms: a row for each start by number, a column for each stage."""
    rows = {}
    for start in starts:
        times = pd.Series([stage.ns / 1e6 for stage in start.until_output], _name_stages(start))
        rows[start.number] = times.groupby(level=0, sort=False).sum()
    return pd.DataFrame.from_dict(rows, orient="index")


def tabulate_starts(m: Measurement) -> pd.DataFrame | None:
    """The time from exec to the first output by stage: ``frames.COLD_START``."""
    tables = list[pd.DataFrame]()
    for cache, mode in (("warm", "time"), ("cold", "cold")):
        times = _first_outputs(start for start in m.starts if start.mode == mode)
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
    return COLD_START.check(pd.concat(tables, ignore_index=True)) if tables else None


def account_memory(m: Measurement) -> pd.DataFrame | None:
    """The largest resident set of a process by what it holds: ``frames.MEMORY``.

    Arenas, inputs and the method are counted by the runner; delegates and the first inference are
    what malloc gave out meanwhile, without pages that nothing wrote to (where malloc does not
    count: what became resident). Pages of files and the rest are read from ``/proc``.
    """
    start = next((s for s in m.starts if s.mode == "memory" and s.memory.peak), None)
    stages = start.stages if start else ()
    if start is None or not {"threads", "first inference"} <= {stage.name for stage in stages}:
        return None
    names = _name_stages(start)
    loaded, last = stages[names.index("threads")], stages[-1]
    resident = last.anonymous + last.files + last.program
    parts: dict[str, tuple[str, int]] = {
        "libraries": ("code and constants of the runner and its libraries", last.files),
        "runner": ("heap, stacks and data before the program is loaded", loaded.anonymous),
        "program file": ("pages of the program's file that were read", last.program),
    }
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
    if free_bytes := last.kept - loaded.kept:
        parts["heap kept"] = "free again, and kept by malloc for later", free_bytes
    if freed := last.peak - resident:
        parts["freed"] = "resident for a time while loading", freed
    rest = last.peak - sum(size for _, size in parts.values())
    parts["not accounted for"] = "unaccounted; negative if counted pages were not resident", rest
    rows = [(part, text, size, size / last.peak) for part, (text, size) in parts.items()]
    return MEMORY.check(pd.DataFrame(rows, columns=MEMORY.names))


def _allocated(before: Any, after: Any) -> int:
    if min(before.heap, after.heap) < 0:
        return int(after.anonymous - before.anonymous)
    return int(after.heap - before.heap - (after.unwritten - before.unwritten))


def _find_module(part: Any, layers: Any) -> str:
    """The layer that a part's values are the weights of; empty if unknown."""
    method = dict(enumerate(layers.methods)).get(-1 if part.method is None else part.method)
    if method is None:
        return ""
    users = [call.origin for call in method.instructions if part.value in call.inputs]
    if part.instruction is not None:
        calls = method.instructions[part.instruction :][:1]
        nodes = [node for call in calls for node in call.xnodes if node.origins]
        users = [node.origins[0] for node in nodes if part.value in node.inputs]
    modules = (method.origins[number].module for number in users if number is not None)
    return str(next(modules, ""))


def list_file_parts(m: Measurement) -> pd.DataFrame | None:
    """The parts of a program's file, the largest first: ``frames.FILE_PARTS``."""
    layers = m.run.read_sidecar(m.program)
    if layers is None or not layers.file:
        return None
    rows = [(part.kind, _find_module(part, layers), part.size_bytes) for part in layers.file]
    table = pd.DataFrame(rows, columns=FILE_PARTS.names[:3])
    table = table.groupby(["part", "module"], as_index=False, sort=False)["size_bytes"].sum()
    table = table.sort_values("size_bytes", ascending=False, kind="stable", ignore_index=True)
    return FILE_PARTS.check(table.assign(share=table["size_bytes"] / table["size_bytes"].sum()))

"""Rules about memory and starts."""

import math
from collections.abc import Collection, Iterator
from typing import Any

from workbench import Measurement
from workbench.api import Finding, Gain, Rule
from workbench.pages import format_size
from workbench.plugins.memory.activations import activation_bytes

_CONCATENATIONS = ("Concatenate2", "Concatenate3", "Concatenate4", "Concatenate5")
#: A smaller part of the activation memory is no finding.
_LEAST_MEMORY = 0.05
_SPLIT = "conv_a(a) + conv_b(b)  # for conv(torch.cat((a, b), 1)): split conv.weight by its inputs"


def find_memory_peak(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """The concatenation without whose copy the activations need least memory.

    Applies if one layer with weights reads it: its products can be added instead.
    """
    flow, peaks = m.flow, []
    for step in flow.steps:
        users = flow.after(step)
        if step.type not in _CONCATENATIONS or len(users) != 1 or not users[0].has_weights:
            continue
        # Each product is as large as their sum, and takes the place of an operand.
        least = min(flow.tensors[tensor].size_bytes for tensor in step.reads)
        if flow.tensors[users[0].writes[0]].size_bytes <= least and not flow.returns(step):
            peaks.append((activation_bytes(m, step), step))
    if not peaks:
        return
    before, (after, step) = activation_bytes(m), min(peaks, key=lambda pair: pair[0])
    if before - after < _LEAST_MEMORY * before:
        return
    place = f" in {step.origin.module}" if step.origin and step.origin.module else ""
    line = f" ({step.origin.source})" if step.origin and step.origin.source else ""
    yield Finding(
        f"one concatenation{place}{line} sets the peak of activation memory: "
        f"{before / 1e6:.2f} MB, {after / 1e6:.2f} MB without its copy",
        Gain(basis="planned", share=(before - after) / before, of="activation memory"),
        tuple(key for key, nodes in m.nodes.items() if step.id in nodes),
        "apply the next layer to each part, and add the results",
        _SPLIT,
    )


#: A smaller part of the peak memory is no finding.
_LEAST_PEAK = 0.1
#: Smaller parts of the time to the first output, and times in ms, are no finding.
_LEAST_START, _LEAST_MS = 0.2, 5.0
#: What mapped weights save of the set-up of delegates, at least: pages of a file are read as well,
#: and the graph is compiled anyway. Measured: 0.77 in fp32, 0.34 in int8, whose weights are fewer
#: bytes of the same graph.
_LEAST_SAVED = 0.25
_MAP_WEIGHTS = """\
executorch::runtime::BackendOptions<2> options;  // C++
options.set_option("weight_cache_enabled", true);
options.set_option("packed_cache_path", path);  // named by the hashes of program and library
executorch::runtime::LoadBackendOptionsMap map;
map.set_options("XnnpackBackend", options.view());
module.load(map);
// Swift: BackendOption("packed_cache_path", path); Kotlin's BackendOptionsMap has setInt only"""


def find_slow_start(m: Any, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Delegates whose set-up, which packs weights, dominates the time to the first output."""
    if m.cold_start is None or m.runtime:
        return
    warm = m.cold_start[m.cold_start["cache"] == "warm"]
    setup = warm[warm["stage"].str.startswith("delegate")]
    share, ms = float(setup["share"].sum()), float(setup["mean_ms"].sum())
    if share < _LEAST_START or ms < _LEAST_MS:
        return
    low, high = (float(setup[end].fillna(setup["mean_ms"]).sum()) for end in ("low_ms", "high_ms"))
    yield Finding(
        f"setting up the delegates, which packs their weights, takes {ms:.1f} of "
        f"{float(warm['mean_ms'].sum()):.1f} ms from the start to the first output",
        Gain(math.nan, _LEAST_SAVED * low, high, "bound", share, "time to the first output"),
        (),
        "keep packed weights in a file: the first start writes it, under a temporary name, and "
        "later starts map it",
        _MAP_WEIGHTS,
    )


def find_weights_twice(m: Any, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Packed weights beside the pages of the program that they were packed from."""
    if m.memory is None or m.runtime:
        return
    sizes = m.memory.set_index("part")["size_bytes"]
    packed = int(sizes[sizes.index.str.startswith("delegate")].sum())
    originals = int(sizes["program file"])
    both = min(packed, originals)
    if both < _LEAST_PEAK * sizes.sum():
        return
    yield Finding(
        f"weights are held twice: {format_size(packed)} as the delegate packed them, and "
        f"{format_size(originals)} as pages of the program's file",
        Gain(basis="bound", share=both / sizes.sum(), of="peak memory"),
        (),
        "keep packed weights in a file: the originals are then not read, and no copy is anonymous "
        "memory; or map the program without locking it, so that the system can drop its pages",
        _MAP_WEIGHTS,
    )


def find_wide_arenas(m: Any, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Arenas planned for the largest size; this size leaves most of them unused."""
    unused = max((s.stages[-1].unused for s in m.starts if s.stages), default=-1)
    dims = {
        dim: f"{size} of {most}"
        for tensor in m.run.record.plan.phase_of(m.experiment).inputs or m.program.inputs
        for dim, size, most in zip(tensor.dims, tensor.shape, tensor.most, strict=False)
        if dim and size < most
    }
    if m.memory is None or not dims:
        return
    sizes = m.memory.set_index("part")["size_bytes"]
    if unused < _LEAST_PEAK * sizes.sum():
        return
    name = next(iter(dims))
    yield Finding(
        f"arenas are sized for the maximum of {', '.join(dims)}: {format_size(unused)} of "
        f"{format_size(int(sizes['arenas']))} are unused at "
        + ", ".join(f"{dim} {text}" for dim, text in dims.items()),
        Gain(basis="bound", share=unused / sizes.sum(), of="peak memory"),
        (),
        f"export with a smaller maximum of {name}, or a program for each range of it",
        f'torch.export.Dim("{name}", max=...)',
    )


_HEADING = "How much memory, and how long until the first output?"
MEMORY_PEAK = Rule(find_memory_peak, _HEADING, timed=False)
WEIGHTS_TWICE = Rule(find_weights_twice, _HEADING)
SLOW_START = Rule(find_slow_start, _HEADING)
WIDE_ARENAS = Rule(find_wide_arenas, _HEADING, timed=False)

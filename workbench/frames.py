"""The frames that the stages hand to one another."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.errors import StoreError

if TYPE_CHECKING:
    import pandas as pd


#: Among the attributes of a table: which frames it is.
_NAME = "frame"
#: The name, kind (``int``, ``float``, ``bool`` or ``text``), unit and meaning of a column. Of
#: the units ``share`` and ``ratio``, readers see per cent, and ``1.30x``.
Column = tuple[str, str, str, str]


@dataclass(frozen=True)
class Frame:
    """A named set of columns; a frame may carry further columns, never fewer."""

    name: str
    columns: tuple[Column, ...]

    @classmethod
    def make(cls, name: str, *columns: str | Column) -> Frame:
        """A frame of columns; a string gives the names of columns that several frames share."""
        parts = ([_SHARED[n] for n in c.split()] if isinstance(c, str) else [c] for c in columns)
        FRAMES[name] = cls(name, tuple(itertools.chain.from_iterable(parts)))
        return FRAMES[name]

    @staticmethod
    def interval(of: str, unit: str = "", *, prefix: str = "", suffix: str = "") -> list[Column]:
        """The ends of a 95 % interval: ``low`` and ``high``, with a prefix or suffix."""
        return [
            (f"{prefix}{end}{suffix}", "float", unit, f"{place} end of {of} 95 % interval")
            for end, place in (("low", "lower"), ("high", "upper"))
        ]

    @property
    def names(self) -> list[str]:
        """The column names, in order."""
        return [name for name, *_ in self.columns]

    def check(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return ``frame`` if it has the columns of this one in the right kinds, or raise."""
        import pandas as pd

        types = pd.api.types
        kinds = {
            "int": types.is_integer_dtype,
            "float": types.is_numeric_dtype,
            "bool": types.is_bool_dtype,
            "text": lambda dtype: not types.is_numeric_dtype(dtype),
        }
        where = f"{self.name} frame"
        dtypes = dict(frame.dtypes.items())
        for name, kind, *_ in self.columns:
            if name not in dtypes:
                raise StoreError(f"column {name!r} is missing", where=where)
            if len(frame) and not kinds[kind](dtypes[name]):
                raise StoreError(f"column {name!r} is {dtypes[name]}, not {kind}", where=where)
        # What is selected from it keeps its units; of a joined one, the later frame decides.
        names = (name for name in frame.attrs.get(_NAME, ()) if name != self.name)
        frame.attrs[_NAME] = (*names, self.name)
        return frame


# --- columns that several frames share -----------------------------------------------------------


_LEDGER_KINDS = "delegated | portable | delegate_overhead | call_overhead | framework | tracing"
OUTCOMES = "faster | slower | unchanged | inconclusive"
_SHARED: dict[str, Column] = {
    column[0]: column
    for column in (
        ("experiment", "text", "", "name of the experiment"),
        ("threads", "int", "", "CPU threads of the runner"),
        ("process", "int", "", "which process restart, from 0"),
        ("model", "text", "", "name of the model"),
        ("program", "text", "", "name of the program, and the start of its SHA-256"),
        ("device", "text", "", "platform and CPU; says whether it was emulated"),
        ("build", "text", "", "ExecuTorch and runner"),
        ("emulated", "bool", "", "emulated: its times are meaningless and left out"),
        ("block", "int", "", "index of the ETDump run_data block"),
        ("event", "int", "", "position in the file, over all blocks"),
        ("key", "text", "", "as in the ledger"),
        ("name", "text", "", "as logged"),
        ("operator", "text", "", "name without the ordinal"),
        ("kind", "text", "", "as in the ledger"),
        ("category", "text", "", "Convolution | GEMM | Data Movement | Elementwise | Other"),
        ("family", "text", "", "finer than the category"),
        ("rule", "text", "", "the rule that placed it"),
        ("module_class", "text", "", "class of the layer"),
        ("mean_ms", "float", "ms/run", "mean time as traced, scaled: parts add up to the latency"),
        ("share", "float", "share", "mean time / mean E2E"),
        ("build_id", "text", "", "its GNU build id, in hexadecimal"),
        ("level", "text", "", "e2e | category | operator | layer | kind"),
        ("baseline_ms", "float", "ms", "time of the baseline; parts add up to its latency"),
        ("candidate_ms", "float", "ms", "time of the candidate; parts add up to its latency"),
        *Frame.interval("the speed-up's", "ratio"),
        ("outcome", "text", "", OUTCOMES),
        ("first_output_ms", "float", "ms", "from the start of a process to its first output, mean"),
        ("peak_mb", "float", "MB", "largest resident set of a process, mean"),
        ("anonymous_mb", "float", "MB", "memory of a process that no file backs, mean"),
        ("size_mb", "float", "MB", "size of the program's file"),
        ("latency_ms", "float", "ms", "untraced E2E, as in the statistics"),
        ("module", "text", "", "path of its layer in the model"),
        ("shapes", "text", "", "of its inputs and outputs"),
        ("unit", "text", "", "ms or MB"),
    )
}


#: Every frame by name, also of plug-ins that were imported.
FRAMES: dict[str, Frame] = {}


def describe_columns(frame: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Unit and meaning of all columns: as the frame has them, else the unit on which all agree."""
    units: dict[str, set[str]] = {}
    for column, _, unit, _ in itertools.chain(*(each.columns for each in FRAMES.values())):
        units.setdefault(column, set()).add(unit)
    described = {n: (each.pop() if len(each) == 1 else "", "") for n, each in units.items()}
    columns = itertools.chain(*(FRAMES[name].columns for name in frame.attrs.get(_NAME, ())))
    return described | {name: (unit, meaning) for name, _, unit, meaning in columns}


#: Which measurement a row belongs to; joined to the frames of one trace when a run is read.
SOURCE = ["experiment", "threads", "process"]

# --- traces --------------------------------------------------------------------------------------

_EVENT_KINDS = "method | delegate_call | operator_call | kernel | delegate_operator | other"

EVENTS = Frame.make(
    "events",
    "block",
    ("block_name", "text", "", "its name: Default while loading, Execute, or the user's"),
    ("run", "int", "", "index of the Method::execute it belongs to, -1 outside any"),
    "event",
    ("parent", "int", "", "event of the enclosing span, -1 at the top"),
    ("kind", "text", "", _EVENT_KINDS),
    ("name", "text", "", "as logged: event name, or the delegate's operator name"),
    ("chain", "int", "", "chain index, -1 if none"),
    ("instruction", "int", "", "instruction id, -1 if none"),
    ("delegate_id", "int", "", "the delegate's integer debug id, -1 if none"),
    ("start_ns", "int", "ns", "start on the device's clock; laid end to end inside a delegate"),
    ("duration_ns", "int", "ns", "end - start"),
)

SAMPLES = Frame.make(
    "samples",
    ("time_ns", "int", "ns", "when, on the clock of the trace"),
    ("thread", "int", "", "the system's id of the thread"),
    ("busy", "bool", "", "the thread computed since its sample before; else it waited"),
    ("library", "text", "", "path of the loaded file; empty for code outside any"),
    "build_id",
    ("address", "int", "", "program counter as a virtual address in that file"),
)

FUNCTIONS = Frame.make(
    "functions",
    ("library", "text", "", "name of the file"),
    "build_id",
    ("start", "int", "", "virtual address of the first byte"),
    ("size", "int", "byte", "length"),
    ("name", "text", "", "as exported; else library+address"),
    ("code", "text", "", "widest class of instructions: scalar, sse, ... avx512; neon, ... sme2"),
    ("loop", "text", "", "its hot loop, an address and an instruction a line; empty if unknown"),
)

# --- one measurement -----------------------------------------------------------------------------

LEDGER = Frame.make(
    "ledger",
    ("run", "int", "", "index of the Method::execute"),
    ("row", "int", "", "position within the run"),
    ("kind", "text", "", _LEDGER_KINDS),
    "name operator",
    ("key", "text", "", "what pairs this row with its like in another trace of the same program"),
    ("instruction", "int", "", "instruction id, -1 for framework"),
    ("duration_ns", "float", "ns", "its own time; the rows of a run sum to that of the run"),
)

SPANS = Frame.make(
    "spans",
    *EVENTS.columns,
    ("ledger_kind", "text", "", "kind of its ledger row; none outside any whole run"),
    "operator key",
    ("own_ns", "int", "ns", "time that belongs to it alone; sums to E2E over a run"),
    ("category", "text", "", "of its own time, as in the operators frame"),
    "family rule",
)

LATENCIES = Frame.make(
    "latencies",
    "experiment threads process",
    ("traced", "bool", "", "measured with ETDump on"),
    ("round", "int", "", "interleaving round within the process"),
    ("batch", "int", "", "batch within the round, in the order of measurement"),
    ("wall_ns", "int", "ns", "wall time of one Method::execute"),
    ("cpu_ns", "int", "ns", "CPU time of the process during it"),
    ("preempted", "int", "", "involuntary context switches during it"),
)

STATISTICS = Frame.make(
    "statistics",
    ("latency", "float", "ms", "mean of the restarts, each the mean of its middle half of times"),
    *Frame.interval("the latency's", "ms"),
    ("restarts", "int", "", "process restarts; a single one has no interval"),
    ("n", "int", "", "number of values"),
    ("mean", "float", "ms", "arithmetic mean"),
    ("median", "float", "ms", "50th percentile"),
    ("trimmed_mean", "float", "ms", "mean without the lowest and highest tenth"),
    ("std", "float", "ms", "standard deviation (n - 1)"),
    ("cv", "float", "share", "std / mean"),
    ("min", "float", "ms", "smallest value"),
    *((f"p{rank}", "float", "ms", f"{rank}th percentile") for rank in (50, 90, 95, 99)),
    ("max", "float", "ms", "largest value"),
    ("outliers", "int", "", "values beyond 1.5 interquartile ranges from the quartiles"),
)

OPERATORS = Frame.make(
    "operators",
    "key name operator kind category family rule",
    ("calls", "float", "1/run", "occurrences per Method::execute"),
    "mean_ms",
    ("std_ms", "float", "ms/run", "standard deviation over the runs"),
    "share",
)

CATEGORIES = Frame.make(
    "categories", "category mean_ms share", ("operators", "int", "", "distinct operators in it")
)

ATTRIBUTION = Frame.make(
    "attribution",
    "key",
    ("module", "text", "", "path of its layer in the model, empty for the model itself"),
    "module_class",
    ("source", "text", "", "the user's line, file:line"),
    ("also", "text", "", "other layers that it does work of, by path"),
    ("nodes", "text", "", "nodes of the exporter's graph that it implements, the main one first"),
    ("xnodes", "text", "", "operators of the sidecar's delegate that it does, by number"),
    ("role", "text", "", "compute | layout | quantize | dequantize | cast | overhead"),
    ("shapes", "text", "", "of its inputs and outputs, without constants; images as NHWC"),
    ("flops", "float", "FLOP/call", "floating-point operations; NaN where unknown"),
    ("bytes", "float", "1/call", "size of its inputs, constants and outputs"),
    ("confidence", "text", "", "exact | fitted | ambiguous | unattributed"),
)

LAYERS = Frame.make(
    "layers",
    ("module", "text", "", "path in the model, empty for the model itself; none: no layer"),
    "module_class",
    ("depth", "int", "", "modules around it"),
    ("own_ms", "float", "ms/run", "mean time of the layer itself; adds up to the latency"),
    ("total_ms", "float", "ms/run", "mean time of it and all layers in it"),
    *Frame.interval("the total time's", "ms/run", suffix="_ms"),
    ("share", "float", "share", "total time / mean E2E"),
    ("operators", "int", "", "distinct operators in it and all layers in it"),
    ("flops", "float", "FLOP/run", "floating-point operations of those that are known"),
)

SOURCE_LINES = Frame.make(
    "source lines",
    ("file", "text", "", "cell or file of the line; empty: the time of no line"),
    ("line", "int", "", "its number, from 1; 0: the time of no line"),
    "mean_ms",
    *Frame.interval("its", "ms/run", suffix="_ms"),
    "share",
    ("baseline_ms", "float", "ms/run", "its time at the baseline, such as with the extension off"),
    ("speedup", "float", "ratio", "baseline / mean time, of typical times"),
    "low high",
    ("outcome", "text", "", f"{OUTCOMES} | below the clock; empty: not compared"),
    ("delegated", "float", "", "part of its operators' time in a delegate; NaN: no operators"),
    ("dtype", "text", "", "in which its operators compute, the one with the most time first"),
    ("operators", "int", "", "distinct operators"),
    ("layers", "text", "", "paths of the layers that ran it, the one with the most time first"),
    ("findings", "text", "", "ids of the findings about its operators"),
)

DTYPES = Frame.make(
    "dtypes",
    "key name operator module",
    ("asked", "text", "", "dtype in which the program was to compute"),
    ("dtype", "text", "", "dtype in which it ran, by the logged name"),
    "mean_ms share",
    ("reason", "text", "", "why not in the dtype that was asked for; empty where it is"),
)

ROOFLINE = Frame.make(
    "roofline",
    "key name operator category family module shapes",
    ("dtype", "text", "", "in which it computes"),
    "mean_ms share",
    ("flops", "float", "FLOP/call", "floating-point operations, or as many of integers"),
    ("bytes_per_run", "float", "B/run", "size of inputs, constants and outputs, over all calls"),
    ("intensity", "float", "1/B", "operations per byte"),
    ("gflops", "float", "GFLOP/s", "operations per time"),
    ("gbps", "float", "GB/s", "bytes per time"),
    ("roof_gflops", "float", "GFLOP/s", "the most that the machine reaches in this dtype"),
    ("roof_gbps", "float", "GB/s", "the most that the machine reaches at this footprint"),
    ("least_ms", "float", "ms/run", "time at the roof"),
    ("roof_share", "float", "share", "least time / mean time; NaN: too short to tell"),
    ("bound", "text", "", "compute | memory | overhead | neither | unknown: the nearest roof"),
)

NEEDED = Frame.make(
    "needed",
    "key name family module mean_ms share",
    ("needed", "float", "", "arithmetic that is no padding of the tile; NaN: tile unknown"),
    ("gflops", "float", "GFLOP/s", "operations per time; NaN: too short to tell"),
    ("roof_share", "float", "share", "least time / mean time; NaN: unknown"),
    ("twins", "float", "", "its rate by the median of its family; NaN: fewer than three"),
    ("reason", "text", "", "compute | memory | twins: why it needs its time; empty: unknown"),
)

QUALITY = Frame.make(
    "quality",
    ("criterion", "text", "", "what makes a measurement better or worse"),
    ("value", "text", "", "what was found, with its unit"),
    ("grade", "text", "", "A (good) to C (poor)"),
    ("limit", "text", "", "largest value for an A"),
    ("source", "text", "", "where the limits come from"),
)

FINDINGS = Frame.make(
    "findings",
    ("rank", "int", "", "1 comes first"),
    ("id", "text", "", "names the finding in each run of the program"),
    ("rule", "text", "", "which rule found it"),
    ("cause", "text", "", "what was seen"),
    ("remedy", "text", "", "name of the remedy, channels_last or a dtype; or empty"),
    ("gain_ms", "float", "ms/run", "what E2E would be shorter by; NaN: only bounds are known"),
    ("low_ms", "float", "ms/run", "lower end of the gain"),
    ("high_ms", "float", "ms/run", "upper end of the gain"),
    ("share", "float", "share", "gain, or its upper bound, as a part of what `of` names"),
    ("of", "text", "", "latency | (activation | peak) memory | time to the first output"),
    (
        "basis",
        "text",
        "",
        "measured | checked | refused | planned | twin | roofline | removal | bound | unknown "
        "| unmeasurable",
    ),
)

# --- two measurements of a run, and several ------------------------------------------------------

COMPARISON = Frame.make(
    "comparison",
    "level",
    ("name", "text", "", "what is compared"),
    "baseline_ms candidate_ms",
    ("speedup", "float", "ratio", "baseline / candidate: above 1, the candidate is faster"),
    "low high",
    ("outcome", "text", "", f"{OUTCOMES} | below the clock | wrong outputs | emulated"),
    ("q", "float", "", "p-value of a difference within the noise, adjusted for all of its level"),
    ("detectable", "float", "share", "least difference (ratio - 1) shown in 4 of 5 repetitions"),
    (
        "floor",
        "float",
        "share",
        "noise: how far equal experiments differ (ratio - 1), from the A/A control; 0 without one",
    ),
    ("restarts", "int", "", "process restarts of the side with fewer"),
    ("margin", "float", "share", "difference (ratio - 1) up to which times count as equal"),
)

SHIFT = Frame.make(
    "shift",
    ("category", "text", "", "operator category"),
    ("baseline_ms", "float", "ms/run", "mean time in the baseline"),
    ("candidate_ms", "float", "ms/run", "mean time in the candidate"),
    ("share_before", "float", "share", "share of E2E in the baseline"),
    ("share_after", "float", "share", "share of E2E in the candidate"),
    ("delta_ms", "float", "ms/run", "candidate - baseline; the deltas sum to the E2E change"),
    ("contribution", "float", "share", "delta / E2E change; NaN where that may be noise"),
    ("rank_before", "int", "", "1 is the largest category of the baseline"),
    ("rank_after", "int", "", "1 is the largest category of the candidate"),
)

PHASES = Frame.make(
    "phases",
    ("phase", "text", "", "name of the inputs"),
    "experiment threads",
    ("tokens", "float", "", "computed at once; NaN: not a language model's step"),
    ("position", "int", "", "tokens in the KV cache before"),
    ("size", "float", "", "of the dimension that is swept; NaN without a sweep"),
    ("latency_ms", "float", "ms", "of one execution, as in the statistics"),
    *Frame.interval("its", "ms", prefix="latency_", suffix="_ms"),
    ("rate", "float", "token/s", "tokens / latency"),
    *Frame.interval("its", "token/s", prefix="rate_"),
    ("category", "text", "", "the one that takes most of the time"),
    ("share", "float", "share", "its share"),
    ("bound", "text", "", "compute | memory | neither: roof of most of the time; empty: unknown"),
    ("bound_share", "float", "share", "share of the time in operators that are bound so"),
)

EVIDENCE = Frame.make(
    "evidence",
    ("key", "text", "", "as in the ledger; empty for samples that two operators may claim"),
    "operator kind",
    ("category", "text", "", "as in the operators frame"),
    "family",
    ("function", "text", "", "what ran: exported name, or library+address"),
    ("library", "text", "", "name of the file that it is in"),
    ("code", "text", "", "widest class of its instructions; unknown without the file"),
    ("samples", "int", "", "samples of the operator in this function"),
    ("share", "float", "share", "of the operator's samples"),
    *Frame.interval("the share's", "share"),
)

KERNEL_EVIDENCE = Frame.make(
    "kernel evidence",
    "key",
    ("operator", "text", "", "name in the baseline, without the ordinal"),
    ("candidate_operator", "text", "", "name in the candidate"),
    ("category", "text", "", "as in the operators frame"),
    ("baseline_kernel", "text", "", "function that most samples of the baseline are in"),
    ("baseline_code", "text", "", "widest class of its instructions"),
    ("baseline_share", "float", "share", "its share of the operator's samples"),
    ("baseline_samples", "int", "", "samples of the operator in the baseline"),
    ("candidate_kernel", "text", "", "function that most samples of the candidate are in"),
    ("candidate_code", "text", "", "widest class of its instructions"),
    ("candidate_share", "float", "share", "its share of the operator's samples"),
    ("candidate_samples", "int", "", "samples of the operator in the candidate"),
    ("change", "text", "", "changed | same | not shown, if there are too few samples"),
)

# --- memory and starts ---------------------------------------------------------------------------

RESOURCES = Frame.make(
    "resources",
    "experiment threads",
    (
        "resource",
        "text",
        "",
        "latency | (cold) first output | CPU time of a start | peak memory | "
        "anonymous memory | PSS | size",
    ),
    ("unit", "text", "", "ms or MB"),
    ("value", "float", "", "mean over restarts; the size is that of the program's file"),
    *Frame.interval("its"),
)

RESOURCE_CHANGES = Frame.make(
    "resource changes",
    ("resource", "text", "", "as in `RESOURCES`"),
    "unit",
    ("baseline", "float", "", "of the baseline"),
    ("candidate", "float", "", "of the candidate"),
    ("ratio", "float", "ratio", "candidate / baseline: below 1, it needs less"),
    *Frame.interval("its", "ratio"),
    ("outcome", "text", "", "less | more | unchanged | inconclusive | wrong outputs"),
)

# --- several runs --------------------------------------------------------------------------------

ALIGNED = Frame.make(
    "aligned",
    "level",
    ("name", "text", "", "what is compared, as the first run calls it"),
    ("run", "text", "", "which run"),
    ("known_as", "text", "", "what this run calls it; none where it has nothing of it"),
    ("time_ms", "float", "ms", "mean time in this run; E2E: the latency"),
    ("speedup", "float", "ratio", "time of the first run / time of this one"),
    "low high",
    ("outcome", "text", "", f"{OUTCOMES}; first for the first run"),
)

LAYER_CODE = Frame.make(
    "layer code",
    *ALIGNED.columns,
    ("operators", "text", "", "what it ran there, as logged, the slowest first"),
    ("kernels", "text", "", "functions that samples found at work there; may be empty"),
)

GATE_ROWS = Frame.make(
    "gate rows",
    ("subject", "text", "", "what was compared, and with what"),
    "level baseline_ms candidate_ms",
    ("speedup", "float", "ratio", "baseline / candidate"),
    "low high outcome",
    ("gate", "text", "", "passed | failed | undecided; open where there is no limit"),
)

DEPENDENCE = Frame.make(
    "dependence",
    ("node", "text", "", "operator of the traced graph; or the buffer that is written"),
    ("kind", "text", "", "operator | buffer"),
    ("module", "text", "", "path of its layer in the model; none where it has no own operator"),
    ("source", "text", "", "its line, where it is known"),
    ("inputs", "text", "", "inputs that it depends on, by name; none: on constants alone"),
    ("buffers", "text", "", "buffers that it depends on, of those that are written"),
    ("random", "bool", "", "it depends on random numbers"),
)

RUNS = Frame.make(
    "runs",
    ("run", "text", "", "what the run is called here"),
    ("run_dir", "text", "", "its folder"),
    "model program device build experiment threads emulated latency_ms",
    *Frame.interval("its", "ms", suffix="_ms"),
    "first_output_ms peak_mb anonymous_mb size_mb",
    ("grade", "text", "", "quality of the measurement, A to C"),
    ("verdict", "text", "", "what the run itself says, against its own baseline"),
)

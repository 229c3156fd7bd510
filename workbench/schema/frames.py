"""The frames that the stages hand to one another: columns, types, units, meaning."""

from __future__ import annotations

from workbench.schema.columns import Column, Frame
from workbench.schema.columns import make_frame as _frame
from workbench.schema.insight import INSIGHT

#: Which measurement a row belongs to; joined to the frames of one trace when a run is read.
SOURCE = (
    ("experiment", "text", "", "name of the experiment"),
    ("threads", "int", "", "CPU threads of the runner"),
    ("process", "int", "", "which process restart, from 0"),
)

EVENTS = _frame(
    "events",
    ("block", "int", "", "index of the ETDump run_data block"),
    ("block_name", "text", "", "its name: Default while loading, Execute, or the user's"),
    ("run", "int", "", "index of the Method::execute it belongs to, -1 outside any"),
    ("event", "int", "", "position in the file, over all blocks"),
    ("parent", "int", "", "event of the enclosing span, -1 at the top"),
    (
        "kind",
        "text",
        "",
        "method | delegate_call | operator_call | kernel | delegate_operator | other",
    ),
    ("name", "text", "", "as logged: event name, or the delegate's operator name"),
    ("chain", "int", "", "chain index, -1 if none"),
    ("instruction", "int", "", "instruction id, -1 if none"),
    ("delegate_id", "int", "", "the delegate's integer debug id, -1 if none"),
    ("start_ns", "int", "ns", "start on the device's clock; laid end to end inside a delegate"),
    ("duration_ns", "int", "ns", "end - start"),
)

ALLOCATIONS = _frame(
    "allocations",
    ("block", "int", "", "index of the ETDump run_data block"),
    ("event", "int", "", "position in the file, over all blocks"),
    ("allocator", "text", "", "name of the allocator, empty if none was given"),
    ("allocator_id", "int", "", "its number, as the runtime counts them: from 1"),
    ("size", "int", "B", "bytes taken"),
)

VALUES = _frame(
    "values",
    ("block", "int", "", "index of the ETDump run_data block"),
    ("event", "int", "", "position in the file, over all blocks"),
    ("element", "int", "", "position in a list of tensors, -1 if it is none"),
    ("chain", "int", "", "chain index, -1 if none"),
    ("instruction", "int", "", "instruction id, -1 if none"),
    ("delegate_id", "int", "", "the delegate's integer debug id, -1 if none"),
    ("name", "text", "", "the delegate's name for it, or the runtime's; empty if none"),
    ("output", "bool", "", "is an output of the method"),
    ("type", "text", "", "tensor | int | float | bool | none"),
    ("dtype", "text", "", "of a tensor, as PyTorch calls it"),
    ("shape", "object", "", "of a tensor: a tuple"),
    ("strides", "object", "elements", "of a tensor: a tuple"),
    ("offset", "int", "B", "where in the debug buffer a tensor's elements are, -1 if it has none"),
    ("value", "object", "", "a number; an array if the debug buffer was given, else None"),
)

LEDGER = _frame(
    "ledger",
    ("run", "int", "", "index of the Method::execute"),
    ("row", "int", "", "position within the run"),
    ("kind", "text", "", "delegated | portable | delegate_overhead | call_overhead | framework"),
    ("name", "text", "", "as logged"),
    ("operator", "text", "", "name without the per-delegate ordinal"),
    ("key", "text", "", "what pairs this row with its like in another trace of the same program"),
    ("instruction", "int", "", "instruction id, -1 for framework"),
    ("duration_ns", "int", "ns", "time that belongs to this row alone; rows of a run sum to E2E"),
)

SPANS = Frame(
    "spans",
    (
        *EVENTS.columns,
        Column("ledger_kind", "text", "", "kind of its ledger row; none outside any whole run"),
        Column("operator", "text", "", "name without the per-delegate ordinal"),
        Column("key", "text", "", "as in the ledger"),
        Column("own_ns", "int", "ns", "time that belongs to it alone; sums to E2E over a run"),
        Column("category", "text", "", "of its own time, as in the operators frame"),
        Column("family", "text", "", "finer than the category"),
        Column("rule", "text", "", "the rule that placed it"),
    ),
)

LATENCIES = _frame(
    "latencies",
    *SOURCE,
    ("traced", "bool", "", "measured with ETDump on"),
    ("round", "int", "", "interleaving round within the process"),
    ("batch", "int", "", "batch within the round, in the order of measurement"),
    ("wall_ns", "int", "ns", "wall time of one Method::execute"),
    ("cpu_ns", "int", "ns", "CPU time of the process during it"),
    ("preempted", "int", "", "involuntary context switches during it"),
)

STATISTICS = _frame(
    "statistics",
    ("n", "int", "", "number of values"),
    ("mean", "float", "ms", "arithmetic mean"),
    ("median", "float", "ms", "50th percentile"),
    ("trimmed_mean", "float", "ms", "mean without the lowest and highest tenth"),
    ("std", "float", "ms", "standard deviation (n - 1)"),
    ("cv", "float", "", "std / mean"),
    ("min", "float", "ms", "smallest value"),
    ("p50", "float", "ms", "50th percentile"),
    ("p90", "float", "ms", "90th percentile"),
    ("p95", "float", "ms", "95th percentile"),
    ("p99", "float", "ms", "99th percentile"),
    ("max", "float", "ms", "largest value"),
    ("outliers", "int", "", "values beyond 1.5 interquartile ranges from the quartiles"),
    ("low", "float", "ms", "lower end of the 95 % interval of the median"),
    ("high", "float", "ms", "upper end of the 95 % interval of the median"),
)

OPERATORS = _frame(
    "operators",
    ("key", "text", "", "as in the ledger"),
    ("name", "text", "", "as logged"),
    ("operator", "text", "", "name without the ordinal"),
    ("kind", "text", "", "as in the ledger"),
    ("category", "text", "", "Convolution | GEMM | Data Movement | Elementwise | Other"),
    ("family", "text", "", "finer than the category"),
    ("rule", "text", "", "the rule that placed it"),
    ("calls", "float", "1/run", "occurrences per Method::execute"),
    ("mean_ms", "float", "ms/run", "mean time per Method::execute"),
    ("std_ms", "float", "ms/run", "standard deviation over the runs"),
    ("share", "float", "", "mean time / mean E2E"),
)

ATTRIBUTION = _frame(
    "attribution",
    ("key", "text", "", "as in the ledger"),
    ("module", "text", "", "path of its layer in the model, empty for the model itself"),
    ("module_class", "text", "", "class of the layer"),
    ("source", "text", "", "the user's line, file:line"),
    ("also", "text", "", "other layers that it does work of, by path"),
    ("nodes", "text", "", "nodes of the exporter's graph that it stands for, the main one first"),
    ("xnodes", "text", "", "operators of the sidecar's delegate that it does, by number"),
    ("role", "text", "", "compute | layout | quantize | dequantize | cast | overhead"),
    ("shapes", "text", "", "of its inputs and outputs, without constants; images as NHWC"),
    ("flops", "float", "1/call", "floating-point operations; NaN where nobody knows"),
    ("bytes", "float", "1/call", "size of its inputs, constants and outputs"),
    ("confidence", "text", "", "exact | fitted | ambiguous | unattributed"),
)

TREE = _frame(
    "tree",
    ("path", "text", "", "module in the model, empty for the model itself; none: no layer"),
    ("parent", "text", "", "the module around it; none at the top"),
    ("depth", "int", "", "modules around it"),
    ("class", "text", "", "class of the module, empty if unknown"),
    ("exclusive_ns", "float", "ns/run", "mean time of it alone; sums to the mean E2E time"),
    ("inclusive_ns", "float", "ns/run", "mean time of it and all modules in it"),
    ("low_ns", "float", "ns/run", "95 % interval of the inclusive time, lower end"),
    ("high_ns", "float", "ns/run", "95 % interval of the inclusive time, upper end"),
    ("share", "float", "", "inclusive time / mean E2E"),
    ("operators", "int", "", "distinct operators in it and all modules in it"),
    ("flops", "float", "1/run", "floating-point operations of those that are known"),
)

LAYERS = _frame(
    "layers",
    ("module", "text", "", "path in the model, empty for the model itself; none: no layer"),
    ("module_class", "text", "", "class of the layer"),
    ("depth", "int", "", "modules around it"),
    ("own_ms", "float", "ms/run", "mean time of the layer itself; sums to the mean E2E time"),
    ("total_ms", "float", "ms/run", "mean time of it and all layers in it"),
    ("low_ms", "float", "ms/run", "95 % interval of the total time, lower end"),
    ("high_ms", "float", "ms/run", "95 % interval of the total time, upper end"),
    ("share", "float", "", "total time / mean E2E"),
    ("operators", "int", "", "distinct operators in it and all layers in it"),
    ("flops", "float", "1/run", "floating-point operations of those that are known"),
)

CATEGORIES = _frame(
    "categories",
    ("category", "text", "", "Convolution | GEMM | Data Movement | Elementwise | Other"),
    ("mean_ms", "float", "ms/run", "mean time per Method::execute"),
    ("share", "float", "", "mean time / mean E2E"),
    ("operators", "int", "", "distinct operators in it"),
)

COMPARISON = _frame(
    "comparison",
    ("level", "text", "", "e2e | category | operator | layer"),
    ("name", "text", "", "what is compared"),
    ("baseline_ms", "float", "ms", "time of the baseline"),
    ("candidate_ms", "float", "ms", "time of the candidate"),
    ("speedup", "float", "", "baseline / candidate: above 1, the candidate is faster"),
    ("low", "float", "", "lower end of the speed-up's 95 % interval"),
    ("high", "float", "", "upper end of the speed-up's 95 % interval"),
    ("outcome", "text", "", "faster | slower | equivalent | inconclusive | emulated"),
    ("q", "float", "", "p-value of no difference, adjusted for all rows of its level"),
    ("detectable", "float", "", "least difference (ratio - 1) shown in 4 of 5 repetitions"),
    ("floor", "float", "", "noise floor (ratio - 1), from the A/A control; 0 without one"),
    ("margin", "float", "", "difference (ratio - 1) up to which times count as equal"),
)

LADDER = _frame(
    "ladder",
    ("level", "text", "", "ISA level, the lowest first"),
    ("reveals", "text", "", "CPU features that the level below hides"),
    ("threads", "int", "", "CPU threads of the runner"),
    ("latency_ms", "float", "ms", "median latency of one inference"),
    ("latency_low_ms", "float", "ms", "lower end of its 95 % interval"),
    ("latency_high_ms", "float", "ms", "upper end of its 95 % interval"),
    ("speedup", "float", "", "latency of the level below / this one's; NaN for the lowest"),
    ("low", "float", "", "lower end of the speed-up's 95 % interval"),
    ("high", "float", "", "upper end of the speed-up's 95 % interval"),
    ("outcome", "text", "", "faster | slower | equivalent | inconclusive; none for the lowest"),
    ("total", "float", "", "latency of the lowest level / this one's"),
    ("total_low", "float", "", "lower end of its 95 % interval"),
    ("total_high", "float", "", "upper end of its 95 % interval"),
    ("floor", "float", "", "noise floor of the speed-up, as a ratio - 1"),
)

SCALING = _frame(
    "scaling",
    ("experiment", "text", "", "name of the experiment"),
    ("threads", "int", "", "CPU threads of the runner"),
    ("latency_ms", "float", "ms", "median wall time of one inference"),
    ("latency_low_ms", "float", "ms", "lower end of its 95 % interval"),
    ("latency_high_ms", "float", "ms", "upper end of its 95 % interval"),
    ("speedup", "float", "", "latency with the fewest threads / this one's"),
    ("low", "float", "", "lower end of the speed-up's 95 % interval"),
    ("high", "float", "", "upper end of the speed-up's 95 % interval"),
    ("outcome", "text", "", "faster | slower | equivalent | inconclusive; none for the fewest"),
    ("efficiency", "float", "", "speed-up / how many times as many threads"),
)

QUALITY = _frame(
    "quality",
    ("criterion", "text", "", "what makes a measurement better or worse"),
    ("value", "text", "", "what was found, with its unit"),
    ("grade", "text", "", "A (good) to D (tells nothing)"),
    ("limit", "text", "", "largest value for an A"),
    ("source", "text", "", "where the limits come from"),
)

SHIFT = _frame(
    "shift",
    ("category", "text", "", "operator category"),
    ("baseline_ms", "float", "ms/run", "mean time in the baseline"),
    ("candidate_ms", "float", "ms/run", "mean time in the candidate"),
    ("share_before", "float", "", "share of E2E in the baseline"),
    ("share_after", "float", "", "share of E2E in the candidate"),
    ("delta_ms", "float", "ms/run", "candidate - baseline; the deltas sum to the E2E change"),
    ("contribution", "float", "", "delta / E2E change"),
    ("rank_before", "int", "", "1 is the largest category of the baseline"),
    ("rank_after", "int", "", "1 is the largest category of the candidate"),
)

KERNELS = _frame(
    "kernels",
    ("line", "int", "", "first line of the log that names it, from 1"),
    ("operator", "text", "", "what XNNPACK registered it for: gemm, igemm, dwconv, unary, ..."),
    ("kernel", "text", "", "name of the microkernel, as logged"),
    ("type", "text", "", "kind of microkernel in the name: gemm, igemm, dwconv, vadd, ..."),
    ("dtype", "text", "", "data types in the name, as its library spells them: f32, qs8_qc8w"),
    ("variant", "text", "", "what is fused, and how it rounds: minmax, relu, minmax_fp32"),
    ("tile", "text", "", "what it computes at a time, as in the name: 7x16, 4x16c4, 9p8c"),
    ("arch", "text", "", "instruction sets, processor and unrolling: asm_aarch64_neonfma_ld128"),
    ("sme", "bool", "", "needs SME, in whichever version"),
    ("sme2", "bool", "", "needs SME2"),
    ("config", "text", "", "function of XNNPACK that registered it; empty in older logs"),
    ("count", "int", "", "how often it was registered"),
)

KERNEL_CHANGES = _frame(
    "kernel changes",
    ("type", "text", "", "kind of microkernel"),
    ("dtype", "text", "", "data types, without how operands are packed"),
    ("off", "text", "", "microkernels with the extension off, in the order of the log"),
    ("on", "text", "", "microkernels with the extension on, in the order of the log"),
    ("change", "text", "", "same | changed | only on | only off"),
    ("sme", "bool", "", "one of `on` needs SME, in whichever version"),
    ("sme2", "bool", "", "one of `on` needs SME2"),
)

SAMPLES = _frame(
    "samples",
    ("time_ns", "int", "ns", "when, on the clock of the trace"),
    ("thread", "int", "", "the system's id of the thread"),
    ("busy", "bool", "", "the thread computed since its sample before; else it waited"),
    ("library", "text", "", "path of the loaded file; empty for code outside any"),
    ("build_id", "text", "", "its GNU build id, in hexadecimal"),
    ("address", "int", "", "program counter as a virtual address in that file"),
)

FUNCTIONS = _frame(
    "functions",
    ("library", "text", "", "name of the file"),
    ("build_id", "text", "", "its GNU build id, in hexadecimal"),
    ("start", "int", "", "virtual address of the first byte"),
    ("size", "int", "byte", "length"),
    ("name", "text", "", "as exported; else library+address"),
    (
        "code",
        "text",
        "",
        "widest class of its instructions: scalar, sse, ... avx512; neon, ... sme2",
    ),
)

EVIDENCE = _frame(
    "evidence",
    ("key", "text", "", "as in the ledger; empty for samples that two operators may claim"),
    ("operator", "text", "", "name without the ordinal"),
    ("kind", "text", "", "as in the ledger"),
    ("category", "text", "", "as in the operators frame"),
    ("family", "text", "", "finer than the category"),
    ("function", "text", "", "what ran: exported name, or library+address"),
    ("library", "text", "", "name of the file that it is in"),
    ("code", "text", "", "widest class of its instructions; unknown without the file"),
    ("samples", "int", "", "samples of the operator in this function"),
    ("share", "float", "", "of the operator's samples"),
    ("low", "float", "", "lower end of the share's 95 % interval"),
    ("high", "float", "", "upper end of the share's 95 % interval"),
)

CODE_SHARES = _frame(
    "code shares",
    ("part", "text", "", "E2E, or an operator, family or category"),
    ("code", "text", "", "widest class of instructions of the functions"),
    ("samples", "int", "", "samples in such functions"),
    ("share", "float", "", "of the part's samples"),
    ("low", "float", "", "lower end of the share's 95 % interval"),
    ("high", "float", "", "upper end of the share's 95 % interval"),
)

KERNEL_EVIDENCE = _frame(
    "kernel evidence",
    ("key", "text", "", "as in the ledger"),
    ("operator", "text", "", "name in the baseline, without the ordinal"),
    ("candidate_operator", "text", "", "name in the candidate"),
    ("category", "text", "", "as in the operators frame"),
    ("baseline_kernel", "text", "", "function that most samples of the baseline are in"),
    ("baseline_code", "text", "", "widest class of its instructions"),
    ("baseline_share", "float", "", "its share of the operator's samples"),
    ("baseline_samples", "int", "", "samples of the operator in the baseline"),
    ("candidate_kernel", "text", "", "function that most samples of the candidate are in"),
    ("candidate_code", "text", "", "widest class of its instructions"),
    ("candidate_share", "float", "", "its share of the operator's samples"),
    ("candidate_samples", "int", "", "samples of the operator in the candidate"),
    ("change", "text", "", "changed | same | not shown, if there are too few samples"),
)

FRAMES = (
    EVENTS,
    ALLOCATIONS,
    VALUES,
    LEDGER,
    SPANS,
    LATENCIES,
    STATISTICS,
    OPERATORS,
    ATTRIBUTION,
    TREE,
    LAYERS,
    CATEGORIES,
    COMPARISON,
    LADDER,
    SCALING,
    QUALITY,
    SHIFT,
    *INSIGHT,
    KERNELS,
    KERNEL_CHANGES,
    SAMPLES,
    FUNCTIONS,
    EVIDENCE,
    CODE_SHARES,
    KERNEL_EVIDENCE,
)

"""The frames of advice, beside those of ``schema``: the roofline, and findings."""

from workbench.schema.columns import Column, Frame

_FINDINGS = (
    ("rank", "int", "", "1 comes first"),
    ("rule", "text", "", "which rule found it"),
    ("title", "text", "", "what was seen"),
    ("gain_ms", "float", "ms/run", "what E2E would be shorter by; NaN: not known, but for bounds"),
    ("low_ms", "float", "ms/run", "lower end of the gain"),
    ("high_ms", "float", "ms/run", "upper end of the gain"),
    ("share", "float", "", "gain, or its upper bound, as a part of E2E"),
    ("basis", "text", "", "measured | estimated | bound | unknown: the run was emulated"),
    ("action", "text", "", "what to do"),
    ("hint", "text", "", "the same as code"),
    ("keys", "text", "", "rows of the operators frame that show it, one per line"),
    ("notebook", "text", "", "where to look at them"),
    ("heading", "text", "", "under which heading"),
)

FINDINGS = Frame("findings", tuple(Column(*column) for column in _FINDINGS))

_ROOFLINE = (
    ("key", "text", "", "as in the ledger"),
    ("name", "text", "", "as logged"),
    ("operator", "text", "", "name without the ordinal"),
    ("category", "text", "", "Convolution | GEMM | Data Movement | Elementwise | Other"),
    ("family", "text", "", "finer than the category"),
    ("module", "text", "", "path of its layer in the model"),
    ("shapes", "text", "", "of its inputs and outputs"),
    ("dtype", "text", "", "in which it computes"),
    ("mean_ms", "float", "ms/run", "mean time per Method::execute"),
    ("share", "float", "", "mean time / mean E2E"),
    ("flops", "float", "1/call", "floating-point operations, or as many of integers"),
    ("bytes_per_run", "float", "B/run", "size of inputs, constants and outputs, over all calls"),
    ("intensity", "float", "1/B", "operations per byte"),
    ("gflops", "float", "GFLOP/s", "operations per time"),
    ("gbps", "float", "GB/s", "bytes per time"),
    ("roof_gflops", "float", "GFLOP/s", "the most that the machine reaches in this dtype"),
    ("roof_gbps", "float", "GB/s", "the most that it reaches at this footprint"),
    ("least_ms", "float", "ms/run", "time at the roof"),
    ("roof_share", "float", "", "least time / mean time; NaN: too short to tell"),
    ("bound", "text", "", "compute | memory | overhead | unknown: what keeps it from being faster"),
)

ROOFLINE = Frame("roofline", tuple(Column(*column) for column in _ROOFLINE))

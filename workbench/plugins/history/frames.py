"""The frames of a history."""

from workbench.api import Frame

#: What a measurement needs besides time, as columns.
RESOURCES = ("first_output_ms", "peak_mb", "anonymous_mb", "size_mb")
HISTORY = Frame.make(
    "history",
    ("line", "text", "", "comparable over time: same model, inputs, device, experiment, threads"),
    ("run_dir", "text", "", "folder of the run"),
    ("run", "text", "", "its label, or what it ran"),
    ("started", "text", "", "when it began, UTC"),
    "model program device build experiment threads emulated",
    ("clock", "text", "", "cpu_ns | wall_ns"),
    ("problem", "text", "", "what is wrong with the program's outputs; such runs are no change"),
    ("restarts", "int", "", "process restarts"),
    "latency_ms",
    *Frame.interval("its", "ms", suffix="_ms"),
    " ".join(RESOURCES),
)

CHANGES = Frame.make(
    "changes",
    ("line", "text", "", "as in the history"),
    ("resource", "text", "", "latency | first output | peak memory | anonymous memory"),
    ("unit", "text", "", "ms or MB"),
    ("run_dir", "text", "", "the first run that has it"),
    ("run", "text", "", "its label, or what it ran"),
    ("started", "text", "", "when that began, UTC"),
    ("runs", "int", "", "runs that have it, until the next change"),
    ("baseline", "float", "", "typical value of the runs since the change before"),
    ("candidate", "float", "", "typical value of the runs that have it"),
    ("ratio", "float", "ratio", "candidate / baseline: above 1, it needs more"),
    *Frame.interval("its", "ratio"),
    ("outcome", "text", "", "faster | slower; of memory, less | more"),
)

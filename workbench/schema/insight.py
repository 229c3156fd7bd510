"""The frames of insight, which ``schema`` hands on: runs side by side, what-if, bottlenecks."""

from workbench.schema.columns import Column, Frame, make_frame

ALIGNED = make_frame(
    "aligned",
    ("level", "text", "", "e2e | category | operator | layer"),
    ("name", "text", "", "what is compared, as the first run calls it"),
    ("run", "text", "", "which run"),
    ("known_as", "text", "", "what this run calls it; none where it has nothing of it"),
    ("time_ms", "float", "ms", "typical time in this run"),
    ("speedup", "float", "", "time of the first run / time of this one"),
    ("low", "float", "", "lower end of the speed-up's 95 % interval"),
    ("high", "float", "", "upper end of the speed-up's 95 % interval"),
    ("outcome", "text", "", "faster | slower | equivalent | inconclusive; first for the first run"),
)

JUDGED = make_frame(
    "judged",
    ("subject", "text", "", "what was compared, and with what"),
    ("level", "text", "", "e2e | category | operator | layer"),
    ("baseline_ms", "float", "ms", "time of the baseline"),
    ("candidate_ms", "float", "ms", "time of the candidate"),
    ("speedup", "float", "", "baseline / candidate"),
    ("low", "float", "", "lower end of the speed-up's 95 % interval"),
    ("high", "float", "", "upper end of the speed-up's 95 % interval"),
    ("outcome", "text", "", "faster | slower | equivalent | inconclusive"),
    ("gate", "text", "", "passed | failed | undecided; open where there is no limit"),
)

WHAT_IF = make_frame(
    "what if",
    ("level", "text", "", "e2e, or what a part is: category | family | operator | key | layer"),
    ("name", "text", "", "which part"),
    ("measured_ms", "float", "ms/run", "mean time as measured"),
    ("predicted_ms", "float", "ms/run", "mean time if the parts were faster; sums to E2E"),
    ("low_ms", "float", "ms/run", "lower end of the prediction's 95 % interval"),
    ("high_ms", "float", "ms/run", "upper end of the prediction's 95 % interval"),
    ("speedup", "float", "", "of a part: assumed; of E2E: what follows"),
    ("low", "float", "", "lower end of the speed-up's 95 % interval"),
    ("high", "float", "", "upper end of the speed-up's 95 % interval"),
)

BOTTLENECKS = make_frame(
    "bottlenecks",
    ("level", "text", "", "what a part is: category | family | operator | key | layer"),
    ("name", "text", "", "which part"),
    ("mean_ms", "float", "ms/run", "mean time of the part"),
    ("share", "float", "", "mean time / mean E2E"),
    ("free_ms", "float", "ms/run", "E2E if the part took no time: the ceiling of any gain there"),
    ("free_speedup", "float", "", "speed-up of E2E then"),
    ("free_low", "float", "", "lower end of its 95 % interval"),
    ("free_high", "float", "", "upper end of its 95 % interval"),
    ("factor", "float", "", "a speed-up of the part"),
    ("faster_ms", "float", "ms/run", "E2E if the part were so much faster"),
    ("speedup", "float", "", "speed-up of E2E then"),
    ("low", "float", "", "lower end of its 95 % interval"),
    ("high", "float", "", "upper end of its 95 % interval"),
)

LINED_UP = Frame(
    "lined up",
    (
        *ALIGNED.columns,
        Column("operators", "text", "", "what it ran there, as logged, the slowest first"),
        Column("kernels", "text", "", "functions that samples found at work there; may be empty"),
    ),
)

COMBINED = make_frame(
    "combined",
    ("run", "text", "", "what the run is called here"),
    ("run_dir", "text", "", "its folder"),
    ("model", "text", "", "name of the model"),
    ("program", "text", "", "name of the program, and the start of its SHA-256"),
    ("device", "text", "", "platform and CPU; says whether it was emulated"),
    ("build", "text", "", "ExecuTorch and runner"),
    ("experiment", "text", "", "name of the experiment"),
    ("threads", "int", "", "CPU threads of the runner"),
    ("emulated", "bool", "", "its times say nothing and are left out"),
    ("latency_ms", "float", "ms", "median of untraced E2E"),
    ("low_ms", "float", "ms", "lower end of its 95 % interval"),
    ("high_ms", "float", "ms", "upper end of its 95 % interval"),
    ("grade", "text", "", "quality of the measurement, A to D"),
    ("verdict", "text", "", "what the run itself says, against its own baseline"),
)

HISTORY = make_frame(
    "history",
    (
        "line",
        "text",
        "",
        "what can be compared over time: program, inputs, device, experiment, threads",
    ),
    ("run_dir", "text", "", "folder of the run"),
    ("started", "text", "", "when it began, UTC"),
    ("model", "text", "", "name of the model"),
    ("program", "text", "", "name of the program, and the start of its SHA-256"),
    ("device", "text", "", "platform and CPU; says whether it was emulated"),
    ("build", "text", "", "ExecuTorch and runner"),
    ("experiment", "text", "", "name of the experiment"),
    ("threads", "int", "", "CPU threads of the runner"),
    ("emulated", "bool", "", "its times say nothing and are left out"),
    ("clock", "text", "", "cpu_ns | wall_ns"),
    ("restarts", "int", "", "process restarts"),
    (
        "latency_ms",
        "float",
        "ms",
        "untraced E2E: geometric mean over the restarts of their midmeans",
    ),
    ("low_ms", "float", "ms", "lower end of its 95 % interval, over the restarts of this run"),
    ("high_ms", "float", "ms", "upper end of its 95 % interval"),
)

CHANGES = make_frame(
    "changes",
    ("line", "text", "", "as in the history"),
    ("run_dir", "text", "", "the first run that has it"),
    ("started", "text", "", "when that began, UTC"),
    ("status", "text", "", "confirmed: two runs have it; suspected: only the latest one"),
    ("runs", "int", "", "runs that have it, until the next change"),
    ("baseline_ms", "float", "ms", "typical time of the runs since the change before"),
    ("candidate_ms", "float", "ms", "typical time of the runs that have it"),
    ("speedup", "float", "", "baseline / candidate: below 1, it became slower"),
    ("low", "float", "", "lower end of the speed-up's 95 % interval"),
    ("high", "float", "", "upper end of the speed-up's 95 % interval"),
    ("outcome", "text", "", "faster | slower"),
)

INSIGHT = (ALIGNED, JUDGED, HISTORY, CHANGES, LINED_UP, COMBINED, WHAT_IF, BOTTLENECKS)

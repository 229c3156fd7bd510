"""The frame of the variants."""

from workbench.api import interval, make_frame

VARIANTS = make_frame(
    "variants",
    ("name", "text", "", "name of the variant"),
    ("change", "text", "", "what it changes, relative to its parent"),
    ("parent", "text", "", "the variant that it was made of; empty for the baseline"),
    ("state", "text", "", "planned | exported | measured | failed"),
    ("latency_ms", "float", "ms", "latency in its last round, at its fastest thread count"),
    *interval("the latency's", "ms", suffix="_ms"),
    "threads",
    ("speedup", "float", "ratio", "latency of the baseline / its own, interleaved"),
    *interval("the speed-up's", "ratio", prefix="speedup_"),
    ("sqnr_db", "float", "dB", "signal to noise ratio of the worst output; none: no noise"),
    ("score", "float", "", "by the user's metric"),
    ("size_mb", "float", "MB", "size of the program"),
    ("planned_mb", "float", "MB", "memory planned for tensors outside of delegates"),
    "peak_mb",
    ("load_ms", "float", "ms", "median time to load the program"),
    ("start_ms", "float", "ms", "to the first output, mean; with one thread, its CPU time"),
    ("predicted_ms", "float", "ms", "gain over its parent, as predicted; none: only bounds"),
    ("predicted_low_ms", "float", "ms", "lower end of the predicted gain"),
    ("predicted_high_ms", "float", "ms", "upper end of the predicted gain"),
    ("basis", "text", "", "basis of the prediction: ledger, sum, or as of findings"),
    ("gain_ms", "float", "ms", "gain over its parent, as measured"),
    *interval("the measured gain's", "ms", prefix="gain_", suffix="_ms"),
    ("extension_share", "float", "", "part of the arithmetic in operators that ran the extension"),
    ("note", "text", "", "recommended or best dtype; why it failed or may not be chosen"),
)

"""The frame of the variants."""

from workbench.api import Frame

VARIANTS = Frame.make(
    "variants",
    ("name", "text", "", "name of the variant"),
    ("change", "text", "", "what it changes, relative to its parent"),
    ("parent", "text", "", "the variant that it was made of; empty for the baseline"),
    ("state", "text", "", "planned | exported | measured | failed"),
    ("latency_ms", "float", "ms", "latency in its last round, at its fastest thread count"),
    *Frame.interval("the latency's", "ms", suffix="_ms"),
    "threads",
    ("speedup", "float", "ratio", "latency of the baseline / its own, interleaved"),
    *Frame.interval("the speed-up's", "ratio", prefix="speedup_"),
    ("sqnr_db", "float", "dB", "signal to noise ratio of the worst output; none: no noise"),
    ("score", "float", "", "by the user's metric"),
    ("size_mb", "float", "MB", "size of the program"),
    ("note", "text", "", "recommended or best dtype; why it failed or may not be chosen"),
)

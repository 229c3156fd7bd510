"""The frames of sweeps."""

from workbench.api import Frame

LADDER = Frame.make(
    "ladder",
    ("level", "text", "", "ISA level, the lowest first"),
    ("adds", "text", "", "CPU features that this level adds to the one below"),
    "threads",
    ("latency_ms", "float", "ms", "latency of one inference, as in the statistics"),
    *Frame.interval("its", "ms", prefix="latency_", suffix="_ms"),
    ("speedup", "float", "ratio", "latency of the level below / this one's; NaN for the lowest"),
    "low high",
    ("outcome", "text", "", "as elsewhere; none for the lowest"),
    ("total", "float", "ratio", "latency of the lowest level / this one's"),
    *Frame.interval("its", "ratio", prefix="total_"),
    (
        "floor",
        "float",
        "share",
        "noise of the speed-up: how far equal experiments differ, as a ratio - 1",
    ),
)

SCALING = Frame.make(
    "scaling",
    "experiment threads",
    ("latency_ms", "float", "ms", "wall time of one inference, as in the statistics"),
    *Frame.interval("its", "ms", prefix="latency_", suffix="_ms"),
    ("speedup", "float", "ratio", "latency with the fewest threads / this one's"),
    "low high",
    ("outcome", "text", "", "as elsewhere; none for the fewest"),
    ("efficiency", "float", "share", "speed-up / how many times as many threads"),
)

"""The frame of a projection."""

from workbench.frames import make_frame

PROJECTION = make_frame(
    "projection",
    "key name",
    ("kind", "text", "", "operator and the dtype it computes in"),
    "module",
    ("measured_ms", "float", "ms/run", "mean time in the run; of E2E: the latency"),
    ("projected_ms", "float", "ms/run", "projected, not measured; NaN: no basis in the atlas"),
    ("projected_low_ms", "float", "ms/run", "lower end of the projection's 90 % interval"),
    ("projected_high_ms", "float", "ms/run", "upper end of the projection's 90 % interval"),
    ("basis", "text", "", "what it follows from"),
)

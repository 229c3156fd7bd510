"""How to export and how to measure: the command line, matrices and configs are made from these."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def _option(default: Any, text: str, /, **cli: Any) -> Any:
    """A field with the help of its command-line option; ``cli`` overrides the option's settings."""
    return field(default=default, metadata={"help": text, "cli": cli})


@dataclass(frozen=True)
class ExportOptions:
    """How to export a model.

    ``sizes`` are (dimension, size) pairs; ``mean`` and ``std`` are per image channel, for values
    from 0 to 1.

    Examples
    --------
    >>> wb.ExportOptions(dtype="int8", keep_float=("head",)).backend
    'xnnpack'
    """

    dtype: str = _option("fp32", "fp32, fp16, fp16w, bf16, int8, int8dyn or 8da4w.")
    backend: str = _option("xnnpack", "xnnpack or portable.")
    state_dict: str = _option("", "Weights: a file of torch.save(state_dict).", metavar="FILE")
    inputs: tuple[str, ...] = _option(
        (),
        "Inputs: .npy, .pt, .safetensors, an image or a folder of images, random:SEED; one for "
        "each input. Several samples calibrate int8; the first one is run.",
        metavar="SOURCE",
    )
    sizes: tuple[tuple[str, int], ...] = _option(
        (), "Size to use for a dynamic dimension, such as batch=4.", name="size"
    )
    mean: tuple[float, ...] = _option((), "Mean of image channels, from 0 to 1.")
    std: tuple[float, ...] = _option((), "Standard deviation of image channels.")
    keep_float: tuple[str, ...] = _option(
        (), "Do not quantise modules whose path matches.", metavar="PATTERN"
    )
    rewrite: bool = _option(True, "Rewrite operators that XNNPACK does not support.")
    fresh: bool = _option(False, "Export again even if nothing has changed.")


@dataclass(frozen=True)
class MeasureOptions:
    """What to measure, and how long.

    With ``budget_s`` (seconds), restarts continue until half the width of every speed-up's interval
    is below ``precision`` (relative) or the time is spent; otherwise ``runs`` decides.

    Examples
    --------
    >>> wb.MeasureOptions(toggle="avx512", threads=(1, 2)).runs
    50
    """

    toggle: str = _option(
        "auto", "CPU extension to switch off and on; auto: the strongest; none: an A/A run."
    )
    isa_ladder: bool = _option(False, "Measure every ISA level of this CPU instead.")
    against: tuple[str, ...] = _option(
        (),
        "A further program to measure interleaved with the first one, which is the baseline; "
        "--toggle is then off unless it is given.",
        metavar="PTE",
    )
    phases: tuple[str, ...] = _option(
        (),
        "Inputs to measure with, by name. Of a language model: tokens at once, and the position "
        "of the first one, as in prefill=128 and decode=1@128. Else .npy files, separated by "
        "commas; those of earlier phases are executed first.",
        name="phase",
        metavar="NAME=INPUTS",
    )
    threads: tuple[int, ...] = _option((1,), "CPU threads, separated by commas.")
    runs: int = _option(50, "Minimum timed inferences per experiment.")
    budget_s: float = _option(
        0.0, "Time to measure for, such as 30s, instead of --runs.", name="budget", type="duration"
    )
    precision: float = _option(
        0.01,
        "With --budget: stop when half the interval's width is below this.",
        type="percent",
        default="1%",
    )
    warmup: int = _option(3, "Inferences before timing.")
    processes: int = _option(5, "Restarts of every runner process.")
    evidence: bool = _option(True, "Also sample which machine code runs.")
    roof: bool = _option(
        True, "Compare operators with the machine's peaks, which `profile` measures once."
    )
    runner: str = _option("wheel", "wheel or native.")
    ops: tuple[str, ...] = _option(
        (), "A shared library that registers operators which the program needs.", metavar="FILE"
    )
    target: str = _option("host", "Where to run: host, qemu[:CPU], android[:SERIAL] or ssh:HOST.")
    power: str = _option("", "Set an Android power mode for the run: boost or developer.")
    timeout_s: float = _option(120.0, "Seconds for one answer of a runner.", name="timeout")

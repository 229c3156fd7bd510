"""How to export and how to measure: the command line, matrices and configs are made from these."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from workbench import plugin
from workbench.remedies import REMEDIES, Asked

#: Called with what is being done and the fraction that is done, from 0 to 1.
Progress = Callable[[str, float], None]
#: Pairs of a pattern of module paths and a dtype.
ModuleDtypes: TypeAlias = tuple[tuple[str, str], ...]
#: Weights that share one scale in 8da4w, if nothing else is asked for.
GROUP_SIZE = 32
#: What `--rewrite all` applies: what makes a program faster, or right, and never slower.
COMMON_REWRITES = Asked(lambda: {n: each.text for n, each in REMEDIES.items() if each.common})
#: Those of the quantiser, which cost a little speed for accuracy.
QUANTISER_REWRITES = ("sums", "concatenations", "scalars", "readers", "linears", "copies")
#: Rewrites that compute the same (the approximation says so), and are not always faster.
OPTIONAL_REWRITES = Asked(lambda: {n: each.text for n, each in REMEDIES.items() if not each.common})
REWRITES = Asked(lambda: {**COMMON_REWRITES, **OPTIONAL_REWRITES})
#: In `--rewrite`, all `COMMON_REWRITES`.
ALL = "all"
#: In `--rewrite` of the command line, what lists them.
LIST = "list"


def expand_rewrites(names: Iterable[str]) -> tuple[str, ...]:
    """The names of rewrites with those that ``all`` stands for, each once."""
    expanded: dict[str, None] = {}
    for name in names:
        expanded |= dict.fromkeys(COMMON_REWRITES if name == ALL else [name])
    return tuple(expanded)


#: Titles of runtimes in runs that were recorded, also by a plug-in that is not here.
_TITLES = {"eager": "eager PyTorch", "compile": "torch.compile", "onnx": "ONNX Runtime"}
#: Other runtimes that a program can be measured against, with what they are called.
RUNTIMES = Asked(lambda: {name: name for name in plugin.list_names("sides")} | _TITLES)


def silent(text: str, fraction: float) -> None:
    """Report nothing."""


def option(
    default: Any, text: str | Callable[[], str], /, *, expert: bool = False, **cli: Any
) -> Any:
    """A field with the help of its command-line option; ``cli`` overrides the option's settings.

    A text that names what plug-ins add is made when it is read, as ``help``. What only an
    ``expert`` sets has no option of its own: ``--measure NAME=VALUE``.
    """
    made = text if callable(text) else lambda: text
    return field(default=default, metadata={"help": made, "cli": cli, "expert": expert})


class Options:
    """A record of options; those of a command are among them."""


@dataclass(frozen=True)
class ExportOptions(Options):
    """How to export a model.

    ``sizes`` are (dimension, size) pairs, ``module_dtypes`` pairs of a pattern and a dtype.

    Examples
    --------
    >>> wb.ExportOptions(dtype="int8", module_dtypes=(("head", "fp32"),)).backend
    'xnnpack'
    """

    dtype: str = option("fp32", "fp32, fp16, fp16w, bf16, int8, int8dyn, 8da4w or 8da4c.")
    backend: str = option("xnnpack", "xnnpack or portable.")
    state_dict: str = option(
        "", "Weights: a file of torch.save(state_dict), or .safetensors.", metavar="FILE"
    )
    inputs: tuple[str, ...] = option(
        (),
        "Inputs: .npy, .pt, .safetensors, a folder of these, random:SEED; one for each input. "
        "Several samples calibrate int8; the first one is run.",
        metavar="SOURCE",
    )
    sizes: tuple[tuple[str, int], ...] = option(
        (),
        "Size of a dynamic dimension, such as batch=4; of a model with fixed shapes: batch, or "
        "size of the images.",
        name="size",
    )
    module_dtypes: tuple[tuple[str, str], ...] = option(
        (),
        "Another dtype for modules whose path matches, such as head=fp32: fp32, int8, int8dyn, "
        "8da4w or 8da4c, in a quantised program. The longest path decides.",
        name="module-dtype",
        type="assignment",
        metavar="PATTERN=DTYPE",
    )
    group_size: int = option(
        GROUP_SIZE,
        "int4 weights that share a scale in 8da4w: a multiple of 32.",
        expert=True,
    )
    rewrite: tuple[str, ...] = option(
        (),
        "Change the program that ExecuTorch would export: all, or a remedy that a finding names; "
        "`--rewrite list` lists them.",
        type="several",
        metavar="NAME",
    )
    channels_last: bool = option(
        False, "Take images channels last, as XNNPACK computes.", expert=True
    )
    etrecord: bool = option(
        False,
        "Also write an ETRecord, for ExecuTorch's own tools: twice the size of the weights.",
        expert=True,
    )
    recipe: str = option(
        "", "Options from the recipe of a program; others replace its own.", metavar="FILE"
    )
    fresh: bool = option(False, "Export again even if nothing has changed.", expert=True)

    def dtype_of(self, path: str) -> str:
        """The dtype of a module of the model, by its path."""
        return dtype_of_module(path, self.dtype, self.module_dtypes)


@dataclass(frozen=True)
class MeasureOptions(Options):
    """What to measure, and how long.

    With ``budget_s`` (seconds), restarts continue until the time is spent. Otherwise there are so
    many ``processes``, or with 0, as many as fit into two seconds for each experiment and thread
    count, from 5 to 40.

    Examples
    --------
    >>> wb.MeasureOptions(toggle="avx512", threads=(1, 2)).runs
    5
    """

    toggle: str = option(
        "auto", "CPU extension to switch off and on; auto: the strongest; none: an A/A run."
    )
    isa_ladder: bool = option(False, "Measure every ISA level of this CPU instead.")
    against: tuple[str, ...] = option(
        (),
        lambda: (
            "Measure interleaved with the program: another one, an .onnx file, or the model in "
            f"another runtime ({', '.join(sorted(RUNTIMES))}; by plug-ins). --toggle is then off "
            "unless it is given."
        ),
        type="several",
        metavar="FILE|RUNTIME",
    )
    phases: tuple[str, ...] = option(
        (),
        "Inputs to measure with, by name. Of a language model: tokens at once, and the position "
        "of the first one, as in prefill=128 and decode=1@128. Else .npy files, separated by "
        "commas; those of earlier phases are executed first. Of another method than forward: "
        "image=METHOD, or decode=METHOD:1@128.",
        name="phase",
        metavar="NAME=INPUTS",
    )
    constant: tuple[str, ...] = option(
        (),
        "Inputs that stay between calls, by their names in forward(), such as the states of an "
        "encoder: findings say what depends on these only [default: guessed from the graph].",
        type="several",
        metavar="NAME",
    )
    sweep: str = option(
        "",
        "Sizes of a dynamic dimension to measure at, such as tokens=16,32,64. With --against: that "
        "of each program. `profile` exports a model with fixed shapes once for each batch or size.",
        metavar="NAME=SIZES",
    )
    threads: tuple[int, ...] = option(
        (1,),
        "CPU threads, separated by commas; auto (0): those that ExecuTorch's Android and iOS code "
        "would choose.",
    )
    runs: int = option(
        5, "Minimum timed inferences per experiment; there are more if these take seconds only."
    )
    budget_s: float = option(
        0.0, "Time to measure for, such as 30s, instead of --runs.", name="budget", type="duration"
    )
    warmup: int = option(1, "Inferences before timing; of short ones, some more.", expert=True)
    processes: int = option(
        0,
        "Restarts of every runner process [default: as many as fit into two seconds for each "
        "experiment and thread count, 5 to 40].",
    )
    evidence: bool = option(True, "Also sample which machine code runs.", expert=True)
    roof: bool = option(
        True,
        "Compare operators with the machine's peaks, which `profile` measures once.",
        expert=True,
    )
    cold_start: bool = option(
        True,
        "Also measure memory, and the time from the start of a process to its first output.",
        expert=True,
    )
    ops: tuple[str, ...] = option(
        (), "A shared library that registers operators which the program needs.", expert=True
    )
    data: str = option(
        "",
        "The .ptd file with the weights of a .pte that has them apart [default: the one beside "
        "it].",
        metavar="FILE",
    )
    label: str = option("", "What lists and pages call this run.", metavar="TEXT")
    target: str = option("host", "Where to run: host, qemu[:CPU], android[:SERIAL] or ssh:HOST.")
    power: str = option(
        "", "Set an Android power mode for the run: boost or developer.", expert=True
    )
    timeout_s: float = option(120.0, "Seconds for one answer of a runner.", expert=True)


def dtype_of_module(path: str, default: str, module_dtypes: ModuleDtypes) -> str:
    """The dtype of a module: by the pattern of the innermost module around it, else the default."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        name = ".".join(parts[:end])
        for pattern, dtype in reversed(module_dtypes):
            if fnmatchcase(name, pattern):
                return dtype
    return default

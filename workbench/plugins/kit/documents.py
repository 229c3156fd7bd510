"""The types of a config, which people write."""

from typing import Annotated

from msgspec import Meta

from workbench.api import Document

key, WORDS, COUNTS = Document.key, Document.WORDS, Document.COUNTS

_SIDE_OF_PAIR = Document.open(
    "ConfigSide", experiment=str, threads=key(int, "a thread count of the experiment")
)
_PAIR = Document.open(
    "ConfigPair",
    baseline=_SIDE_OF_PAIR,
    candidate=_SIDE_OF_PAIR,
    label=key(str, "its name"),
)
#: An experiment of a config, and a config; the profiling kit ignores further keys.
CONFIG_EXPERIMENT = Document.open(
    "ConfigExperiment",
    name=Annotated[str, Meta(description="also the name of its folder")],
    runner_path=key(str, "an executor_runner; without it, the workbench's runner"),
    quiet_runner=key(str, "the kit's earlier name of runner_path"),
    mode=key(str, "timing, or xnntrace: a runner whose XNNPACK logs its kernels"),
    isa=key(str, "the ISA level, such as avx2; native by default"),
    isa_off=key(WORDS, "CPU extensions to hide"),
    threads=key(COUNTS, "thread counts; 1 by default"),
    num_threads=key(int, "the same, as the kit has it"),
    runs=key(int, "minimum timed inferences; 5, with a runner_path 100"),
    num_runs=key(int, "the same, as the kit has it"),
    warmup=key(int, "inferences before timing; 1, with a runner_path 10"),
    extra_args=key(WORDS, "arguments of the executor_runner"),
    cpu_affinity=key(COUNTS | str, "CPUs to run on: numbers, or a mask such as 0x3"),
    program=key(str, "another .pte than the config's model"),
    model=key(str, "the same, as the kit has it"),
)
CONFIG = Document.open(
    "Config",
    model=Annotated[str, Meta(description="the .pte")],
    experiments=Annotated[
        Document.list_of(CONFIG_EXPERIMENT), Meta(description="what to measure, interleaved")
    ],
    output_root=key(str, "the output folder, or the run's own; out_MODEL by default"),
    target=key(str, "host, qemu[:CPU], android[:SERIAL] or ssh:HOST"),
    power=key(str, "an Android power mode: boost or developer"),
    inputs=key(tuple[str, ...], "one .npy or raw file for each input"),
    phases=key(tuple[str, ...], "as --phase of `workbench run`"),
    analysis=key(
        Document.open(
            "ConfigAnalysis", compare_pairs=key(Document.list_of(_PAIR), "what to compare")
        ),
        "comparisons; by default each with the extension off",
    ),
)
CONFIG.__doc__ = "The config of `workbench run`: that of Arm's profiling kit, and further keys."
DOCUMENT = Document(CONFIG, ".json", "workbench.plugins.kit.measure:run_config")

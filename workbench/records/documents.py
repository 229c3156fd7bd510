"""The files that people write, or read with scripts: their types, and JSON Schemas of these."""

from dataclasses import fields
from types import GenericAlias
from typing import Annotated, Any, Literal, NotRequired, TypedDict, get_args, get_type_hints

import msgspec
from msgspec import Meta

from workbench.errors import unknown_name
from workbench.frames import STATISTICS, Frame
from workbench.options import ExportOptions, MeasureOptions
from workbench.records.runs import SCHEMA_VERSION

#: Numbers that are not finite, and what is not known, are null.
_TYPES = {"int": int, "float": float | None, "bool": bool, "text": str | None}


def _columns(frame: Frame) -> dict[str, Any]:
    """The types of a row's columns, by name."""
    columns: dict[str, Any] = {}
    for name, kind, unit, meaning in frame.columns:
        text = f"{meaning}{f' [{unit}]' if unit else ''}"
        value: Any = Annotated[_TYPES[kind], Meta(description=text)]  # type: ignore[valid-type]
        # Rows of older files of this schema version lack two.
        columns[name] = NotRequired[value] if name in ("latency", "restarts") else value
    return columns


def _several(kind: Any) -> Any:
    return GenericAlias(tuple, (kind, ...))


def _keys(title: str, /, **keys: Any) -> Any:
    """The type of an object that may have further keys."""
    return TypedDict(title, keys)  # type: ignore[operator]


def _object(title: str, meaning: str, /, **fields: Any) -> Any:
    """The type of an object, which has no further keys."""
    kind: Any = TypedDict(title, fields)  # type: ignore[misc]
    kind.__doc__, kind.__closed__ = meaning, True  # type: ignore[attr-defined]
    return kind


_RESOURCE = _object(
    "MeasuredResource", "What a process needs, in every start that was measured.",
    resource=str, unit=str, values=tuple[Annotated[float, Meta(ge=0)], ...],
)  # fmt: skip
_LATENCY = _keys(
    "measured latency", experiment=str, threads=int,
    clock=Literal["cpu_ns", "wall_ns"], control=bool,
    restarts_ms=Annotated[tuple[Annotated[float, Meta(ge=0)], ...], Meta(min_length=1)],
    tracer_overhead=float | None, load_clock=NotRequired[Literal["wall_ns"]],
    load_ms=tuple[float, ...], startup_ms=tuple[float, ...],
    resources=NotRequired[_several(_RESOURCE)], **_columns(STATISTICS),
)  # fmt: skip
#: ``programs`` has those of experiments that ran another one than the first, ``program``;
#: ``graphs`` what tells the models of experiments, as far as it is known;
#: ``problem`` is what is wrong with the outputs of some program, or empty; ``results`` are for the
#: scripts of Arm's profiling kit.
METRICS = _object(
    "Metrics",
    "``metrics.json``: latencies, starts and memory of a run, to compare later ones with.",
    model=str, program=str, device=str, build=str, emulated=bool, started=str, floor=float | None,
    latencies=_several(_LATENCY), unit=NotRequired[Literal["ms"]], problem=NotRequired[str],
    results=NotRequired[tuple[dict[str, Any], ...]], programs=NotRequired[dict[str, str]],
    graphs=NotRequired[dict[str, str]], schema_version=NotRequired[int],
)  # fmt: skip


def _key(kind: Any, meaning: str) -> Any:
    """A key that a person may write in a config or a matrix."""
    return NotRequired[Annotated[kind, Meta(description=meaning)]]


#: A single value needs no brackets.
_WORDS, _COUNTS = str | tuple[str, ...], int | tuple[int, ...]
_SIDE_OF_PAIR = _keys(
    "ConfigSide", experiment=str, threads=_key(int, "a thread count of the experiment")
)
_PAIR = _keys(
    "ConfigPair", baseline=_SIDE_OF_PAIR, candidate=_SIDE_OF_PAIR, label=_key(str, "its name")
)
#: An experiment of a config, and a config; the profiling kit ignores further keys.
CONFIG_EXPERIMENT = _keys(
    "ConfigExperiment",
    name=Annotated[str, Meta(description="also the name of its folder")],
    runner_path=_key(str, "an executor_runner; without it, the workbench's runner"),
    quiet_runner=_key(str, "the kit's earlier name of runner_path"),
    mode=_key(str, "timing, or xnntrace: a runner whose XNNPACK logs its kernels"),
    isa=_key(str, "the ISA level, such as avx2; native by default"),
    isa_off=_key(_WORDS, "CPU extensions to hide"),
    weights=_key(str, "packed at every start (default), or cached in a file"),
    threads=_key(_COUNTS, "thread counts; 1 by default"),
    num_threads=_key(int, "the same, as the kit has it"),
    runs=_key(int, "minimum timed inferences; 5, with a runner_path 100"),
    num_runs=_key(int, "the same, as the kit has it"),
    warmup=_key(int, "inferences before timing; 1, with a runner_path 10"),
    extra_args=_key(_WORDS, "arguments of the executor_runner"),
    cpu_affinity=_key(_COUNTS | str, "CPUs to run on: numbers, or a mask such as 0x3"),
    program=_key(str, "another .pte than the config's model"),
    model=_key(str, "the same, as the kit has it"),
)
CONFIG = _keys(
    "Config",
    model=Annotated[str, Meta(description="the .pte")],
    experiments=Annotated[
        _several(CONFIG_EXPERIMENT), Meta(description="what to measure, interleaved")
    ],
    output_root=_key(str, "the output folder, or the run's own; out_MODEL by default"),
    target=_key(str, "host, qemu[:CPU], android[:SERIAL] or ssh:HOST"),
    power=_key(str, "an Android power mode: boost or developer"),
    inputs=_key(tuple[str, ...], "one .npy or raw file for each input"),
    phases=_key(tuple[str, ...], "as --phase of `workbench run`"),
    analysis=_key(
        _keys("ConfigAnalysis", compare_pairs=_key(_several(_PAIR), "what to compare")),
        "comparisons; by default each with the extension off",
    ),
)
CONFIG.__doc__ = "The config of `workbench run`: that of Arm's profiling kit, and further keys."

#: Keys of a matrix whose value may be written without brackets if it is a single one.
LISTS = (
    *("models", "dtypes", "targets", "isa", "threads", "rewrite", "against", "weights"),
    *("runtime", "programs"),
)


def _options(record: type, *excluded: str) -> dict[str, Any]:
    hints = get_type_hints(record)
    return {
        field.name: _key(
            hints[field.name] | get_args(hints[field.name])[0]
            if field.name in LISTS
            else hints[field.name],
            field.metadata["help"].removesuffix("."),
        )
        for field in fields(record)
        if field.name not in excluded
    }


#: Keys of a matrix that are options of all its exports, and of all its measurements. Code runs only
#: if the user named it: there is no ``ops``.
EXPORT_KEYS = _options(
    ExportOptions, "dtype", "state_dict", "inputs", "recipe", "fresh", "etrecord"
)
MEASURE_KEYS = _options(MeasureOptions, "toggle", "isa_ladder", "target", "ops")
_MATRIX = _object(
    "Matrix", "The matrix of `workbench batch`, in YAML.",
    models=_key(_WORDS, "models, as of `workbench profile`"),
    programs=_key(_WORDS, "finished programs, such as release/*.pte, beside or instead of models"),
    dtypes=_key(_WORDS, "dtypes to export in; fp32 by default"),
    targets=_key(_WORDS, "host, qemu[:CPU], android[:SERIAL] or ssh:HOST; host by default"),
    isa=_key(_WORDS, "a CPU extension to switch off and on, auto, none, or ladder for every level"),
    exclude=_key(tuple[dict[str, str], ...], "cells to leave out: model, dtype, target or isa"),
    notebook=_key(str, "the notebook of the reports"),
    export_limit_s=_key(float, "seconds after which an export is killed; 3600 by default"),
    **EXPORT_KEYS, **MEASURE_KEYS,
)  # fmt: skip


DOCUMENTS: dict[str, type] = {"config": CONFIG, "matrix": _MATRIX, "metrics": METRICS}


def describe_document(name: str) -> dict[str, Any]:
    """The JSON Schema, draft 2020-12, of one of ``DOCUMENTS``."""
    if name not in DOCUMENTS:
        raise unknown_name("document", name, DOCUMENTS)
    schema = msgspec.json.schema(DOCUMENTS[name])
    for title, record in schema["$defs"].items():
        if "description" in record:  # rows have none, and may have further columns
            record["additionalProperties"] = title == CONFIG.__name__
        if title == "Matrix":
            record["anyOf"] = [{"required": ["models"]}, {"required": ["programs"]}]
        if "schema_version" in record["properties"]:
            record["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:executorch-workbench:{name}:{SCHEMA_VERSION}",
        "title": name.replace("_", " "),
    }
    return head | schema

"""A ``.pte`` and what lies beside it.

Whether an export that lies there is the one that would be made: nothing is imported for it.

An export in a few lines for a person.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from workbench import store
from workbench.errors import UsageError, WorkbenchError, unknown_name
from workbench.export.accuracy import (
    coarse_kernels,
    compare_outputs,
    describe_problem,
    run_eagerly,
    run_program,
    sensitivity,
)
from workbench.export.failure import explain_forward
from workbench.export.lower import BACKENDS, DTYPES, RECIPES, Lowered, Options, lower_model, quiet
from workbench.export.program import Contents, Slot, raw_bytes
from workbench.models.inputs import choose_inputs, sample_files
from workbench.models.loader import SEED, LoadedModel, load_model
from workbench.models.registry import ModelName, parse_name, sources_of
from workbench.models.sources import find_sources, reason
from workbench.records.runs import Export, Fidelity, Tensor, Undelegated

if TYPE_CHECKING:
    import torch


def export_model(
    model: LoadedModel | str,
    *,
    dtype: str = "fp32",
    backend: str = "xnnpack",
    root: str | os.PathLike[str] | None = None,
    state_dict: str | os.PathLike[str] | None = None,
    keep_float: Iterable[str] = (),
    rewrite: bool = True,
    inputs: Iterable[str] = (),
    sizes: Mapping[str, int] | Iterable[tuple[str, int]] = (),
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    fresh: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Path:
    """Export a model to ``<root>/artifacts/<model>_<backend>_<dtype>.pte``; returns that path.

    Beside it lie the ETRecord, the layer sidecar, one ``.input<i>.bin`` per input (the example
    inputs, raw, in the layout the program expects) and the record, which
    `workbench.store.load_export` reads. The record is written last: where there is one, everything
    is there.

    A model that is given by name is not exported again if nothing that its program is made from
    has changed: the sources of the model and of the exporter, the installed versions, weights,
    inputs and options; and every file of the last export is as it was written.

    Parameters
    ----------
    model
        A loaded model, or what `load_model` takes.
    dtype
        A name in `DTYPES`: ``fp32``, ``fp16``, ``fp16w`` (fp16 with all weights in half precision),
        ``bf16``, ``int8`` (static), ``int8dyn``, ``8da4w``.
    backend
        ``xnnpack``, or ``portable`` for ExecuTorch's own kernels only.
    root
        The output folder, ``out_<model>`` by default.
    state_dict
        Weights, as for `load_model`; for a model that is loaded here.
    keep_float
        Patterns of module paths, such as ``head`` or ``blocks.*.attn``, not to quantise.
    rewrite
        Spell operators that XNNPACK has no node for, or whose kernel is wrong, in others, and make
        casts of constants once and for all; the record says what was done.
    inputs, sizes, mean, std
        Other inputs to run with than the model's examples, as for `choose_inputs`.
    fresh
        Export again in any case: for models that depend on more than files can tell, such as the
        environment.
    tell
        Told in a line that an export was kept.

    Warns
    -----
    UserWarning
        The program was run, and is not what the model computes. The record's ``problem`` says so.

    Raises
    ------
    UsageError
        An unknown model, dtype or backend, or two that do not go together.
    ModelError
        The model cannot be loaded.
    ExportError
        It cannot be exported: which operator, and where in the user's source.

    Notes
    -----
    The first export of a process takes some ten seconds longer than the next ones.
    """
    _check_names(dtype, backend)
    name = parse_name(model).label if isinstance(model, str) else model.name
    directory = store.artifacts_dir(Path(root) if root else store.default_root(name))
    pte = directory / f"{store.stem_of(store.safe_name(name), dtype, backend)}.pte"

    options, inputs, sizes = Options(tuple(keep_float), rewrite), tuple(inputs), dict(sizes)
    made_from = {}
    if isinstance(model, str):
        settings = _settings(dtype, backend, options, sizes=sizes, mean=mean, std=std)
        made_from = fingerprint(parse_name(model), settings, inputs, state_dict)
        if not fresh and (export := find_unchanged(pte, made_from)):
            tell(f"{pte.name}: unchanged, kept")
            _warn_of(export)
            return pte
        model = load_model(model, state_dict=state_dict)
    model = choose_inputs(model, inputs, sizes, mean, std)
    started = time.perf_counter()
    with quiet():
        with explain_forward(model.origin):
            expected = run_eagerly(model.module, model.example_inputs, model.kwargs)
        lowered = lower_model(model, dtype, backend, options)
        fidelity, problem = _check(lowered, model, expected, dtype)
    seconds = time.perf_counter() - started

    contents = lowered.contents
    store.export_record_path(pte).unlink(missing_ok=True)
    saved = _write_inputs(lowered.inputs, contents.inputs, pte)
    etrecord = _write_etrecord(lowered.etrecord, pte)
    layers = store.save_layers(lowered.layers, store.layers_path(pte))
    store.atomic_write(pte, lowered.pte)
    export = Export(
        model=model.name,
        dtype=dtype,
        backend=backend,
        pte=pte.name,
        sha256=store.sha256_of(pte),
        size_bytes=pte.stat().st_size,
        inputs=saved,
        input_source=model.input_source,
        outputs=tuple(Tensor(slot.dtype, slot.shape) for slot in contents.outputs),
        delegates=dict(contents.delegates),
        undelegated=_undelegated(contents),
        versions=versions(),
        seconds=round(seconds, 3),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        etrecord=etrecord,
        layers=layers.name,
        source=model.source,
        weights=_describe_weights(model),
        options=_describe_options(options, lowered.notes),
        partition=lowered.partition,
        fidelity=fidelity,
        problem=problem,
        made_from=made_from,
        files={
            file: store.sha256_of(directory / file)
            for file in filter(None, (etrecord, layers.name))
        }
        | {tensor.file: tensor.sha256 for tensor in saved},
    )
    store.save_export(export, directory)
    _warn_of(export)
    return pte


def identify_export(model: str, dtype: str, backend: str) -> dict[str, str]:
    """What a program is made from that is exported with no other choices, as its record has it.

    Nothing is imported for it; a model that was registered while Python runs has no such identity.
    """
    return fingerprint(parse_name(model), _settings(dtype, backend, Options()), (), None)


def _settings(
    dtype: str,
    backend: str,
    options: Options,
    *,
    sizes: Mapping[str, int] = MappingProxyType({}),
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
) -> dict[str, Any]:
    asked = {"dtype": dtype, "backend": backend, "sizes": dict(sizes), "mean": mean, "std": std}
    return asked | asdict(options)


def _check_names(dtype: str, backend: str) -> None:
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    if backend not in BACKENDS:
        raise unknown_name("backend", backend, BACKENDS)
    if backend == "portable" and RECIPES[dtype].quantizes:
        raise UsageError(
            "the portable kernels do not run quantised programs",
            where=f"dtype {dtype}",
            hint="the xnnpack backend, or fp32, fp16, bf16",
        )


def _warn_of(export: Export) -> None:
    if export.problem:
        warnings.warn(f"{export.pte}: {export.problem}", stacklevel=3)


def _check(
    lowered: Lowered, model: LoadedModel, expected: list[Any], dtype: str
) -> tuple[tuple[Fidelity, ...], str]:
    """Run the program, compare it with the eager model; the figures, and what is wrong if any."""
    try:
        outputs = run_program(lowered.pte, lowered.inputs)
        fidelity = compare_outputs(outputs, expected, RECIPES[dtype].least_sqnr_db)
    except (RuntimeError, ValueError) as error:
        return (), f"it does not run here; cause: {reason(error)}"
    problem = describe_problem(fidelity)
    if not problem:
        return fidelity, ""
    coarse = coarse_kernels(DTYPES[dtype], lowered.contents.operators)
    cause = coarse or sensitivity(model, expected)
    return fidelity, f"{problem}; likely cause: {cause}" if cause else problem


def _write_inputs(
    tensors: list[torch.Tensor], slots: tuple[Slot, ...], pte: Path
) -> tuple[Tensor, ...]:
    written = []
    for number, (tensor, slot) in enumerate(zip(tensors, slots, strict=True)):
        path = pte.with_name(f"{pte.name}.input{number}.bin")
        store.atomic_write(path, raw_bytes(tensor, slot.dim_order))
        shape, sha256 = tuple(tensor.shape), store.sha256_of(path)
        written.append(Tensor(slot.dtype, shape, path.name, sha256, slot.dynamic))
    return tuple(written)


def _write_etrecord(etrecord: bytes, pte: Path) -> str:
    """Write the ETRecord, or do away with an earlier one; returns its file name or nothing."""
    path = pte.with_name(f"{pte.name}.etrecord")
    if etrecord:
        return store.atomic_write(path, etrecord).name
    warnings.warn(f"{pte.name}: no ETRecord, PyTorch cannot serialise its graph", stacklevel=3)
    path.unlink(missing_ok=True)
    return ""


def _describe_weights(model: LoadedModel) -> str:
    if model.weights is None:
        return f"as the model makes them, torch seed {SEED}"
    return f"{model.weights.name}, SHA-256 {store.sha256_of(model.weights)[:16]}"


def _describe_options(options: Options, notes: dict[str, str]) -> dict[str, str]:
    asked = {
        "keep_float": ", ".join(options.keep_float),
        "rewrite": "" if options.rewrite else "no",
    }
    return {name: text for name, text in (asked | notes).items() if text}


def _undelegated(contents: Contents) -> tuple[Undelegated, ...]:
    """The operators left to ExecuTorch's own kernels, the most frequent one first."""
    ordered = sorted(contents.operators.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Undelegated(operator, count) for operator, count in ordered)


_PACKAGES = {
    "torch": "torch",
    "executorch": "executorch",
    "torchao": "torchao",
    "workbench": "executorch-workbench",
}


def fingerprint(
    model: ModelName, settings: Mapping[str, Any], inputs: Iterable[str], weights: Any
) -> dict[str, str]:
    """What an export of a model is made from; empty for what has no source to tell by.

    Parameters
    ----------
    model
        Its name.
    settings
        What was asked for, such as the dtype.
    inputs
        Where its representative inputs are from, as `choose_inputs` takes them.
    weights
        The file of its state dict.

    Returns
    -------
    dict
        ``model``, ``workbench``, ``versions``, ``settings``, ``inputs`` and ``weights``: a hash, or
        the thing itself where it is short.
    """
    sources = sources_of(model)
    if sources is None:
        return {}
    inputs = tuple(inputs)
    return {
        "model": f"{_hash_files(sources.files)} {', '.join(sources.packages)}".strip(),
        "workbench": _hash_files(find_sources(Path(__file__).with_name("artifact.py")).files),
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
        "settings": json.dumps(settings, sort_keys=True),
        "inputs": " ".join([*inputs, _hash_files(sample_files(inputs))]) if inputs else "",
        "weights": store.sha256_of(Path(weights)) if weights and Path(weights).is_file() else "",
    }


def find_unchanged(pte: Path, made_from: Mapping[str, str]) -> Export | None:
    """The record of a program that was made from the same, if every file of it is still intact."""
    if not made_from:
        return None
    try:
        export = store.load_export(pte)
        if export is None or export.made_from != dict(made_from) or not export.files:
            return None
        intact = all(
            store.sha256_of(pte.parent / Path(name).name) == sha256
            for name, sha256 in export.files.items()
        )
    except WorkbenchError:
        return None
    return export if intact else None


def versions() -> dict[str, str]:
    """The versions of all that makes a program."""
    packages = {name: importlib.metadata.version(dist) for name, dist in _PACKAGES.items()}
    return {"python": platform.python_version(), **packages}


def _hash_files(files: Iterable[Path]) -> str:
    """One SHA-256 of the contents of some files, in their order."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name} {store.sha256_of(file)}\n".encode())
    return digest.hexdigest()


def describe_export(export: Export) -> list[str]:
    """What was made, how near it comes to the model, what was left behind, and what is wrong."""
    delegates = sum(export.delegates.values())
    left = sum(row.count for row in export.partition if not row.delegated)
    lines = [
        f"{export.pte}: {export.size_bytes / 1e6:.1f} MB in {export.seconds:.1f} s, "
        f"{delegates} delegates, {left} operators left to portable kernels"
    ]
    lines += [f"{name.replace('_', ' ')}: {text}" for name, text in export.options.items()]
    lines += [_describe_output(output) for output in export.fidelity]
    for row in export.partition:
        if not row.delegated:
            why = " ".join(filter(None, [row.source, row.reason]))
            lines.append(f"left: {row.count} x {row.operator}  {why}".rstrip())
    if not export.etrecord:
        lines.append("warning: no ETRecord, PyTorch cannot serialise its graph")
    if export.problem:
        lines.append(f"warning: this export is wrong: {export.problem}")
    return lines


def _describe_output(output: Fidelity) -> str:
    if output.max_abs is None:
        return f"output {output.output}: not comparable with the model's"
    sqnr = "" if output.sqnr_db is None else f"SQNR {output.sqnr_db:.1f} dB, "
    return (
        f"output {output.output} against eager: {sqnr}"
        f"off by {output.max_abs:.3g} at most, of values up to {output.scale:.3g}"
    )

"""Export a model to a ``.pte`` and the files beside it; reuse an export that is up to date."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import store, upstream
from workbench.errors import ExportError, UsageError, WorkbenchError, unknown_name
from workbench.export.identity import identify_exporter, versions
from workbench.export.make import Subject, make_program
from workbench.export.precision import BACKENDS, DTYPES, PRECISIONS
from workbench.export.program import Program, open_program, raw_bytes
from workbench.export.rewriter import find_rewriter
from workbench.export.sidecar import count_calls
from workbench.key import make_key
from workbench.models.registry import check_name
from workbench.options import (
    ALL,
    COMMON_REWRITES,
    GROUP_SIZE,
    REWRITES,
    ExportOptions,
    Progress,
    expand_rewrites,
)
from workbench.process import release_memory, silence, with_stack
from workbench.progress import show_progress
from workbench.records.exports import Export, Tensor, Undelegated
from workbench.wording import format_size, plural

if TYPE_CHECKING:  # these import PyTorch
    import torch
    from torch import nn

    from workbench.export.lowered import Lowered
    from workbench.export.traced import TracedModel
    from workbench.models.loader import LoadedModel

#: Below this SQNR, a warning names the noisiest layers.
LOW_SQNR_DB = 20


@with_stack
def export_model(
    model: LoadedModel | nn.Module | str,
    inputs: Any = None,
    options: ExportOptions = ExportOptions(),
    *,
    name: str = "",
    root: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Program:
    """Export a model to ``<root>/artifacts/<model>_<backend>_<dtype>.pte``.

    By default, the program is byte for byte that of ExecuTorch's documented recipe:
    ``to_edge_transform_and_lower(torch.export.export(module, inputs),
    partitioner=[XnnpackPartitioner()]).to_executorch()``, after its quantiser if the dtype is
    quantised. ``options.rewrite`` changes that.

    Beside it are the layer sidecar, one ``.input<i>.bin`` per input (raw, in the program's layout),
    if wanted the ETRecord, and the record, which is written last: if it exists, the export is
    complete.
    The model is traced each time, and exported again only if something has changed: the graph, its
    weights, constants, inputs or source lines, an installed version, an option, the exporter, or a
    file that was written. The program of a module has a name of its own,
    ``<model>-<hash>_...``, and the one from before a change is kept.

    Parameters
    ----------
    model
        An ``nn.Module``, a loaded model, or a name for `load_model`.
    inputs
        What a module is exported and measured with: as for `load_model`.
    options
        The dtype, the backend and so on.
    name
        What a module is called; its class by default.
    root
        The output folder, ``out_<model>`` by default.
    progress
        Called with each stage and the fraction done, and with the problems of the export; shown by
        default.

    Raises
    ------
    UsageError
        An unknown model, dtype or backend, or a combination that is not supported.
    WorkbenchError
        The model cannot be loaded.
    ExportError
        It cannot be exported, or the program does not run here (it is kept); with the operator and
        the line of the user's source.

    Notes
    -----
    The first export of a process takes about ten seconds longer than later ones.

    Examples
    --------
    >>> wb.export_model("toy_cnn", options=wb.ExportOptions(dtype="fp16"))  # doctest: +SKIP
    <Program out_toy_cnn/artifacts/toy_cnn_xnnpack_fp16.pte, xnnpack fp16, 0.12 MB>
    """
    with show_progress(progress) as report, contextlib.ExitStack() as stack:
        program = _export_model(model, inputs, options, name, root, report, stack)
    upstream.forget_graphs()
    release_memory(program.size_bytes)
    return program


def _export_model(
    model: LoadedModel | nn.Module | str,
    inputs: Any,
    options: ExportOptions,
    name: str,
    root: str | os.PathLike[str] | None,
    report: Progress,
    stack: contextlib.ExitStack,
) -> Program:
    options = apply_recipe(options)
    options = replace(options, rewrite=expand_rewrites(options.rewrite))
    check_options(options)
    subject = _prepare(model, inputs, options, name, root, report)
    if program := _reuse(subject):
        report(f"{subject.pte.name}: up to date", 1.0)
    else:
        store.check_writable(subject.pte)
        started = time.perf_counter()
        with silence():
            lowered, checked = make_program(subject, report)
        seconds = time.perf_counter() - started
        stack.enter_context(store.lock_writers(subject.pte.parent))
        # Another process may have exported the same meanwhile.
        program = _reuse(subject) or _write(subject, lowered, checked, seconds, report)
    _report_problems(program, report)
    return program


def _prepare(
    model: LoadedModel | nn.Module | str, inputs: Any, options: ExportOptions, name: str,
    root: str | os.PathLike[str] | None, report: Progress,
) -> Subject:  # fmt: skip
    """Load and trace a model."""
    if isinstance(model, str):
        check_name(model)
    report("importing torch", 0.0)
    from workbench.export.traced import trace_model
    from workbench.models.inputs import choose_inputs
    from workbench.models.loader import LoadedModel, load_model

    given, plain = model, isinstance(model, str) and inputs is None and not name
    if not isinstance(model, LoadedModel):
        report(f"loading {model if isinstance(model, str) else type(model).__name__}", 0.0)
    with silence():
        loaded = load_model(model, inputs, name=name, state_dict=options.state_dict or None)
    model = choose_inputs(loaded, options)
    report(f"tracing {model.name}", 0.1)
    trace = trace_model(model)
    _remember(trace.graph, given, inputs, model)
    made_from = _list_sources(trace, options)
    pte = _pte_path(model.name, options, root)
    if not plain and model is not given:
        root = Path(root) if root else store.default_root(model.name)
        pte = _pte_path(f"{model.name}-{make_key(made_from)[:8]}", options, root)
    return Subject(model, trace, options, made_from, pte, str(given) if plain else "")


def _write(
    subject: Subject, lowered: Lowered, checked: dict[str, Any], seconds: float, report: Progress
) -> Program:
    """Write a program and the files beside it, the record last."""
    from workbench.models.inputs import name_dimensions

    pte = subject.pte
    report(f"writing {pte.name}", 0.95)
    store.export_record_path(pte).unlink(missing_ok=True)
    dimensions = name_dimensions(subject.model)
    saved = write_inputs(lowered.inputs, lowered.arguments, dimensions, pte)
    layers = store.save_layers(lowered.layers, store.layers_path(pte))
    files = [*_write_etrecord(subject, lowered, report), layers]
    store.write_changed(pte, lowered.pte)
    export = _record(subject, lowered, saved, files, seconds=round(seconds, 3), **checked)
    store.save_export(export, pte.parent)
    return Program(pte, export.sha256, export, len(lowered.pte))


def _record(
    subject: Subject, lowered: Lowered, saved: Sequence[Tensor], files: Sequence[Path],
    **measured: Any,
) -> Export:  # fmt: skip
    """The record of an export whose files were written; the last of these has the layers."""
    from workbench.export.differences import describe_differences

    model, options = subject.model, subject.options
    return Export(
        model=model.name,
        dtype=options.dtype,
        backend=options.backend,
        pte=subject.pte.name,
        sha256=hashlib.sha256(lowered.pte).hexdigest(),
        size_bytes=len(lowered.pte),
        inputs=tuple(saved),
        input_source=model.input_source,
        outputs=tuple(Tensor(output.dtype, output.shape) for output in lowered.outputs),
        delegates=dict(count_calls(lowered.layers, "delegate")),
        undelegated=_list_undelegated(lowered),
        versions=versions(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        etrecord=files[0].name if lowered.etrecord else "",
        layers=files[-1].name,
        source=model.source,
        weights=_describe_weights(model),
        options={name: text for name, text in _list_options(options, lowered) if text},
        partition=lowered.partition,
        rewrites=lowered.rewrites,
        dependence=lowered.dependence,
        staying=lowered.staying,
        rewrite=lowered.rewrite,
        graph=subject.trace.graph,
        missing=upstream.find_missing(),
        differences=describe_differences(model, options, subject.trace.exported, lowered.arguments),
        made_from=subject.made_from,
        spec=subject.spec,
        files={file.name: store.sha256_of(file) for file in files}
        | {tensor.file: tensor.sha256 for tensor in saved},
        **measured,
    )


def _list_undelegated(lowered: Lowered) -> tuple[Undelegated, ...]:
    """The operators outside of delegates, the most frequent first."""
    calls = count_calls(lowered.layers, "kernel").items()
    kernels = sorted(calls, key=lambda item: (-item[1], item[0]))
    return tuple(Undelegated(operator, count) for operator, count in kernels)


def _write_etrecord(subject: Subject, lowered: Lowered, report: Progress) -> list[Path]:
    """The file of an ETRecord, if one is wanted and PyTorch can serialise it."""
    pte = subject.pte
    path = pte.with_name(f"{pte.name}.etrecord")
    if lowered.etrecord:
        store.write_changed(path, lowered.etrecord)
        return [path]
    path.unlink(missing_ok=True)
    if subject.options.etrecord:
        report(f"warning: {pte.name}: no ETRecord: PyTorch cannot serialise this graph", 0.95)
    return []


def _describe_weights(model: LoadedModel) -> str:
    from workbench.models.loader import SEED

    if model.weights is None:
        return f"as the model makes them, torch seed {SEED}"
    return f"{model.weights.name}, SHA-256 {store.sha256_of(model.weights)[:16]}"


def _list_options(options: ExportOptions, lowered: Lowered) -> Iterator[tuple[str, str]]:
    """The options beside dtype and backend that differ from the default, and what was done."""
    yield "module_dtypes", ", ".join(f"{path}={dtype}" for path, dtype in options.module_dtypes)
    yield "group_size", str(options.group_size) * (options.group_size != GROUP_SIZE)
    yield "channels_last", "yes" * options.channels_last
    yield from lowered.notes.items()


@dataclass(frozen=True)
class _Exported:
    """A module, a loaded model or a lowered program, while somebody else uses it.

    ``settings`` are what a loaded model has beside its module.
    """

    module: weakref.ref[Any]
    inputs: Any
    settings: dict[str, Any]


#: By the graph; what was given lowered by the hash of its file.
_EXPORTED: dict[str, _Exported] = {}
#: Models by their graphs, while `keep_models` keeps them.
_KEPT: ContextVar[dict[str, LoadedModel] | None] = ContextVar("kept", default=None)


def _remember(graph: str, given: Any, inputs: Any, model: LoadedModel) -> None:
    """Remember a model by its graph. One that was given by its name can be loaded again."""
    if type(given) is type(model):
        settings = {each.name: getattr(given, each.name) for each in fields(given)}
        module = settings.pop("module")
    else:
        settings, module = {}, given
    with contextlib.suppress(TypeError):  # names, and classes that refuse references
        _EXPORTED[graph] = _Exported(weakref.ref(module, _forget), inputs, settings)
    modules = _KEPT.get()
    if modules is not None:
        modules[graph] = model


def _forget(module: weakref.ref[Any]) -> None:
    """Let go of the inputs of a module that is gone."""
    for graph in [graph for graph, each in _EXPORTED.items() if each.module is module]:
        del _EXPORTED[graph]


@contextlib.contextmanager
def keep_models() -> Iterator[None]:
    """Keep the models that are exported meanwhile, so that remedies can be tried on them."""
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


def remember_lowered(sha256: str, made: Any, inputs: Any) -> None:
    """Remember a lowered program and its inputs by the hash of its file, while somebody uses it."""
    _EXPORTED[sha256] = _Exported(weakref.ref(made, _forget), inputs, {})


def recall_loaded(graph: str) -> LoadedModel | None:
    """A model that `keep_models` keeps."""
    return (_KEPT.get() or {}).get(graph)


def recall_model(key: str) -> tuple[Any, Any] | None:
    """What this process exported as this graph, and the inputs that were given; None if gone.

    Of what it was given lowered, the key is the hash of its file.
    """
    exported = _EXPORTED.get(key)
    module = exported.module() if exported else None
    if exported is None or module is None:
        return None
    if not exported.settings:
        return module, exported.inputs
    from workbench.models.loader import LoadedModel

    return LoadedModel(module=module, **exported.settings), None


def _reuse(subject: Subject) -> Program | None:
    """An export that is up to date and has an ETRecord if one is wanted."""
    options = subject.options
    cached = None if options.fresh else _open_export(subject.pte, subject.made_from)
    has_etrecord = bool(cached and cached.export and cached.export.etrecord)
    return cached if has_etrecord or not options.etrecord else None


def _open_export(pte: Path, made_from: dict[str, str]) -> Program | None:
    """A program that was made from this, if none of its files has changed."""
    try:
        program = open_program(pte)
        export = program.export
        if export is None or export.made_from != made_from or not export.files:
            return None
        files = {name: store.sha256_of(pte.parent / Path(name).name) for name in export.files}
    except WorkbenchError:
        return None
    return program if files == export.files else None


def apply_recipe(options: ExportOptions) -> ExportOptions:
    """The options with those of their recipe, except for the ones that differ from the default."""
    if not options.recipe:
        return options
    recorded = store.load_recipe(Path(options.recipe)).export
    given = {f.name: getattr(options, f.name) for f in fields(options) if f.name != "recipe"}
    default = vars(ExportOptions())
    return replace(recorded, **{k: value for k, value in given.items() if value != default[k]})


def _pte_path(name: str, options: ExportOptions, root: str | os.PathLike[str] | None) -> Path:
    folder = store.artifacts_dir(Path(root) if root else store.default_root(name))
    # What findings advise is exported beside the program that it is compared with.
    rewrites = list(options.rewrite)
    if not COMMON_REWRITES.keys() - {*rewrites}:
        rewrites = [ALL, *(each for each in rewrites if each not in COMMON_REWRITES)]
    name = "-".join([name, *rewrites, *["channels_last"] * options.channels_last])
    return folder / f"{store.safe_name(name)}_{options.backend}_{options.dtype}.pte"


def check_options(options: ExportOptions) -> None:
    """Refuse options that no export accepts; UsageError."""
    if options.group_size < GROUP_SIZE or options.group_size % GROUP_SIZE:
        text = f"{options.group_size} is no multiple of {GROUP_SIZE}, which XNNPACK requires"
        raise UsageError(text, where="group_size")
    for dtype in (options.dtype, *dict(options.module_dtypes).values()):
        if dtype not in DTYPES:
            raise unknown_name("dtype", dtype, DTYPES)
    quantized = PRECISIONS[options.dtype].quantizes
    for pattern, dtype in options.module_dtypes:
        if not quantized or DTYPES[dtype] != "float32":
            hint = "such as --dtype int8 --module-dtype head=fp32"
            text = f"{dtype} cannot be mixed with {options.dtype}"
            raise UsageError(text, where=f"module dtype {pattern}", hint=hint)
    check_rewrites(options.rewrite)
    if options.backend not in BACKENDS:
        raise unknown_name("backend", options.backend, BACKENDS)
    if options.backend == "portable" and quantized:
        hint = "choose the xnnpack backend, or fp32, fp16 or bf16"
        text = "the portable kernels do not run quantised programs"
        raise UsageError(text, where=f"dtype {options.dtype}", hint=hint)


def check_rewrites(names: Sequence[str]) -> None:
    """Refuse unknown remedies; UsageError."""
    for name in names:
        if name not in REWRITES:
            raise unknown_name("rewrite", name, [ALL, *REWRITES])
    if names:
        find_rewriter(names)


def list_problems(export: Export) -> list[str]:
    """What is wrong with an export, or no number in its outputs, one line each."""
    problems = list(export.differences)
    if export.problem:
        problems.append(f"this export is wrong: {export.problem}{_describe_cause(export)}")
    else:
        problems += list_unreal(export)
    sqnr_db = export.sqnr_db
    if export.noise and (export.problem or (sqnr_db is not None and sqnr_db < LOW_SQNR_DB)):
        ratio = "" if sqnr_db is None else f"SQNR {sqnr_db:.1f} dB; "
        layers = [f"{n.module or 'the model'} ({n.own_db:.1f} dB)" for n in export.noise[:3]]
        problems.append(
            f"{ratio}most quantisation noise enters in {', '.join(layers)}: "
            "--module-dtype LAYER=fp32 keeps a layer in floating point"
        )
    return problems


def list_unreal(export: Export) -> list[str]:
    """The outputs that have NaN, infinities or no values in PyTorch, too, a line each."""
    from workbench.export.accuracy import describe_numbers

    texts = [(each.output, describe_numbers(each)) for each in export.fidelity]
    cause = _describe_cause(export)
    return [f"output {number}: {text}{cause}" for number, text in texts if text]


def _describe_cause(export: Export) -> str:
    """The first operator that is wrong, as the end of a sentence; empty if none is known."""
    cause = export.cause
    if cause is None:
        return ""
    ratio = "" if cause.sqnr_db is None else f": SQNR {cause.sqnr_db:.1f} dB"
    source = f" ({cause.source})" if cause.source else ""
    return f"; first in {cause.operator}{source}{ratio}"


def advise(export: Export) -> str:
    """What may make a wrong program right."""
    if cure := export.cure:
        return f"--rewrite {','.join(cure.rewrites)} may avoid it"
    if export.noise:
        layer = export.noise[0].module
        return f"--module-dtype {layer}=fp32 keeps the noisiest layer in floating point"
    if not export.runs:
        return "replace the operator, compute it outside the model, or choose another --dtype"
    if export.cause:
        return f"write {export.cause.operator} in another way, or choose another --dtype"
    return "choose another --dtype, or --backend portable"


def list_faults(exports: Iterable[Export | None]) -> list[str]:
    """The exports that are not what they were made for, each with what may make it right."""
    return [
        f"{each.pte} is wrong: {each.problem} -> {advise(each)}"
        for each in exports
        if each and each.problem
    ]


def _report_problems(program: Program, report: Progress) -> None:
    pte, export = program.path, program.export
    if export and not export.runs:
        raise ExportError(export.problem, where=pte, hint=f"the program is kept; {advise(export)}")
    for problem in list_problems(export) if export else ():
        report(f"warning: {pte.name}: {problem}", 0.0)


def write_inputs(
    tensors: list[torch.Tensor],
    arguments: tuple[Tensor, ...],
    names: list[tuple[str, ...]],
    pte: Path,
) -> tuple[Tensor, ...]:
    """Write the inputs of a program as it takes them, beside it; their dimensions have names."""
    written = []
    for number, (tensor, argument, dims) in enumerate(zip(tensors, arguments, names, strict=True)):
        path = pte.with_name(f"{pte.name}.input{number}.bin")
        store.write_changed(path, raw_bytes(tensor, argument.dim_order))
        saved = Tensor(argument.dtype, tuple(tensor.shape), path.name, store.sha256_of(path))
        if argument.dynamic:
            saved = replace(saved, dynamic=True, most=argument.shape, dims=dims)
        written.append(saved)
    return tuple(written)


def _list_sources(trace: TracedModel, options: ExportOptions) -> dict[str, str]:
    """What an export depends on, as hashes or short texts."""
    settings = asdict(options) | {"sizes": dict(options.sizes)}
    for name in ("recipe", "fresh", "etrecord"):
        del settings[name]
    return {
        "model": trace.graph,
        "inputs": trace.inputs,
        "lines": trace.lines,
        **identify_exporter(),
        "settings": json.dumps(settings, sort_keys=True),
    }


def describe_export(export: Export) -> list[str]:
    """Size, accuracy, and operators that were not delegated, one line each."""
    from workbench.export.accuracy import describe_numbers

    missing = [row for row in export.partition if not row.delegated]
    count, delegates = sum(row.count for row in missing), sum(export.delegates.values())
    size = f"{format_size(export.size_bytes)} in {export.seconds:.1f} s"
    size += f", {plural(delegates, 'delegate')}, {plural(count, 'operator')} not delegated"
    lines = [f"{export.pte}: {size}", f"program: {export.changes}"]
    lines += [f"{name.replace('_', ' ')}: {text}" for name, text in export.options.items()]
    lines += [f"missing: {name} ({reason})" for name, reason in export.missing.items()]
    for output in export.fidelity:
        text = describe_numbers(output) or "not comparable with PyTorch's"
        if output.max_abs is not None:
            text = f"maximum error {output.max_abs:.3g}, values up to {output.scale:.3g}"
        if output.sqnr_db is not None:
            text = f"SQNR {output.sqnr_db:.1f} dB, {text}"
        lines.append(f"output {output.output}: {text}")
    return lines + [
        f"not delegated: {row.count} x {row.operator}  {row.source} {row.reason}".rstrip()
        for row in missing
    ]

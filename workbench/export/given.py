"""Programs of the user's own export script: exported ones to rewrite, lowered ones to measure."""

from __future__ import annotations

import copy
import hashlib
import logging
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from executorch.exir import (
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
)
from torch.export import ExportedProgram

from workbench import store
from workbench.errors import UsageError, WorkbenchError
from workbench.export import in_place
from workbench.export.artifact import (
    check_rewrites,
    export_model,
    remember_lowered,
    write_inputs,
)
from workbench.export.program import Program, find_data
from workbench.export.rewriter import Changes, find_rewriter
from workbench.export.sidecar import outline_program, read_interface
from workbench.export.traced import copy_program
from workbench.options import expand_rewrites, silent
from workbench.process import silence
from workbench.records.exports import Tensor
from workbench.remedies import OF_EXPORT
from workbench.upstream import tree_leaves

_log = logging.getLogger(__name__)
#: The graphs that lowered programs were made from: kept as long as these.
_GRAPHS: weakref.WeakKeyDictionary[Any, ExportedProgram] = weakref.WeakKeyDictionary()


class RewrittenProgram(ExportedProgram):
    """An exported program that remedies changed, to lower as usual.

    ``passes`` are for ``to_edge_transform_and_lower(..., transform_passes=...)``, and ``config`` is
    for ``to_executorch``: some remedies change the program there. None if none of these was asked
    for. ``changes`` has counts by remedy; those of ``passes`` are there once it was lowered.
    """

    changes: Changes
    passes: Any
    config: Any


def rewrite(
    program: ExportedProgram, names: str | Sequence[str] = "all", *, backend: str = "xnnpack"
) -> RewrittenProgram:
    """Apply remedies to a copy of an exported program, and print what they changed in one line.

    With its ``passes`` and ``config``, it is lowered to the bytes of `--rewrite` with these names.
    ``all`` leaves out what comes before: what a quantiser's graph needs, and a free batch.

    Parameters
    ----------
    program
        What ``torch.export.export`` or a quantiser's script returned; it stays as it is.
    names
        Names of remedies, or ``all``: those that make no program slower.
    backend
        The one that the program is lowered to: ``xnnpack`` or ``portable``.

    Raises
    ------
    UsageError
        There is no such remedy, or it changes how a program is quantised or lowered.

    Examples
    --------
    >>> program = wb.rewrite(torch.export.export(net, (x,)))  # doctest: +SKIP
    rewritten: 2 pad, 1 silu
    >>> edge = to_edge_transform_and_lower(  # doctest: +SKIP
    ...     program, partitioner=[XnnpackPartitioner()], transform_passes=program.passes
    ... )
    >>> edge.to_executorch(program.config).save("net.pte")  # doctest: +SKIP
    """
    if not isinstance(program, ExportedProgram):
        hint = "give what torch.export.export(...) returned"
        raise UsageError(f"a {type(program).__name__} is no ExportedProgram", hint=hint)
    chosen = _choose_rewrites(names.split(",") if isinstance(names, str) else names)
    rewriter = find_rewriter(chosen)
    changes = Changes()
    with silence():
        changed = rewriter.prepare(copy_program(program), chosen)
        changes.update(rewriter.apply(changed, chosen, backend))
        passes, config = rewriter.make_passes(chosen, changes), None
        if "in_place" in chosen:
            in_place.prepare(changed)
            config = ExecutorchBackendConfig(run_reinplace_pass=True)
    made = RewrittenProgram.__new__(RewrittenProgram)
    made.__dict__.update(changed.__dict__, changes=changes, passes=passes, config=config)
    print(f"rewritten: {changes}")
    return made


def _choose_rewrites(names: Sequence[str]) -> tuple[str, ...]:
    """Names of remedies of a graph, with those that ``all`` stands for; UsageError for others."""
    if refused := [name for name in names if name in OF_EXPORT and name != "in_place"]:
        what = "changes how a program is quantised or lowered"
        raise UsageError(what, where=refused[0], hint=f"workbench export --rewrite {refused[0]}")
    chosen = expand_rewrites(names)
    check_rewrites(chosen)
    return chosen


def is_lowered(subject: object) -> bool:
    """Whether something is a lowered program of ExecuTorch's, before or after its emission."""
    return isinstance(subject, EdgeProgramManager | ExecutorchProgramManager)


def write_program(
    made: EdgeProgramManager | ExecutorchProgramManager,
    inputs: Any = None,
    root: str | Path | None = None,
) -> Program:
    """Write a program that a script lowered, with its layers and inputs; it stays as it is.

    It is ``<root>/artifacts/<class of the model>-<hash>.pte``, with its weights beside it if they
    are in a file of their own. Lowering drops example inputs and the model's graph, in which
    remedies are looked for. An ETRecord has both: without it, inputs that are not given are random.
    """
    given = made
    if isinstance(made, EdgeProgramManager):
        with silence():
            made = copy.deepcopy(made).to_executorch()
    data, layers = made.buffer, outline_program(made)
    if not layers.methods:
        raise UsageError("computes nothing", where="the program", hint="lower a method of a model")
    method = layers.methods[0]
    name = store.safe_name(method.modules.get("") or "program")
    sha256 = hashlib.sha256(data).hexdigest()
    remember_lowered(sha256, given, inputs)
    exported = _find_exported(made)
    if exported and (same := _export_again(exported, sha256, inputs, root)):
        _GRAPHS[given] = exported
        return replace(same, name=name)
    folder = store.artifacts_dir(Path(root) if root else store.default_root(name))
    pte = folder / f"{name}-{sha256[:8]}.pte"
    store.check_writable(pte)
    with store.lock_writers(folder):
        store.save_layers(layers, store.layers_path(pte))
        made.write_tensor_data_to_file(str(folder))
        store.write_changed(pte, data)
        arguments, _ = read_interface(data)
        example = _find_example(made, method.name) if inputs is None else inputs
        tensors = [leaf for leaf in tree_leaves(example) if isinstance(leaf, torch.Tensor)]
        if tensors or inputs is not None:
            check_inputs(tensors, arguments, name)
        dims = [("",) * tensor.ndim for tensor in tensors]
        saved = write_inputs(tensors, arguments, dims, pte) if tensors else ()
    return Program(pte, sha256, None, len(data), saved, data=find_data(pte), name=name)


def _export_again(
    exported: ExportedProgram, sha256: str, inputs: Any, root: str | Path | None
) -> Program | None:
    """The same program, exported from its graph; None if that makes another one."""
    try:
        program = export_model(exported, inputs, root=root, progress=silent)
    except WorkbenchError:  # a script may know better how to lower it
        _log.debug("the graph in the ETRecord cannot be exported", exc_info=True)
        return None
    return program if program.sha256 == sha256 else None


def _find_exported(made: ExecutorchProgramManager) -> ExportedProgram | None:
    """The graph that a program was lowered from, if the script asked for an ETRecord."""
    try:
        exported = made.get_etrecord().exported_program
    except RuntimeError:
        return None
    return exported if isinstance(exported, ExportedProgram) else None


def _find_example(made: ExecutorchProgramManager, method: str) -> Any:
    """The example inputs of a program, or those in its ETRecord; none if both lack them."""
    exported = _find_exported(made)
    example = made.exported_program(method).example_inputs
    return example or (exported.example_inputs if exported else None) or ((), {})


def check_inputs(tensors: Sequence[torch.Tensor], arguments: Sequence[Tensor], where: str) -> None:
    """Refuse inputs of other shapes or dtypes than those that a program takes; UsageError."""
    given = [(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for t in tensors]
    taken = [(t.dtype, t.shape) for t in arguments]
    dynamic = [t.dynamic for t in arguments]
    fits = len(given) == len(taken) and all(
        a == b or (may_differ and a[0] == b[0] and len(a[1]) == len(b[1]))
        for a, b, may_differ in zip(given, taken, dynamic, strict=True)
    )
    if not fits:
        raise UsageError(f"takes {taken}, not {given}", where=where)

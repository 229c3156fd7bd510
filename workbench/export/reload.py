"""The model that a program was exported from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import UsageError
from workbench.export.program import Program
from workbench.options import ExportOptions
from workbench.process import silence
from workbench.records.exports import Export
from workbench.records.runs import GIVEN

if TYPE_CHECKING:
    from workbench.export.traced import TracedModel
    from workbench.models.loader import LoadedModel


def reload_model(program: Program) -> LoadedModel:
    """The model that a program was exported from, with the inputs of the export."""
    export = program.export
    if export is None or not export.spec or not export.graph:
        given = export is not None and export.input_source == GIVEN
        hint = 'wb.profile(net, x, against=["eager"])' if given else "workbench profile MODEL"
        raise UsageError("its PyTorch model is not known", where=program.path, hint=hint)
    return load_again(export, program.path, export.spec)[0]


def load_again(
    export: Export, where: Path, model: Any, inputs: Any = None
) -> tuple[LoadedModel, TracedModel]:
    """The model of an export as it is now, and its trace; UsageError if it is another one."""
    from workbench.export.traced import trace_model
    from workbench.models.inputs import choose_inputs
    from workbench.models.loader import load_model

    options = read_options(export)
    with silence():
        loaded = load_model(model, inputs, state_dict=options.state_dict or None)
        loaded = choose_inputs(loaded, options)
        trace = trace_model(loaded)
    if trace.graph != export.graph:
        what = "the model has changed since it was exported"
        raise UsageError(what, where=where, hint="profile it again")
    return loaded, trace


def read_options(export: Export) -> ExportOptions:
    """The options that a program was exported with."""
    settings = json.loads(export.made_from.get("settings", "{}"))
    names = vars(ExportOptions()).keys()  # earlier versions had further ones
    settings = {name: _as_tuple(value) for name, value in settings.items() if name in names}
    return ExportOptions(**settings | {"sizes": tuple(dict(settings.get("sizes", ())).items())})


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value

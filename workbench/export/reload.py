"""The model that a program was exported from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from workbench.errors import UsageError
from workbench.export.program import Program
from workbench.options import ExportOptions
from workbench.records.exports import Export
from workbench.records.runs import GIVEN

if TYPE_CHECKING:
    from workbench.models.loader import LoadedModel


def reload_model(program: Program) -> LoadedModel:
    """The model that a program was exported from, with the inputs of the export."""
    from workbench.export.traced import trace_model
    from workbench.models.inputs import choose_inputs
    from workbench.models.loader import load_model

    export = program.export
    if export is None or not export.spec or not export.graph:
        given = export is not None and export.input_source == GIVEN
        hint = 'wb.profile(net, x, against=["eager"])' if given else "workbench profile MODEL"
        raise UsageError("its PyTorch model is not known", where=program.path, hint=hint)
    options = read_options(export)
    model = load_model(export.spec, state_dict=options.state_dict or None)
    model = choose_inputs(model, options)
    if trace_model(model).graph != export.graph:
        what = f"{export.spec} has changed since it was exported"
        raise UsageError(what, where=program.path, hint=f"workbench profile {export.spec}")
    return model


def read_options(export: Export) -> ExportOptions:
    """The options that a program was exported with."""
    settings = json.loads(export.made_from.get("settings", "{}"))
    names = vars(ExportOptions()).keys()  # earlier versions had further ones
    settings = {name: _as_tuple(value) for name, value in settings.items() if name in names}
    return ExportOptions(**settings | {"sizes": tuple(dict(settings.get("sizes", ())).items())})


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value

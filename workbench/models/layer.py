"""One layer of a model as a model of its own, with the inputs that it really gets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.errors import ModelError, unknown_name
from workbench.models.loader import LoadedModel

if TYPE_CHECKING:
    from torch import nn


def take_layer(model: LoadedModel, path: str) -> LoadedModel:
    """The layer at a path, with what it is called with when the model runs on its example inputs.

    Parameters
    ----------
    model
        The whole model; it is run once.
    path
        Of the module, such as ``features.3.block.0``. Of several calls the first one counts.

    Raises
    ------
    UsageError
        The model has no such layer; names the nearest.
    ModelError
        The layer is never called.
    """
    import torch

    modules = {name: module for name, module in model.module.named_modules() if name}
    if path not in modules:
        raise unknown_name("layer", path, modules)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((args, kwargs))

    handle = modules[path].register_forward_pre_hook(keep, with_kwargs=True)
    try:
        with torch.no_grad():
            model.module(*model.example_inputs, **model.kwargs)
    finally:
        handle.remove()
    if not calls:
        raise ModelError("is never called", where=f"{model.name}.{path}")
    args, kwargs = calls[0]
    return replace(
        model,
        name=f"{model.name}.{path}",
        module=modules[path],
        example_inputs=args,
        kwargs=kwargs,
        dynamic_shapes=None,
        input_source=f"what {model.name} gives it, from its {model.input_source}",
        calibration=(),
        traced_inputs=None,
    )

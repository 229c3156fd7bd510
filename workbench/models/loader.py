"""Models of torchvision and timm by their names there, where these packages are installed.

From a name, or ``path/to/file.py:NAME``, to a model that is ready for export.

One layer of a model as a model of its own, with the inputs that it really gets.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import importlib.metadata
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from workbench.errors import ModelError, SetupError, UsageError, WorkbenchError, unknown_name
from workbench.models.registry import (
    FILE_FORM,
    EagerModelBase,
    ModelName,
    find_model,
    is_eager_model,
    list_models,
    parse_name,
)
from workbench.models.sources import forward_line, reason, shown_path, user_line

if TYPE_CHECKING:
    import torch
    from torch import nn


_DEFAULT_SIZE = (3, 224, 224)


class LibraryModel(EagerModelBase):
    """An image model of a library, with random weights, at the size that its author trained it."""

    def __init__(self, library: ModuleType, name: str):
        self.library, self.name = library, name
        self.size = _DEFAULT_SIZE

    def get_eager_model(self) -> nn.Module:
        """The network."""
        if self.library.__name__ == "timm":
            model = self.library.create_model(self.name, pretrained=False)
            self.size = tuple(model.pretrained_cfg.get("input_size") or _DEFAULT_SIZE)
            return model
        models = self.library.models
        trained = list(models.get_model_weights(self.name))
        if trained:
            self.size = (3, *(2 * trained[-1].transforms().crop_size)[:2])
        return models.get_model(self.name, weights=None)

    def get_example_inputs(self) -> tuple[torch.Tensor, ...]:
        """One image of noise."""
        import torch

        return (torch.randn(1, *self.size),)


def find_in_library(wanted: ModelName) -> LibraryModel:
    """A model of an installed library.

    Raises
    ------
    SetupError
        The library is not installed, or cannot be imported.
    UsageError
        It has no model of that name, with those of similar names.
    """
    library, name = wanted.library, wanted.name
    try:
        package = importlib.import_module(library)
        # Only that it has models makes a package the library: a folder may bear its name.
        listed = (package if library == "timm" else package.models).list_models()
    except (ImportError, AttributeError, RuntimeError, OSError) as error:
        torch_version = importlib.metadata.version("torch").partition("+")[0]
        missing = isinstance(error, ModuleNotFoundError) and error.name == library
        raise SetupError(
            "is not installed" if missing else f"cannot be used: {error}",
            where=library,
            # Without the pin, pip may replace the installed PyTorch.
            hint=f"pip install {library} torch=={torch_version}",
        ) from None
    if name not in listed:
        near = ", ".join(difflib.get_close_matches(name, listed, n=5, cutoff=0.4))
        raise UsageError(
            f"no model {name!r} among its {len(listed)}",
            where=library,
            hint=f"did you mean {near}?" if near else f"see {library}'s list_models()",
        )
    return LibraryModel(package, name)


#: Random weights and inputs are drawn from this seed, so that every export of a model is the same.
SEED = 0

_INPUT_NAMES = ("get_example_inputs", "example_inputs", "EXAMPLE_INPUTS")


#: Arguments and keyword arguments of ``forward``.
Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class LoadedModel:
    """A model and the arguments of its ``forward`` to export and measure it with.

    ``source`` is the file or module that defines it; ``input_source`` says where the inputs
    are from, ``weights`` is the file of its state dict, None if the model made its own.
    ``calibration`` are further arguments and keyword arguments of ``forward``, to observe ranges
    of activations on; ``traced_inputs`` those to export with, where it is run at another size.
    """

    name: str
    module: nn.Module
    example_inputs: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    dynamic_shapes: Any = None
    source: str = ""
    input_source: str = "example inputs"
    weights: Path | None = None
    calibration: tuple[Call, ...] = ()
    traced_inputs: Call | None = None

    @property
    def origin(self) -> str:
        """What an error message points at if it knows no better line."""
        return forward_line(self.module) or self.source or f"model {self.name}"


def load_model(spec: str, *, state_dict: str | os.PathLike[str] | None = None) -> LoadedModel:
    """Load a model in eval mode and try it once on its example inputs.

    PyTorch's random numbers start from a fixed seed, and are put back afterwards.

    Parameters
    ----------
    spec
        A registered name, ``timm:NAME``, ``torchvision:NAME``, or ``path/to/file.py:NAME``. In a
        file, ``NAME`` is an `EagerModelBase`-like
        class, an ``nn.Module`` class whose constructor needs no arguments, an instance of either,
        or a function that returns one. An ``nn.Module`` finds its inputs in ``example_inputs``,
        ``EXAMPLE_INPUTS`` or ``get_example_inputs()``, its own or the file's. The file may import
        its neighbours.
    state_dict
        Weights to load into it: a file that ``torch.save(model.state_dict(), ...)`` wrote.

    Raises
    ------
    UsageError
        No such name or file.
    SetupError
        The library is not installed.
    ModelError
        The file, the constructor, the weights, or the forward pass fails; with the line in the
        user's source.

    Examples
    --------
    >>> load_model("toy_cnn").example_inputs[0].shape
    torch.Size([1, 3, 224, 224])
    """
    wanted = parse_name(spec)
    name, file = wanted.label, wanted.file
    if not wanted.library and file is None and name not in list_models():
        raise unknown_name("model", name, [*list_models(), FILE_FORM])

    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        if wanted.library:
            return _prepare(name, find_in_library(wanted), None, state_dict)
        if file is None:
            return _prepare(name, find_model(name), None, state_dict)
        with _siblings_importable(file.parent):
            namespace = _run_file(file)
            return _prepare(name, _pick(namespace, name), namespace, state_dict)


def _run_file(file: Path) -> ModuleType:
    """Execute a file of the user's as a module."""
    spec = importlib.util.spec_from_file_location(f"model_file_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    with _blame("cannot be imported", shown_path(file)):
        spec.loader.exec_module(module)
    return module


def _pick(namespace: ModuleType, name: str) -> Any:
    """What a file calls ``name``, if it can be a model; else an error with what can."""
    import torch

    def can_be_model(thing: Any) -> bool:
        if inspect.isclass(thing):
            return issubclass(thing, torch.nn.Module) or is_eager_model(thing)
        return callable(thing) or is_eager_model(thing)

    things = vars(namespace)
    if can_be_model(things.get(name)):
        return things[name]
    own = [
        candidate
        for candidate, thing in things.items()
        if can_be_model(thing)
        and getattr(thing, "__module__", None) == namespace.__name__
        and candidate not in _INPUT_NAMES
    ]
    raise unknown_name("model", name, own, shown_path(Path(namespace.__file__)))


def _prepare(
    name: str,
    definition: Any,
    namespace: ModuleType | None,
    weights: str | os.PathLike[str] | None,
) -> LoadedModel:
    """Build a model, load its weights, find its inputs, try it."""
    import torch

    source = shown_path(Path(namespace.__file__)) if namespace else definition.__module__
    origin = source or f"model {name}"

    with _blame("cannot be built", origin):
        thing = _build(definition)
        is_module = isinstance(thing, torch.nn.Module)
        module = thing if is_module or not is_eager_model(thing) else thing.get_eager_model()
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"{name} gives {type(module).__name__!r}, not an nn.Module", where=origin)
    if weights is not None:
        _load_weights(module, Path(weights))
    if not is_module and hasattr(thing, "prepare_for_export"):
        with _blame("cannot be prepared for export", origin):
            module = thing.prepare_for_export(module.eval())

    holders = [thing, namespace] if is_module else [thing]
    with _blame("example inputs cannot be made", origin):
        inputs = _look_up(holders, *_INPUT_NAMES)
        kwargs = _look_up(holders, "get_example_kwarg_inputs") or {}
        shapes = _look_up(holders, "get_dynamic_shapes")
        calibration = tuple(_look_up(holders, "get_calibration_inputs") or ())
        calibration = tuple((tuple(batch), kwargs) for batch in calibration)
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, tuple | list) or not isinstance(kwargs, dict):
        raise ModelError(
            f"{name} has no example inputs: a tuple of what forward() takes",
            where=origin,
            hint="define get_example_inputs() in the class, or EXAMPLE_INPUTS in the file",
        )

    model = LoadedModel(
        name=name,
        module=module.eval(),
        example_inputs=tuple(inputs),
        kwargs=kwargs,
        dynamic_shapes=shapes,
        source=source,
        input_source=f"example inputs of the model, torch seed {SEED}",
        weights=Path(weights) if weights is not None else None,
        calibration=calibration,
    )
    try_forward(model)
    return model


def _build(definition: Any) -> Any:
    """The instance itself, or what the class or the function returns."""
    import torch

    is_instance = isinstance(definition, torch.nn.Module) or (
        not inspect.isclass(definition) and is_eager_model(definition)
    )
    return definition if is_instance else definition()


def _look_up(holders: list[Any], *names: str) -> Any:
    """The first value of one of these names that a holder has; functions are called."""
    for holder in holders:
        for name in names:
            value = getattr(holder, name, None)
            if value is not None:
                return value() if callable(value) else value
    return None


def _load_weights(module: nn.Module, file: Path) -> None:
    """Load a state dict that fits the module exactly."""
    import torch

    if not file.is_file():
        raise UsageError("no such file", where=file)
    with _blame("cannot be loaded as a state dict", str(file)):
        state = torch.load(file, map_location="cpu", weights_only=True)
        missing, unexpected = module.load_state_dict(state, strict=False)
    for names, problem in ((missing, "lacks"), (unexpected, "belongs to another model: it has")):
        if names:
            raise ModelError(f"{problem} {names[0]!r} and {len(names) - 1} more", where=file)


def try_forward(model: LoadedModel) -> None:
    """Run a copy once: wrong inputs are told apart from what the exporter cannot do."""
    import torch

    hint = "give it inputs that it takes: in get_example_inputs(), or by --inputs"
    with _blame("forward() fails on its inputs", model.origin, hint), torch.no_grad():
        arguments = (model.module, model.example_inputs, model.kwargs)
        module, args, kwargs = copy.deepcopy(arguments)
        module(*args, **kwargs)


@contextlib.contextmanager
def _siblings_importable(folder: Path) -> Iterator[None]:
    """Let a file import its neighbours, and forget them afterwards.

    Another folder may have neighbours of the same names.
    """
    known = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - known:
            if name.partition(".")[0] not in known and _lies_in(sys.modules[name], folder):
                del sys.modules[name]


def _lies_in(module: ModuleType, folder: Path) -> bool:
    """Whether a module is a file of the folder, not of an environment inside of it."""
    file = Path(getattr(module, "__file__", None) or "/")
    return file.is_relative_to(folder) and "site-packages" not in file.parts


@contextlib.contextmanager
def _blame(what: str, where: str, hint: str | None = None) -> Iterator[None]:
    """Turn whatever the user's code raises into a `ModelError` with the line that raised it."""
    try:
        yield
    except WorkbenchError:
        raise
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        line = user_line(error) or where
        raise ModelError(f"{what}: {reason(error)}", where=line, hint=hint) from error


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

"""From a name, or ``path/to/file.py:NAME``, to a model that is ready for export."""

import contextlib
import copy
import difflib
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from workbench.errors import UsageError, WorkbenchError, install_command, unknown_name
from workbench.models import registry
from workbench.models.pt2 import PT2, read_exported
from workbench.models.sources import (
    BROKEN,
    forward_line,
    package_root,
    reason,
    shown_path,
    user_line,
)
from workbench.process import (
    PROCESS_LOCK,
    child_environment,
    contain,
    replaced,
    silent_stderr,
)
from workbench.records.runs import EXPORTED, GIVEN
from workbench.upstream import tree_leaves

#: The seed of random weights and inputs: every export of a model is the same.
SEED = 0
_INPUT_NAMES = ("get_example_inputs", "example_inputs", "EXAMPLE_INPUTS")

#: Arguments and keyword arguments of ``forward``.
Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class LoadedModel:
    """A model and the arguments of its ``forward`` to export and measure it with.

    ``source`` is the file or module that defines it; ``weights`` is None if the model made its own.
    Ranges of activations are observed on further calls, ``calibration``. ``traced_inputs`` are
    those to export with, where the model is run at another size. ``metadata`` are the constant
    methods of a language model's program. ``exported`` is set of what the user exported.
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
    metadata: dict[str, Any] = field(default_factory=dict)
    exported: ExportedProgram | None = None

    @property
    def origin(self) -> str:
        """The place that errors name if no better line is known."""
        return forward_line(self.module) or self.source or f"model {self.name}"


def load_model(
    spec: str | nn.Module | ExportedProgram | LoadedModel,
    inputs: Any = None,
    *,
    name: str = "",
    state_dict: str | os.PathLike[str] | None = None,
) -> LoadedModel:
    """Load a model in eval mode and run it once on its example inputs.

    PyTorch's random numbers start from a fixed seed; their state is restored afterwards. Threads
    load one after the other.

    Parameters
    ----------
    spec
        A registered name, ``executorch:NAME``, ``timm:NAME``, ``torchvision:NAME``, a name with the
        prefix of a plug-in (of language models, ``llm:smollm2_135m,layers=4``), or
        ``path/to/file.py:NAME`` (the folder, for a package). In a file, ``NAME`` is an
        `EagerModelBase`-like class, an ``nn.Module`` class whose constructor needs no arguments, an
        instance of either, or a function that returns one. An ``nn.Module`` finds its inputs in
        ``example_inputs``, ``EXAMPLE_INPUTS`` or ``get_example_inputs()``, its own or the file's.
        The file may import its neighbours. Or an ``nn.Module`` of yours, which stays as it is: a
        copy is exported. Or what ``torch.export.export`` returned, or the ``.pt2`` file that
        ``torch.export.save`` wrote of it. A loaded model is returned.
    inputs
        The arguments of ``forward``, instead of the model's own: a tensor, a tuple, or a dict of
        keyword arguments.
    name
        What the model is called; of a module of yours, its class by default.
    state_dict
        Weights to load into it: a file that ``torch.save(model.state_dict(), ...)`` wrote, or
        ``.safetensors``. A language model also takes Hugging Face's names.

    Raises
    ------
    UsageError
        No such name or file.
    WorkbenchError
        The library is not installed, or the model has to be downloaded first; or the file, the
        constructor, the weights, or the forward pass fails; with the line in the user's source.

    Examples
    --------
    >>> wb.load_model("toy_cnn").example_inputs[0].shape  # doctest: +SKIP
    torch.Size([1, 3, 224, 224])
    """
    if isinstance(spec, LoadedModel):
        if inputs is not None or name:
            hint = "give the module itself"
            raise UsageError("has its name and inputs already", where=spec.name, hint=hint)
        return spec
    load: Callable[[Callable[..., LoadedModel]], LoadedModel]
    if isinstance(spec, str) and spec.endswith(PT2):
        name, spec = name or Path(spec).stem, read_exported(Path(spec))
    if isinstance(spec, ExportedProgram):
        if state_dict is not None:
            raise UsageError("has its weights already", where="--state-dict")
        return _load_exported(spec, inputs, name or name_exported(spec))
    if isinstance(spec, nn.Module):
        load, label = partial(_load_module, spec), type(spec).__name__
    else:
        model = _parse_spec(spec)
        load, label = partial(_load_named, model), model.label
    with PROCESS_LOCK, torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return load(partial(_prepare, name or label, weights=state_dict, given=inputs))


def _parse_spec(spec: object) -> registry.ModelName:
    """What the name of a model says; `UsageError` if it is no name, or nothing has it."""
    if not isinstance(spec, str):
        hint = "give an nn.Module, a name or path/to/file.py:NAME"
        if isinstance(spec, type) and issubclass(spec, nn.Module):
            hint = f"give an instance: {spec.__name__}(...)"
        raise UsageError(f"a {type(spec).__name__} is no model", hint=hint)
    return registry.check_name(spec)


def _load_module(module: nn.Module, prepare: Callable[..., LoadedModel]) -> LoadedModel:
    """A copy of a module of the user's."""
    source = forward_line(module) or type(module).__name__  # the file of a library's helps nobody
    with _explain_errors("cannot be copied", source):
        copied = copy.deepcopy(module)
    return prepare(copied, source=source)


def _load_exported(exported: ExportedProgram, inputs: Any, name: str) -> LoadedModel:
    """What the user exported, on its own example inputs or others of the same shapes."""
    example = exported.example_inputs if inputs is None else _as_arguments(inputs, None)
    if not example:
        what, hint = "has no example inputs", "give them: wb.profile(program, inputs)"
        raise WorkbenchError(what, where=name, hint=hint)
    args, kwargs = example
    source = "example inputs of the exported program" if inputs is None else GIVEN
    model = LoadedModel(
        name, exported.module(check_guards=False), args, kwargs, dynamic_shapes={},
        source=EXPORTED, input_source=source, exported=exported,
    )  # fmt: skip
    _check_device(model)
    try_forward(model)
    return model


def name_exported(exported: ExportedProgram) -> str:
    """The class of the module that was exported."""
    stacks = (node.meta.get("nn_module_stack") or {} for node in exported.graph.nodes)
    kinds = (kind for stack in stacks for path, kind in stack.values() if not path)
    kind = next(kinds, "")
    name = kind if isinstance(kind, str) else kind.__qualname__
    return name.rpartition(".")[2] or "program"


def _load_named(model: registry.ModelName, prepare: Callable[..., LoadedModel]) -> LoadedModel:
    """A model of a plug-in, of a library, registered, or of a file."""
    if registry.is_prefix(model.library):
        define = registry.find_model(f"{model.library}:")
        with silent_stderr():  # the logs of the operators' libraries
            return prepare(define(model.name))
    if model.library == "executorch":
        with _find_upstream(model.name) as upstream:
            return prepare(upstream)
    if model.library:
        return prepare(_find_in_library(model))
    if not model.file:
        return prepare(registry.find_model(model.name))
    with _siblings_importable(model.file.parent):
        namespace = run_file(model.file)
        thing = _pick(namespace, model.file, model.name)
        return prepare(thing, namespace, source=shown_path(model.file))


@contextlib.contextmanager
def _find_upstream(name: str) -> Iterator[type]:
    """A model that ExecuTorch's wheel defines; explains what it lacks, and refuses downloads."""
    upstream_models = registry.list_upstream()
    if name not in upstream_models:
        raise unknown_name("model", name, upstream_models, where="executorch")
    module, cls = f"executorch.examples.models.{upstream_models[name][0]}", upstream_models[name][1]
    hosts: list[str] = []
    resolve, thread = socket.getaddrinfo, threading.get_ident()

    def refuse(host: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return resolve(host, *args, **kwargs)
        hosts.append(str(host))
        raise socket.gaierror(socket.EAI_NONAME, "downloads are refused here")

    where = f"executorch:{name}"
    try:
        with replaced(socket, "getaddrinfo", refuse):
            yield getattr(importlib.import_module(module), cls)
    except (WorkbenchError, ImportError, AttributeError, RuntimeError) as error:
        missing = error if isinstance(error, ImportError) else error.__cause__
        if hosts:
            what = f"has to be downloaded from {hosts[0]}"
            code = f"from {module} import {cls} as M; M().get_eager_model()"
            hint = f'fetch it once: python -c "{code}"'
        elif not isinstance(missing, ImportError) or not missing.name:
            raise
        elif missing.name.startswith("executorch."):
            what, hint = "is not in the installed wheel", ""
        else:
            what, hint = f"needs {missing.name}", _install(missing.name.partition(".")[0])
        raise WorkbenchError(what, where=where, hint=hint) from error


def _install(package: str) -> str:
    """The command that installs a library beside the installed PyTorch.

    PyPI's torchvision does not load beside another build of PyTorch, such as ``+cpu``.
    """
    torch = f"torch=={importlib.metadata.version('torch')}"
    _, _, build = torch.partition("+")
    if not build:
        return install_command("--upgrade", package, torch)
    index = f"https://download.pytorch.org/whl/{build}"
    same_build = package if package == "torchaudio" else "torchvision"
    first = install_command("--upgrade", "--index-url", index, same_build, torch)
    first = first if package == same_build else f"{first} && {install_command(package)}"
    # PyTorch's index may be out of reach, and PyPI's libraries fit only PyPI's own PyTorch.
    plain = install_command("--force-reinstall", package, torch.partition("+")[0])
    return f"{first} (without access to that index, all from PyPI: {plain})"


def _find_in_library(wanted: registry.ModelName) -> Callable[[], nn.Module]:
    """A function that builds an image model of timm or torchvision, at the size of its training.

    Errors name the package to install, or similar models.
    """
    library, name = wanted.library, wanted.name
    try:
        package = importlib.import_module(library)
        # Any folder may have the name of a library; only the library lists models.
        models = package if library == "timm" else package.models
        listed = models.list_models()
    except (ImportError, AttributeError, RuntimeError, OSError) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == library
        text = "is not installed" if missing else f"cannot be used: {error}"
        raise WorkbenchError(text, where=library, hint=_install(library)) from None
    if name not in listed:
        near = ", ".join(difflib.get_close_matches(name, listed, n=5, cutoff=0.4))
        hint = f"did you mean {near}?" if near else f"see {library}'s list_models()"
        raise UsageError(f"no model {name!r} among its {len(listed)}", where=library, hint=hint)

    def build() -> nn.Module:
        size: tuple[int, ...] = (3, 224, 224)
        if library == "timm":
            module = models.create_model(name, pretrained=False)
            size = tuple(module.pretrained_cfg.get("input_size") or size)
        else:
            if trained := list(models.get_model_weights(name)):
                size = (3, *(2 * trained[-1].transforms().crop_size)[:2])
            module = models.get_model(name, weights=None)
        module.example_inputs = (torch.randn(1, *size),)
        return module

    return build


#: Of the names of modules that are run from a user's file.
_FILE_PREFIX = "model_file_"


def run_file(file: Path) -> ModuleType:
    """Import a file; one with relative imports as a part of its package, under another name."""
    with _explain_errors("cannot be imported", shown_path(file)):
        root = package_root(file)
        if root is None:
            return _import_from(f"{_FILE_PREFIX}{file.stem}", file)
        name, init = f"{_FILE_PREFIX}{root.name}", root / "__init__.py"
        if init.is_file():
            _import_from(name, init, [str(root)])
        else:
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__path__ = [str(root)]
        parts = file.relative_to(root).with_suffix("").parts
        return importlib.import_module(".".join([name, *parts]).removesuffix(".__init__"))


def _import_from(name: str, file: Path, folders: list[str] | None = None) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)
    assert spec and spec.loader
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _pick(namespace: ModuleType, file: Path, name: str) -> Any:
    """The class, instance or function ``name`` of a file; an error lists what can be a model."""

    def can_be_model(thing: Any) -> bool:
        is_network = issubclass(thing, nn.Module) if inspect.isclass(thing) else callable(thing)
        return is_network or registry.is_eager_model(thing)

    things = vars(namespace)
    if can_be_model(things.get(name)):
        return things[name]
    candidates = [
        n
        for n, thing in things.items()
        if getattr(thing, "__module__", "") == namespace.__name__
        and can_be_model(thing)
        and n not in _INPUT_NAMES
    ]
    raise unknown_name("model", name, candidates, shown_path(file))


def _prepare(
    name: str,
    definition: Any,
    namespace: ModuleType | None = None,
    *,
    source: str = "",
    weights: str | os.PathLike[str] | None = None,
    given: Any = None,
) -> LoadedModel:
    """The model of a definition, and its inputs or those given; run once."""
    source = source or getattr(definition, "__module__", "") or definition.__name__
    thing, module = _build(name, definition, source, is_file=namespace is not None)
    is_module = thing is module
    if weights is not None:
        _load_weights(module, Path(weights), getattr(thing, "fit_weights", None))
    if not is_module and hasattr(thing, "prepare_for_export"):
        with _explain_errors("cannot be prepared for export", source):
            module = thing.prepare_for_export(module.eval())

    holders = [thing, namespace] if is_module else [thing]
    with _explain_errors("example inputs cannot be made", source):
        inputs, kwargs = _find_inputs(holders) if given is None else (given, None)
        shapes = _look_up(holders, "get_dynamic_shapes")
        batches = list(map(tuple, _look_up(holders, "get_calibration_inputs") or ()))
    calibration = tuple((batch, kwargs or {}) for batch in batches)
    arguments = _as_arguments(inputs, kwargs)
    if arguments is None:
        text = f"{name} has no example inputs: a tuple of the arguments of forward()"
        hint = "give them after the model, such as torch.randn(1, 3, 224, 224)"
        if namespace:
            hint = "define get_example_inputs() in the class, or EXAMPLE_INPUTS in the file"
        raise WorkbenchError(text, where=source, hint=hint)
    inputs, kwargs = arguments
    model = LoadedModel(
        name=name,
        module=module.eval(),
        example_inputs=inputs,
        kwargs=kwargs,
        dynamic_shapes=shapes,
        source=source,
        input_source=f"example inputs of the model, torch seed {SEED}" if given is None else GIVEN,
        weights=Path(weights) if weights is not None else None,
        calibration=calibration,
        metadata=_look_up(holders, "get_metadata") or {},
    )
    _check_device(model)
    try_forward(model)
    return model


def _as_arguments(inputs: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of a call by position and by name; None if they are none."""
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if isinstance(inputs, dict):
        inputs, kwargs = (), inputs
    kwargs = kwargs or {}
    if not isinstance(inputs, tuple | list) or not isinstance(kwargs, dict):
        return None
    return tuple(inputs), kwargs


def _build(name: str, definition: Any, source: str, *, is_file: bool) -> tuple[Any, nn.Module]:
    """What a definition makes, and its module: itself, or that of an `EagerModelBase`."""
    hint = "name a function without arguments that returns the model" if is_file else None
    with _explain_errors("cannot be built", source, hint):
        is_model = isinstance(definition, nn.Module) or registry.is_eager_model(definition)
        thing = definition if is_model and not inspect.isclass(definition) else definition()
        is_eager = registry.is_eager_model(thing) and not isinstance(thing, nn.Module)
        module = thing.get_eager_model() if is_eager else thing
    if not isinstance(module, nn.Module):
        what = f"{name} gives {type(module).__name__!r}, not an nn.Module"
        raise WorkbenchError(what, where=source)
    return thing, module


def _find_inputs(holders: list[Any]) -> tuple[Any, Any]:
    """The arguments and keyword arguments that a model's own definition names."""
    inputs = _look_up(holders, *_INPUT_NAMES)
    return inputs, _look_up(holders, "get_example_kwarg_inputs", "get_example_kwargs")


def _check_device(model: LoadedModel) -> None:
    """WorkbenchError if the model is not on the CPU, or what it makes would not be."""
    hint = "move the model and its inputs to the CPU: model.cpu()"
    values = tree_leaves((model.example_inputs, model.kwargs))
    inputs = [("an input", value) for value in values if isinstance(value, torch.Tensor)]
    tensors = [*model.module.named_parameters(), *model.module.named_buffers(), *inputs]
    for name, tensor in tensors:
        if tensor.device.type != "cpu":
            what = f"{name} is on device {tensor.device.type}"
            raise WorkbenchError(what, where=model.origin, hint=hint)
    if torch.get_default_device().type != "cpu":
        what = f"PyTorch's default device is {torch.get_default_device().type}"
        raise WorkbenchError(what, where=model.origin, hint='torch.set_default_device("cpu")')


def _look_up(holders: list[Any], *names: str) -> Any:
    """The first attribute of one of these names; functions are called."""
    values = (getattr(holder, name, None) for holder in holders for name in names)
    value = next((value for value in values if value is not None), None)
    return value() if callable(value) else value


def _load_weights(module: nn.Module, file: Path, fit: Callable[..., Any] | None) -> None:
    """Load a state dict whose names are those of the module, once they are made to ``fit``."""
    if not file.is_file():
        raise UsageError("no such file", where=file)
    with _explain_errors("cannot be loaded as a state dict", str(file)):
        state = load_tensors(file)
        if fit:
            state = fit(state, module)
        missing, unexpected = module.load_state_dict(state, strict=False)
    for names, problem in ((missing, "lacks"), (unexpected, "belongs to another model: it has")):
        if names:
            raise WorkbenchError(f"{problem} {names[0]!r} and {len(names) - 1} more", where=file)


#: Loads a file in a process of its own: of the many ways in which a small one can claim gigabytes,
#: this finds all. Prints what is wrong with it; nothing if it takes too much memory.
_TRIAL = """
import resource, sys, torch
pages = int(open("/proc/self/statm").read().split()[5])
limit = pages * resource.getpagesize() + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    torch.load(sys.argv[1], map_location="cpu", weights_only=True)
except Exception as error:  # of a stranger's file
    if not isinstance(error, MemoryError) and "allocate" not in str(error):
        print(error or type(error).__name__)
    sys.exit(1)
"""


def load_tensors(file: Path) -> Any:
    """What an untrusted ``.safetensors`` file, or one of ``torch.save``, contains."""
    if file.suffix.lower() == ".safetensors":
        from safetensors.torch import load_file

        return load_file(file)
    if sys.platform == "linux":
        limit = 3 * 10**8 + 10 * file.stat().st_size
        command = [sys.executable, "-P", "-c", _TRIAL, str(file), str(limit)]
        tried = subprocess.run(command, capture_output=True, env=child_environment())
        if tried.returncode:
            words = tried.stdout[:300].decode(errors="replace")
            raise ValueError(words or f"it takes more than {limit / 1e6:.0f} MB of memory")
    return torch.load(file, map_location="cpu", weights_only=True)


def try_forward(model: LoadedModel) -> None:
    """Run a copy once, which separates wrong inputs from what the exporter cannot do."""
    given = model.input_source == GIVEN
    hint = "check its inputs" + ("" if given else ": get_example_inputs(), or --inputs")
    with _explain_errors("forward() fails on its inputs", model.origin, hint), torch.no_grad():
        module, args, kwargs = copy.deepcopy((model.module, model.example_inputs, model.kwargs))
        module(*args, **kwargs)


@contextlib.contextmanager
def _siblings_importable(folder: Path) -> Iterator[None]:
    """Let a file import its neighbours; another folder's may have the same names later."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        # Bytecode is found by size and second: a file edited and loaded again would be stale.
        with replaced(sys, "dont_write_bytecode", True):
            yield
    finally:
        with contextlib.suppress(ValueError):  # the file may have changed the list
            sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            file = Path(getattr(sys.modules[name], "__file__", None) or "/")
            is_sibling = file.is_relative_to(folder) and "site-packages" not in file.parts
            is_sibling |= name.startswith(_FILE_PREFIX)
            if is_sibling and name.partition(".")[0] not in before:
                del sys.modules[name]


@contextlib.contextmanager
def _explain_errors(what: str, where: str, hint: str | None = None) -> Iterator[None]:
    """Turn what the user's code raises into a `WorkbenchError` with the line that raised it."""
    try:
        with contain():
            yield
    except (WorkbenchError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a user's code may raise anything
        line = user_line(error) or where
        if isinstance(error, BROKEN):  # whatever the inputs
            hint = None
        raise WorkbenchError(f"{what}: {reason(error)}", where=line, hint=hint) from error

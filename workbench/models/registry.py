"""Names of models, and the interface by which they are found."""

from __future__ import annotations

import ast
import contextlib
import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import plugin
from workbench.errors import UsageError, WorkbenchError, unknown_name
from workbench.models.pt2 import PT2

if TYPE_CHECKING:
    from torch import nn

#: The model that needs no plug-in, which is a module of ``zoo``.
BUILTIN = "toy_cnn"


class EagerModelBase(ABC):
    """A model and the inputs that it is exported and measured with.

    ExecuTorch's example models have the same interface: classes are interchangeable.

    Examples
    --------
    >>> class Tiny(wb.EagerModelBase):
    ...     def get_eager_model(self):
    ...         return torch.nn.Linear(4, 2)
    ...
    ...     def get_example_inputs(self):
    ...         return (torch.ones(1, 4),)
    """

    @abstractmethod
    def get_eager_model(self) -> nn.Module:
        """The model."""

    @abstractmethod
    def get_example_inputs(self) -> tuple[Any, ...]:
        """The positional arguments of its ``forward``."""

    def get_example_kwarg_inputs(self) -> dict[str, Any]:
        """The keyword arguments of its ``forward``."""
        return {}

    def get_calibration_inputs(self) -> Iterable[tuple[Any, ...]]:
        """Further arguments of its ``forward``, to observe the ranges of activations on."""
        return ()

    def prepare_for_export(self, module: nn.Module) -> nn.Module:
        """The model as it is deployed; called once its weights are loaded."""
        return module

    def get_dynamic_shapes(self) -> Any:
        """The ``dynamic_shapes`` for ``torch.export``; None if all shapes are fixed."""
        return None


_registered: dict[str, type] = {}


def register_model(name: str, cls: type | None = None) -> Any:
    """Register a model under a name; without a class, a class decorator.

    Parameters
    ----------
    name
        The name for ``load_model`` and ``workbench export``.
    cls
        A class with the methods of `EagerModelBase`; it replaces an earlier one of this name.

    Raises
    ------
    UsageError
        The class lacks a method, or the name belongs to a built-in model.

    Examples
    --------
    >>> @wb.register_model("tiny")
    ... class Tiny(wb.EagerModelBase):
    ...     def get_eager_model(self):
    ...         return torch.nn.Linear(4, 2)
    ...
    ...     def get_example_inputs(self):
    ...         return (torch.ones(1, 4),)
    >>> "tiny" in wb.list_models()
    True
    """
    if cls is None:
        return lambda decorated: register_model(name, decorated)
    if not is_eager_model(cls):
        text = "lacks get_eager_model() or get_example_inputs()"
        hint = "derive it from workbench.EagerModelBase"
        raise UsageError(text, where=f"model {name!r}", hint=hint)
    if name in _list_defined():
        raise UsageError(f"{name!r} is a built-in model", hint="choose another name")
    _registered[name] = cls
    return cls


def list_models() -> list[str]:
    """The names of all registered models, sorted.

    Examples
    --------
    >>> "toy_cnn" in wb.list_models()
    True
    """
    return sorted({*_list_defined(), *_registered})


def _list_defined() -> list[str]:
    """The names of models that the workbench and plug-ins define, without prefixes."""
    return [BUILTIN, *(name for name in plugin.list_names("models") if not name.endswith(":"))]


def find_model(name: str) -> Any:
    """What defines one of `list_models`, a class or a module; or models with a prefix, ``llm:``."""
    if name == BUILTIN:
        return importlib.import_module(f"{__package__}.zoo.{name}")
    model = _registered.get(name) or plugin.find("models", name)
    if model is None:
        raise WorkbenchError("its plug-in failed", where=name, hint="workbench doctor")
    return model


def is_eager_model(thing: object) -> bool:
    """Whether a class, an instance or a module has the methods of `EagerModelBase`."""
    methods = ("get_eager_model", "get_example_inputs")
    return all(callable(getattr(thing, method, None)) for method in methods)


FILE_FORM = "path/to/file.py:NAME"
_MOST_NAMED = 4  #: Classes of a file that an error names.
#: The libraries whose models have names such as ``timm:NAME``.
LIBRARIES = ("executorch", "timm", "torchvision")


def list_upstream() -> dict[str, tuple[str, str]]:
    """The module and the class of each model that ExecuTorch's wheel defines, by name."""
    try:
        from executorch.examples.models import MODEL_NAME_TO_MODEL
    except ImportError:
        return {}
    return dict(MODEL_NAME_TO_MODEL)


@dataclass(frozen=True)
class ModelName:
    """A model's name, and the file or the library that defines it; ``label`` names artifacts."""

    name: str
    label: str
    file: Path | None = None
    library: str = ""


def parse_name(spec: str) -> ModelName:
    """Parse ``NAME``, ``file.py:NAME`` or ``library:NAME``; `UsageError` without such a file.

    The folder of a package, or a file, that defines one `EagerModelBase` needs no ``NAME``.
    A model of a plug-in, such as ``llm:NAME`` or ``llm:params.json``, may be a file, and may have
    settings after commas.

    A plain name may also be one of ExecuTorch's, as in the profiling kit.
    """
    library, _, name = spec.partition(":")
    if name and is_prefix(library):
        file = Path(name.partition(",")[0])
        text = re.sub(r"[^\w.]+", "_", name.replace(str(file), file.stem, 1))
        params = file.resolve() if file.suffix else None
        return ModelName(name, f"{library}_{text}", params, library)
    if library in LIBRARIES and name:
        return ModelName(name, f"{library}_{name}", library=library)
    path, _, name = spec.rpartition(":")
    if ":" not in spec:
        upstream = spec not in list_models() and spec in list_upstream()
        is_folder = spec not in list_models() and any(Path(spec).glob("*.py"))
        if upstream or not (is_folder or spec.endswith((".py", PT2))):
            return ModelName(spec, spec, library="executorch" if upstream else "")
        path, name = _find_only_model(Path(spec))
    return _locate(path, name, spec)


def _locate(path: str, name: str, spec: str) -> ModelName:
    """The model of that name in a file; `UsageError` if a part is missing."""
    if spec.endswith(PT2) and Path(spec).is_file():
        return ModelName(Path(spec).stem, Path(spec).stem, Path(spec).resolve())
    if not path or not name:
        if path and not Path(path).exists():
            raise UsageError("no such file", where=path)
        modules = list_model_classes(Path(path), "forward") if path else []
        named = " or ".join(":".join(module) for module in modules[:_MOST_NAMED])
        raise UsageError("no model named in the file", where=spec, hint=named or FILE_FORM)
    file = Path(path).resolve()
    if (file / "__init__.py").is_file():
        file /= "__init__.py"
    if file.suffix != ".py":
        raise UsageError("not a Python file", where=path, hint=FILE_FORM)
    if not file.is_file():
        raise UsageError("no such file", where=path)
    return ModelName(name, name, file)


def is_known(model: ModelName) -> bool:
    """Whether a name is registered, or is of a file or a library, which may have it."""
    return bool(model.library or model.file or model.name in list_models())


def check_name(spec: str) -> ModelName:
    """Parse a name, and refuse one that is neither registered nor of a file or a library."""
    model = parse_name(spec)
    if is_known(model):
        return model
    if Path(spec).is_dir():
        raise UsageError("is a folder", where=spec, hint="name a program, or a model in a file")
    meant = restore_name(model.name)
    if meant != model.name:
        raise UsageError(f"unknown model {model.name!r}", hint=f"did you mean {meant}?")
    raise unknown_name("model", model.name, [*list_models(), FILE_FORM])


def is_prefix(word: str) -> bool:
    """Whether a plug-in defines the models whose names begin with a word and a colon."""
    return word.isidentifier() and f"{word}:" in plugin.list_names("models")


def _find_only_model(path: Path) -> tuple[str, str]:
    """The file and name of the one `EagerModelBase` that a file or a folder's files define.

    The name is empty if there are several, or none.
    """
    models = list_model_classes(path, "get_eager_model", "get_example_inputs")
    return models[0] if len(models) == 1 else (str(path), "")


def list_model_classes(path: Path, *methods: str) -> list[tuple[str, str]]:
    """Files and names of a file's or a folder's classes with these methods; nothing is executed."""
    files = sorted(path.glob("*.py")) if path.is_dir() else [path]
    classes = []
    for file in files:
        with contextlib.suppress(OSError, SyntaxError, ValueError):
            nodes = ast.parse(file.read_bytes()).body
            for node in (node for node in nodes if isinstance(node, ast.ClassDef)):
                parts = (part.name for part in node.body if isinstance(part, ast.FunctionDef))
                if {*methods} <= {*parts}:
                    classes.append((str(file), node.name))
    return classes


def restore_name(label: str) -> str:
    """What `parse_name` made a label from, such as ``timm:NAME``."""
    library, _, name = label.partition("_")
    if not name:
        return label
    if is_prefix(library):  # settings lost their comma and equals sign
        return f"{library}:" + re.sub(r"_([a-z]+)_(\d+)(?=_|$)", r",\1=\2", name)
    return f"{library}:{name}" if library in LIBRARIES else label

"""What a model is called: a registered name, ``path/to/file.py:NAME``, or ``library:NAME``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from workbench.errors import UsageError
from workbench.models.registry import BUILTIN, module_of
from workbench.models.sources import Sources, find_sources, installed_version

#: Packages whose models can be named; none of them is a dependency.
LIBRARIES = ("timm", "torchvision")

FILE_FORM = "path/to/file.py:NAME"


@dataclass(frozen=True)
class ModelName:
    """A model's name, and the file or the library that it is looked up in."""

    name: str
    file: Path | None = None
    library: str = ""

    @property
    def label(self) -> str:
        """What artifacts are called after."""
        return f"{self.library}_{self.name}" if self.library else self.name


def parse_name(spec: str) -> ModelName:
    """Take apart what a user called a model.

    Raises
    ------
    UsageError
        It looks like a file, but there is none, or no name in it.
    """
    library, _, name = spec.partition(":")
    if library in LIBRARIES and name:
        return ModelName(name, library=library)
    if ":" not in spec and not spec.endswith(".py"):
        return ModelName(spec)
    path, _, name = spec.rpartition(":")
    if not path or not name:
        raise UsageError("no model named in the file", where=spec, hint=FILE_FORM)
    file = Path(path).resolve()
    if file.suffix != ".py":
        raise UsageError("not a Python file", where=path, hint=FILE_FORM)
    if not file.is_file():
        raise UsageError("no such file", where=path)
    return ModelName(name, file)


def sources_of(model: ModelName) -> Sources | None:
    """What defines a model; None for a class that was registered while Python runs."""
    if model.library:
        return Sources((), (installed_version(model.library),))
    if model.file:
        return find_sources(model.file)
    if model.name in BUILTIN:
        return find_sources(Path(__file__).with_name(f"{module_of(model.name).split('.')[-1]}.py"))
    return None

"""Models of torchvision and timm by their names there, where these packages are installed."""

from __future__ import annotations

import difflib
import importlib.metadata
from types import ModuleType
from typing import TYPE_CHECKING

from workbench.errors import SetupError, UsageError
from workbench.models.names import ModelName
from workbench.models.registry import EagerModelBase

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

"""Models by name, or from a file of the user's; PyTorch is imported when one is loaded."""

from workbench.models.inputs import choose_inputs
from workbench.models.layer import take_layer
from workbench.models.loader import LoadedModel, load_model
from workbench.models.registry import EagerModelBase, list_models, register_model

__all__ = [
    "EagerModelBase",
    "LoadedModel",
    "choose_inputs",
    "list_models",
    "load_model",
    "register_model",
    "take_layer",
]

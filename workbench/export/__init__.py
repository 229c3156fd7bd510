"""From a model to a ``.pte`` with its ETRecord, its inputs and a record of how it came about."""

from workbench.export.artifact import export_model
from workbench.export.layers import describe_pte
from workbench.export.lower import BACKENDS, DTYPES

__all__ = ["BACKENDS", "DTYPES", "describe_pte", "export_model"]

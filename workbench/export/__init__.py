"""From a model to a ``.pte`` with its ETRecord, its inputs and a record of how it came about."""

from workbench.export.artifact import export_model, identify_export
from workbench.export.cache import versions
from workbench.export.describe import describe_export
from workbench.export.dtypes import DTYPES
from workbench.export.layers import describe_pte
from workbench.export.lower import BACKENDS
from workbench.export.probes import PROBES_VERSION, export_probes

__all__ = [
    "BACKENDS",
    "DTYPES",
    "PROBES_VERSION",
    "describe_export",
    "describe_pte",
    "export_model",
    "export_probes",
    "identify_export",
    "versions",
]

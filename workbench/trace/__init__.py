"""Traces and logs to frames, and frames to files of other formats."""

from workbench.trace.allocations import read_allocations
from workbench.trace.etdump import read_etdump, stream_etdump
from workbench.trace.kernel_names import KernelName, parse_kernel_name
from workbench.trace.parquet import write_parquet
from workbench.trace.perfetto import write_perfetto
from workbench.trace.resolve import (
    locate_samples,
    read_functions,
    resolve_functions,
    write_functions,
)
from workbench.trace.samples import read_samples
from workbench.trace.speedscope import write_speedscope
from workbench.trace.tables import write_csvs
from workbench.trace.values import read_values
from workbench.trace.xnn_log import read_xnn_log

__all__ = [
    "KernelName",
    "locate_samples",
    "parse_kernel_name",
    "read_allocations",
    "read_etdump",
    "read_functions",
    "read_samples",
    "read_values",
    "read_xnn_log",
    "resolve_functions",
    "stream_etdump",
    "write_csvs",
    "write_functions",
    "write_parquet",
    "write_perfetto",
    "write_speedscope",
]

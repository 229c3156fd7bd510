"""Traces and logs to frames, and frames to files of other formats.

The verbs are imported when they are first used: reading a trace needs no disassembler.
"""

from importlib import import_module

_HOME = {
    "KernelName": "kernel_names",
    "locate_samples": "resolve",
    "parse_kernel_name": "kernel_names",
    "read_allocations": "allocations",
    "read_etdump": "etdump",
    "read_functions": "resolve",
    "read_samples": "samples",
    "read_values": "values",
    "read_xnn_log": "xnn_log",
    "resolve_functions": "resolve",
    "stream_etdump": "etdump",
    "write_csvs": "tables",
    "write_functions": "resolve",
    "write_parquet": "parquet",
    "write_perfetto": "perfetto",
    "write_speedscope": "speedscope",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

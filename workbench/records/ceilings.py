"""What a machine can do at most, as records beside those of ``records``."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.records.runs import SCHEMA_VERSION


@dataclass(frozen=True)
class Probe:
    """A program that shows a ceiling of the machine.

    ``kind`` is ``gemm``, ``stream``, ``read``, ``call`` or ``program``; ``flops`` are those of one
    execution, ``bytes`` what one of its ``operators`` reads and writes. ``ms`` is the time of one
    execution at its best, 0 before it was measured; ``spread`` how much longer another process
    took.
    """

    kind: str
    dtype: str
    flops: int
    bytes: int
    operators: int
    file: str = ""
    ms: float = 0.0
    spread: float = 0.0


@dataclass(frozen=True)
class Ceilings:
    """What a machine can do at most, at one ISA level and thread count."""

    cpu: str
    runner: str
    isa: str
    threads: int
    measured: str
    probes: tuple[Probe, ...]
    schema_version: int = SCHEMA_VERSION

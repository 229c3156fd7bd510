"""The record of remedies that were tried on a program or parts of it."""

from dataclasses import dataclass

from workbench.records.codec import SCHEMA_VERSION


@dataclass(frozen=True)
class Trial:
    """What a remedy brought on the parts of a program that it changes.

    ``before_ms`` and ``after_ms`` are the latencies of the tried parts, measured side by side in
    ``restarts`` processes each; ``gain_ms`` is what all parts gain, with its 95 % interval;
    ``tried`` of ``parts`` were tried, or the ``whole`` program. ``sqnr_db`` compares the outputs of
    both sides on the real inputs. ``problem`` says why there is no gain, and the rest is then zero;
    ``differs`` if that is because the outputs differ.
    """

    program: str
    remedy: str
    text: str
    parts: int = 0
    tried: int = 0
    restarts: int = 0
    before_ms: float = 0.0
    after_ms: float = 0.0
    gain_ms: float = 0.0
    low_ms: float = 0.0
    high_ms: float = 0.0
    sqnr_db: float | None = None
    delegates: tuple[int, int] = (0, 0)
    kernels: tuple[int, int] = (0, 0)
    problem: str = ""
    differs: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Trials:
    """``checks.json`` of a run."""

    checks: tuple[Trial, ...] = ()
    schema_version: int = SCHEMA_VERSION

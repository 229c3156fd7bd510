"""The record of remedies that were tried on a program or parts of it."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from workbench.records.codec import SCHEMA_VERSION

#: What a trial has shown: ``wrong`` outputs, or ``untried``, for want of something.
Answer = Literal["gains", "loses", "not shown", "wrong", "untried"]


@dataclass(frozen=True)
class Scope:
    """What the times of a trial hold for, beside the program.

    ``isa`` is that of the experiment, ``shapes`` those of the inputs, and
    ``position`` that of the first token; ``clock`` is the one that the latency is read from.
    """

    isa: str = ""
    threads: int = 1
    method: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    position: int = 0
    cpu: str = ""
    clock: str = ""


@dataclass(frozen=True)
class Trial:
    """What a remedy brought on the parts of a program that it changes.

    It is of the finding with that id, and holds for its ``scope`` alone. ``before_ms`` and
    ``after_ms`` are the latencies of the tried parts, measured side by side in ``restarts``
    processes each; ``gain_ms`` is what all parts gain, with its 95 % interval; ``tried`` of
    ``parts`` were tried, or the ``whole`` program. ``sqnr_db`` compares the outputs of both sides
    on the real inputs. ``problem`` says why there is no gain, and the rest is then zero;
    ``differs`` if that is because the outputs differ. All of it took ``seconds``.
    """

    #: In place of a finding's id: a trial of all remedies that helped, on the whole program.
    TOGETHER: ClassVar[str] = "together"

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
    finding: str = ""
    scope: Scope = Scope()
    seconds: float = 0.0

    @property
    def remedies(self) -> set[str]:
        """The names of what was tried: of several together, ``remedy`` has commas."""
        return {*self.remedy.split(",")}

    @property
    def answer(self) -> Answer:
        """What it has shown."""
        if self.problem:
            return "wrong" if self.differs else "untried"
        if self.low_ms > 0:
            return "gains"
        return "loses" if self.high_ms < 0 else "not shown"


@dataclass(frozen=True)
class Applied:
    """``applied.json`` of a run: the remedies that its second program has, and its first has not.

    ``findings`` are the ids of what they are about, ``run`` the folder of the run that has these.
    A remedy is applied by its name: so many ``other`` parts of the model have it, too. ``diff`` has
    the lines to write in the user's source, as a unified diff whose edited program was run, or
    ``unmapped`` says why there are none, or which remedies have none.
    """

    findings: tuple[str, ...]
    remedies: tuple[str, ...]
    run: str
    other: int = 0
    diff: str = ""
    unmapped: str = ""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Trials:
    """``checks.json`` of a run."""

    checks: tuple[Trial, ...] = ()
    schema_version: int = SCHEMA_VERSION

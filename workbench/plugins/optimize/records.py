"""The records of an optimisation: the variants of a program, and what each brought."""

import html
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from workbench import ExportOptions
from workbench.api import UsageError
from workbench.jobs import SCHEMA_VERSION, load_record
from workbench.pages import plural
from workbench.plugins.optimize.search_options import OptimizeOptions

STUDY = "optimize.json"
NOT_TRIED = "not tried within the budget"


@dataclass(frozen=True)
class Variant:
    """One way to export a model: ``change`` in words, relative to the variant ``parent``.

    ``state`` is ``planned``, ``exported``, ``measured``, or ``failed`` for a ``reason``; a variant
    with a ``flaw`` must not be recommended; a ``whole`` one has a single dtype, not rewritten.
    Latencies are those of the last run in which it took part, at its fastest thread count;
    ``speedup`` is against the baseline in that run. It ``helps`` if it was shown to be faster than
    its parent.
    """

    change: str
    options: ExportOptions
    parent: str = ""
    name: str = ""
    whole: bool = False
    predicted_sqnr_db: float | None = None
    state: str = "planned"
    reason: str = ""
    flaw: str = ""
    pte: str = ""
    sha256: str = ""
    size_bytes: int | None = None
    sqnr_db: float | None = None
    score: float | None = None
    threads: int = 1
    latency_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    outcome: str = ""
    helps: bool = False


@dataclass(frozen=True)
class Study:
    """``optimize.json``: what was tried to make a model faster, and what it brought.

    ``best`` and ``whole`` name variants: the recommended one, empty if nothing helped, and the best
    one of a single dtype. ``layers`` has the noise of every layer that was quantised alone, as a
    part of the output's power.
    """

    model: str
    options: OptimizeOptions
    variants: tuple[Variant, ...] = ()
    layers: dict[str, float] = field(default_factory=dict)
    best: str = ""
    whole: str = ""
    conclusion: str = ""
    warnings: tuple[str, ...] = ()
    machine: str = ""
    spent_s: float = 0.0
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read ``optimize.json``, given its path, its folder, or the folder of a model's output.

        Raises
        ------
        UsageError
            There is none.
        StoreError
            It is corrupt.

        Examples
        --------
        >>> wb.read_study(wb.sample_file("out_squeezesam")).best
        '16-int8-mixed'
        """
        path = Path(path)
        places = (path, path / STUDY, path / "optimize" / STUDY)
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            raise UsageError("no optimisation here", where=path, hint="workbench optimize MODEL")
        return load_record(cls, file)

    def __repr__(self) -> str:
        tried = sum(variant.state == "measured" for variant in self.variants)
        return (
            f"Study({self.model}: {plural(tried, 'variant')} measured; "
            f"{self.conclusion or 'not finished'})"
        )

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>"

    def __getitem__(self, name: str) -> Variant:
        """The variant of that name."""
        return next(variant for variant in self.variants if variant.name == name)

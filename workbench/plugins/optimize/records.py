"""The records of an optimisation: the variants of a program, and what each brought."""

import html
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from workbench import ExportOptions
from workbench.api import SCHEMA_VERSION, UsageError, plural, read_json, structure, upgrade
from workbench.jobs import upgrade_rewrites
from workbench.plugins.optimize.options import OptimizeOptions

STUDY = "optimize.json"
NOT_TRIED = "not tried within the budget"


@dataclass(frozen=True)
class VariantGain:
    """By how many milliseconds a variant is faster than another one, with an interval.

    ``basis`` is that of the finding which predicts it, ``ledger`` if times of layers do, or
    ``measured``.
    """

    ms: float | None
    low_ms: float
    high_ms: float
    basis: str


@dataclass(frozen=True)
class Variant:
    """One way to export a model: ``change`` in words, relative to the variant ``parent``.

    ``state`` is ``planned``, ``exported``, ``measured``, or ``failed`` for a ``reason``; a variant
    with a ``flaw`` must not be recommended; a ``whole`` one has a single dtype, not rewritten.
    Latencies are those of the last ``round`` in which it took part, at its fastest thread count;
    ``speedup`` is against the baseline in that round. ``extension_share`` is the part of the
    arithmetic in kernels of the strongest CPU extension. ``gain`` is against the parent.
    ``peak_bytes`` is the largest resident set, ``less_memory`` whether it was shown to be smaller
    than the baseline's. ``start_ms`` is the time to the first output (with one thread, the CPU time
    of it), ``earlier`` whether it was shown to be shorter.
    """

    change: str
    options: ExportOptions
    parent: str = ""
    name: str = ""
    whole: bool = False
    predicted: VariantGain | None = None
    predicted_sqnr_db: float | None = None
    gain: VariantGain | None = None
    state: str = "planned"
    reason: str = ""
    flaw: str = ""
    pte: str = ""
    sha256: str = ""
    size_bytes: int | None = None
    planned_bytes: int | None = None
    sqnr_db: float | None = None
    score: float | None = None
    round: int = -1
    threads: int = 1
    latency_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    load_ms: float | None = None
    peak_bytes: int | None = None
    less_memory: bool = False
    start_ms: float | None = None
    earlier: bool = False
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    outcome: str = ""
    extension_share: float | None = None


@dataclass(frozen=True)
class Round:
    """Variants that are measured interleaved, the baseline first; ``last``: the best of them again.

    ``run_dir`` is relative to the study, and empty until all is measured.
    """

    variants: tuple[str, ...]
    budget_s: float
    run_dir: str = ""
    last: bool = False


@dataclass(frozen=True)
class Study:
    """``optimize.json``: what was tried to make a model faster or smaller, and what it brought.

    ``best`` and ``whole`` name variants: the recommended one, empty if nothing helped, and the best
    one of a single dtype. ``layers`` has the noise of every layer that was quantised alone, as a
    part of the output's power; ``key`` identifies all that the search depends on.
    """

    model: str
    key: str
    options: OptimizeOptions
    variants: tuple[Variant, ...] = ()
    rounds: tuple[Round, ...] = ()
    layers: dict[str, float] = field(default_factory=dict)
    best: str = ""
    whole: str = ""
    conclusion: str = ""
    warnings: tuple[str, ...] = ()
    machine: str = ""
    emulated: bool = False
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
        '01-fp32'
        """
        path = Path(path)
        places = (path, path / STUDY, path / "optimize" / STUDY)
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            raise UsageError("no optimisation here", where=path, hint="workbench optimize MODEL")
        content = upgrade(read_json(file), file)
        if isinstance(variants := content.get("variants"), list):
            content = {**content, "variants": list(map(_upgrade_variant, variants))}
        if isinstance(options := content.get("options"), dict):
            options.pop("runner", None)  # which older versions recorded
        return structure(cls, content, file)

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


def _upgrade_variant(variant: Any) -> Any:
    if isinstance(variant, dict) and isinstance(options := variant.get("options"), dict):
        return {**variant, "options": upgrade_rewrites(options)}
    return variant

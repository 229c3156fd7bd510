"""The findings of a run as a frame, and the trials of their remedies, which its folder keeps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd

from workbench import plugin
from workbench.analysis.findings.finding import Finding
from workbench.analysis.findings.text import describe_cause, write_findings
from workbench.errors import UsageError
from workbench.frames import FINDINGS
from workbench.progress import show_progress
from workbench.records.codec import to_json
from workbench.records.trials import Scope, Trial, Trials
from workbench.shown import draw_page, show_noun
from workbench.store import CHECKS, atomic_write, load_record, lock_writers

if TYPE_CHECKING:
    from workbench.analysis.measurement import Measurement


class Findings(pd.DataFrame):
    """A frame of findings: shown as text and as cards, and their remedies can be tried.

    Where columns or rows are left out, it is a frame like any other.

    Attributes
    ----------
    findings
        The findings as objects, in the order of the rows.
    """

    _metadata: ClassVar[list[str]] = ["findings", "run"]

    def __init__(
        self, data: Any = None, findings: Collection[Finding] = (), run: Any = None, **settings: Any
    ) -> None:
        super().__init__(data, **settings)
        self.findings, self.run = tuple(findings), run

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return Findings

    @property
    def chosen(self) -> list[Finding] | None:
        """The findings of the rows that are left; None if columns are missing."""
        if list(self.columns) != FINDINGS.names or not self.findings:
            return None
        return [self.findings[rank - 1] for rank in self["rank"]]

    def __repr__(self) -> str:
        """Each finding with its gain and what to do, as `workbench findings` prints them."""
        if self.chosen is None:
            return super().__repr__()
        return "\n".join(write_findings(self.chosen)) or "no findings"

    def _repr_html_(self) -> str | None:
        return super()._repr_html_() if self.chosen is None else draw_page(self)

    def _ipython_display_(self) -> None:
        view: Any = None if self.chosen is None else show_noun(self)
        if not hasattr(view, "_ipython_display_"):
            raise NotImplementedError  # it is shown as any other table
        view._ipython_display_()

    def check(self, model: Any = None, finding: Finding | str = "", **limits: Any) -> pd.DataFrame:
        """Try the remedies of the first findings, or that of one; returns the new findings.

        Parameters are those of `check_findings`.
        """
        with show_progress() as progress:
            find_trials()(self.run, model, finding=finding, progress=progress, **limits)
        return self.run.findings


def tabulate_findings(findings: Iterable[Finding], noun: Any) -> Findings:
    """Findings of a run or measurement, a row each: ``frames.FINDINGS``."""
    findings = tuple(findings)
    rows = []
    for rank, each in enumerate(findings, 1):
        gain = each.gain
        facts = (rank, each.id, each.rule, describe_cause(each), each.remedy)
        rows.append((*facts, gain.ms, gain.low, gain.high, each.share, gain.of, gain.basis))
    table = pd.DataFrame(rows, columns=FINDINGS.names)
    kinds = {name: float for name, kind, *_ in FINDINGS.columns if kind == "float"}
    frame = Findings(table.astype({"rank": int} | kinds), findings, noun)
    FINDINGS.check(frame)
    return frame


def find_trials() -> Callable[..., list[Trial]]:
    """What tries remedies, ``check_findings`` of a plug-in; UsageError without one."""
    return find_verb("check_findings", "tries remedies")


def find_verb(name: str, what: str) -> Callable[..., Any]:
    """A public function of a plug-in; UsageError if none does ``what`` it does."""
    verb: Callable[..., Any] | None = plugin.find("attributes", f"workbench.{name}")
    if verb is None:
        raise UsageError(f"no plug-in {what}", hint="`workbench doctor` lists plug-ins")
    return verb


def find_scope(m: Measurement) -> Scope:
    """What a trial has to agree with, beside the program, to hold for a measurement."""
    experiment, phase = m.experiment, m.phase
    return Scope(
        isa=experiment.isa,
        threads=m.threads,
        method=phase.method,
        shapes=tuple(tensor.shape for tensor in phase.inputs or m.program.inputs),
        position=phase.position,
        cpu=str(m.run.record.host.get("cpu", "")),
        clock=m.clock,
    )


def read_trials(run_dir: Path) -> tuple[Trial, ...]:
    """The trials that were made of a run's findings."""
    path = run_dir / CHECKS
    return load_record(Trials, path).checks if path.is_file() else ()


def keep_trial(run_dir: Path, trial: Trial) -> None:
    """Add a trial to those in a run's folder; it replaces an older one of its finding and scope."""
    with lock_writers(run_dir):
        other_trials = [
            each
            for each in read_trials(run_dir)
            if (each.finding, each.scope) != (trial.finding, trial.scope)
        ]
        atomic_write(run_dir / CHECKS, to_json(Trials((*other_trials, trial))))

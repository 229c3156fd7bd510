"""What trying remedies brought, as a part of a run's findings."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from workbench import plugin
from workbench.analysis.describe import draw_page
from workbench.analysis.findings.ranking import LEAST_SHARE, rank_findings
from workbench.errors import UsageError
from workbench.frames import FINDINGS
from workbench.progress import show_progress
from workbench.records.checks import Trial, Trials
from workbench.records.codec import to_json
from workbench.remedies import NO_REMEDY
from workbench.store import CHECKS, atomic_write, load_record

#: Findings that are tried if nobody says how many.
BEST = 3


class Findings(pd.DataFrame):
    """A frame of findings: displayed as cards, and their remedies can be tried.

    Without some of the columns it is displayed as any other frame.
    """

    _metadata: ClassVar[list[str]] = ["run"]

    def __init__(self, data: Any = None, run: Any = None, **settings: Any) -> None:
        super().__init__(data, **settings)
        self.run = run

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return Findings

    @property
    def are_whole(self) -> bool:
        """Whether they have all that a card says."""
        return set(FINDINGS.names) <= set(self.columns)

    def _repr_html_(self) -> str | None:
        return draw_page(self) if self.are_whole else super()._repr_html_()

    def check(self, model: Any = None, top: int = BEST) -> pd.DataFrame:
        """Try the remedies of the first findings; returns the new findings."""
        with show_progress() as progress:
            find_trials()(self.run, model, top=top, progress=progress)
        return self.run.findings


def find_trials() -> Callable[..., list[Trial]]:
    """What tries remedies, ``check_findings`` of a plug-in; UsageError without one."""
    check = plugin.find("names", "check_findings")
    if check is None:
        raise UsageError("no plug-in tries remedies", hint="`workbench doctor` lists plug-ins")
    return check


def read_checks(run_dir: Path) -> tuple[Trial, ...]:
    """The checks that were made of a run's findings."""
    path = run_dir / CHECKS
    return load_record(Trials, path).checks if path.is_file() else ()


def keep_checks(run_dir: Path, checks: Sequence[Trial]) -> None:
    """Add checks to those in a run's folder; a newer one of a remedy replaces the older."""
    made = (*read_checks(run_dir), *checks)
    latest = {(check.program, check.remedy, check.text): check for check in made}
    atomic_write(run_dir / CHECKS, to_json(Trials(tuple(latest.values()))))


def add_checked(findings: pd.DataFrame, checks: Sequence[Trial], latency_ms: float) -> pd.DataFrame:
    """Findings with what their remedies brought; of one that did not help, it is said so.

    A check is of the finding with the same remedy whose action names what was tried.
    """
    findings = findings.copy()
    losing = {check.remedy for check in checks if check.differs or check.gain_ms < 0}
    for check in checks:
        named = findings["remedy"] == check.remedy
        several = named & findings["title"].add(findings["action"]).str.contains(
            check.text, regex=False
        )
        for row in findings.index[several if several.any() else named][:1]:
            changes = _change(findings.loc[row].to_dict(), check, latency_ms)
            if changes.get("basis") == "checked" and check.remedy in losing:
                changes |= _apply_by_hand(changes, findings.at[row, "hint"], check.remedy)
            findings.loc[row, list(changes)] = list(changes.values())
    return rank_findings(findings)


def _apply_by_hand(changes: dict[str, Any], hint: str, remedy: str) -> dict[str, Any]:
    """What becomes of a finding whose remedy, as an option, does harm elsewhere."""
    code = hint.partition("\n# ")[2].replace("\n# ", "\n")
    text = f"{changes['action']}; by hand: --rewrite {remedy} changes another part for the worse"
    return {"hint": code, "action": text, "remedy": ""}


def _change(row: dict[str, Any], check: Trial, latency_ms: float) -> dict[str, Any]:
    if check.differs:
        text = f"--rewrite {check.remedy} was tried on this part and is wrong: {check.problem}"
        return _refuse(text)
    if check.problem:
        return {"action": f"{row['action']}; not tried: {check.problem}"}
    tried = f"{check.tried} of {check.parts} parts" if check.tried < check.parts else "this part"
    tried = "the whole program" if check.whole else tried
    interval = f"[{check.low_ms:.3g}, {check.high_ms:.3g}]"
    is_small = 0 < check.gain_ms < LEAST_SHARE * latency_ms
    if check.gain_ms <= 0 or check.low_ms <= 0 or is_small:
        verdict = "does not help" if check.gain_ms <= 0 else "was not shown to help"
        verdict = "hardly helps" if is_small and check.low_ms > 0 else verdict
        text = f"--rewrite {check.remedy} was tried on {tried} and {verdict}: "
        text += f"it saves {check.gain_ms:.3g} ms {interval}"
        is_open = check.gain_ms > 0 and not is_small
        if check.gain_ms > 0 and check.tried < check.parts:
            text += f"; all {check.parts} together were not tried"
        return _refuse(text, row["hint"] if is_open else "")
    ratio = f", outputs agree to {check.sqnr_db:.0f} dB" if check.sqnr_db is not None else ""
    text = f"{row['action']}; tried on {tried}: {check.before_ms:.3g} -> {check.after_ms:.3g} ms"
    # Measured in a slower moment, the parts may have taken longer than the whole program before.
    every_ms = check.before_ms * check.gain_ms / (check.before_ms - check.after_ms)
    scale = min(1.0, latency_ms / every_ms)
    gain_ms, low_ms, high_ms = (scale * end for end in (check.gain_ms, check.low_ms, check.high_ms))
    return {
        "action": text + ratio, "gain_ms": gain_ms, "low_ms": low_ms,
        "high_ms": min(high_ms, latency_ms), "share": gain_ms / latency_ms, "basis": "checked",
    }  # fmt: skip


def _refuse(text: str, hint: str = "") -> dict[str, Any]:
    """What becomes of a finding whose remedy does not keep its promise."""
    nothing = dict.fromkeys(("gain_ms", "low_ms", "high_ms", "share"), float("nan"))
    facts = {"rule": NO_REMEDY, "action": text, "hint": hint, "remedy": "", "basis": "refused"}
    return nothing | facts

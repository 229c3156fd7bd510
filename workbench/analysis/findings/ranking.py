"""The order of findings, each cause once."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from workbench.remedies import NO_REMEDY

#: Smaller gains, as a fraction of E2E, are not reported.
LEAST_SHARE = 0.01
#: Rules whose findings only another dtype helps against.
_FLOORS = ("compute-bound", "dtype")
#: The rule whose findings say that something is slow, and not why.
_SYMPTOM = "other runtimes"


def rank_findings(findings: pd.DataFrame, by_gain: bool = True) -> pd.DataFrame:
    """Findings, largest expected gain of latency first, each cause once.

    Of a gain with only an upper bound, half is expected. Findings that only another dtype helps
    against follow: they are the floor of this one. Then come those about the start and memory, and
    those whose gain could not be measured. A finding whose operators all belong to one
    with a larger gain is told with that one. The first three share no operator. What another
    runtime computes faster is told with a cause of at least half of it, if one was found.
    """
    if by_gain:
        expected = findings["gain_ms"].fillna(findings["high_ms"] / 2)
        floor = findings["rule"].isin(_FLOORS) & (findings["basis"] != "measured")
        latency = findings["of"] == "latency"
        hopeless = findings["rule"] == NO_REMEDY
        group = np.select([hopeless, latency & expected.isna(), ~latency, floor], [2, 4, 3, 1], 0)
        order = pd.DataFrame({"group": group, "gain": -expected}, findings.index)
        findings = findings.loc[order.sort_values(["group", "gain"], kind="stable").index]
    causes: list[dict[str, Any]] = []
    rows = findings.to_dict("records")
    for row in [row for row in rows if row["rule"] == _SYMPTOM]:
        if cause := next((each for each in rows if _is_cause(each, row)), None):
            cause["action"] += f"; this also explains: {row['title']}"
            rows.remove(row)
    for row in rows:
        keys = {*row["keys"].splitlines()}
        same = [c for c in causes if keys and keys <= {*c["keys"].splitlines()}]
        if same and by_gain and row["of"] == "latency":
            same[0]["action"] += f"; this also explains: {row['title']}"
        else:
            causes.append(row)
    first: list[dict[str, Any]] = []
    for row in causes if by_gain else ():
        taken = {key for each in first for key in each["keys"].splitlines()}
        if len(first) < 3 and taken.isdisjoint(row["keys"].splitlines()):
            first.append(row)
    table = pd.DataFrame(
        [*first, *(row for row in causes if row not in first)], columns=findings.columns
    )
    return table.astype(findings.dtypes).assign(rank=range(1, len(table) + 1))


def _is_cause(finding: Mapping[str, Any], symptom: Mapping[str, Any]) -> bool:
    """Whether a finding says why at least half of what a symptom loses is slow."""
    expected = np.fmax(finding["gain_ms"], finding["high_ms"] / 2)
    shared = {*finding["keys"].splitlines()} & {*symptom["keys"].splitlines()}
    eligible = finding["rule"] not in (_SYMPTOM, *_FLOORS)
    return bool(eligible and shared and expected >= symptom["gain_ms"] / 2)

"""Findings as a table of all that they say, to look things up in."""

import pandas as pd

COLUMNS = (
    "rank", "id", "rule", "cause", "place", "spent", "gain_ms", "low_ms", "high_ms", "share", "of",
    "basis", "action", "hint", "remedy", "operators", "heading", "also",
)  # fmt: skip


def tabulate(noun):
    """The findings of a run or measurement, or a list of them, a row each."""
    findings = noun if isinstance(noun, list | tuple) else noun.opportunities
    rows = [
        {
            **{name: getattr(each, name, None) for name in COLUMNS},
            **{"gain_ms": each.gain.ms, "low_ms": each.gain.low, "high_ms": each.gain.high},
            "rank": rank,
            "of": each.gain.of,
            "basis": each.gain.basis,
            "action": each.action or "no known remedy",
            "hint": "" if each.is_hopeless else f"{each.command}\n{each.code}",
            "operators": "\n".join(each.operators),
            "also": [other.rule for other in each.also],
        }
        for rank, each in enumerate(findings, 1)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)

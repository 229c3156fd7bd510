"""Findings as a table of all that they say, to look things up in."""

import pandas as pd

from workbench.analysis.findings import text

COLUMNS = (
    "rank", "id", "rule", "cause", "place", "spent", "gain_ms", "low_ms", "high_ms", "share", "of",
    "basis", "action", "hint", "remedy", "operators", "heading", "tried", "also",
)  # fmt: skip


def tabulate(noun):
    """The findings of a run or measurement, or a list of them, a row each."""
    findings = noun if isinstance(noun, list | tuple) else noun.opportunities
    rows = [
        text.to_record(each, rank)
        | {
            "hint": text.write_hint(each),
            "operators": "\n".join(each.operators),
            "tried": text.describe_trial(each),
            "also": [other.rule for other in each.also],
            "spent": each.spent,
        }
        for rank, each in enumerate(findings, 1)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)

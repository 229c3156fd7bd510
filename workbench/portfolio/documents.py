"""The JSON files about many runs, beside those of one."""

from __future__ import annotations

from typing import Any

from workbench import report
from workbench.records import Outcome, Portfolio
from workbench.report import describe_contract
from workbench.schema import COMBINED, COMPARISON, LINED_UP, Contract, closed, nullable


def list_documents() -> list[str]:
    """The names of all documents that have a schema."""
    return sorted([*report.list_documents(), *_DOCUMENTS])


def describe_document(name: str) -> dict[str, Any]:
    """The JSON Schema, draft 2020-12, of one of ``list_documents()``.

    Raises
    ------
    UsageError
        There is no such document.
    """
    if name in _DOCUMENTS:
        return describe_contract(name, _DOCUMENTS[name])
    return report.describe_document(name)


def _portfolio(contract: Contract) -> dict[str, Any]:
    return contract.of(Portfolio)


def _outcome(contract: Contract) -> dict[str, Any]:
    return contract.of(Outcome)


def _combined(contract: Contract) -> dict[str, Any]:
    text = {"type": "string"}
    return closed(
        {
            **report.VERSION,
            "models": {"type": "array", "items": text},
            "runs": contract.rows(COMBINED),
            "latencies": contract.rows(COMPARISON),
            "layers": nullable(contract.rows(LINED_UP)),
            "problem": text,
        }
    )


_DOCUMENTS = {"portfolio": _portfolio, "outcome": _outcome, "combined_pipeline_summary": _combined}

"""The JSON files of the workbench: what is in each, as a schema to check it with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.errors import StoreError, unknown_name
from workbench.frames import (
    ATTRIBUTION,
    BOTTLENECKS,
    COMBINED,
    COMPARISON,
    FINDINGS,
    KERNEL_CHANGES,
    KERNEL_EVIDENCE,
    LADDER,
    LAYERS,
    LINED_UP,
    QUALITY,
    SCALING,
    SHIFT,
    STATISTICS,
)
from workbench.records.codec import Contract, check_version, closed, nullable
from workbench.records.layers import Layers
from workbench.records.portfolio import Outcome, Portfolio
from workbench.records.runs import SCHEMA_VERSION, Ceilings, Export, Plan, Proof, Reading, RunRecord

Schema = dict[str, Any]


_TEXT = {"type": "string"}


_TEXT_OR_NULL = {"type": ["string", "null"]}


_NUMBER = {"type": "number"}


_NUMBER_OR_NULL = {"type": ["number", "null"]}


_WHOLE = {"type": "integer"}


_FLAG = {"type": "boolean"}


_ANY_OBJECT = {"type": "object"}


#: The key that every document has.
VERSION = {"schema_version": {"const": SCHEMA_VERSION}}


_MEASURED = {"experiment": _TEXT, "threads": _WHOLE}


def list_documents() -> list[str]:
    """The names of the documents that have a schema."""
    return sorted(_DOCUMENTS)


def describe_document(name: str) -> Schema:
    """The JSON Schema, draft 2020-12, of one of ``list_documents()``.

    Raises
    ------
    UsageError
        There is no such document.
    """
    if name not in _DOCUMENTS:
        raise unknown_name("document", name, _DOCUMENTS)
    return describe_contract(name, _DOCUMENTS[name])


def describe_contract(name: str, describe: Callable[[Contract], Schema]) -> Schema:
    """The JSON Schema of a document whose body a function describes."""
    contract = Contract()
    body = describe(contract)
    for definition in contract.definitions.values():
        if "schema_version" in definition["properties"]:
            definition["properties"] |= VERSION
    return contract.publish(name, SCHEMA_VERSION, {"title": name.replace("_", " "), **body})


def read_document(path: Path, name: str) -> dict[str, Any]:
    """Read a JSON file that nobody vouches for, if it is what its schema says.

    Raises
    ------
    StoreError
        It is not JSON, of another version, or something else; says what and where.
    """
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"not JSON: {error}", where=path) from None
    if not isinstance(content, dict):
        raise StoreError("not an object", where=path)
    check_version(content, path, least=SCHEMA_VERSION)
    problem = find_problem(content, name)
    if problem:
        raise StoreError(f"not a {name} document: {problem}", where=path)
    return content


def find_problem(content: Any, name: str) -> str:
    """What is wrong with a document by its schema, in one line; empty if nothing is."""
    import jsonschema

    validator = jsonschema.Draft202012Validator(describe_document(name))
    error = jsonschema.exceptions.best_match(validator.iter_errors(content))
    return f"{error.message:.200} at {error.json_path}" if error else ""


def _record(kind: type) -> Callable[[Contract], Schema]:
    return lambda contract: contract.of(kind)


def _metrics(contract: Contract) -> Schema:
    latency = contract.row(
        STATISTICS,
        **_MEASURED,
        clock={"enum": ["cpu_ns", "wall_ns"]},
        control=_FLAG,
        restarts_ms={"type": "array", "items": {"type": "number", "minimum": 0}, "minItems": 1},
        tracer_overhead=_NUMBER_OR_NULL,
        load_ms={"type": "array", "items": _NUMBER},
        startup_ms={"type": "array", "items": _NUMBER},
    )
    return closed(
        {
            **VERSION,
            "unit": {"const": "ms"},
            "model": _TEXT,
            "program": _TEXT,
            "device": _TEXT,
            "build": _TEXT,
            "emulated": _FLAG,
            "started": _TEXT,
            "floor": _NUMBER_OR_NULL,
            "latencies": {"type": "array", "items": latency},
        }
    )


def _summary(contract: Contract) -> Schema:
    measurement = _measurement(contract)
    return closed(
        {
            **VERSION,
            "run_dir": _TEXT,
            "model": _TEXT,
            "emulated": _FLAG,
            "etrecord": _TEXT_OR_NULL,
            "etdump_count": _WHOLE,
            **measurement,
            "per_etdump": {
                "type": "array",
                "items": closed(
                    {
                        "etdump": _TEXT,
                        **_MEASURED,
                        "process": _WHOLE,
                        "e2e": contract.row(STATISTICS),
                    }
                ),
            },
            "findings": contract.rows(
                FINDINGS, without=("keys",), keys={"type": "array", "items": _TEXT}
            ),
            "comparisons": {"type": "array", "items": _comparison(contract)},
            "ladder": nullable(contract.rows(LADDER)),
            "scaling": nullable(contract.rows(SCALING)),
            "crossovers": {"type": "array", "items": _TEXT},
            "kernel_changes": {
                "type": "object",
                "additionalProperties": contract.rows(KERNEL_CHANGES),
            },
            "measurements": {"type": "array", "items": closed(measurement)},
            "checks": {
                "type": "array",
                "items": closed(
                    {
                        "check": _TEXT,
                        "status": {"enum": ["ok", "note", "fail"]},
                        "evidence": _TEXT,
                    }
                ),
            },
            "quality": closed(
                {
                    "grade": {"enum": ["A", "B", "C", "D"]},
                    "summary": _TEXT,
                    "criteria": contract.rows(QUALITY),
                    "readings": {"type": "array", "items": contract.of(Reading)},
                }
            ),
        }
    )


def _measurement(contract: Contract) -> dict[str, Schema]:
    facts = contract.row(ATTRIBUTION, without=("key", "module"))["properties"]
    evidence = {
        "code": _TEXT,
        **dict.fromkeys(("share", "low", "high"), _NUMBER_OR_NULL),
        "samples": _WHOLE,
    }
    operator = {
        **dict.fromkeys(("name", "category", "family", "rule", "key"), _TEXT),
        **dict.fromkeys(("avg_ms", "count", "total_ms", "share"), _NUMBER_OR_NULL),
        "kernel_hint": _TEXT_OR_NULL,
        "kernel_evidence": nullable(closed(evidence)),
        "layer": _TEXT_OR_NULL,
        **facts,
    }
    return {
        **_MEASURED,
        "latency": contract.row(STATISTICS, clock=_TEXT),
        "e2e": contract.row(STATISTICS),
        "bottlenecks": contract.rows(BOTTLENECKS),
        "category_totals_ms": {"type": "object", "additionalProperties": _NUMBER},
        "operator_details": {"type": "array", "items": closed(operator, optional=facts)},
        "layers": nullable(contract.rows(LAYERS)),
    }


def _comparison(contract: Contract) -> Schema:
    parts = contract.rows(COMPARISON)
    return closed(
        {
            "label": _TEXT,
            "baseline": closed(_MEASURED),
            "candidate": closed(_MEASURED),
            "verdict": _TEXT,
            "code": nullable(contract.of(Proof)),
            "latency": contract.row(COMPARISON),
            "categories": parts,
            "operators": contract.rows(COMPARISON, key=_TEXT),
            "layers": nullable(parts),
            "shift": contract.rows(SHIFT),
            "kernels": nullable(contract.rows(KERNEL_EVIDENCE)),
        }
    )


def _pipeline(contract: Contract) -> Schema:
    texts = dict.fromkeys(("dir", "state", "platform", "started", "finished"), _TEXT)
    run = {
        **texts,
        "emulated": _FLAG,
        **dict.fromkeys(("host", "runner", "versions"), _ANY_OBJECT),
        "plan": contract.of(Plan),
    }
    return closed(
        {
            **VERSION,
            "model": _TEXT,
            "verdicts": {"type": "array", "items": _TEXT},
            "export": nullable(contract.of(Export)),
            "run": closed(run),
        }
    )


def _combined(contract: Contract) -> Schema:
    return closed(
        {
            **VERSION,
            "models": {"type": "array", "items": _TEXT},
            "runs": contract.rows(COMBINED),
            "latencies": contract.rows(COMPARISON),
            "layers": nullable(contract.rows(LINED_UP)),
            "problem": _TEXT,
        }
    )


_DOCUMENTS: dict[str, Callable[[Contract], Schema]] = {
    "portfolio": _record(Portfolio),
    "outcome": _record(Outcome),
    "combined_pipeline_summary": _combined,
    "manifest": _record(RunRecord),
    "export": _record(Export),
    "layers": _record(Layers),
    "ceilings": _record(Ceilings),
    "metrics": _metrics,
    "analysis_summary": _summary,
    "pipeline_summary": _pipeline,
}

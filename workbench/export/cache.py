"""Whether an export that lies there is the one that would be made: nothing is imported for it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from workbench import store
from workbench.errors import WorkbenchError
from workbench.models.names import ModelName, sources_of
from workbench.models.samples import sample_files
from workbench.models.sources import find_sources
from workbench.records import Export

_PACKAGES = {
    "torch": "torch",
    "executorch": "executorch",
    "torchao": "torchao",
    "workbench": "executorch-workbench",
}


def fingerprint(
    model: ModelName, settings: Mapping[str, Any], inputs: Iterable[str], weights: Any
) -> dict[str, str]:
    """What an export of a model is made from; empty for what has no source to tell by.

    Parameters
    ----------
    model
        Its name.
    settings
        What was asked for, such as the dtype.
    inputs
        Where its representative inputs are from, as `choose_inputs` takes them.
    weights
        The file of its state dict.

    Returns
    -------
    dict
        ``model``, ``workbench``, ``versions``, ``settings``, ``inputs`` and ``weights``: a hash, or
        the thing itself where it is short.
    """
    sources = sources_of(model)
    if sources is None:
        return {}
    inputs = tuple(inputs)
    return {
        "model": f"{_hash_files(sources.files)} {', '.join(sources.packages)}".strip(),
        "workbench": _hash_files(find_sources(Path(__file__).with_name("artifact.py")).files),
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
        "settings": json.dumps(settings, sort_keys=True),
        "inputs": " ".join([*inputs, _hash_files(sample_files(inputs))]) if inputs else "",
        "weights": store.sha256_of(Path(weights)) if weights and Path(weights).is_file() else "",
    }


def find_unchanged(pte: Path, made_from: Mapping[str, str]) -> Export | None:
    """The record of a program that was made from the same, if every file of it is still intact."""
    if not made_from:
        return None
    try:
        export = store.load_export(pte)
        if export is None or export.made_from != dict(made_from) or not export.files:
            return None
        intact = all(
            store.sha256_of(pte.parent / Path(name).name) == sha256
            for name, sha256 in export.files.items()
        )
    except WorkbenchError:
        return None
    return export if intact else None


def versions() -> dict[str, str]:
    """The versions of all that makes a program."""
    packages = {name: importlib.metadata.version(dist) for name, dist in _PACKAGES.items()}
    return {"python": platform.python_version(), **packages}


def _hash_files(files: Iterable[Path]) -> str:
    """One SHA-256 of the contents of some files, in their order."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name} {store.sha256_of(file)}\n".encode())
    return digest.hexdigest()

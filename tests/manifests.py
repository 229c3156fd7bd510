"""Manifests as files: what a record or a mapping is in JSON."""

import json
from dataclasses import fields, is_dataclass
from pathlib import Path


def plain(value):
    """Records, tuples and numbers of NumPy as what JSON has."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    return value.item() if hasattr(value, "item") else value


def write_manifest(content, folder):
    """Write the manifest of a run, without the files that it names."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps(plain(content)))

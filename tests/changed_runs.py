"""Runs that differ from a recorded one in something."""

import copy
import json
from dataclasses import replace

from manifests import write_manifest


def changed(run, **attributes):
    """A copy of a run with other attributes or frames."""
    other = copy.copy(run)
    vars(other).update(attributes)
    return other


def with_record(run, **changes):
    """The same files with another manifest."""
    return replace(run, record=replace(run.record, **changes))


def change_manifest(run_dir, **changes):
    """Change the manifest of a run on disk."""
    content = json.loads((run_dir / "manifest.json").read_text())
    write_manifest(content | changes, run_dir)


def edit_json(path, change):
    """Change the content of a JSON file."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))

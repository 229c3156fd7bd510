"""Runs that differ from a recorded one in something."""

import copy
import json
from dataclasses import replace

import workbench as wb
from workbench.report.artifacts import write_artifacts
from workbench.run.recorder import RunRecorder
from workbench.store import load_run, save_run


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
    save_run(replace(load_run(run_dir), **changes), run_dir)


def edit_json(path, change):
    """Change the content of a JSON file."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def write_record(record, folder):
    """Write a manifest, without the files that it names."""
    save_run(record, folder)


def analyze(run_dir):
    """Write the files of a run again."""
    write_artifacts(wb.open_run(run_dir))


def rewrite_manifest(run_dir):
    """Write a manifest as recording does, with the keys of Arm's kit."""
    RunRecorder(run_dir, load_run(run_dir), (), None).update()

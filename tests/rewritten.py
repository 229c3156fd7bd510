"""Files of a run that are written again."""

import workbench as wb
from workbench.report.artifacts import write_artifacts
from workbench.run.recorder import RunRecorder


def analyze(run_dir):
    """Write the files of a run again."""
    write_artifacts(wb.open_run(run_dir))


def rewrite_manifest(run_dir):
    """Write a manifest as recording does, with the keys of Arm's kit."""
    RunRecorder(run_dir, wb.open_run(run_dir).record, (), None).update()

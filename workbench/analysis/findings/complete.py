"""What findings propose, with the run, program and model that it is about."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.analysis.findings.finding import Change, Finding
from workbench.store import artifacts_dir

if TYPE_CHECKING:
    from workbench.analysis.measurement import Measurement


def complete_finding(m: Measurement, finding: Finding) -> Finding:
    """A finding with commands and code that name its run and program.

    Where its remedy is not tried, or not long enough, the command tries it.
    """
    command, code = (complete_command(m, text) for text in (finding.command, finding.code))
    untried = isinstance(finding.rewrite, Change) and finding.trial is None
    if untried or (finding.trial and finding.trial.answer == "not shown"):
        # A module of a notebook is known there alone.
        again = "workbench findings RUN_DIR" + ("" if m.is_given else " --model MODEL")
        if m not in m.run.subjects[:1]:
            again += f" --experiment {m.name} --threads {m.threads}"
        again += f" --check {finding.id}" + ("" if untried else " --budget 1m")
        command = complete_command(m, again)
        command = f"%{command}" if m.is_given else command
        if m.in_script:
            budget = "" if untried else ", budget_s=60"
            command = f'wb.check_findings(run, net, x, finding="{finding.id}"{budget})'
    return replace(finding, command=command, code=code)


def complete_command(m: Measurement, command: str) -> str:
    """A command with its run and program for ``RUN_DIR``, ``MODEL.pte`` and ``MODEL``."""
    if m.is_given and re.search(r"MODEL(?![.]pte)", command):
        if m.in_script:
            return command.replace("workbench profile MODEL", "wb.profile(net, x)")
        # A module of a notebook: the magic takes it, and its inputs, by their names there.
        return re.sub("^workbench", "%workbench", command).replace("MODEL", "net x")
    folder, planned = m.run.path.resolve(), Path(m.program.pte or "MODEL.pte")
    is_below = folder.is_relative_to(Path.cwd())
    places = planned, artifacts_dir(m.run.path.parent.parent) / planned.name
    names = {
        "RUN_DIR": str(folder.relative_to(Path.cwd()) if is_below else folder),
        "MODEL.pte": str(next(filter(Path.is_file, places), planned)),
        "MODEL": m.spec or "MODEL",
    }
    placeholders = "|".join(map(re.escape, names))
    return re.sub(placeholders, lambda match: shlex.quote(names[match[0]]), command)

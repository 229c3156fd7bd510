"""What findings propose, with the run, program and model that it is about."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.analysis.findings.finding import Change, Finding
from workbench.errors import UsageError
from workbench.names import name_in_main
from workbench.store import artifacts_dir

if TYPE_CHECKING:
    from workbench.analysis.measurement import Measurement


@dataclass(frozen=True)
class Names:
    """What a notebook or a script calls a module, or a lowered program, its inputs and its run."""

    module: str = "net"
    inputs: tuple[str, ...] = ("x",)
    run: str = "run"

    @property
    def given(self) -> str:
        """The inputs as a call takes them."""
        return f"({', '.join(self.inputs)})" if len(self.inputs) > 1 else self.inputs[0]

    @property
    def arguments(self) -> str:
        """The module and its inputs as a call takes them."""
        return self._call(self.module)

    @property
    def both(self) -> str:
        """The module and a changed one, with their inputs, as a call takes them."""
        return self._call(f"[{self.module}, changed]")

    def _call(self, subject: str) -> str:
        return f"{subject}, {self.given}" if self.inputs else subject


def find_names(m: Measurement) -> Names:
    """The variables of this process that hold what was measured, or the usual names."""
    from workbench.export.artifact import recall_model

    run, lowered = name_in_main(m.run, Names.run), m.export is None
    module, inputs = recall_model(_key_of(m)) or (None, None)
    if lowered and inputs is None:  # it was run on its own examples
        return Names(name_in_main(module, "manager"), (), run)
    given = inputs if isinstance(inputs, tuple | list) and inputs else (inputs,)
    usual = ("x",) if len(given) == 1 else tuple(f"x{n}" for n in range(1, len(given) + 1))
    pairs = () if isinstance(inputs, dict) else zip(given, usual, strict=True)
    names = tuple(name_in_main(each, name) if each is not None else name for each, name in pairs)
    whole = "" if inputs is None else name_in_main(inputs, "")
    names = (whole,) if whole else names  # a variable holds all of them
    usual_name = "manager" if lowered else Names.module
    return Names(name_in_main(module, usual_name), names or usual, run)


def _key_of(m: Measurement) -> str:
    """By what this process remembers what was measured."""
    return m.program.sha256 if m.export is None else m.export.graph


def is_lowered_here(m: Measurement) -> bool:
    """Whether this process was given its program as a lowered one."""
    from workbench.export.artifact import recall_model

    return m.export is None and recall_model(_key_of(m)) is not None


def is_loadable(m: Measurement) -> bool:
    """Whether this process can measure its model again: it has the module, or may load it."""
    try:
        m.original.find()
    except UsageError:
        return False
    return True


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
        names = find_names(m) if m.is_given else Names()
        command = complete_command(m, again)
        command = f"%{command}" if m.is_given else command
        if m.in_script:
            budget = "" if untried else ", budget_s=60"
            call = f'{names.run}, {names.arguments}, finding="{finding.id}"{budget}'
            command = f"wb.check_findings({call})"
    return replace(finding, command=command, code=code)


def complete_command(m: Measurement, command: str) -> str:
    """A command with its run and program for ``RUN_DIR``, ``MODEL.pte`` and ``MODEL``."""
    asks_model = re.search(r"MODEL(?![.]pte)", command)
    if asks_model and (m.is_given or is_lowered_here(m)):
        names = find_names(m)
        if not m.is_given:  # what it was lowered from
            names = replace(names, module=Names.module, inputs=names.inputs or Names.inputs)
        if m.in_script or not m.is_given:
            return command.replace("workbench profile MODEL", f"wb.profile({names.arguments})")
        # A module of a notebook: the magic takes it, and its inputs, by their names there.
        words = " ".join((names.module, *names.inputs))
        return re.sub("^workbench", "%workbench", command).replace("MODEL", words)
    folder, planned = m.run.path.resolve(), Path(m.program.pte or "MODEL.pte")
    is_below = folder.is_relative_to(Path.cwd())
    places = planned, artifacts_dir(m.run.path.parent.parent) / planned.name
    values = {
        "RUN_DIR": str(folder.relative_to(Path.cwd()) if is_below else folder),
        "MODEL.pte": str(next(filter(Path.is_file, places), planned)),
        "MODEL": m.spec or "MODEL",
    }
    placeholders = "|".join(map(re.escape, values))
    return re.sub(placeholders, lambda match: shlex.quote(values[match[0]]), command)

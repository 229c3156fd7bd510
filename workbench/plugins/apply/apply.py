"""Measure the program with remedies of a run's findings beside the one without."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench import (
    Comparison,
    ExportOptions,
    Measurement,
    MeasureOptions,
    Program,
    Run,
    export_model,
    profile,
)
from workbench.api import Finding, UsageError
from workbench.graphs import PRECISIONS, reason, silence
from workbench.jobs import (
    LONGEST_LABEL,
    REWRITES,
    Applied,
    Progress,
    Trial,
    show_progress,
    unknown_name,
)

_log = logging.getLogger(__name__)
#: In place of an id: all findings whose remedies were shown to help.
ALL = "all"
#: What is measured: latency and operators.
_MEASURED = MeasureOptions(toggle="none", evidence=False, cold_start=False, roof=False)


def apply_remedies(
    run: Run,
    finding: Finding | str | None = None,
    model: Any = None,
    inputs: Any = None,
    *,
    measure: MeasureOptions | None = None,
    root: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Run:
    """Export a run's model without and with remedies, and measure both; see `Run.apply`.

    Examples
    --------
    >>> after = wb.apply_remedies(run, "constants-1f2e3d")  # doctest: +SKIP
    """
    m, chosen = _choose(run, finding)
    subject, inputs = m.original.find(model, inputs)
    with show_progress(progress) as show:
        show("writing the lines for your source", 0.0)
        diff, unmapped = _write_lines(m, chosen, subject, inputs)
        programs = _export(m, chosen, subject, inputs, Path(root) if root else run.root, show)
        measure = measure or replace(_MEASURED, threads=(m.threads,))
        named = f"{run.model} with {', '.join(_list_remedies(chosen))}"[:LONGEST_LABEL].strip()
        measure = replace(measure, label=measure.label or named)
        applied = profile(programs, measure=measure, root=programs[0].root, progress=show)
    record = Applied(
        tuple(each.id for each in chosen), _list_remedies(chosen), str(run.path.resolve()),
        _count_others(m, chosen), diff, unmapped,
    )  # fmt: skip
    applied.keep(record)
    if len(record.remedies) > 1 and applied.subject.scope == m.scope and run.root:
        run.keep(_sum_up(m, applied.compare(), record.remedies))
    return applied


def _sum_up(m: Measurement, ab: Comparison, remedies: Sequence[str]) -> Trial:
    """What several remedies gained together, as a trial of the run that they are of."""
    (latency,) = ab.latency.to_dict("records")
    before, after = latency["baseline_ms"], latency["candidate_ms"]
    gain, low, high = (before - before / latency[name] for name in ("speedup", "low", "high"))
    count = len(remedies)
    return Trial(
        ab.baseline.program.sha256, ",".join(remedies), "together", count, count,
        int(latency["restarts"]), before, after, gain, low, high, whole=True,
        problem=ab.wrong, differs=bool(ab.wrong), finding=Trial.TOGETHER, scope=m.scope,
    )  # fmt: skip


def _choose(run: Run, finding: Finding | str | None) -> tuple[Measurement, tuple[Finding, ...]]:
    """The measurement that has the wanted findings, and these."""
    name = finding.id if isinstance(finding, Finding) else str(finding or ALL)
    run.subject.original.check()
    if run.record.plan.phases and not run.record.plan.sweep:
        hint = "`workbench findings RUN --check ID` tries a remedy in its phase"
        raise UsageError("programs with phases are not measured again", where=run.path, hint=hint)
    able = {each.id: (m, each) for m in run.subjects for each in m.opportunities if each.is_option}
    if name == ALL:
        helping = [each for each in run.subject.opportunities if each.helps]
        if not helping:
            hint = "profile another model: no finding has a remedy"
            if able:
                hint = f"`run.findings.check()` tries them; or name one: {', '.join(able)}"
            raise UsageError("no remedy was shown to help", where=run.path, hint=hint)
        return run.subject, tuple(helping)
    if name in able:
        return able[name][0], (able[name][1],)
    if any(name == each.id for m in run.subjects for each in m.opportunities):
        hint = f"these have one: {', '.join(able)}" if able else "no finding of this run has one"
        raise UsageError("has no remedy that can be applied", where=name, hint=hint)
    raise unknown_name("finding", name, [*able, ALL], where=run.path)


def _list_remedies(findings: Sequence[Finding]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.remedy for each in findings))


def _count_others(m: Measurement, findings: Sequence[Finding]) -> int:
    """The parts that remedies change by their names, beside those of the findings."""
    rewrites = m.export.rewrites if m.export else ()
    chosen = [each.rewrite for each in findings]
    names = {each.remedy for each in findings}
    return sum(len(each.parts) for each in rewrites if each.name in names and each not in chosen)


def _export(
    m: Measurement, findings: Sequence[Finding], subject: Any, inputs: Any, root: Path | None,
    progress: Progress,
) -> list[Program]:  # fmt: skip
    """The program as it was, made again if it is gone, and the one with the remedies."""
    assert m.export is not None
    name = "" if isinstance(subject, str) else m.export.model
    before = replace(m.original.options, rewrite=m.export.rewrite)
    programs = []
    for options in (before, _change(before, findings)):
        program = export_model(subject, inputs, options, name=name, root=root, progress=progress)
        assert program.export is not None
        if program.export.graph != m.export.graph:
            what = "the model has changed since it was exported"
            raise UsageError(what, where=m.run.path, hint="profile it again")
        programs.append(program)
    if programs[0].sha256 == programs[1].sha256:
        names = ", ".join(_list_remedies(findings))
        what = f"{names} changes nothing in the program that this version exports"
        raise UsageError(what, where=m.run.path, hint="profile the model again")
    return programs


def _write_lines(
    m: Measurement, findings: Sequence[Finding], subject: Any, inputs: Any
) -> tuple[str, str]:
    """A diff of the source that does the same, or why there is none, as the end of a sentence.

    With several remedies, the diff is that of those which change parts of the graph.
    """
    rewrites = [each.rewrite for each in findings if each.rewrite and each.rewrite.parts]
    if not rewrites:
        return "", "it is an option of the export"
    from workbench.graphs import Replacement, Unwritable, find_rewriter
    from workbench.plugins.apply.edit import write_edit

    assert m.export is not None
    try:
        with silence():
            model, trace = m.original.load(subject, inputs)
            parts, whole = list[Replacement](), list[str]()
            for rewrite in rewrites:
                made = find_rewriter().replace(trace.exported, rewrite.name, m.export.backend)
                named = [
                    replace(part, remedy=rewrite.name, text=rewrite.text)
                    for part in made
                    if part.nodes in rewrite.parts
                ]
                parts += named
                whole += [] if named else [rewrite.name]
            unwritten = f"{', '.join(whole)} change the graph as a whole" if whole and parts else ""
            return write_edit(model, trace, parts), unwritten
    except Unwritable as error:
        return "", str(error)
    except UsageError:  # it is another model by now: nothing is exported
        raise
    except Exception as error:  # the user's code runs in here, and may raise anything
        _log.debug("no lines for %s", _list_remedies(findings), exc_info=True)
        return "", f"the model does not run here: {reason(error)}"


def _change(options: ExportOptions, findings: Sequence[Finding]) -> ExportOptions:
    """The options of an export with remedies, each by its name, or what else it is."""
    for remedy in _list_remedies(findings):
        if remedy in REWRITES:
            options = replace(options, rewrite=(*options.rewrite, remedy))
        elif remedy in PRECISIONS:
            options = replace(options, dtype=remedy)
        else:
            options = replace(options, channels_last=True)
    return options

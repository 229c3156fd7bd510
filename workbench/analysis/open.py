"""Opening a run: ours, one of Arm's profiling kit, or any folder of ETDumps."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from workbench.analysis.findings.rules import find_bottlenecks
from workbench.analysis.foreign import Recording, read_recording
from workbench.analysis.operators import Scheme, load_scheme
from workbench.analysis.run import Run
from workbench.errors import StoreError
from workbench.records.pairing import BY_ORDER, pair_experiments
from workbench.records.runs import Pair
from workbench.store import (
    MANIFEST,
    check_inside,
    is_ours,
    kept_layers,
    load_run,
    read_json,
    read_manifest,
)
from workbench.trace.files import ETDUMP

#: XNNPACK's operators with kernels for packed operands, which need SME: ``(NHWC, PF32)``.
_SME_OPERATOR = re.compile(r"\bP(?:F16|F32|QS8)\b")


def open_run(
    path: str | Path | Run,
    *,
    baseline: str = "",
    categories: str | Path = "",
    etrecord: str | Path = "",
) -> Run:
    """Open a recorded run; its traces are read when a frame needs them.

    Parameters
    ----------
    path
        The folder of a run, or its ``manifest.json`` alone, whose run has no traces; a folder of
        Arm's profiling kit, any folder with ETDumps, or an ETDump. Of the latter, subfolders or
        file names name the experiments, ``_t4`` is a thread count and ``_p2`` a restart; a
        ``.pte`` nearby (with its ``.etrecord``) is used.
        A `Run` is returned as is, or opened again for other categories or another baseline.
    baseline
        The experiment to compare all others with, in place of the run's own comparisons.
    categories
        The categories of its operators: ``kit`` for those of Arm's profiling kit, or a YAML file of
        rules such as ``workbench/analysis/schemes/kit.yaml``.
    etrecord
        The ETRecord of a program that was exported elsewhere; its layers are kept with the run.
        An ``etrecord.bin`` in the folder is found.

    Raises
    ------
    UsageError
        The folder is no run, the baseline no experiment, or there are no such categories.
    StoreError
        The manifest is corrupt or names a file outside of the folder, nothing was measured
        completely, or no ETDump can be read.

    Examples
    --------
    >>> wb.open_run(wb.sample_run()).model
    'mobilenet_v3_small'
    """
    options = {"baseline": baseline, "categories": str(categories)}
    options = {name: value for name, value in options.items() if value}
    if isinstance(path, Run):
        run = _open_again(path, baseline, categories, options) if options else path
    else:
        folder, scheme = Path(path), load_scheme(categories or "workbench")
        if folder.name == MANIFEST and any(folder.parent.rglob(f"*{ETDUMP}")):
            folder = folder.parent  # it is not alone
        opened = _choose_reader(folder)(folder, scheme)
        run = _orient(replace(opened, opened_with=options), baseline)
    if etrecord:
        run.add_etrecord(Path(etrecord))
    return run


def _choose_reader(path: Path) -> Callable[[Path, Scheme], Run]:
    if is_ours(path):
        return open_ours
    return open_manifest if path.suffix == ".json" and path.is_file() else open_others


def open_ours(folder: Path, scheme: Scheme) -> Run:
    """A run that the workbench recorded."""
    record = load_run(folder)
    traced = [session for session in record.sessions if session.complete and session.traced]
    if not traced:
        hint = "repeat the `workbench run` command: it resumes where it stopped"
        raise StoreError("nothing was measured completely", where=folder, hint=hint)
    names = [session.etdump for session in record.sessions]
    names += [name for s in record.samplings for name in (s.etdump, s.samples)]
    programs = map(record.plan.program_of, record.plan.experiments)
    names += [str(kept_layers(Path(), program.name)) for program in programs]
    check_inside(folder, names)
    if not any((folder / session.etdump).is_file() for session in traced):
        return open_manifest(folder / MANIFEST, scheme)
    return Run(folder, record, find_bottlenecks, scheme)


def open_manifest(path: Path, scheme: Scheme) -> Run:
    """A run of which only the manifest was kept, without traces and samples."""
    if "plan" not in read_json(path):
        hint = "name the folder of a run, or its manifest.json"
        raise StoreError("is no manifest of a run", where=path, hint=hint)
    record = read_manifest(path)
    untraced = tuple(session for session in record.sessions if not session.traced)
    record = replace(record, sessions=untraced, samplings=())
    recording = Recording(record, path.name, ("traces", "samples"), {}, {}, {})
    return Run(path, record, find_bottlenecks, scheme, recording)


def open_others(path: Path, scheme: Scheme) -> Run:
    """A run that another tool recorded, a folder or an ETDump."""
    recording = read_recording(path)
    return Run(path, recording.record, find_bottlenecks, scheme, recording)


def _open_again(run: Run, baseline: str, categories: str | Path, options: dict[str, str]) -> Run:
    """A run with other categories or another baseline."""
    scheme = load_scheme(categories) if categories else run.scheme
    again = replace(run, scheme=scheme, opened_with=run.opened_with | options)
    return _orient(again, baseline) if baseline else again


def _orient(run: Run, baseline: str) -> Run:
    """Choose the baselines again if one is named, or if only the order chose them."""
    plan = run.record.plan
    if not baseline and plan.direction != BY_ORDER and run.record.runner:
        return run
    timed = [e for e in plan.experiments if not e.control]
    pairs: list[Pair] = []
    how: list[str] = []
    for program in dict.fromkeys(e.program for e in timed if not baseline):
        names = [e.name for e in timed if e.program == program]
        lacking, evidence = _find_lacking(run, names)
        oriented, why = pair_experiments(names, lacking=lacking, evidence=evidence)
        pairs += oriented
        how += [why] if oriented else []
    if baseline:
        oriented, why = pair_experiments([e.name for e in timed], baseline=baseline)
        pairs, how = [*oriented], [why]
    planned = {(pair.baseline, pair.candidate): pair for pair in plan.pairs}
    pairs = [planned.get((pair.baseline, pair.candidate), pair) for pair in pairs]
    direction = "; ".join(dict.fromkeys(how))
    plan = replace(plan, pairs=tuple(pairs) or plan.pairs, direction=direction)
    run.record = replace(run.record, plan=plan)
    return run


def _find_lacking(run: Run, names: Sequence[str]) -> tuple[list[str], str]:
    """The experiments that ran with fewer CPU features than others, and what shows it."""
    masks = {name: run.masked(name) for name in names}
    if lacking := [n for n in names if any(masks[n] > mask for mask in masks.values())]:
        return lacking, f"{lacking[0]}: it hides {', '.join(sorted(masks[lacking[0]]))}"
    sme = [name for name in names if _runs_sme(run, name)]
    lacking = [name for name in names if name not in sme] if sme else []
    evidence = f"the traces of {', '.join(sme)} name SME kernels"
    return lacking, f"{''.join(lacking[:1])}: {evidence}"


def _runs_sme(run: Run, experiment: str) -> bool:
    """Whether a trace of an experiment names kernels that need SME."""
    sessions = [s for s in run.record.sessions if s.experiment == experiment and s.complete]
    traced = [session for session in sessions if session.etdump][:1]
    names = [name for s in traced for name in run.read_trace(s)["name"].cat.categories]
    return any(_SME_OPERATOR.search(name) for name in names)

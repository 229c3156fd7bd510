"""Runs that other tools recorded: folders of Arm's profiling kit, and any ETDumps."""

import contextlib
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import pandas as pd

from workbench import store
from workbench.analysis.attribution import attribute_layers, find_method
from workbench.analysis.ledger import build_ledger
from workbench.errors import StoreError, WorkbenchError
from workbench.export.program import Program, open_program
from workbench.key import make_key
from workbench.records.exports import Export
from workbench.records.layer_sidecar import Layers
from workbench.records.runs import (
    TRACED_CLOCK,
    Experiment,
    Plan,
    PlannedProgram,
    RunRecord,
    Session,
)
from workbench.trace.etdump import read_etdump
from workbench.trace.files import ETDUMP, list_traces

MOST_PROGRAMS = 16  #: Programs nearby that are looked at.
#: Larger programs are not read, in bytes.
LARGEST_BYTES = 2**30
KIT, OTHER = "Arm's profiling kit", "another tool"


@dataclass(frozen=True)
class Recording:
    """A run that another tool recorded, or whose manifest alone was kept, and who that was.

    ``missing`` is what it lacks; ``unreadable`` has the ETDumps that were left out, and why;
    ``traces`` the events of the others by file, ``layers`` the sidecars by program.
    """

    record: RunRecord
    source: str
    missing: tuple[str, ...]
    unreadable: Mapping[str, str]
    traces: dict[str, pd.DataFrame]
    layers: dict[str, Layers | None]


#: Experiment, threads (0 if the name of the trace says nothing of them) and restart.
TraceName = tuple[str, int, int]


def read_recording(path: Path) -> Recording:
    """Read a folder of the kit, a folder with ETDumps, or a single ETDump.

    UsageError if there is none; StoreError if none can be read.
    """
    files, paths = list_traces(path)
    folder = path if path.is_dir() else path.parent
    kit = _read_kit(folder)
    traces, unreadable = _read_traces(folder, paths)
    if not traces:
        name, problem = next(iter(unreadable.items()))
        raise StoreError(problem, where=folder / name)
    ptes = _find_programs(folder, files)
    stems = [kit.get("model", ""), *(pte.stem for pte in ptes)]
    common, names = name_traces([Path(name) for name in traces], stems)
    stem = store.safe_name(common or kit.get("model") or path.resolve().stem)
    sessions = [_session(names[Path(name)], name, events) for name, events in traces.items()]
    programs = Programs(folder, ptes, stem, kit.get("model", ""), traces)
    plan = _make_plan(sessions, programs, traces)
    missing = _list_missing(programs, names.values())
    record = _make_record(folder, kit, plan, sessions, programs)
    source, layers = KIT if kit else OTHER, programs.layers
    return Recording(record, source, tuple(missing), unreadable, traces, layers)


class Programs:
    """The programs of traces: those of equal calls, and named after one file, are one."""

    def __init__(
        self, folder: Path, ptes: Sequence[Path], stem: str, model: str,
        traces: Mapping[str, pd.DataFrame],
    ):  # fmt: skip
        self.folder, self.ptes, self.stem, self.model, self.traces = (
            folder, ptes, stem, model, traces,
        )  # fmt: skip
        # Two sizes of a model make the same calls; that each trace is named after a program tells.
        owners = {name: _named_after(Path(name), ptes) for name in traces}
        self.owners = owners if all(owners.values()) else dict.fromkeys(traces, "")
        self.planned: dict[tuple[str, str], PlannedProgram] = {}
        self.layers: dict[str, Layers | None] = {}
        self.exports: dict[str, Export] = {}

    def find(self, trace: str) -> PlannedProgram:
        """The program of a trace, which is opened if its file is nearby."""
        owner, calls = self.owners[trace], hash_calls(self.traces[trace])
        if (calls, owner) not in self.planned:
            self.planned[calls, owner] = self._open(trace, calls, owner)
        return self.planned[calls, owner]

    def _open(self, trace: str, calls: str, owner: str) -> PlannedProgram:
        stem = owner or self.stem
        layers, opened = _match_program(self.folder, self.ptes, stem, self.traces[trace])
        sha256 = layers.sha256 if layers else f"calls {calls} {owner}".rstrip()
        file, pte = (opened.path.stem, str(opened.path)) if opened else (stem, "")
        label = (owner or calls) if self.planned else ""
        self.layers[label] = layers
        if opened and opened.export:
            self.exports[label] = opened.export
        return PlannedProgram(label, pte, sha256, self.model or file, file)


def _make_plan(
    sessions: Sequence[Session], programs: Programs, traces: Mapping[str, pd.DataFrame]
) -> Plan:  # fmt: skip
    """The plan that would have made these traces."""
    experiments: dict[str, Experiment] = {}
    for session in sessions:
        name, program = session.experiment, programs.find(session.etdump)
        control = any(name == f"{other.experiment}_control" for other in sessions)
        experiments[name] = Experiment(name, runner="", control=control, program=program.name)
    first, *further = programs.planned.values()
    return Plan(
        **{name: value for name, value in vars(first).items() if name != "name"},
        experiments=tuple(experiments.values()),
        pairs=(),
        threads=tuple(sorted({s.threads for s in sessions})),
        runs=min(int(traces[s.etdump]["run"].max()) + 1 - s.skipped for s in sessions),
        warmup=max(s.skipped for s in sessions),
        processes=max(Counter((s.experiment, s.threads) for s in sessions).values()),
        batch_ms=0.0,
        programs=tuple(further),
    )


def _make_record(
    folder: Path, kit: Mapping[str, str], plan: Plan, sessions: Sequence[Session],
    programs: Programs,
) -> RunRecord:  # fmt: skip
    """The manifest that such a run would have had."""
    place = folder.resolve()
    exports = dict(programs.exports)
    return RunRecord(
        plan,
        platform=place.name if place.parent.name == store.RUNS else "",
        emulated=False,
        state="complete",
        started=kit.get("started", ""),
        finished="",
        host={},
        runner={},
        versions={"executorch": kit["executorch"]} if kit.get("executorch") else {},
        sessions=tuple(sessions),
        export=exports.pop("", None),
        exports=exports,
    )


def _list_missing(programs: Programs, names: Iterable[TraceName]) -> list[str]:
    """What such a run lacks that one of ours has."""
    missing = ["untraced latencies", "PC samples", "outputs", "CPU features"]
    if not all(programs.layers.values()):
        advice = "put the .pte and its .etrecord beside the traces"
        reason = "no .pte nearby is of these traces" if programs.ptes else advice
        missing.append(f"layers ({reason})")
    if not all(threads for _, threads, _ in names):
        missing.append("thread counts (1 assumed where no name has one)")
    return missing


def _read_kit(folder: Path) -> dict[str, str]:
    """Model, ExecuTorch and time of a run, as far as JSON files of the kit say.

    These are ``manifest.json`` and ``*_pipeline_summary.json``; what does not fit is ignored.
    """
    run: dict[str, str] = {}
    for path in [folder / store.MANIFEST, *sorted(folder.glob("*_pipeline_summary.json"))]:
        try:
            content = store.read_json(path)
        except StoreError:
            continue
        if not isinstance(content.get("results", content.get("runs")), list):
            continue
        model, sha = _text(content, "model"), _text(content.get("executorch"), "sha")
        facts = {"model": store.safe_name(PurePath(model).stem), "executorch": sha}
        facts["started"] = _text(content, "generated_at")
        run = facts | {name: text for name, text in run.items() if text}
    return run


def _text(content: Any, key: str) -> str:
    value = content.get(key) if isinstance(content, dict) else None
    return value if isinstance(value, str) else ""


def _read_traces(
    folder: Path, paths: Sequence[Path]
) -> tuple[dict[str, pd.DataFrame], dict[str, str]]:
    """The events of every ETDump with a complete inference, and the problems of the others."""
    traces, unreadable = {}, {}
    for path in paths:
        name = str(path)
        try:
            name.encode()
            with warnings.catch_warnings():  # of incomplete inferences, which do not count
                warnings.simplefilter("ignore")
                events = read_etdump(folder / path)
            if (events["run"] >= 0).any():
                traces[name] = events
            else:
                unreadable[name] = "has no complete inference"
        except UnicodeEncodeError:
            unreadable[ascii(name)] = "its name is not text"
        except WorkbenchError as error:
            unreadable[name] = error.what
    return traces, unreadable


#: How the name of a trace ends: with threads and a restart, in any order, or with a bare number.
_THREADS = r"(?:^|[_.-])t(?:hreads?)?[_-]?([1-9]\d{0,3})"
_RESTART = r"(?:^|[_.-])(?:p|process|run|restart|rep|repeat|trial|trace|etdump)[_-]?(\d{1,4})"
_ENDINGS = re.compile(rf"(?:{_THREADS}|{_RESTART}|^(\d{{1,4}}))*$", re.I)
#: The names that both the workbench and the kit give to programs, then an experiment.
_PROGRAM = re.compile(r"(?P<stem>.+?_(?:xnnpack|portable)_[a-z]*\d+[a-z\d]*)_(?P<rest>.+)")


def name_traces(paths: Sequence[Path], stems: Sequence[str]) -> tuple[str, dict[Path, TraceName]]:
    """The program's name, or empty; and experiment, threads and restart of every trace.

    Subfolders, or else file names, name the experiments; ``_t4`` is a thread count; ``_p2``,
    ``trace_2`` or a bare number is a restart. ``stems`` are names that the program may have.
    """
    rests, counts, restarts, model = {}, {}, {}, ""
    for path in paths:
        rest, counts[path], restarts[path] = _split(path.name.removesuffix(ETDUMP))
        for stem in filter(None, stems):
            if _begins_with(rest, stem):
                model, rest = stem, rest[len(stem) + 1 :]
        if match := _PROGRAM.fullmatch(rest):
            model, rest = match["stem"], match["rest"]
        rests[path] = rest
    folders = {path: path.parent.parts for path in paths}
    if len(set(folders.values())) > 1:
        experiments = _name_by_folder(folders, rests)
    elif len(set(rests.values())) > 1:
        experiments = rests
    else:
        experiments = {path: rests[path] or "".join(folders[path][-1:]) for path in paths}
    names = {
        path: (store.safe_name(experiments[path] or model or "trace"), counts[path], 0)
        for path in paths
    }
    return model, _number(names, restarts)


def _begins_with(name: str, stem: str) -> bool:
    """Whether a name begins with another one, in whole words."""
    return name == stem or (name.startswith(stem) and name[len(stem)] in "_.-")


def _split(name: str) -> tuple[str, int, int]:
    """A name without its ending, and of that the threads, or 0, and the restart, or -1."""
    ending = next(_ENDINGS.finditer(name))
    threads, restart, bare = ending.groups()
    return name[: ending.start()], int(threads or 0), int(restart or bare or -1)


def _name_by_folder(
    folders: Mapping[Path, tuple[str, ...]], rests: Mapping[Path, str]
) -> dict[Path, str]:
    """Experiments named by their folders, with the file names where one folder has several."""
    shared = len(Path(os.path.commonpath([path.parent for path in folders])).parts)
    one = Counter(folder for folder, _ in {(folders[path], rests[path]) for path in folders})
    return {
        path: "_".join([*folder[shared:], *([rests[path]] if one[folder] > 1 else [])])
        for path, folder in folders.items()
    }


def _number(names: dict[Path, TraceName], restarts: Mapping[Path, int]) -> dict[Path, TraceName]:
    """Names in which restarts count from 0; traces that would have one name get their paths."""
    setups = {path: (name, threads or 1) for path, (name, threads, _) in names.items()}
    seen = Counter((setup, restarts[path]) for path, setup in setups.items())
    next_of: Counter[tuple[str, int]] = Counter()
    numbered = {}
    for path in sorted(names, key=lambda path: (restarts[path], path)):
        name, threads, _ = names[path]
        setup = setups[path]
        if seen[setup, restarts[path]] > 1:
            name = store.safe_name(str(path.with_suffix("")))
            setup = name, threads or 1
        numbered[path] = name, threads, next_of[setup]
        next_of[setup] += 1
    return numbered


def _session(name: TraceName, etdump: str, events: pd.DataFrame) -> Session:
    """A process; the first of several inferences that it traced does not count."""
    skipped = int(events["run"].max() > 0)
    experiment, threads, process = name
    return Session(
        experiment,
        threads or 1,
        process,
        True,
        (),
        0.0,
        0.0,
        (),
        TRACED_CLOCK,
        etdump=etdump,
        skipped=skipped,
    )


def hash_calls(events: pd.DataFrame) -> str:
    """A hash of what a program calls, which is equal at all thread counts and CPU features."""
    calls = events[events["kind"].isin(["operator_call", "delegate_call", "kernel"])]
    columns = ["chain", "instruction", "kind", "name"]
    distinct = calls[columns].astype(str).drop_duplicates().sort_values(columns)
    return make_key(distinct.to_numpy().tolist())[:12]


def _find_programs(folder: Path, files: Sequence[Path]) -> list[Path]:
    """The programs in and around a recording."""
    above = folder.resolve().parent
    near = [folder, above, store.artifacts_dir(above), store.artifacts_dir(above.parent)]
    paths = [folder / name for name in files] + [p for place in near for p in place.glob("*.pte")]
    fits = (p for p in paths if p.suffix == ".pte" and p.stat().st_size <= LARGEST_BYTES)
    return list(dict.fromkeys(fits))


def _named_after(trace: Path, ptes: Sequence[Path]) -> str:
    """The longest name of a program that a trace's begins with, in whole words; empty if none."""
    stems = (pte.stem for pte in ptes if _begins_with(trace.stem, pte.stem))
    return max(stems, key=len, default="")


def _match_program(
    folder: Path, ptes: Sequence[Path], stem: str, events: pd.DataFrame
) -> tuple[Layers | None, Program | None]:
    """The layers of the program that a trace is of, and the program, if it is nearby."""
    ledger = build_ledger(events)
    named = sorted(ptes, key=lambda pte: pte.stem != stem)
    for pte in [None, *named[:MOST_PROGRAMS]]:
        with contextlib.suppress(WorkbenchError, OSError):
            program = open_program(pte) if pte else None
            layers = program.layers if program else store.read_layers(folder / store.LAYERS)
            # A program of another dtype explains most operators too; only a name settles it then.
            enough = 1 / 2 if pte and pte.stem == stem else 0.95
            if layers and _explained(ledger, layers) > enough:
                return layers, program
    return None, None


def _explained(ledger: pd.DataFrame, layers: Layers) -> float:
    """The part of a trace's delegated operators that a program has; 0 if its calls differ."""
    rows = ledger.drop_duplicates("key")
    if find_method(rows.astype({"kind": object, "operator": object}), layers) is None:
        return 0.0
    confidence = attribute_layers(ledger, layers).set_index("key")["confidence"]
    delegated = confidence[rows.loc[rows["kind"] == "delegated", "key"]]
    return float(delegated.isin(["exact", "fitted"]).mean()) if len(delegated) else 1.0

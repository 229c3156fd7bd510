"""Compare measurements of any runs, and hold the result to a limit."""

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from workbench.analysis.describe import identify_run
from workbench.analysis.dtypes import summarize_program
from workbench.analysis.layers import align_layers
from workbench.analysis.open import open_run
from workbench.analysis.run import Comparison, Measurement, Run
from workbench.analysis.use import describe_use
from workbench.emulation import EMULATED, WRONG
from workbench.errors import UsageError, WorkbenchError, unknown_name
from workbench.frames import ALIGNED, GATE_ROWS
from workbench.names import number_equal
from workbench.options import MeasureOptions
from workbench.records.pairing import AXES, PARTS
from workbench.store import MANIFEST, name_programs
from workbench.wording import plural

#: By resource, the most that it may grow, as a fraction.
Limits: TypeAlias = Mapping[str, float]
_WORSE = {
    "latency": "slower",
    "peak memory": "more peak memory",
    "first output": "later first output",
}
_UNMEASURED = {
    "peak memory": ("the memory of a side was not measured", "--fail-memory-above"),
    "first output": ("the starts of a side were not measured", "--fail-start-above"),
}


@dataclass(frozen=True)
class Compared:
    """What was compared, and whether it keeps to a limit.

    ``rows`` are ``frames.GATE_ROWS``; ``verdicts`` are sentences; ``aligned`` (``frames.ALIGNED``)
    has the parts if they were asked for; ``notes`` are caveats; ``resources`` has memory and starts
    if both sides were measured. ``limits`` are fractions of what the baseline needs: of its
    ``latency``, ``peak memory`` and ``first output``.
    """

    rows: pd.DataFrame
    verdicts: tuple[str, ...] = ()
    aligned: pd.DataFrame | None = None
    notes: tuple[str, ...] = ()
    resources: pd.DataFrame | None = None
    limits: Limits = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether nothing is proven to be beyond a limit, and no outputs are wrong."""
        tables = (table for table in (self.rows, self.resources) if table is not None)
        return not any((table["gate"] == "failed").any() for table in tables)

    @property
    def allowed(self) -> str:
        """What may be worse, and by how much: ``at most 5 % slower``; empty without a limit."""
        return ", ".join(f"at most {100 * n:g} % {_WORSE[what]}" for what, n in self.limits.items())

    @property
    def record(self) -> dict[str, Any]:
        """The same for programs."""
        return {"passed": self.passed, **asdict(self)}


def judge_limit(
    ratios: pd.DataFrame, limit: float | pd.Series | None, shown: pd.Series
) -> pd.Series:
    """Whether ratios of candidate to baseline, by their intervals and outcomes, keep to a limit.

    ``failed`` if outputs are wrong, or if all of the interval is beyond the limit and the
    difference was ``shown``; ``passed`` if all of it is within; in between, or without an interval,
    ``undecided``: more restarts would tell. ``open`` without a limit.
    """
    most = 1 + pd.Series(limit, ratios.index, dtype=float)
    failed = (ratios["outcome"] == WRONG) | (ratios["low"] > most) & shown
    choices = [most.isna(), failed, ratios["high"] <= most]
    gate = np.select(choices, ["open", "failed", "passed"], "undecided")
    return pd.Series(gate, ratios.index, dtype="str")


def judge_rows(rows: pd.DataFrame, limits: Limits, **facts: Any) -> Compared:
    """Hold comparisons to limits; a row fails only if it was shown to be slower."""
    ratios = rows.assign(low=1 / rows["high"], high=1 / rows["low"])
    gate = judge_limit(ratios, limits.get("latency"), rows["outcome"] == "slower")
    judged = GATE_ROWS.check(rows.assign(gate=gate)[GATE_ROWS.names].reset_index(drop=True))
    return Compared(judged, limits=limits, **facts)


def compare(
    baseline: Run | Measurement | str | Path,
    candidate: Run | Measurement | str | Path,
    *,
    across: str | Collection[str] = (),
    subject: str = "",
) -> Comparison:
    """Compare two measurements, of one run or of two.

    Experiments of one run were interleaved, which makes for a narrower interval: `profile` takes
    both runs to measure their programs so.

    Parameters
    ----------
    baseline, candidate
        Measurements of runs, or runs or their paths: the measurement that each is about.
    across
        Which of ``program``, ``threads``, ``device`` and ``build`` may differ; between runs, the
        program may.
    subject
        What the verdict is about; both labels by default.

    Raises
    ------
    UsageError
        An unknown axis.
    WorkbenchError
        They differ along another axis, which is named with both values; or one was emulated.

    Examples
    --------
    >>> run = wb.open_run(wb.sample_run())
    >>> wb.compare(run["avx512_off"], run["avx512_on"]).verdict.outcome
    'faster'
    """
    if not (isinstance(baseline, Measurement) and isinstance(candidate, Measurement)):
        across = {"program", *([across] if isinstance(across, str) else across)}
    baseline, candidate = (
        side if isinstance(side, Measurement) else open_run(side).subject
        for side in (baseline, candidate)
    )
    check_comparable([baseline, candidate], across)
    for comparison in baseline.run.comparisons:
        if (comparison.baseline, comparison.candidate) == (baseline, candidate) and not subject:
            return comparison
    subject = subject or " against ".join(name_sides(candidate, baseline))
    return Comparison(baseline, candidate, subject=subject)


def name_sides(candidate: Measurement, baseline: Measurement) -> list[str]:
    """What both sides are called: as their runs are, if these have two labels.

    Else as their programs, or their experiments if they ran one program.
    """
    labels = [candidate.run.label, baseline.run.label]
    if all(labels) and labels[0] != labels[1]:
        return labels
    sides = [candidate.program, baseline.program]
    if sides[0].sha256 == sides[1].sha256:
        return [candidate.label, baseline.label]
    names = name_programs([(side.model, side.stem) for side in sides])
    if names[0] == names[1]:
        return [f"{names[0]} (after)", f"{names[1]} (before)"]
    return names


def find_measurements(names: Sequence[str], categories: str | Path = "") -> dict[str, Measurement]:
    """The measurements named ``RUN_DIR[:EXPERIMENT[:THREADS]]``, by name.

    Without an experiment, that is the candidate of the run's first comparison; without threads,
    the first thread count. ``categories`` is as for `open_run`.
    """
    opened = cache(open_run)
    measurements = {}
    for name in names:
        folder, experiment, threads = split_name(name)
        run = opened(folder, categories=categories)
        if threads and not threads.isdecimal():
            thread_counts = map(str, run.record.plan.threads)
            raise unknown_name("thread count", threads, thread_counts, where=folder)
        counts = (int(threads),) if threads else ()
        measurements[name] = run[experiment or run.subject.name, *counts]
    return measurements


def check_several(names: Collection[str], where: str = "compare") -> None:
    """Refuse a single measurement, and one that is named twice."""
    if len(names) < 2 or len(set(names)) < len(names):
        raise UsageError("needs two or more measurements, each once", where=where)


def split_name(name: str) -> tuple[str, str, str]:
    """Folder, experiment and threads of ``RUN_DIR[:EXPERIMENT[:THREADS]]``; empty if not given."""
    plain = (Path(name) / MANIFEST).exists() or Path(name).is_file()
    folder, experiment, threads, *_ = [*([name] if plain else name.split(":", 2)), "", ""]
    return folder, experiment, threads


def check_comparable(
    measurements: Collection[Measurement], across: str | Collection[str] = ()
) -> None:
    """Refuse measurements that differ from the first along an axis not named in ``across``."""
    first, *others = (
        identify_run(m.run.record, m.program) | {"threads": str(m.threads)} for m in measurements
    )
    across = {*([across] if isinstance(across, str) else across)}
    # Programs of one run were measured to be compared; one program may have several file names.
    one_run = len({m.run.path.resolve() for m in measurements}) == 1
    if one_run or len({m.program.sha256 for m in measurements}) == 1:
        across |= {"program"}
    for other in others:
        check_identity(first, other, across)
    check_silicon(any(m.emulated for m in measurements))


def check_identity(
    before: Mapping[str, str], after: Mapping[str, str], across: Collection[str]
) -> None:
    """Refuse differences of device, build or program that were not asked for."""
    for axis in across:
        if axis not in AXES:
            raise unknown_name("axis", axis, AXES, where="--across")
    for axis in AXES:
        both = before.get(axis) and after.get(axis)
        if both and before[axis] != after[axis] and axis not in across:
            raise UsageError(
                f"the two differ in {axis}: {before[axis]} against {after[axis]}",
                hint=f"compare anyway: --across {axis}",
            )


def check_silicon(emulated: bool) -> None:
    """Refuse emulated times."""
    if emulated:
        raise WorkbenchError(f"no speed to compare; {EMULATED}", hint="measure on silicon")


def align_measurements(
    measurements: Sequence[str] | Mapping[str, Measurement],
    *,
    across: str | Collection[str] = (),
    by: str = "layer",
) -> pd.DataFrame:
    """E2E and every part of it in several measurements, against the first of them.

    Parameters
    ----------
    measurements
        At least two: names as for `find_measurements`, or measurements by a name.
    across
        Which of ``program``, ``threads``, ``device`` and ``build`` may differ.
    by
        ``layer`` (which survives renaming and fusion), ``category``, or ``operator`` for
        measurements of one program.

    Returns
    -------
    DataFrame
        ``frames.ALIGNED``: first E2E, then the parts, which add up to it.

    Raises
    ------
    UsageError
        An unknown run, experiment, axis or kind of part; or one measurement twice.
    WorkbenchError
        They differ along another axis, or have no such parts.

    Examples
    --------
    >>> run = wb.open_run(wb.sample_run())
    >>> sides = {name: run[name] for name in ("avx512_off", "avx512_on")}
    >>> wb.align_measurements(sides, by="category")["level"].unique().tolist()
    ['e2e', 'category']
    """
    if by not in PARTS:
        raise unknown_name("part", by, PARTS, where="--by")
    check_several(measurements)
    if not isinstance(measurements, Mapping):
        measurements = find_measurements(measurements)
    return _align(_compare_all(measurements, across), by)


def _compare_all(
    measurements: Mapping[str, Measurement], across: str | Collection[str], subject: str = ""
) -> dict[str, Comparison]:
    """Each measurement against the first of them, by name; that is its subject by default."""
    check_comparable(measurements.values(), across)
    first = next(iter(measurements.values()))
    return {name: Comparison(first, m, subject=subject or name) for name, m in measurements.items()}


def _align(pairs: Mapping[str, Comparison], by: str | None) -> pd.DataFrame:
    """``frames.ALIGNED`` of measurements against the first; without ``by``, E2E alone."""
    measurements = {name: pair.candidate for name, pair in pairs.items()}
    latencies = {name: pair.latency.assign(name="E2E") for name, pair in pairs.items()}
    aligned = [tabulate_runs(latencies, ["E2E"])]
    if by:
        aligned.append(align_parts(measurements, by))
    return reject_wrong(pd.concat(aligned, ignore_index=True), measurements)


def reject_wrong(aligned: pd.DataFrame, measurements: Mapping[str, Measurement]) -> pd.DataFrame:
    """``frames.ALIGNED`` without outcomes of programs whose outputs are wrong."""
    wrong = [name for name, measurement in measurements.items() if measurement.wrong]
    if next(iter(measurements)) in wrong:
        wrong = list(measurements)
    judged = aligned["outcome"].notna() & (aligned["outcome"] != "first")
    is_wrong = judged & aligned["run"].isin(wrong)
    return aligned.assign(outcome=aligned["outcome"].mask(is_wrong, WRONG))


def compare_many(
    names: Sequence[str],
    *,
    across: Collection[str] = (),
    by: str | None = None,
    limits: Mapping[str, float] = {},
    categories: str | Path = "",
) -> Compared:
    """Compare measurements with the first of them, as the command line does.

    One run is its own first comparison. Two give a verdict, more give a row each, of latencies; a
    table of their parts is added if ``by`` asks for it, which needs their traces.
    """
    subject = ""
    if len(names) == 1 and not any(split_name(names[0])[1:]):
        own = open_run(names[0]).compare()
        sides = own.baseline, own.candidate
        subject = f"{own.candidate.label} against {own.baseline.label}"
        names = [f"{names[0]}:{side.name}:{side.threads}" for side in sides]
    check_several(names)
    measurements = find_measurements(names, categories)
    if len(names) == 2 and not any(any(split_name(name)[1:]) for name in names):
        across = {*across, "program"}  # two runs, such as before and after an edit
    subject = subject or " against ".join(reversed(name_runs([*measurements.values()])))
    pairs = _compare_all(measurements, across, subject if len(names) == 2 else "")
    aligned = _align(pairs, by)
    rows = list_others(aligned)
    verdicts: tuple[str, ...] = ()
    if len(names) == 2:
        pair = pairs[names[1]]
        verdicts, notes = (pair.text,), suggest_interleaving(pair)
        rows.loc[rows["level"] == "e2e", "subject"] = subject
    else:
        notes = (*contrast_programs(measurements), *describe_programs(measurements))
    notes = (*describe_uses(measurements, traced=bool(by) or len(names) == 2), *notes)
    if unknown := ", ".join(name for name, m in measurements.items() if m.run.recording):
        notes += (f"device and build are unknown, and not compared: {unknown}",)
    return judge_rows(
        rows,
        limits,
        verdicts=verdicts,
        aligned=aligned if by else None,
        notes=notes,
        resources=judge_resources(pairs, limits),
    )


def judge_resources(pairs: Mapping[str, Comparison], limits: Limits) -> pd.DataFrame | None:
    """What others need against the first one: latency, memory and starts held to limits."""
    frames = {name: pair.resources for name, pair in [*pairs.items()][1:]}
    for frame in frames.values():
        check_measured(frame["resource"], limits)
    table = pd.concat(frames, names=["subject"]).reset_index("subject").reset_index(drop=True)
    if table["resource"].isin(["latency"]).all():
        return None
    table = judge_table(table, limits)
    return table if len(frames) > 1 else table.drop(columns="subject")


def check_measured(resources: pd.Series, limits: Limits) -> None:
    """Refuse limits of resources that were not measured."""
    for resource, (text, option) in _UNMEASURED.items():
        if resource in limits and resource not in [*resources]:
            raise WorkbenchError(text, where=option, hint="measure both again: workbench run")


def judge_table(table: pd.DataFrame, limits: Limits) -> pd.DataFrame:
    """Add whether each resource passes the gate."""
    shown = (table["outcome"] == "more") | (table["resource"] == "peak memory")
    return table.assign(gate=judge_limit(table, table["resource"].map(limits), shown))


def contrast_programs(measurements: Mapping[str, Measurement]) -> Iterator[str]:
    """Which are of another model than the first one, or compute wrong outputs, one line each."""
    (first, baseline), *_ = measurements.items()
    for name, measurement in measurements.items():
        if models := Comparison(baseline, measurement).models:
            yield f"{name} against {first}: {models}"
        if measurement.wrong:
            yield f"{name}: outputs are wrong ({measurement.wrong}): no speed-up is claimed"


def describe_uses(measurements: Mapping[str, Measurement], traced: bool = True) -> list[str]:
    """What of their times does not hold as it is, under these names; or of latencies alone."""
    uses = {name: m.use if traced else m.timing for name, m in measurements.items()}
    return describe_use([use._replace(label=name) for name, use in uses.items()])


def describe_programs(measurements: Mapping[str, Measurement]) -> Iterator[str]:
    """SQNR and size of each, if their dtypes differ, one line each."""
    several = len({m.export.dtype for m in measurements.values() if m.export}) > 1
    for name, measurement in measurements.items():
        if several and measurement.export:
            yield f"{name}: {summarize_program(measurement.export, measurement.dtypes)}"


def suggest_interleaving(pair: Comparison) -> tuple[str, ...]:
    """The command that measures programs of two runs side by side, where that is possible."""
    before, after = pair.baseline, pair.candidate
    device, other = (identify_run(m.run.record)["device"] for m in (before, after))
    one_file = before.program.pte == after.program.pte  # the later export replaced the earlier one
    if pair.within_run or pair.same_program or one_file or not device or device != other:
        return ()
    command = ["workbench", "run", before.program.pte, "--against", after.program.pte]
    command += ["--threads", str(after.threads)] if after.threads > 1 else []
    target = after.run.record.plan.target
    command += ["--target", target] if target != MeasureOptions.target else []
    return (f"To find smaller differences, measure them side by side: {shlex.join(command)}",)


def list_others(aligned: pd.DataFrame) -> pd.DataFrame:
    """The rows of the other runs than the first, as they were compared with it."""
    is_first = aligned["run"] == aligned["run"].iloc[0]
    others = aligned[~is_first]
    times = aligned[is_first].set_index(["level", "name"])["time_ms"]
    keys = pd.MultiIndex.from_frame(others[["level", "name"]])
    return others.assign(
        subject=others["name"].astype(str) + " in " + others["run"].astype(str),
        baseline_ms=times.reindex(keys).to_numpy(),
        candidate_ms=others["time_ms"],
    ).dropna(subset="outcome")


def align_parts(measurements: Mapping[str, Measurement], by: str) -> pd.DataFrame:
    """The parts of measurements, against the first of them: ``frames.ALIGNED``.

    Layers of different programs are matched by path, class, shapes and cost in order of execution,
    so a layer that was renamed or moved keeps its row. Layers that any run fuses share a row in
    all, because their times cannot be separated. Each layer has one row per run, in the order in
    which the first run executes them; a run that lacks a layer has NaN there.
    """
    first = next(iter(measurements.values()))
    if by != "layer":
        pairs = {name: Comparison(first, m) for name, m in measurements.items()}
        if by == "category":
            parts = {name: ab.categories for name, ab in pairs.items()}
        else:
            parts = {n: ab.operators.assign(name=ab.operators["key"]) for n, ab in pairs.items()}
        order = list(dict.fromkeys(name for part in parts.values() for name in part["name"]))
        return tabulate_runs(parts, order)
    if lacking := [name for name, m in measurements.items() if not m.has_layers]:
        hint = "compare by category"
        raise WorkbenchError("its layers are unknown", where=lacking[0], hint=hint)
    traced = {name: (m.ledger, m.operators) for name, m in measurements.items()}
    order, names = align_layers(traced)
    ours = names[next(iter(measurements))]
    parts = {
        name: Comparison(first, m).compare_by("layer", ours, names[name])
        for name, m in measurements.items()
    }
    return tabulate_runs(parts, order, names)


def tabulate_runs(
    pairs: Mapping[str, pd.DataFrame],
    order: Iterable[str],
    names: Mapping[str, Mapping[str, str]] | None = None,
) -> pd.DataFrame:
    """``frames.ALIGNED`` from comparisons of the first run with itself and with each other run.

    ``pairs`` has ``frames.COMPARISON`` by run, ``order`` the names of the rows, and ``names`` by
    run the common names by the run's own names; None if they are the same.
    """
    rows = pd.MultiIndex.from_product([list(order), list(pairs)], names=["name", "run"])
    table = pd.concat({run: pair.set_index("name") for run, pair in pairs.items()}, names=["run"])
    table = table.reorder_levels(["name", "run"]).reindex(rows).reset_index()
    first = table["run"] == next(iter(pairs))
    own_names: dict[tuple[str, str], list[str]] = {}
    for run, common in (names or {}).items():
        for own, name in common.items():
            own_names.setdefault((name, run), []).append(own)
    known_as = [
        " + ".join(own_names[key]) if key in own_names else None
        for key in zip(table["name"], table["run"], strict=True)
    ]
    table = table.assign(
        level=table["level"].ffill().bfill(),
        time_ms=table["candidate_ms"],
        outcome=table["outcome"].mask(first & table["candidate_ms"].notna(), "first"),
        known_as=known_as if names else table["name"],
    )
    return ALIGNED.check(table[ALIGNED.names])


def name_runs(measurements: Sequence[Measurement]) -> list[str]:
    """A short name for each: the labels of their runs, or what they differ in; numbers if need be.

    Without a label, a run is called as its program is.
    """
    labels = [m.run.label for m in measurements]
    if all(labels) and len(set(labels)) == len(labels):
        return labels
    programs = name_programs([(m.program.model, m.program.stem) for m in measurements])
    columns = [
        [m.run.record.platform for m in measurements],
        [label or name for label, name in zip(labels, programs, strict=True)],
        [
            "" if m.name in (name, m.program.stem) else m.name
            for m, name in zip(measurements, programs, strict=True)
        ],
        [plural(m.threads, "thread") for m in measurements],
    ]
    names = [""] * len(measurements)
    for column in columns:
        if len(set(column)) > 1:
            names = [_join(name, fact) for name, fact in zip(names, column, strict=True)]
    further = [programs, [m.run.device for m in measurements]]
    for column in further:
        facts: dict[str, set[str]] = {}
        for name, fact in zip(names, column, strict=True):
            facts.setdefault(name, set()).add(fact)
        names = [
            _join(name, fact) if len(facts[name]) > 1 else name
            for name, fact in zip(names, column, strict=True)
        ]
    return number_equal([name or own for name, own in zip(names, programs, strict=True)])


def _join(name: str, fact: str) -> str:
    return ", ".join(filter(None, (name, fact)))

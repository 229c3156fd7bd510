"""Compare measurements of any runs: each of several with the first, part by part."""

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from workbench.analysis.comparison_tables import judge_together
from workbench.analysis.dtypes import describe_fidelity
from workbench.analysis.layers import align_layers, name_layer
from workbench.analysis.open import open_run
from workbench.analysis.run import Comparison, Measurement, Run
from workbench.analysis.use import describe_use
from workbench.emulation import EMULATED, mark_frame
from workbench.errors import UsageError, WorkbenchError, unknown_name
from workbench.frames import ALIGNED, COMPARISON, LAYER_CODE, RUNS
from workbench.names import number_equal
from workbench.options import MeasureOptions
from workbench.records.pairing import AXES, PARTS
from workbench.store import MANIFEST, name_programs
from workbench.wording import begin_sentence, plural

#: A run, or where it is.
Source: TypeAlias = Run | Measurement | str | Path
#: Columns of ``LAYER_CODE`` that an emulated run cannot fill.
_TIMES = ["time_ms", "speedup", "low", "high"]


def compare(
    baseline: Source,
    candidate: Source,
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
    return Comparison(baseline, candidate, subject=subject or name_pair(baseline, candidate))


def pair_runs(
    baseline: str | Path, name: str, across: Collection[str] = ()
) -> dict[str, Comparison]:
    """Every measurement of an earlier run, or of its ``manifest.json``, and the same of a run.

    ``name`` is as for `find_measurements`; controls are left out. By what each is about.
    """
    folder, experiment, threads = split_name(name)
    earlier, later = open_run(baseline), open_run(folder)
    setups = {(m.name, m.threads): m for m in earlier.measurements}
    wanted = {
        setup: m
        for setup, m in setups.items()
        if not m.control and experiment in ("", m.name) and threads in ("", str(m.threads))
    }
    if not wanted:
        names = sorted(f"{name}:{count}" for name, count in setups)
        raise unknown_name("measurement", f"{experiment}:{threads}", names, where=baseline)
    same, pairs = {(m.name, m.threads): m for m in later.measurements}, {}
    for (its_name, count), before in wanted.items():
        after = same.get((its_name, count))
        if after is None:
            problem = f"{its_name} with {plural(count, 'thread')} was not measured"
            hint = "name what to compare: RUN_DIR:EXPERIMENT"
            raise WorkbenchError(problem, where=later.path, hint=hint)
        check_comparable([before, after], across)
        subject = f"{after.program.model}, {its_name}, {plural(count, 'thread')}"
        pairs[subject] = Comparison(before, after, subject=subject)
    return pairs


def find_measurements(names: Sequence[str]) -> dict[str, Measurement]:
    """The measurements named ``RUN_DIR[:EXPERIMENT[:THREADS]]``, by name.

    Without an experiment, that is the candidate of the run's first comparison; without threads,
    the first thread count.
    """
    opened = cache(open_run)
    measurements = {}
    for name in names:
        folder, experiment, threads = split_name(name)
        run = opened(folder)
        if threads and not threads.isdecimal():
            thread_counts = map(str, run.record.plan.threads)
            raise unknown_name("thread count", threads, thread_counts, where=folder)
        counts = (int(threads),) if threads else ()
        measurements[name] = run[experiment or run.subject.name, *counts]
    return measurements


def check_several(names: Collection[Any]) -> None:
    """Refuse a single measurement, and one that is named twice."""
    if len(names) < 2 or len(set(names)) < len(names):
        raise UsageError("needs two or more measurements, each once", where="compare")


def split_name(name: str) -> tuple[str, str, str]:
    """Folder, experiment and threads of ``RUN_DIR[:EXPERIMENT[:THREADS]]``; empty if not given."""
    plain = (Path(name) / MANIFEST).exists() or Path(name).is_file()
    folder, experiment, threads, *_ = [*([name] if plain else name.split(":", 2)), "", ""]
    return folder, experiment, threads


def check_comparable(
    measurements: Collection[Measurement], across: str | Collection[str] = ()
) -> None:
    """Refuse emulated times, and measurements that differ from the first along another axis."""
    across = {*([across] if isinstance(across, str) else across)}
    for axis in across:
        if axis not in AXES:
            raise unknown_name("axis", axis, AXES, where="--across")
    # Programs of one run were measured to be compared; one program may have several file names.
    one_run = len({m.run.path.resolve() for m in measurements}) == 1
    if one_run or len({m.program.sha256 for m in measurements}) == 1:
        across |= {"program"}
    first, *other_axes = (m.identity.axes | {"threads": str(m.threads)} for m in measurements)
    for axis in [name for name in AXES if name not in across]:
        for other in other_axes:
            if first[axis] and other[axis] not in ("", first[axis]):
                raise UsageError(
                    f"the two differ in {axis}: {first[axis]} against {other[axis]}",
                    hint=f"compare anyway: --across {axis}",
                )
    if any(m.emulated for m in measurements):
        raise WorkbenchError(f"no speed to compare; {EMULATED}", hint="measure on silicon")


@dataclass(frozen=True)
class Comparisons:
    """Measurements by name, each against the first of them; emulated ones come last.

    A speed-up between two of them is the effect of everything that differs. ``subject`` is what
    verdicts are about, by default the names.
    """

    measurements: Mapping[str, Measurement]
    subject: str = ""

    @property
    def silicon(self) -> dict[str, Measurement]:
        """The measurements whose times count."""
        return {name: m for name, m in self.measurements.items() if not m.emulated}

    @property
    def models(self) -> list[str]:
        """The models that were run."""
        return list(dict.fromkeys(m.program.model for m in self.measurements.values()))

    @cached_property
    def pairs(self) -> dict[str, Comparison]:
        """Each against the first, which is its own baseline."""
        first = next(iter(self.measurements.values()))
        return {
            name: Comparison(first, m, subject=self.subject or name)
            for name, m in self.measurements.items()
        }

    @property
    def others(self) -> dict[str, Comparison]:
        """The comparisons of the others whose times count."""
        return {name: self.pairs[name] for name in [*self.silicon][1:]}

    @cached_property
    def latencies(self) -> pd.DataFrame:
        """Latency of the others without tracing: ``frames.COMPARISON``."""
        return tabulate_pairs(self.others)

    @property
    def answers(self) -> list[str]:
        """What they show, a sentence each; what the programs are is said elsewhere."""
        verdicts = [replace(pair.verdict, programs="") for pair in self.others.values()]
        if len(verdicts) == 1:  # the title says of what
            return [begin_sentence(replace(verdicts[0], subject="").text)]
        return [verdict.text for verdict in verdicts]

    @cached_property
    def runs(self) -> pd.DataFrame:
        """What was measured: ``frames.RUNS``."""
        rows = [{"run": name, **m.summary} for name, m in self.measurements.items()]
        return RUNS.check(pd.DataFrame(rows)[RUNS.names])

    @property
    def layers(self) -> pd.DataFrame | None:
        """Time and code of the layers of all: ``frames.LAYER_CODE``; None with a ``problem``."""
        return self._layers[0]

    @property
    def problem(self) -> str:
        """Why their layers are not aligned; empty if they are."""
        return self._layers[1]

    @cached_property
    def _layers(self) -> tuple[pd.DataFrame | None, str]:
        try:
            aligned = self.align()
        except WorkbenchError as error:
            return None, str(error)
        aligned = aligned[aligned["level"] == "layer"].reset_index(drop=True)
        code = {name: _code_by_layer(m) for name, m in self.measurements.items()}
        pairs = list(zip(aligned["run"], aligned["known_as"], strict=True))
        for column in ("operators", "kernels"):
            aligned[column] = [_join_code(code[run], layer, column) for run, layer in pairs]
        return LAYER_CODE.check(aligned), ""

    def align(self, by: str = "layer") -> pd.DataFrame:
        """E2E of all, then their parts, which add up to it: ``frames.ALIGNED``.

        ``by`` is ``layer``, ``category``, or, for one program, ``operator``. Layers of
        different programs are matched by path, class, shapes and cost in order of execution, so a
        layer that was renamed or moved keeps its row. Layers that any run fuses share a row in all,
        because their times cannot be separated. Each part has one row per run, in the order of the
        first run; a run that lacks it has NaN.
        """
        order, names = list[str](), None
        if by == "category":
            parts = {name: pair.categories for name, pair in self.pairs.items()}
        elif by == "operator":
            operators = {name: pair.operators for name, pair in self.pairs.items()}
            parts = {name: rows.assign(name=rows["key"]) for name, rows in operators.items()}
        elif by not in PARTS:
            raise unknown_name("part", by, PARTS, where="--by")
        elif lacking := [name for name, m in self.measurements.items() if not m.has_layers]:
            hint = "compare by category"
            raise WorkbenchError("its layers are unknown", where=lacking[0], hint=hint)
        else:
            traced = {name: (m.ledger, m.operators) for name, m in self.measurements.items()}
            order, names = align_layers(traced)
            ours = next(iter(names.values()))
            parts = {
                name: mark_frame(pair, pair.compare_by("layer", ours, names[name]))
                for name, pair in self.pairs.items()
            }
        whole = {name: pair.latency.assign(name="E2E") for name, pair in self.pairs.items()}
        tables = self._tabulate(whole), self._tabulate(parts, order, names)
        return pd.concat(tables, ignore_index=True)

    def _tabulate(
        self,
        parts: Mapping[str, pd.DataFrame],
        order: Sequence[str] = (),
        names: Mapping[str, Mapping[str, str]] | None = None,
    ) -> pd.DataFrame:
        """``frames.ALIGNED`` of ``frames.COMPARISON`` by run; ``names`` are common ones by own."""
        part_names = dict.fromkeys(name for part in parts.values() for name in part["name"])
        rows = pd.MultiIndex.from_product([order or list(part_names), list(parts)])
        table = pd.concat({run: part.set_index("name") for run, part in parts.items()})
        table = table.swaplevel().reindex(rows).rename_axis(["name", "run"]).reset_index()
        first = table["run"] == next(iter(parts))
        known_as = table["name"]
        if names:
            known_as = [
                " + ".join(layer for layer, common in names[run].items() if common == name) or None
                for name, run in zip(table["name"], table["run"], strict=True)
            ]
        table = table.assign(
            level=table["level"].ffill().bfill(),
            time_ms=table["candidate_ms"],
            outcome=table["outcome"].mask(first & table["candidate_ms"].notna(), "first"),
            known_as=known_as,
        )
        emulated = ~table["run"].isin([*self.silicon])
        table.loc[emulated, _TIMES] = np.nan
        table["outcome"] = table["outcome"].mask(emulated, "emulated")
        return ALIGNED.check(table[ALIGNED.names])


def tabulate_pairs(pairs: Mapping[str, Comparison]) -> pd.DataFrame:
    """E2E of comparisons by name, judged as one family: ``frames.COMPARISON``."""
    if not pairs:
        return pd.DataFrame(columns=COMPARISON.names)
    rows = [pair.latency.assign(name=name) for name, pair in pairs.items()]
    return judge_together(pd.concat(rows, ignore_index=True))


def combine_runs(
    measurements: Sequence[str | Run | Measurement] | Mapping[str, Measurement],
    *,
    across: str | Collection[str] | None = None,
) -> Comparisons:
    """Put measurements side by side, and compare each with the first of them.

    Parameters
    ----------
    measurements
        Two or more runs, measurements or ``RUN_DIR[:EXPERIMENT[:THREADS]]``; of a run, it is the
        candidate of the first comparison by default. Or measurements by a name.
    across
        Which of ``program``, ``threads``, ``device`` and ``build`` may differ. By default all; then
        some may be emulated, which come last and have no times.

    Raises
    ------
    UsageError
        An unknown run, experiment, thread count or axis, a repeated measurement, or fewer than two.
    WorkbenchError
        They differ along another axis.

    Examples
    --------
    >>> sample = wb.sample_run()
    >>> combined = wb.combine_runs([f"{sample}:avx512_off", f"{sample}:avx512_on"])
    >>> combined.latencies["outcome"].tolist()
    ['faster']
    >>> combined.align("category")["level"].unique().tolist()
    ['e2e', 'category']
    """
    check_several(measurements)
    if not isinstance(measurements, Mapping):
        measurements_of = find_measurements([m for m in measurements if isinstance(m, str)])
        given = (each.subject if isinstance(each, Run) else each for each in measurements)
        opened = [measurements_of[each] if isinstance(each, str) else each for each in given]
        sides = sorted(opened, key=lambda m: m.emulated)
        measurements = dict(zip(name_runs(sides), sides, strict=True))
    if across is not None:
        check_comparable(measurements.values(), across)
    return Comparisons(measurements)


def _code_by_layer(m: Measurement) -> dict[str, dict[str, list[str]]]:
    """The operators and functions of every layer, slowest first."""
    functions = m.kernels["function"].to_dict() if len(m.kernels) else {}
    code_of: dict[str, dict[str, list[str]]] = {}
    for row in m.operators.sort_values("mean_ms", ascending=False).itertuples():
        code = code_of.setdefault(name_layer(row.module), {"operators": [], "kernels": []})
        code["operators"].append(str(row.operator))
        code["kernels"] += [str(functions[row.key])] if row.key in functions else []
    return code_of


def _join_code(code: dict[str, dict[str, list[str]]], known_as: object, column: str) -> str:
    layers = known_as.split(" + ") if isinstance(known_as, str) else []
    texts = [text for layer in layers for text in code.get(layer, {}).get(column, [])]
    return ", ".join(dict.fromkeys(texts))


# --- in words ------------------------------------------------------------------------------------


def contrast_programs(
    pairs: Mapping[str, Comparison], judged: Collection[str] = ()
) -> Iterator[str]:
    """Which are of another model than the first one, or compute wrong outputs, one line each.

    Verdicts say the latter of those that are ``judged``.
    """
    first = next(iter(pairs))
    for name, pair in pairs.items():
        if pair.models:
            yield f"{name} against {first}: {pair.models}"
        if pair.candidate.wrong and name not in judged:
            yield f"{name}: outputs are wrong ({pair.candidate.wrong}): no speed-up is claimed"


def describe_uses(measurements: Mapping[str, Measurement], traced: bool = True) -> list[str]:
    """What of their times does not hold as it is, under these names; or of latencies alone."""
    uses = {name: m.use if traced else m.timing for name, m in measurements.items()}
    return describe_use([use._replace(label=name) for name, use in uses.items()])


def describe_programs(measurements: Mapping[str, Measurement]) -> Iterator[str]:
    """SQNR and size of each, if their dtypes differ, one line each."""
    several = len({m.export.dtype for m in measurements.values() if m.export}) > 1
    for name, measurement in measurements.items():
        if several and measurement.export:
            yield f"{name}: {describe_fidelity(measurement.export, measurement.dtypes)}"


def suggest_interleaving(pair: Comparison) -> tuple[str, ...]:
    """The command that measures programs of two runs side by side, where that is possible."""
    before, after = pair.baseline, pair.candidate
    devices = {m.identity.device for m in (before, after)}
    ptes = {m.program.pte for m in (before, after)}  # a later export may have replaced the other
    if pair.within_run or pair.same_program or len(devices) > 1 or len(ptes) == 1:
        return ()
    if "" in devices | ptes:
        return ()
    command = ["workbench", "run", before.program.pte, "--against", after.program.pte]
    command += ["--threads", str(after.threads)] if after.threads > 1 else []
    target = after.run.record.plan.target
    command += ["--target", target] if target != MeasureOptions.target else []
    return (f"To find smaller differences, measure them side by side: {shlex.join(command)}",)


def name_pair(baseline: Measurement, candidate: Measurement) -> str:
    """What a comparison is about: the candidate against the baseline, by what they differ in."""
    before, after = _name_runs([baseline, candidate])
    return (
        f"{after} against {before}"
        if before != after
        else f"{after} (after) against {before} (before)"
    )


def name_runs(measurements: Sequence[Measurement]) -> list[str]:
    """A short name for each: the labels of their runs, or what they differ in, or numbers."""
    return number_equal(_name_runs(measurements))


def _name_runs(measurements: Sequence[Measurement]) -> list[str]:
    """The same without numbers: some may be equal.

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
    return [name or program for name, program in zip(names, programs, strict=True)]


def _join(name: str, fact: str) -> str:
    return ", ".join(filter(None, (name, fact)))

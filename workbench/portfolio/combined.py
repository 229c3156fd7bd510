"""Several runs of a model as one: each platform or version beside the others, by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from workbench.analysis.align import Traced, align_runs
from workbench.analysis.compare_runs import find_measurements
from workbench.analysis.layers import name_layer
from workbench.analysis.run import Comparison, Measurement, identify_run
from workbench.errors import ComparisonError, UsageError
from workbench.frames import COMBINED, COMPARISON, LINED_UP, check
from workbench.records.runs import count_threads

#: Columns of ``LINED_UP`` that an emulated run cannot fill.
_TIMES = ["time_ms", "speedup", "low", "high"]


@dataclass(frozen=True)
class Combined:
    """Runs side by side.

    ``runs`` is ``schema.COMBINED``; ``latencies`` (``schema.COMPARISON``) the untraced E2E of all
    that were measured on silicon, against the first of these; ``layers`` ``schema.LINED_UP``, None
    if there is nothing to line up, and ``problem`` then says why. ``measurements`` are by the name
    of the run.
    """

    measurements: dict[str, Measurement]
    runs: pd.DataFrame
    latencies: pd.DataFrame
    layers: pd.DataFrame | None
    problem: str = ""

    @property
    def silicon(self) -> dict[str, Measurement]:
        """The measurements that say how fast something is."""
        return _on_silicon(self.measurements)

    @property
    def models(self) -> list[str]:
        """The models that were run."""
        return list(dict.fromkeys(self.runs["model"]))


def combine_runs(names: Sequence[str]) -> Combined:
    """Put measurements side by side that need not be comparable: other devices, other versions.

    What differs is said, and every speed-up is between what the two runs are as a whole.

    Parameters
    ----------
    names
        Two or more of ``RUN_DIR[:EXPERIMENT[:THREADS]]``; the experiment is the candidate of the
        run's first pair by default. Those of emulated runs come last.

    Raises
    ------
    UsageError
        An unknown run, experiment or thread count, one measurement twice, or fewer than two.
    """
    if len(names) < 2 or len(set(names)) < len(names):
        raise UsageError("needs two or more measurements, each once", where="report")
    found = sorted(find_measurements(names).values(), key=lambda one: one.emulated)
    measurements = dict(zip(name_runs(found), found, strict=True))
    layers, problem = None, ""
    try:
        layers = line_up(measurements)
    except ComparisonError as error:
        problem = str(error)
    runs, latencies = _tabulate(measurements), _compare(measurements)
    return Combined(measurements, runs, latencies, layers, problem)


def name_runs(measurements: Sequence[Measurement]) -> list[str]:
    """A short name for each, which says what they differ in."""
    facts = [
        (
            one.run.record.platform,
            one.run.record.plan.stem,
            one.name,
            count_threads(one.threads),
        )
        for one in measurements
    ]
    told = [column for column in zip(*facts, strict=True) if len(set(column)) > 1]
    names = [", ".join(row) for row in zip(*told, strict=True)] or [""] * len(facts)
    return [
        name if names.count(name) == 1 else f"{name} ({number})".strip()
        for number, name in enumerate(names, 1)
    ]


def line_up(measurements: dict[str, Measurement]) -> pd.DataFrame:
    """The layers of all runs, the same one in one row, with times and with what they ran.

    Returns
    -------
    DataFrame
        ``schema.LINED_UP``; without times, and with the outcome ``emulated``, for emulated runs.

    Raises
    ------
    ComparisonError
        A run knows no layers.
    """
    apart = len({m.run.path.resolve() for m in measurements.values()}) > 1
    aligned = align_runs(
        {n: Traced(m.ledger, m.operators) for n, m in measurements.items()}, apart=apart
    )
    emulated = {name for name, one in measurements.items() if one.emulated}
    marked = aligned["run"].isin(emulated)
    aligned.loc[marked, _TIMES] = np.nan
    aligned["outcome"] = aligned["outcome"].mask(marked, "emulated")
    code = {name: _code_by_layer(one) for name, one in measurements.items()}
    for column in ("operators", "kernels"):
        aligned[column] = [
            _join(code[row.run], row.known_as, column) for row in aligned.itertuples()
        ]
    return check(aligned, LINED_UP)


def _code_by_layer(one: Measurement) -> dict[str, dict[str, list[str]]]:
    """For every layer of a measurement its operators and functions, the slowest first."""
    operators = one.operators.sort_values("mean_ms", ascending=False)
    kernels = one.kernels
    named = kernels["function"].to_dict() if len(kernels) else {}
    found: dict[str, dict[str, list[str]]] = {}
    for row in operators.itertuples():
        texts = found.setdefault(name_layer(row.module), {"operators": [], "kernels": []})
        texts["operators"].append(str(row.operator))
        texts["kernels"] += [str(named[row.key])] if row.key in named else []
    return found


def _join(code: dict[str, dict[str, list[str]]], known_as: str | None, column: str) -> str:
    layers = known_as.split(" + ") if isinstance(known_as, str) else []
    texts = [text for layer in layers for text in code.get(layer, {}).get(column, [])]
    return ", ".join(dict.fromkeys(texts))


def _tabulate(measurements: dict[str, Measurement]) -> pd.DataFrame:
    rows = [{"run": name, **_describe(one)} for name, one in measurements.items()]
    return check(pd.DataFrame(rows)[COMBINED.names], COMBINED)


def _describe(one: Measurement) -> dict[str, object]:
    run, record = one.run, one.run.record
    times = one.statistics[["median", "low", "high"]].to_numpy(float).tolist()
    known = times and not run.emulated
    latency = dict(
        zip(("latency_ms", "low_ms", "high_ms"), times[0] if known else [np.nan] * 3, strict=True)
    )
    return {
        **identify_run(record),
        **latency,
        "run_dir": str(run.path),
        "model": run.model,
        "experiment": one.name,
        "threads": one.threads,
        "emulated": run.emulated,
        "grade": run.quality["grade"].iloc[0],
        "verdict": next((c.text for c in run.comparisons if c.candidate is one), ""),
    }


def _compare(measurements: dict[str, Measurement]) -> pd.DataFrame:
    """E2E of what was measured on silicon, against the first of it."""
    silicon = _on_silicon(measurements)
    rows = []
    for name, one in list(silicon.items())[1:]:
        first = next(iter(silicon.values()))
        noise = max(first.run.floor, one.run.floor)
        rows.append(Comparison(first, one, noise=noise).latency.assign(name=name))
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=COMPARISON.names)


def _on_silicon(measurements: dict[str, Measurement]) -> dict[str, Measurement]:
    return {n: one for n, one in measurements.items() if not one.emulated}

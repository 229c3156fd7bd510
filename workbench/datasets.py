"""Frames as measurements would give them, with known answers, for tests and documentation.

Published measurements as frames, for the same figures and tables as one's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

import workbench
from workbench.analysis.categories import CATEGORIES
from workbench.analysis.shift import UNSPLIT
from workbench.errors import StoreError, unknown_name
from workbench.frames import CATEGORIES as CATEGORIES_FRAME
from workbench.frames import LATENCIES, LEDGER, check
from workbench.records.codec import from_json
from workbench.records.runs import SCHEMA_VERSION, Batch, RunRecord

#: Where the recorded runs of the repository lie, one output folder per model.
SAMPLES = Path(workbench.__file__).resolve().parents[1] / "data" / "samples"

#: A small network, as its ledger would show it: category, kind, operator, milliseconds.
NETWORK = (
    ("Other", "framework", "Method::execute", 0.021),
    ("Other", "delegate_overhead", "DELEGATE_CALL", 0.160),
    ("Data Movement", "delegated", "Transpose (ND, X32)", 0.230),
    ("Convolution", "delegated", "Convolution (NHWC, F32) IGEMM", 2.140),
    ("Elementwise", "delegated", "HardSwish (NC)", 0.090),
    ("Convolution", "delegated", "Convolution (NHWC, F32) DWConv", 0.610),
    ("GEMM", "delegated", "Fully Connected (NC, F32) GEMM", 1.320),
    ("Other", "delegated", "Average Pooling (NHWC, F32) Average Pooling", 0.055),
    ("Elementwise", "delegated", "Multiply (ND)", 0.048),
    ("Convolution", "delegated", "Convolution (NHWC, F32) IGEMM", 1.470),
    ("GEMM", "delegated", "Fully Connected (NC, F32) GEMM", 0.410),
    ("Data Movement", "delegated", "Copy (NC, X32)", 0.120),
    ("Other", "call_overhead", "OPERATOR_CALL", 0.004),
    ("Other", "portable", "native_call_mean.out", 0.035),
)


def sample_run(model: str = "mobilenet_v3_small") -> Path:
    """The folder of a recorded run, which needs neither a device nor PyTorch to be analysed.

    Raises
    ------
    UsageError
        There is no sample of this model.
    """
    runs = {path.parts[-4].removeprefix("out_"): path.parent for path in _manifests()}
    if model not in runs:
        raise unknown_name("sample", model, runs)
    return runs[model]


def sample_model() -> Path:
    """A file with one model twice: as it was trained, and ready for a device."""
    return SAMPLES.parent / "onboarding" / "my_segmenter.py"


def sample_exports() -> Path:
    """The folder of recorded export records: one model in several dtypes."""
    return SAMPLES / "exports"


def _manifests() -> list[Path]:
    return sorted(SAMPLES.glob("out_*/runs/*/manifest.json"))


def synthetic_latencies(
    latencies_ms: Mapping[str, float],
    *,
    threads: int = 1,
    processes: int = 5,
    rounds: int = 8,
    batch: int = 3,
    noise: float = 0.01,
    restart: float = 0.003,
    drift: float = 0.03,
    outliers: float = 0.03,
    traced: bool = False,
    seed: int = 0,
) -> pd.DataFrame:
    """Interleaved latencies of experiments whose true ratio is known.

    Parameters
    ----------
    latencies_ms
        True latency of every experiment, in the order of interleaving.
    threads, processes, rounds, batch
        How much is measured; ``batch`` inferences are timed in one go, twice a round.
    noise, restart
        Log-normal scatter of single inferences, and of an experiment from restart to restart.
    drift
        How far the machine wanders over a restart; all experiments alike.
    outliers
        Which part of the inferences is disturbed, by 30 % on average.
    traced
        Marks the rows as measured with ETDump on.
    seed
        Of the random numbers.

    Returns
    -------
    DataFrame
        ``schema.LATENCIES`` in the order of measurement.
    """
    rng = np.random.default_rng(seed)
    names = list(latencies_ms)
    places = 2 * len(names)
    shape = (processes, rounds, places, batch)
    process, number, place, _ = np.indices(shape)
    # There and back again, one experiment further each round.
    step = np.minimum(place, places - 1 - place)
    experiment = (number + step) % len(names)

    level = np.log(list(latencies_ms.values())) + rng.normal(0, restart, (processes, len(names)))
    walk = rng.normal(0, drift / np.sqrt(rounds * places), (processes, rounds * places))
    walk = walk.cumsum(axis=1).reshape(processes, rounds, places, 1)
    disturbed = rng.random(shape) < outliers
    noises = rng.normal(0, noise, shape) + disturbed * rng.exponential(0.3, shape)
    cpu = np.exp(level[process, experiment] + walk + noises) * 1e6
    frame = pd.DataFrame(
        {
            "experiment": np.array(names, dtype=object)[experiment.ravel()],
            "threads": threads,
            "process": process.ravel(),
            "traced": traced,
            "round": number.ravel(),
            "batch": place.ravel(),
            "wall_ns": (cpu * (1.01 + disturbed)).astype("int64").ravel(),
            "cpu_ns": (cpu * threads).astype("int64").ravel(),
            "preempted": disturbed.astype("int64").ravel(),
        }
    )
    return check(frame, LATENCIES)


def synthetic_ledger(
    speedups: Mapping[str, float] | None = None,
    *,
    processes: int = 3,
    runs: int = 10,
    noise: float = 0.01,
    restart: float = 0.003,
    seed: int = 0,
) -> pd.DataFrame:
    """The ledger of ``NETWORK``, each category made faster by a known factor.

    Parameters
    ----------
    speedups
        Factor by category; 1 for those not named.
    processes, runs
        Process restarts, and runs of each.
    noise, restart
        Log-normal scatter of an operator from run to run, and of all of them from restart to
        restart.
    seed
        Of the random numbers.

    Returns
    -------
    DataFrame
        ``schema.LEDGER`` and ``process``; delegated operators in whole microseconds.
    """
    rng = np.random.default_rng(seed)
    speedups = speedups or {}
    true_us = [1e3 * ms / speedups.get(category, 1.0) for category, _, _, ms in NETWORK]
    frames = []
    for process in range(processes):
        level = rng.normal(0, restart)
        for run in range(runs):
            times = true_us * np.exp(level + rng.normal(0, noise, len(NETWORK)))
            whole = [kind == "delegated" for _, kind, _, _ in NETWORK]
            frames.append(
                pd.DataFrame(
                    {
                        "process": process,
                        "run": run,
                        "row": range(len(NETWORK)),
                        "kind": [kind for _, kind, _, _ in NETWORK],
                        "name": [
                            f"{operator} #{row}" if kind == "delegated" else operator
                            for row, (_, kind, operator, _) in enumerate(NETWORK)
                        ],
                        "operator": [operator for _, _, operator, _ in NETWORK],
                        "key": [f"{kind}/{row}" for row, (_, kind, _, _) in enumerate(NETWORK)],
                        "instruction": [-1, *range(len(NETWORK) - 1)],
                        "duration_ns": np.where(whole, np.floor(times), times.round(3)) * 1e3,
                    }
                ).astype({"duration_ns": "int64"})
            )
    return check(pd.concat(frames, ignore_index=True), LEDGER)


def resample_run(
    run: RunRecord, *, factor: float, started: str, scatter: float, seed: int
) -> RunRecord:
    """A run as the same machine might have made it at another time.

    Every process's inferences are drawn anew from those that it measured.

    Parameters
    ----------
    run
        A recorded run.
    factor
        How many times as long every inference takes.
    started
        When it began, as ISO 8601.
    scatter
        Log-normal scatter of all inferences of one process.
    seed
        Of the random numbers.
    """
    rng = np.random.default_rng(seed)

    def draw(batch: Batch, level: float) -> Batch:
        chosen = rng.integers(0, len(batch.wall_ns), len(batch.wall_ns))
        wall, cpu = (
            tuple((np.array(times)[chosen] * level).astype("int64").tolist())
            for times in (batch.wall_ns, batch.cpu_ns)
        )
        return replace(batch, wall_ns=wall, cpu_ns=cpu)

    sessions = []
    for session in run.sessions:
        level = factor * np.exp(rng.normal(0, scatter))
        sessions.append(replace(session, batches=tuple(draw(b, level) for b in session.batches)))
    return replace(run, started=started, finished=started, sessions=tuple(sessions))


#: Where the case studies of the repository lie.
FOLDER = Path(workbench.__file__).parents[1] / "data" / "case_studies"

#: How far published categories may miss the published total, which is rounded.
_ROUNDING = 0.01


@dataclass(frozen=True)
class Source:
    """Where figures were published."""

    title: str
    publisher: str
    url: str


@dataclass(frozen=True)
class Published:
    """One experiment as published; None where a category's time was not."""

    name: str
    dtype: str
    sme2: bool
    e2e_ms: float
    categories_ms: dict[str, float | None]
    approximate: tuple[str, ...] = ()


@dataclass(frozen=True)
class CaseStudy:
    """Published figures: what was measured, and who says so."""

    title: str
    model: str
    device: str
    threads: int
    source: Source
    see_also: tuple[Source, ...]
    notes: tuple[str, ...]
    experiments: tuple[Published, ...]
    schema_version: int = SCHEMA_VERSION

    @property
    def latencies(self) -> pd.DataFrame:
        """E2E by ``dtype``: ``baseline_ms`` (SME2 off), ``candidate_ms`` (on) and ``speedup``."""
        times = {(e.dtype, e.sme2): e.e2e_ms for e in self.experiments}
        dtypes = dict.fromkeys(e.dtype for e in self.experiments)
        rows = [(d, times.get((d, False)), times.get((d, True))) for d in dtypes]
        table = pd.DataFrame(rows, columns=["dtype", "baseline_ms", "candidate_ms"])
        return table.assign(speedup=table["baseline_ms"] / table["candidate_ms"])

    @property
    def categories(self) -> dict[str, pd.DataFrame]:
        """``schema.CATEGORIES`` by name of the experiment, of those that were split up.

        What the source leaves out of E2E is one row "not published".
        """
        return {
            e.name: _tabulate(e)
            for e in self.experiments
            if any(ms is not None for ms in e.categories_ms.values())
        }


def load_case_study(name: str | Path) -> CaseStudy:
    """Read a case study.

    Parameters
    ----------
    name
        That of a file in ``data/case_studies`` (``squeezesam``), or the path of a JSON file.

    Raises
    ------
    UsageError
        There is no such case study.
    StoreError
        The file is not a case study, or its figures contradict each other.
    """
    path = Path(name)
    if path.suffix != ".json":
        path = FOLDER / f"{name}.json"
        if not path.is_file():
            raise unknown_name("case study", str(name), [p.stem for p in FOLDER.glob("*.json")])
    try:
        text = path.read_bytes()
    except OSError as error:
        raise StoreError(error.strerror or str(error), where=path) from None
    study = from_json(CaseStudy, text, path)
    for experiment in study.experiments:
        _check(experiment, path)
    return study


def _check(experiment: Published, path: Path) -> None:
    """Refuse figures that cannot be."""
    for category in experiment.categories_ms:
        if category not in CATEGORIES:
            raise unknown_name("category", category, CATEGORIES, where=path)
    known = [ms for ms in experiment.categories_ms.values() if ms is not None]
    if not all(math.isfinite(ms) and ms >= 0 for ms in [experiment.e2e_ms, *known]):
        raise StoreError(f"{experiment.name!r} has a time that is none", where=path)
    complete = len(known) == len(CATEGORIES)
    missed = experiment.e2e_ms - sum(known)
    slack = _ROUNDING * experiment.e2e_ms
    if missed < -slack or (complete and missed > slack):
        raise StoreError(
            f"the categories of {experiment.name!r} do not add up to its E2E latency", where=path
        )


def _tabulate(experiment: Published) -> pd.DataFrame:
    known = {c: experiment.categories_ms.get(c) for c in CATEGORIES}
    times = {category: ms for category, ms in known.items() if ms is not None}
    if len(times) < len(CATEGORIES):
        times[UNSPLIT] = max(0.0, experiment.e2e_ms - sum(times.values()))
    table = pd.DataFrame({"category": list(times), "mean_ms": list(times.values())})
    table["share"] = table["mean_ms"] / table["mean_ms"].sum()
    table["operators"] = pd.array([pd.NA] * len(table), dtype="Int64")
    table["approximate"] = table["category"].isin([*experiment.approximate, UNSPLIT])
    return check(table, CATEGORIES_FRAME)

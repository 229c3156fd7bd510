"""Temporary: names of the first version for code that has not moved to the nouns yet."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from workbench.analysis.compare_runs import find_measurements
from workbench.analysis.findings.context import RuleContext
from workbench.analysis.quality import summarize_quality
from workbench.analysis.roofline import Roof
from workbench.analysis.run import Measurement, Run, open_run

Analysis = Run
analyze_run = open_run


def pick(frame: pd.DataFrame, experiment: str, threads: int) -> pd.DataFrame:
    return frame[(frame["experiment"] == experiment) & (frame["threads"] == threads)]


def find_next_steps(run: Run, experiment: str = "", threads: int | None = None) -> pd.DataFrame:
    if not experiment:
        return run.findings
    return (run[experiment] if threads is None else run[experiment, threads]).findings


def gather_facts(run: Run, experiment: str, threads: int) -> RuleContext:
    return run[experiment, threads].context


def grade_quality(run: Run) -> pd.DataFrame:
    return run.quality


def describe_quality(run: Run) -> str:
    return summarize_quality(run.quality)


def check_run(run: Run) -> pd.DataFrame:
    return run.checks


def tracer_overhead(run: Run) -> dict[tuple[str, int], float]:
    return run.tracer_overhead


def find_roof(run: Run, experiment: str, threads: int) -> Roof | None:
    return run[experiment, threads].roof


def find_roofline(run: Run, experiment: str = "", threads: int | None = None) -> pd.DataFrame | None:
    if not experiment:
        return run.subject.roofline
    return (run[experiment] if threads is None else run[experiment, threads]).roofline


def find_noise(run: Run, experiment: str, threads: int) -> dict[str, pd.DataFrame]:
    return run.find_noise(experiment, threads)


def find_measurement(name: str) -> Measurement:
    return find_measurements([name])[name]


def find_comparable(names: Sequence[str]) -> list[Measurement]:
    return list(find_measurements(names).values())

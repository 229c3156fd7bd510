# ruff: noqa: D103
"""Temporary: names of the first version for code that has not moved to the nouns yet."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pandas as pd

from workbench.analysis import roofline
from workbench.analysis.compare_runs import compare, find_measurements
from workbench.analysis.findings.context import RuleContext
from workbench.analysis.machine_code import name_kernels
from workbench.analysis.quality import summarize_quality
from workbench.analysis.roofline import Roof
from workbench.analysis.run import Comparison, Measurement, Run, open_run
from workbench.analysis.verdict import Verdict
from workbench.records.runs import Pair

Analysis = Run
analyze_run = open_run


def _select(self: Run, frame: pd.DataFrame, experiment: str, threads: int) -> pd.DataFrame:
    return pick(frame, experiment, threads).reset_index(drop=True)


def _bars(self: Run) -> dict[str, pd.DataFrame]:
    return {m.label: m.categories for m in self.traced if not m.control}


Run.run_dir = property(lambda self: self.path)
Run.run = property(lambda self: self.record)
Run.ladder = property(lambda self: self.isa_levels)
Run.bars = property(_bars)
Run.select = _select
Measurement.analysis = property(lambda self: self.run)
Comparison.pair = property(
    lambda self: Pair(self.baseline.name, self.candidate.name, self.label.partition(",")[0])
)
Comparison.threads = property(lambda self: self.candidate.threads)
Comparison.text_threads = property(lambda self: self.threads_text)
Comparison.sides = property(
    lambda self: tuple((m.name, m.threads) for m in (self.baseline, self.candidate))
)


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


def find_roofline(
    run: Run, experiment: str = "", threads: int | None = None
) -> pd.DataFrame | None:
    if not experiment:
        return run.subject.roofline
    return (run[experiment] if threads is None else run[experiment, threads]).roofline


def find_noise(run: Run, experiment: str, threads: int) -> dict[str, pd.DataFrame]:
    return run.find_noise(experiment, threads)


def list_ceilings(run: Run) -> pd.DataFrame:
    return roofline.list_ceilings(run.path)


def select_kernels(evidence: pd.DataFrame | None, experiment: str, threads: int) -> pd.DataFrame:
    return pd.DataFrame() if evidence is None else name_kernels(pick(evidence, experiment, threads))


def compare_runs(baseline: str, candidate: str, *, across: Collection[str] = ()) -> Verdict:
    sides = find_measurements([baseline, candidate])
    subject = f"{candidate} against {baseline}"
    return compare(sides[baseline], sides[candidate], across=across, subject=subject).verdict


def find_measurement(name: str) -> Measurement:
    return find_measurements([name])[name]


def find_comparable(names: Sequence[str]) -> list[Measurement]:
    return list(find_measurements(names).values())

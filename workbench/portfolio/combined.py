"""Several runs of a model as one: each platform or version beside the others, by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.align import align_runs
from workbench.analysis.compare_runs import Measurement, compare_e2e, find_measurement, is_one_run
from workbench.analysis.layers import name_layer
from workbench.analysis.machine_code import select_kernels
from workbench.analysis.quality import grade_quality
from workbench.analysis.run import identify_run
from workbench.errors import ComparisonError, UsageError
from workbench.frames import COMBINED, COMPARISON, EMULATED, LINED_UP, check
from workbench.plots.align import plot_heatmap
from workbench.plots.categories import plot_categories
from workbench.plots.tables import Table, show_table
from workbench.plots.text import show_note
from workbench.records.codec import to_document
from workbench.records.runs import count_threads
from workbench.report.gate import put_side_by_side, show_aligned
from workbench.report.html import render_page, render_template
from workbench.store import atomic_write, safe_name

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
    found = sorted(map(find_measurement, names), key=lambda one: one.analysis.run.emulated)
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
            one.analysis.run.platform,
            one.analysis.run.plan.stem,
            one.experiment,
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
    apart = not is_one_run(list(measurements.values()))
    aligned = align_runs({n: one.traced for n, one in measurements.items()}, apart=apart)
    emulated = {name for name, one in measurements.items() if one.analysis.run.emulated}
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
    operators = one.select(one.analysis.operators).sort_values("mean_ms", ascending=False)
    kernels = select_kernels(one.analysis.evidence, one.experiment, one.threads)
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
    analysis, run = one.analysis, one.analysis.run
    measured = (one.experiment, one.threads)
    times = one.select(analysis.statistics)[["median", "low", "high"]].to_numpy(float).tolist()
    known = times and not run.emulated
    latency = dict(
        zip(("latency_ms", "low_ms", "high_ms"), times[0] if known else [np.nan] * 3, strict=True)
    )
    return {
        **identify_run(run),
        **latency,
        "run_dir": str(analysis.run_dir),
        "model": run.plan.model,
        "experiment": one.experiment,
        "threads": one.threads,
        "emulated": run.emulated,
        "grade": grade_quality(analysis)["grade"].iloc[0],
        "verdict": next((c.text for c in analysis.comparisons if c.sides[1] == measured), ""),
    }


def _compare(measurements: dict[str, Measurement]) -> pd.DataFrame:
    """E2E of what was measured on silicon, against the first of it."""
    silicon = _on_silicon(measurements)
    rows = [
        compare_e2e(next(iter(silicon.values())), one).assign(name=name)
        for name, one in list(silicon.items())[1:]
    ]
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=COMPARISON.names)


def _on_silicon(measurements: dict[str, Measurement]) -> dict[str, Measurement]:
    return {n: one for n, one in measurements.items() if not one.analysis.run.emulated}


PAGE, MARKDOWN = "combined_report.html", "combined_report.md"
SUMMARY_JSON, SUMMARY_MD = "combined_pipeline_summary.json", "combined_pipeline_summary.md"

COMBINED_HTML, COMBINED_MD = "portfolio/combined.html.j2", "portfolio/combined.md.j2"
#: Layers in the tables.
TOP = 20

Section = tuple[str, list[object]]


def write_combined(names: Sequence[str], out: str | Path | None = None) -> list[Path]:
    """Write the combined report of several measurements; returns its files.

    Parameters
    ----------
    names
        As for ``combine_runs``.
    out
        The folder, ``combined_<model>`` by default.

    Raises
    ------
    UsageError
        As from ``combine_runs``.
    """
    combined = combine_runs(names)
    folder = Path(out or f"combined_{safe_name('_'.join(combined.models))}")
    title = f"{', '.join(combined.models)}: {len(combined.runs)} runs side by side"
    sections = list(describe_combined(combined))
    page = render_page(title, COMBINED_HTML, sections=sections)
    text = render_template(COMBINED_MD, title=title, sections=sections)
    brief = render_template(COMBINED_MD, title=title, sections=sections[:2])
    return [
        atomic_write(folder / PAGE, page),
        atomic_write(folder / MARKDOWN, text),
        atomic_write(folder / SUMMARY_JSON, to_document(summarize_combined(combined))),
        atomic_write(folder / SUMMARY_MD, brief),
    ]


def summarize_combined(combined: Combined) -> dict[str, Any]:
    """The combined report for programs, as its schema has it."""
    return {
        "models": combined.models,
        "runs": combined.runs,
        "latencies": combined.latencies,
        "layers": combined.layers,
        "problem": combined.problem,
    }


def describe_combined(combined: Combined) -> Iterator[Section]:
    """The headings of the report, each with its tables and figures."""
    runs = combined.runs
    mark = [f"{', '.join(runs['run'][runs['emulated']])}: {EMULATED}."]
    verdicts = [f"{row.run}: {row.verdict}" for row in runs.itertuples() if row.verdict]
    yield (
        "What every run says",
        [show_note(*(mark if runs["emulated"].any() else []), *verdicts)],
    )
    columns = ["run", "latency_ms", "low_ms", "high_ms", "grade", "device", "program", "build"]
    yield "The runs", [show_table(runs, columns, caption="Median of untraced E2E")]
    if len(combined.latencies):
        first = next(iter(combined.silicon))
        columns = ["name", "baseline_ms", "candidate_ms", "speedup", "low", "high", "outcome"]
        caption = f"Untraced E2E against {first}; all that differs between two runs is in it"
        yield "Latency", [show_table(combined.latencies, columns, caption=caption)]
    bars = {name: one.select(one.analysis.categories) for name, one in combined.silicon.items()}
    if bars:
        yield "Where the time goes", [plot_categories(bars), _show_categories(bars)]
    if combined.layers is None:
        yield "Layer by layer", [show_note(f"Not lined up: {combined.problem}")]
        return
    timed = combined.layers[combined.layers["run"].isin(list(combined.silicon))]
    if len(combined.silicon) > 1:
        yield "Layer by layer", [plot_heatmap(timed, top=TOP), show_aligned(timed, rows=TOP)]
    yield "Which code each layer runs", [_show_code(combined.layers)]


def _show_categories(bars: dict[str, pd.DataFrame]) -> Table:
    """The time of every category in every run."""
    parts = {name: part.set_index("category")["mean_ms"] for name, part in bars.items()}
    wide = pd.DataFrame(parts).rename_axis("category").reset_index()
    return show_table(wide, caption="Mean of traced Method::execute, in ms of wall time")


def _show_code(layers: pd.DataFrame) -> Table:
    """What every layer ran in every run, a column per run."""
    texts = layers.assign(
        text=[
            f"{row.operators} [{row.kernels}]" if row.kernels else row.operators
            for row in layers.itertuples()
        ]
    )
    names = list(dict.fromkeys(layers["name"]))
    wide, runs = put_side_by_side(texts, names)
    wide.insert(0, "layer", names)
    caption = "Operators as logged; in brackets the functions that samples found at work. "
    return show_table(wide, caption=caption + runs)

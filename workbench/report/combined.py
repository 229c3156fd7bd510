"""Several measurements side by side on one page: other platforms, or other versions of a model."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from workbench.analysis import compare_runs
from workbench.analysis.describe import describe_latency
from workbench.analysis.findings.text import abridge_gain, describe_cause
from workbench.analysis.layers import name_layer
from workbench.analysis.quality import NO_WIN
from workbench.analysis.resources import SUMMARY
from workbench.analysis.run import Comparison, Measurement
from workbench.emulation import EMULATED
from workbench.errors import StoreError, WorkbenchError
from workbench.explorer.page import explorer_page
from workbench.frames import COMPARISON, LAYER_CODE, RUNS
from workbench.plots.bars import show_bars
from workbench.plots.breakdown import plot_categories
from workbench.plots.tables import (
    Table,
    fold_table,
    join_tables,
    put_side_by_side,
    show_aligned,
    show_note,
    show_table,
)
from workbench.records.codec import to_document
from workbench.report.html import Section, embed_figure, render_html, render_markdown
from workbench.store import atomic_write, safe_name
from workbench.wording import plural

PAGE, MARKDOWN = "combined_report.html", "combined_report.md"
EXPLORER = "explore_{}.html"
SUMMARY_JSON, SUMMARY_MD = "combined_pipeline_summary.json", "combined_pipeline_summary.md"
#: Layers in the tables.
TOP = 20
_NAMED = 3  #: Runs named in the title, besides the first.
#: Columns of ``LAYER_CODE`` that an emulated run cannot fill.
_TIMES = ["time_ms", "speedup", "low", "high"]


@dataclass(frozen=True)
class Combined:
    """Measurements side by side, by name; emulated ones come last.

    ``runs`` are ``frames.RUNS``; ``latencies`` compare untraced E2E with the first measurement on
    silicon (``frames.COMPARISON``), and ``answers`` say what they show; ``layers`` are those of all
    runs, aligned (``frames.LAYER_CODE``), or None because of a ``problem``.
    """

    measurements: dict[str, Measurement]
    runs: pd.DataFrame
    latencies: pd.DataFrame
    answers: list[str]
    layers: pd.DataFrame | None
    problem: str = ""

    @property
    def silicon(self) -> dict[str, Measurement]:
        """The measurements whose times count."""
        return {name: m for name, m in self.measurements.items() if not m.emulated}

    @property
    def models(self) -> list[str]:
        """The models that were run."""
        return list(dict.fromkeys(m.program.model for m in self.measurements.values()))


def combine_runs(names: Sequence[str], categories: str | Path = "") -> Combined:
    """Put measurements side by side, however they differ: device, build, program.

    A speed-up between two of them is the effect of everything that differs.

    Parameters
    ----------
    names
        Two or more of ``RUN_DIR[:EXPERIMENT[:THREADS]]``; the experiment is the candidate of the
        run's first comparison by default.
    categories
        As for `open_run`.

    Raises
    ------
    UsageError
        An unknown run, experiment or thread count, a repeated measurement, or fewer than two.

    Examples
    --------
    >>> sample = wb.sample_run()
    >>> combined = wb.combine_runs([f"{sample}:avx512_off", f"{sample}:avx512_on"])
    >>> combined.latencies["outcome"].tolist()
    ['faster']
    """
    compare_runs.check_several(names, "report")
    sides = sorted(
        compare_runs.find_measurements(names, categories).values(), key=lambda m: m.emulated
    )
    measurements = dict(zip(compare_runs.name_runs(sides), sides, strict=True))
    rows = [{"run": name, **m.summary} for name, m in measurements.items()]
    runs = RUNS.check(pd.DataFrame(rows)[RUNS.names])
    silicon = {name: m for name, m in measurements.items() if not m.emulated}
    pairs = {
        name: Comparison(sides[0], m, subject=name)  # the title says against which
        for name, m in [*silicon.items()][1:]
    }
    latencies = [pd.DataFrame(columns=COMPARISON.names), *(p.latency for p in pairs.values())]
    latency = pd.concat(latencies[bool(pairs) :], ignore_index=True).assign(name=list(pairs))
    # What the programs are is said of each of them.
    verdicts = [replace(pair.verdict, programs="") for pair in pairs.values()]
    if len(verdicts) == 1:  # the title says of what
        verdicts = [replace(verdicts[0], subject="")]
    answers = [verdict.text for verdict in verdicts]
    try:
        return Combined(measurements, runs, latency, answers, _align_layers(measurements))
    except WorkbenchError as error:
        return Combined(measurements, runs, latency, answers, None, str(error))


def _align_layers(measurements: dict[str, Measurement]) -> pd.DataFrame:
    """``frames.LAYER_CODE``, without times of emulated runs."""
    aligned = compare_runs.reject_wrong(
        compare_runs.align_parts(measurements, "layer"), measurements
    )
    emulated = aligned["run"].isin([name for name, m in measurements.items() if m.emulated])
    aligned.loc[emulated, _TIMES] = np.nan
    aligned["outcome"] = aligned["outcome"].mask(emulated, "emulated")
    code = {name: _code_by_layer(m) for name, m in measurements.items()}
    pairs = list(zip(aligned["run"], aligned["known_as"], strict=True))
    for column in ("operators", "kernels"):
        aligned[column] = [_join_code(code[run], layer, column) for run, layer in pairs]
    return LAYER_CODE.check(aligned)


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


def write_combined(
    names: Sequence[str], out: str | Path | None = None, categories: str | Path = ""
) -> list[Path]:
    """Write the combined report of several measurements; returns its files."""
    combined = combine_runs(names, categories)
    folder = Path(out or f"combined_{safe_name('_'.join(combined.models))}")
    first, *others = combined.measurements
    title = f"{' and '.join(others[:_NAMED])}{' ...' * (len(others) > _NAMED)} against {first}"
    if not all(model in title for model in combined.models):
        title = f"{', '.join(combined.models)}: {title}"
    explorers, links = _write_explorers(combined)
    sections = list(describe_combined(combined, links))
    names = ("models", "runs", "latencies", "layers", "problem")
    files = {
        PAGE: render_html(title, sections),
        MARKDOWN: render_markdown(title, sections),
        SUMMARY_JSON: to_document({name: getattr(combined, name) for name in names}),
        SUMMARY_MD: render_markdown(title, [section for section in sections if section.brief]),
        **explorers,
    }
    return [atomic_write(folder / name, text) for name, text in files.items()]


def _write_explorers(combined: Combined) -> tuple[dict[str, str], dict[str, str]]:
    """The explorer of each run that was traced, by its file; and these files by measurement."""
    pages, links, files = dict[str, str](), dict[str, str](), dict[Path, str]()
    for name, m in combined.measurements.items():
        stem = safe_name(name)
        stem = f"{stem}-{len(files)}" if EXPLORER.format(stem) in files.values() else stem
        file = files.setdefault(m.run.path, EXPLORER.format(stem))
        if file not in pages:
            with suppress(StoreError):  # a side has no trace
                pages[file] = explorer_page(m.run)
        links |= {name: file} if file in pages else {}
    return pages, links


def _summarize_sides(combined: Combined, links: Mapping[str, str]) -> Iterator[Table]:
    """Bars of the categories of each measurement, and its best finding."""
    sides = combined.silicon
    if sides:
        times = {name: describe_latency(m.statistics) for name, m in sides.items()}
        categories = {name: m.categories for name, m in sides.items()}
        yield show_bars(categories, times, uses={name: m.use for name, m in sides.items()})
    best = {name: m.opportunities[0] for name, m in sides.items() if m.opportunities}
    if best:
        rows = [(name, describe_cause(each), abridge_gain(each)) for name, each in best.items()]
        yield show_table(pd.DataFrame(rows, columns=["run", "best finding", "gain"]), links=links)


def describe_combined(combined: Combined, links: Mapping[str, str] = {}) -> Iterator[Section]:
    """The sections of the report; ``links`` are pages of measurements."""
    runs = combined.runs
    emulated = ", ".join(runs["run"][runs["emulated"]])
    verdicts = [f"{row.run}: {row.verdict}" for row in runs.itertuples() if row.verdict]
    marks = [
        *([f"{emulated}: {EMULATED}."] if emulated else []),
        *(f"{text}." for text in compare_runs.describe_uses(combined.silicon)),
        *compare_runs.contrast_programs(combined.measurements),
        *(
            f"{row.run}: measurement quality {NO_WIN}, so that its speed-up does not count."
            for row in runs.itertuples()
            if row.grade == NO_WIN and not row.emulated
        ),
    ]
    items = [show_note(*combined.answers, *marks, leads=True), *_summarize_sides(combined, links)]
    count = plural(len(verdicts), "comparison") + " within the runs"
    programs = [*compare_runs.describe_programs(combined.measurements)]
    folds = {"What their programs are": programs, count: verdicts}
    items += [fold_table(name, show_note(*lines)) for name, lines in folds.items() if lines]
    yield Section("", items=items, brief=True)
    columns = ["run", "latency_ms", "low_ms", "high_ms", "speedup", "low", "high", "outcome"]
    columns = columns if combined.answers else columns[:4]
    columns += [name for name in SUMMARY if runs[name].notna().any()]
    about = ["device", "program", "build"]
    shared = [runs[name].iloc[0] for name in about if runs[name].nunique() == 1]
    columns += ["grade"]
    differ = [name for name in about if runs[name].nunique() > 1]
    speedups = combined.latencies[["name", "speedup", "low", "high", "outcome"]]
    lines = runs.merge(speedups, "left", left_on="run", right_on="name")
    caption = f"speed-ups are over {runs['run'].iloc[0]}, by all that differs"
    caption = f"Untraced E2E; {caption}" if combined.answers else "Untraced E2E"
    tables = [show_table(lines, columns, caption=caption, links=links)]
    tables += [show_table(runs, ["run", *differ], caption="What differs")] if differ else []
    tables += [show_note(f"The same in all runs: {'; '.join(shared)}.")] if shared else []
    yield Section("Latencies", items=[join_tables(*tables)], brief=True)
    bars = {name: m.categories for name, m in combined.silicon.items()}
    if bars:
        times = {name: part.set_index("category")["mean_ms"] for name, part in bars.items()}
        wide = pd.DataFrame(times).rename_axis("category").reset_index()
        table = show_table(wide, caption="Latency in ms by category")
        figure = embed_figure(plot_categories(combined.silicon))
        yield Section("Time by category", items=[figure, table])
    if combined.layers is None:
        yield Section("Time by layer", f"Not aligned: {combined.problem}")
        return
    timed = combined.layers[combined.layers["run"].isin(list(bars))]
    if len(bars) > 1:
        yield Section("Time by layer", items=[show_aligned(timed, top=TOP)])
    layers = combined.layers
    bracketed = (" [" + layers["kernels"] + "]").where(layers["kernels"] != "", "")
    layer_names = list(dict.fromkeys(layers["name"]))
    texts = layers.assign(text=layers["operators"] + bracketed)
    wide, columns_text = put_side_by_side(texts, layer_names)
    wide.insert(0, "layer", layer_names)
    caption = "Operators as logged; in brackets the functions that were sampled. " + columns_text
    table = show_table(wide, caption=caption)
    table = fold_table(f"{len(wide)} layers", table) if len(wide) > TOP else table
    yield Section("Code of each layer", items=[table])

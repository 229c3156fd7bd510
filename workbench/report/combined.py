"""One page of several measurements: other platforms, or other versions of a model."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pandas as pd

from workbench.analysis.compare_runs import (
    Comparisons,
    combine_runs,
    contrast_programs,
    describe_programs,
    describe_uses,
)
from workbench.analysis.describe import describe_latency
from workbench.analysis.findings.text import abridge_gain, describe_cause
from workbench.analysis.resources import SUMMARY
from workbench.emulation import EMULATED
from workbench.errors import StoreError
from workbench.explorer.page import explorer_page
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


def write_combined(
    names: Sequence[str], out: str | Path | None = None, categories: str | Path = ""
) -> list[Path]:
    """Write the combined report of several measurements; returns its files."""
    several = combine_runs(names, categories=categories)
    folder = Path(out or f"combined_{safe_name('_'.join(several.models))}")
    first, *others = several.measurements
    title = f"{' and '.join(others[:_NAMED])}{' ...' * (len(others) > _NAMED)} against {first}"
    if not all(model in title for model in several.models):
        title = f"{', '.join(several.models)}: {title}"
    explorers, links = _write_explorers(several)
    sections = list(describe_combined(several, links))
    names = ("models", "runs", "latencies", "layers", "problem")
    files = {
        PAGE: render_html(title, sections),
        MARKDOWN: render_markdown(title, sections),
        SUMMARY_JSON: to_document({name: getattr(several, name) for name in names}),
        SUMMARY_MD: render_markdown(title, [section for section in sections if section.brief]),
        **explorers,
    }
    return [atomic_write(folder / name, text) for name, text in files.items()]


def _write_explorers(several: Comparisons) -> tuple[dict[str, str], dict[str, str]]:
    """The explorer of each run that was traced, by its file; and these files by measurement."""
    pages, links, files = dict[str, str](), dict[str, str](), dict[Path, str]()
    for name, m in several.measurements.items():
        stem = safe_name(name)
        stem = f"{stem}-{len(files)}" if EXPLORER.format(stem) in files.values() else stem
        file = files.setdefault(m.run.path, EXPLORER.format(stem))
        if file not in pages:
            with suppress(StoreError):  # a side has no trace
                pages[file] = explorer_page(m.run)
        links |= {name: file} if file in pages else {}
    return pages, links


def _summarize_sides(several: Comparisons, links: Mapping[str, str]) -> Iterator[Table]:
    """Bars of the categories of each measurement, and its best finding."""
    sides = several.silicon
    if sides:
        times = {name: describe_latency(m.statistics) for name, m in sides.items()}
        categories = {name: m.categories for name, m in sides.items()}
        yield show_bars(categories, times, uses={name: m.use for name, m in sides.items()})
    best = {name: m.opportunities[0] for name, m in sides.items() if m.opportunities}
    if best:
        rows = [(name, describe_cause(each), abridge_gain(each)) for name, each in best.items()]
        yield show_table(pd.DataFrame(rows, columns=["run", "best finding", "gain"]), links=links)


def describe_combined(several: Comparisons, links: Mapping[str, str] = {}) -> Iterator[Section]:
    """The sections of the report; ``links`` are pages of measurements."""
    yield Section("", items=list(_answer(several, links)), brief=True)
    yield Section("Latencies", items=[_show_latencies(several, links)], brief=True)
    if several.silicon:
        yield Section("Time by category", items=list(_show_categories(several)))
    if several.layers is None:
        yield Section("Time by layer", f"Not aligned: {several.problem}")
        return
    if len(several.silicon) > 1:
        timed = several.layers[several.layers["run"].isin([*several.silicon])]
        yield Section("Time by layer", items=[show_aligned(timed, top=TOP)])
    yield Section("Code of each layer", items=[_show_code(several.layers)])


def _answer(several: Comparisons, links: Mapping[str, str]) -> Iterator[Table]:
    """The verdicts with what weakens them, the sides, and what was compared within the runs."""
    runs = several.runs
    emulated = ", ".join(runs["run"][runs["emulated"]])
    marks = [
        *([f"{emulated}: {EMULATED}."] if emulated else []),
        *(f"{text}." for text in describe_uses(several.silicon)),
        *contrast_programs(several.pairs),
    ]
    yield show_note(*several.answers, *marks, leads=True)
    yield from _summarize_sides(several, links)
    verdicts = [f"{row.run}: {row.verdict}" for row in runs.itertuples() if row.verdict]
    count = plural(len(verdicts), "comparison") + " within the runs"
    programs = [*describe_programs(several.measurements)]
    folds = {"What their programs are": programs, count: verdicts}
    yield from (fold_table(name, show_note(*lines)) for name, lines in folds.items() if lines)


def _show_latencies(several: Comparisons, links: Mapping[str, str]) -> Table:
    """The latency of each run with what it needs, and what the runs have in common, and not."""
    runs = several.runs
    columns = ["run", "latency_ms", "low_ms", "high_ms"]
    columns += ["speedup", "low", "high", "outcome"] if several.answers else []
    columns += [name for name in SUMMARY if runs[name].notna().any()] + ["grade"]
    about = {name: runs[name].nunique() for name in ("device", "program", "build")}
    shared = [runs[name].iloc[0] for name, count in about.items() if count == 1]
    differ = [name for name, count in about.items() if count > 1]
    speedups = several.latencies[["name", "speedup", "low", "high", "outcome"]]
    lines = runs.merge(speedups, "left", left_on="run", right_on="name")
    caption = f"speed-ups are over {runs['run'].iloc[0]}, by all that differs"
    caption = f"Untraced E2E; {caption}" if several.answers else "Untraced E2E"
    tables = [show_table(lines, columns, caption=caption, links=links)]
    tables += [show_table(runs, ["run", *differ], caption="What differs")] if differ else []
    tables += [show_note(f"The same in all runs: {'; '.join(shared)}.")] if shared else []
    return join_tables(*tables)


def _show_categories(several: Comparisons) -> Iterator[Table]:
    """The categories of each run that has times, as a figure and as a table."""
    yield embed_figure(plot_categories(several.silicon))
    frames = {name: m.categories.set_index("category") for name, m in several.silicon.items()}
    wide = pd.DataFrame({name: frame["mean_ms"] for name, frame in frames.items()})
    wide = wide.rename_axis("category").reset_index()
    yield show_table(wide, caption="Latency in ms by category")


def _show_code(layers: pd.DataFrame) -> Table:
    """Operators and functions of each layer in each run, from ``frames.LAYER_CODE``."""
    bracketed = (" [" + layers["kernels"] + "]").where(layers["kernels"] != "", "")
    names = list(dict.fromkeys(layers["name"]))
    texts = layers.assign(text=layers["operators"] + bracketed)
    wide, columns_text = put_side_by_side(texts, names)
    wide.insert(0, "layer", names)
    caption = "Operators as logged; in brackets the functions that were sampled. " + columns_text
    table = show_table(wide, caption=caption)
    return fold_table(f"{len(wide)} layers", table) if len(wide) > TOP else table

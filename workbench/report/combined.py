"""One page of several measurements: other platforms, or other versions of a model."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from workbench.analysis.compare_runs import (
    Comparisons,
    combine_runs,
    contrast_programs,
    describe_programs,
    describe_uses,
)
from workbench.analysis.findings.graph_rules import name_kernel
from workbench.analysis.findings.text import abridge_gain, describe_cause
from workbench.analysis.operators import name_function
from workbench.analysis.resources import SUMMARY
from workbench.analysis.run import Measurement
from workbench.emulation import EMULATED
from workbench.plots.bars import show_bars
from workbench.plots.tables import (
    Table,
    join_tables,
    put_side_by_side,
    show_aligned,
    show_note,
    show_table,
)
from workbench.records.codec import to_document
from workbench.report.html import Section, render_html, render_markdown
from workbench.store import atomic_write, safe_name
from workbench.wording import plural

PAGE, MARKDOWN = "combined_report.html", "combined_report.md"
SUMMARY_JSON, SUMMARY_MD = "combined_pipeline_summary.json", "combined_pipeline_summary.md"
#: Layers in the tables.
TOP = 20
_NAMED = 3  #: Runs named in the title, besides the first.
_PAIR = 2  #: Of two runs, what one lacks is new or gone.
_KERNELS = 4  #: Kinds of operators in a sentence.
_FINDINGS = 6  #: Findings before a fold.


def write_combined(names: Sequence[str], out: str | Path | None = None) -> list[Path]:
    """Write the combined report of several measurements; returns its files."""
    several = combine_runs(names)
    folder = Path(out or f"combined_{safe_name('_'.join(several.models))}")
    first, *candidates = several.measurements
    title = (
        f"{' and '.join(candidates[:_NAMED])}{' ...' * (len(candidates) > _NAMED)} against {first}"
    )
    if not all(model in title for model in several.models):
        title = f"{', '.join(several.models)}: {title}"
    pages, links = _write_pages(several)
    sections = list(describe_combined(several, links))
    names = ("models", "runs", "latencies", "layers", "problem")
    files = {
        PAGE: render_html(title, sections),
        MARKDOWN: render_markdown(title, sections),
        SUMMARY_JSON: to_document({name: getattr(several, name) for name in names}),
        SUMMARY_MD: render_markdown(title, [section for section in sections if section.brief]),
        **pages,
    }
    return [atomic_write(folder / name, text) for name, text in files.items()]


def _write_pages(several: Comparisons) -> tuple[dict[str, str], dict[str, str]]:
    """The pages of each run that plug-ins add, by their files; and the first by measurement."""
    pages, links, files = dict[str, str](), dict[str, str](), dict[Path, list[str]]()
    for name, m in several.measurements.items():
        if m.run.path not in files:
            pages_by_file = m.run.list_shown("page").items()
            named = {_name_page(file, name, pages): page for file, page in pages_by_file if page}
            files[m.run.path] = [*named]
            pages |= named
        if files[m.run.path]:
            links[name] = files[m.run.path][0]
    return pages, links


def _name_page(file: str, name: str, pages: Collection[str]) -> str:
    """The file of a page of a measurement's run: ``explore_NAME.html``, with a number if taken."""
    stem, ending = Path(file).stem, Path(file).suffix
    wanted = f"{stem}_{safe_name(name)}{ending}"
    return wanted if wanted not in pages else f"{stem}_{safe_name(name)}-{len(pages)}{ending}"


def _list_ratios(several: Comparisons) -> dict[str, float]:
    """Of two measurements, the speed-up of each category where one was shown."""
    if len(several.silicon) != _PAIR:
        return {}
    (pair,) = several.others.values()
    rows = pair.categories[pair.categories["outcome"].isin(["faster", "slower"])]
    return dict(zip(rows["name"], rows["speedup"], strict=True))


def _contrast_operators(several: Comparisons) -> Iterator[tuple[str, str]]:
    """Names, each with the kinds of operators that it has more or less often than the first one."""
    counts = {name: _count_kernels(m) for name, m in several.measurements.items()}
    (first, before), *candidates = counts.items()
    for name, after in candidates:
        changes = {"without": before - after, "with": after - before}
        kinds = [f"{word} {_list_kernels(part)}" for word, part in changes.items() if part]
        if kinds:
            numbers = f"{after.total()} operators, {before.total()} in {first}"
            other = ", which is another model" * bool(several.pairs[name].models)
            yield name, f"What changed in {name}{other}: {numbers}; {', '.join(kinds)}."


def _count_kernels(m: Measurement) -> Counter[str]:
    rows = m.operators[m.operators["kind"].isin(["delegated", "portable"])]
    nodes = rows["nodes"] if "nodes" in rows else [None] * len(rows)
    return Counter(map(name_kernel, map(name_function, rows["operator"], nodes)))


def _list_kernels(counts: Counter[str]) -> str:
    texts = [f"{count} {name}" for name, count in counts.most_common(_KERNELS)]
    rest = counts.total() - sum(count for _, count in counts.most_common(_KERNELS))
    return ", ".join(texts) + (f" and {rest} more" if rest else "")


def _contrast_findings(several: Comparisons) -> Iterator[Table]:
    """The findings of all, with the gain in each: those that went, and those that are new."""
    gains: dict[tuple[str, str, int], dict[str, str]] = {}
    for name, m in several.measurements.items():
        seen = Counter[tuple[str, str]]()
        for finding in m.opportunities:
            kind = finding.rule, finding.remedy
            row = gains.setdefault((*kind, seen[kind]), {"finding": describe_cause(finding)})
            row[name] = abridge_gain(finding)
            seen[kind] += 1
    names = [*several.measurements]
    rows = sorted(gains.values(), key=lambda row: names[0] in row and names[-1] in row)
    for row in rows if len(names) == _PAIR else ():
        row.setdefault(names[0], "not there")
        row.setdefault(names[-1], "gone")
    if rows:
        wide = pd.DataFrame(rows, columns=["finding", *names]).fillna("\N{EN DASH}")
        yield show_table(wide[:_FINDINGS], caption="Findings, and their gain in each")
        if rest := len(wide[_FINDINGS:]):
            yield show_table(wide[_FINDINGS:]).fold(plural(rest, "more finding"))


def describe_combined(several: Comparisons, links: Mapping[str, str] = {}) -> Iterator[Section]:
    """The sections of the report; ``links`` are pages of measurements."""
    yield Section("", items=list(_answer(several)), brief=True)
    yield Section("Latencies", items=list(_tabulate_runs(several, links)), brief=True)
    if several.layers is None:
        yield Section("Time by layer", f"Not aligned: {several.problem}")
        return
    if len(several.silicon) > 1:
        timed = several.layers[several.layers["run"].isin([*several.silicon])]
        yield Section("Time by layer", items=[show_aligned(timed, top=TOP)])
    yield Section("Code of each layer", items=[_show_code(several.layers)], folded=True)


def _answer(several: Comparisons) -> Iterator[Table]:
    """The verdicts with what weakens them, the sides, and what was compared within the runs."""
    runs = several.runs
    emulated = ", ".join(runs["run"][runs["emulated"]])
    changes, sides = dict(_contrast_operators(several)), several.silicon if several.answers else {}
    wrong = [name for name, m in several.measurements.items() if m.wrong and name not in sides]
    unsaid = {n: pair for n, pair in several.pairs.items() if n not in changes or n in wrong}
    marks = [
        *([f"{emulated}: {EMULATED}."] if emulated else []),
        *(f"{text}." for text in describe_uses(several.silicon)),
        *contrast_programs(unsaid, sides),
        *changes.values(),
    ]
    yield show_note(*several.answers, *marks, leads=True)
    if several.silicon:
        yield show_bars(several.silicon, ratios=_list_ratios(several))
    yield from _contrast_findings(several)
    verdicts = [f"{row.run}: {row.verdict}" for row in runs.itertuples() if row.verdict]
    count = plural(len(verdicts), "comparison") + " within the runs"
    programs = [*describe_programs(several.measurements)]
    folds = {"What their programs are": programs, count: verdicts}
    yield from (show_note(*lines).fold(name) for name, lines in folds.items() if lines)


def _tabulate_runs(several: Comparisons, links: Mapping[str, str]) -> Iterator[Table]:
    """Latency, memory and starts of each run; folded, what their programs and machines are."""
    runs = several.runs
    columns = ["run", "latency_ms", "low_ms", "high_ms"]
    columns += ["speedup", "low", "high", "outcome"] if several.answers else []
    resources = [name for name in SUMMARY if name != "anonymous_mb"]  # which only programs need
    columns += [name for name in resources if runs[name].notna().any()] + ["grade"]
    speedups = several.latencies[["name", "speedup", "low", "high", "outcome"]]
    lines = runs.merge(speedups, "left", left_on="run", right_on="name")
    caption = "Latency without tracing"
    caption += f"; speed-ups over {runs['run'].iloc[0]}" if several.answers else ""
    yield show_table(lines, columns, caption=caption, links=links)
    about = {name: runs[name].nunique() for name in ("device", "program", "build")}
    shared = [runs[name].iloc[0] for name, count in about.items() if count == 1]
    differ = [name for name, count in about.items() if count > 1]
    facts = [show_table(runs, ["run", *differ])] if differ else []
    facts += [show_note(f"The same in all runs: {'; '.join(shared)}.")] if shared else []
    yield join_tables(*facts).fold("Programs and machines")


def _show_code(layers: pd.DataFrame) -> Table:
    """Operators and functions of each layer in each run, from ``frames.LAYER_CODE``."""
    bracketed = (" [" + layers["kernels"] + "]").where(layers["kernels"] != "", "")
    names = list(dict.fromkeys(layers["name"]))
    texts = layers.assign(text=layers["operators"] + bracketed)
    wide, columns_text = put_side_by_side(texts, names)
    wide.insert(0, "layer", names)
    caption = f"Operators as logged; in brackets the functions that were sampled{columns_text}"
    return show_table(wide, caption=caption)

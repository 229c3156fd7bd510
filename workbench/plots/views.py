"""Views of nouns: what `show` makes of a run, a measurement, a comparison, exports or a search."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from textwrap import shorten
from typing import Any, NamedTuple

import pandas as pd

from workbench import emulation, plugin, wording
from workbench.analysis.compare_exports import compare_exports, list_partition
from workbench.analysis.describe import NO_PROGRAM
from workbench.analysis.dtypes import describe_dtypes
from workbench.analysis.findings import commands
from workbench.analysis.findings_frame import Findings
from workbench.analysis.layers import name_layer
from workbench.analysis.machine_code import explain_lack
from workbench.analysis.operators import drop_overhead, label_operators, name_function
from workbench.analysis.roofline import place_layers
from workbench.analysis.run import Comparison, Measurement, Run
from workbench.analysis.speedup import FALSE_DISCOVERIES
from workbench.errors import unknown_name
from workbench.export.program import Program
from workbench.plots.breakdown import NO_LAYERS, NO_ROOFLINE, name_sides
from workbench.plots.cards import TOP_FINDINGS, Cards, show_cards
from workbench.plots.changes import plot_speedups
from workbench.plots.gain import show_gain
from workbench.plots.latencies import CLOCKS
from workbench.plots.map import show_map
from workbench.plots.overview import show_overview, show_verdicts
from workbench.plots.source import show_source
from workbench.plots.style import Chart, convert_source
from workbench.plots.tables import (
    Table,
    VStack,
    join_tables,
    show_note,
    show_table,
)
from workbench.records.exports import Export

TOP = 12  #: Rows of a table.
_NAMES = 70  #: Letters of a list of names in a cell.
Part = str | Table | Chart


class View(NamedTuple):
    """A view: the nouns that it takes, and the function of one and of a number of rows.

    With a section, it is a part of the report of a run.
    """

    kinds: tuple[type, ...]
    make: Callable[[Any, int], Iterable[Part]]
    section: plugin.Section | None = None


def list_sections() -> dict[str, plugin.Section]:
    """The sections that plug-ins add to the report, by the view that each shows."""
    views = plugin.collect("views").items()
    return {name: view.section for name, view in views if view.section}


def show(
    source: object, *views: str, columns: Sequence[str] | None = None, top: int | None = None,
    caption: str = "", fold: str = "",
) -> Table | VStack:  # fmt: skip
    """Show a run, measurement, comparison, export or search by the name of a view; or any frame.

    Parameters
    ----------
    source
        A noun; findings or any other frame, a sentence, None (not recorded); or a list of these
        and of figures, shown one below the other.
    views
        Names of views, such as ``findings``, ``latencies``, ``operators`` or ``quality``; without
        any, the verdicts. A view of measurements takes the subject of a run, one of comparisons
        its first comparison.
    columns, top, caption
        Columns of a frame, how many rows, and a line above them.
    fold
        A summary, below which the rest is folded until the reader opens it.

    Raises
    ------
    UsageError
        The view or column is unknown; the hint names the known ones.

    Examples
    --------
    >>> run = wb.open_run(wb.sample_run())
    >>> print(wb.show(run))
    mobilenet_v3_small · fp32 · as ExecuTorch exports it · AMD EPYC ... · quality B ...
    <BLANKLINE>
    > mobilenet_v3_small: 1.29x faster ...
    >>> "classifier.3" in str(wb.show(run, "layers", top=5))
    True
    >>> print(wb.show(run.statistics, columns=["experiment", "n"], top=1))
    | experiment | n |
    | --- | ---: |
    | avx512_off | 393 |
    """
    parts = _list_parts(source, views, columns, top, caption)
    if not all(isinstance(part, Table) for part in parts):
        return VStack(*parts)
    table = join_tables(*parts)
    if fold:
        return table.fold(fold)
    for cards in (part for part in parts if isinstance(part, Cards)):
        notes = join_tables(*(part for part in parts if part is not cards))
        facts = (table.html, table.markdown, table.grids)
        return Cards(*facts, cards.findings, cards.run, notes.html)
    return table


def _list_parts(
    source: object, views: Sequence[str], columns: Sequence[str] | None, top: int | None,
    caption: str,
) -> list[Any]:  # fmt: skip
    """The tables, notes and figures of what is shown, one below the other."""
    if isinstance(source, Findings) and source.chosen is not None and columns is None:
        cards = show_cards(source.chosen, top or TOP_FINDINGS, source.run)
        return [*([show_note(caption)] if caption else []), cards]
    if isinstance(source, pd.DataFrame) or source is None:
        return [show_table(source, columns, top=top, caption=caption)]
    if isinstance(source, str) and not views:
        return [show_note(source)]
    if isinstance(source, Table | VStack | Chart):
        return [source]
    if isinstance(source, list | tuple) and not (source and isinstance(source[0], Export)):
        results = [show(each, *views, top=top) for each in source]
        return [p for each in results for p in (each.parts if isinstance(each, VStack) else [each])]
    return [part for view in views or ("",) for part in _view(source, view, top)]


def _view(source: Any, name: str, top: int | None) -> list[Table | Chart]:
    view = _find_view(name) if name else _choose_view(source)
    parts = view.make(convert_source(source, view.kinds, f"the view {name!r}"), top or TOP)
    return [show_note(part) if isinstance(part, str) else part for part in parts]


def _find_view(name: str) -> View:
    view = VIEWS.get(name) or plugin.find("views", name)
    if view is None:
        raise unknown_name("view", name, [*VIEWS, *plugin.list_names("views")])
    return view


def _choose_view(source: Any) -> View:
    """The first view of a noun; the verdicts of what has none."""
    for view in VIEWS.values():
        if isinstance(source, view.kinds):
            return view
    for view in plugin.collect("views").values():
        if isinstance(source, view.kinds):
            return view
    return VIEWS["verdicts"]


def _of_latency(m: Measurement) -> str:
    """The whole, whose parts a table has: ``, of 1.75 ms``."""
    return "" if m.emulated else f", of {wording.format_ms(m.latency_ms)}"


def _latencies(source: Run | Measurement, top: int) -> Iterator[Part]:
    """The latency of every measurement with its interval, and percentiles of inferences."""
    columns = ["experiment", "threads", "clock", "latency", "low", "high", "restarts"]
    caption = "latency: mean over the process restarts, of each the mean of its middle half of "
    caption += "inferences; low, high: its 95 % interval, which covers further restarts in this run"
    if source.statistics["restarts"].eq(1).any():
        caption += "; a single restart has none"
    phases = [*_phases(source)] if isinstance(source, Run) else []
    yield from phases
    statistics = source.statistics.assign(clock=source.statistics["clock"].map(CLOCKS))
    table = show_table(statistics, [*columns, "n", "median", "p95", "p99"], caption=caption)
    yield table.fold("Intervals and percentiles") if phases else table


def _phases(run: Run) -> Iterator[Part]:
    """The phases of a run, if it has several."""
    if run.phases is not None:
        caption = "Phases; the latency at position 0 is the time to the first token"
        repeated = ["latency_low_ms", "latency_high_ms", "rate_low", "rate_high", "bound_share"]
        columns = run.phases.columns[run.phases.notna().any()].difference(repeated, sort=False)
        yield show_table(run.phases, columns.tolist(), caption=caption)


def _operators(m: Measurement, top: int) -> Iterator[Part]:
    """The most expensive operators: totals of each type; folded, by layer, and each by itself."""
    operators = drop_overhead(m.operators.assign(name=label_operators(m.operators)))
    around = m.operators.drop(operators.index)[["mean_ms", "share"]].sum()
    columns, times = ["name", "category"], ["mean_ms", "std_ms", "share"]
    caption = f"{m.label}, by type of operator{_of_latency(m)}"
    nodes = operators.get("nodes", pd.Series(None, operators.index, dtype=object))
    operators["operator"] = [*map(name_function, operators["operator"].astype(object), nodes)]
    yield show_table(_add_up(operators, []), top=top, caption=caption)
    if not m.emulated:
        time, share = wording.format_ms(around["mean_ms"]), wording.format_share(around["share"])
        yield f"Not in this list: {time} ({share}) of overhead, in calls and in the runtime."
    if "module" in operators:
        layers = operators.assign(layer=operators["module"].map(name_layer))
        yield show_table(_add_up(layers, ["layer"]), top=top).fold("By layer")
        columns += ["module_class", "source", "confidence"]
    columns += ["metadata"] if "metadata" in operators else []
    single = show_table(operators, [*columns, "calls", *times], top=top)
    yield single.fold("Single operators")


def _add_up(operators: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Operators, calls, time and share of each type of operator, and of what else is given."""
    groups = operators.groupby([*by, "operator", "category"], sort=False, observed=True)
    sums = groups[["calls", "mean_ms", "share"]].sum()
    table = sums.assign(operators=groups.size()).sort_values("mean_ms", ascending=False)
    table = table[["operators", "calls", "mean_ms", "share"]].reset_index()
    return emulation.mark_emulated(table) if emulation.is_emulated(operators) else table


def _layers(m: Measurement, top: int) -> Iterator[Part]:
    """The layers with the most time of their own, and the source of their slowest operator."""
    if m.layers is None:
        yield NO_LAYERS
        return
    # Operators are sorted by time: the first of each module is its slowest.
    slowest = m.operators.dropna(subset=["module"]).drop_duplicates("module")
    layers = m.layers.assign(
        source=m.layers["module"].map(slowest.set_index("module")["source"]),
        share=m.layers["own_ms"] / m.layers["own_ms"].sum(),
        module=m.layers["module"].map(name_layer),
    )
    columns = ["module", "module_class", "source", "own_ms", "share"]
    yield show_table(
        layers.sort_values("own_ms", ascending=False, kind="stable"),
        [*columns, "total_ms", "low_ms", "high_ms", "flops"],
        top=top,
        caption=f"Layers by their own time{_of_latency(m)}; total: with their sublayers, and its "
        "95 % interval",
    )


def _speedups(ab: Comparison, top: int) -> Iterator[Part]:
    """The speed-ups of E2E and categories as a figure, and the layers that changed most."""
    keys = drop_overhead(pd.concat([ab.baseline.operators, ab.candidate.operators]))["key"]
    is_judged = ab.operators[["key", "candidate_key"]].isin(set(keys)).any(axis=1)
    tables = {"operators": ab.operators[is_judged]}
    if ab.layers is not None:
        tables["layers"] = ab.layers
    what, parts = [*tables.items()][-1]
    columns = ["name", "baseline_ms", "candidate_ms", "speedup", "low", "high", "outcome"]
    reasons = pd.Series(ab.explain(parts), parts.index, dtype=object)
    parts = parts.assign(outcome=parts["outcome"] + reasons.map(lambda why: why and f" ({why})"))
    yield plot_speedups(ab)
    yield show_table(parts, columns, top=top, caption=f"{what.capitalize()}, largest change first")
    counts = show_note(*(count_outcomes(frame, name) for name, frame in tables.items()))
    certain = show_table(parts, ["name", "outcome", "q", "detectable", "floor"], top=top)
    yield join_tables(counts, certain).fold("How certain are these?")


def count_outcomes(parts: pd.DataFrame, what: str) -> str:
    """How many of the parts have which verdict, how much of the time, and what was detectable."""
    ms, count = parts["baseline_ms"].fillna(0), parts["outcome"].value_counts()
    order = [name for name in ("faster", "slower", "unchanged", "inconclusive") if name in count]
    order += [name for name in count.index if name not in order]
    text = f"{len(parts)} {what}: {', '.join(f'{count[name]} {name}' for name in order)}."
    inconclusive = parts["outcome"] == "inconclusive"
    least = parts.loc[inconclusive, "detectable"].median()
    if inconclusive.any() and ms.sum() > 0:
        rest = wording.format_share(ms[inconclusive].sum() / ms.sum())
        text += f" The inconclusive {what} take {rest} of the time"
        if math.isfinite(least):
            text += f"; for half of them, only a change above {100 * least:.0f} % was detectable"
        text += "."
    if {"faster", "slower"} & set(count.index):
        text += f" Of those called faster or slower, at most {100 * FALSE_DISCOVERIES:g} % are so "
        text += "by chance."
    return text


def _undelegated(run: Run, top: int) -> Iterator[Part]:
    """The operators that the partitioner left to portable kernels."""
    if run.subject.export is None:
        yield "Unknown: the program has no export record."
        return
    table = pd.DataFrame(map(vars, run.subject.export.undelegated))
    if table.empty:
        yield "None: every operator is delegated."
        return
    yield show_table(table.sort_values("count", ascending=False, kind="stable"))


def _dtypes(m: Measurement, top: int) -> Iterator[Part]:
    """The dtype that was asked for: what ran in another one and why, and where noise enters."""
    if m.dtypes is None or m.export is None:
        yield "Not applicable: fp32, or a program of unknown origin."
        return
    yield f"{describe_dtypes(m.dtypes)}."
    rows = m.dtypes[m.dtypes["reason"] != ""]
    if len(rows):
        rows = rows.assign(name=label_operators(rows))
        columns = ["name", "dtype", "mean_ms", "share", "reason"]
        yield show_table(rows, columns, top=top, caption="What ran in another dtype")
    if m.export.noise:
        noise = pd.DataFrame(m.export.noise)
        noise["module"] = noise["module"].map(name_layer)
        caption = "Where quantisation noise enters: SQNR for exact inputs (own), and in the program"
        yield show_table(noise, top=top, caption=caption)


def _code(ab: Comparison, top: int) -> Iterator[Part]:
    """Whether both sides ran the same machine code, and which classes of instructions."""
    proof = ab.proof
    if proof is None:
        yield explain_lack(ab.run.record)
        return
    table = pd.DataFrame({"experiment": name_sides(ab), "samples": proof.samples})
    table["code"] = proof.classes
    table["share"] = [proof.vanished, proof.appeared]
    least = wording.format_share(proof.noticed, 1)
    caption = f"Machine code: {proof.outcome}; share: samples in functions that the other side did "
    caption += f"not run, {least} or more would have shown"
    yield show_table(emulation.mark_emulated(table) if ab.emulated else table, caption=caption)


def _kernels(ab: Comparison, top: int) -> Iterator[Part]:
    """The microkernel of every operator on both sides, by samples; two lines per operator."""
    if ab.kernels is None:
        yield explain_lack(ab.run.record)
        return
    kernels, columns = ab.kernels.head(top), ["kernel", "code", "share", "samples"]
    before, after = (
        kernels.rename(columns={f"{side}_{column}": column for column in columns})
        for side in ("baseline", "candidate")
    )
    after["operator"] = after["candidate_operator"]
    names = name_sides(ab)
    both = pd.concat([before.assign(experiment=names[0]), after.assign(experiment=names[1])])
    if "module" in ab.baseline.operators:
        layers = both["key"].map(ab.baseline.operators.set_index("key")["module"])
        named = layers.where(layers != "") + " · "
        both["operator"] = named.fillna("") + both["operator"]
    yield show_table(
        both.sort_index(kind="stable"),
        ["operator", "experiment", *columns, "change"],
        caption="Microkernels by samples; share: of the operator's samples in that microkernel",
    )


def _roofline(m: Measurement, top: int) -> Iterator[Part]:
    """The slowest operators: their rates, and what limits them; folded, by layer."""
    if m.roofline is None:
        yield NO_ROOFLINE
        return
    yield show_table(
        m.roofline.assign(name=label_operators(m.roofline)),
        ["name", "mean_ms", "gflops", "gbps", "roof_share", "bound"],
        top=top,
        caption="roof share: time at the roof / mean time",
    )
    if m.layers is not None:
        by_layer = place_layers(m.roofline, m.layers)
        yield show_table(by_layer, top=top).fold("By layer")


def _rules(run: Run, top: int) -> Iterator[Part]:
    """The rules that place the run's operators in categories, in the order of their trial."""
    rules = pd.DataFrame(run.scheme.rules)
    rows = rules[rules["name"].isin(run.subject.ledger["rule"])]
    caption = f"{len(rows)} of {len(rules)} rules, which place all operators of {run.subject.label}"
    # The family says as much as the name.
    columns = ["name", "operators", "category", "kind", "why"]
    names = rows["operators"].map(", ".join)
    rows = rows.assign(operators=[shorten(text, _NAMES, placeholder=" ...") for text in names])
    yield show_table(rows, columns, caption=caption)


def _quality(run: Run, top: int) -> Iterator[Part]:
    """The grade of a measurement in a sentence, and every criterion."""
    yield f"{wording.begin_sentence(run.grade)}."
    yield show_table(run.quality)


_COMPARED = (
    "model", "dtype", "rewrite", "size_mb", "delegates", "undelegated", "sqnr_db", "problem",
)  # fmt: skip


def _exports(exports: Sequence[Export], top: int) -> Iterator[Part]:
    """One row per export: size, delegation, and difference from the PyTorch model."""
    columns = [name for name in _COMPARED if name != "rewrite" or any(e.rewrite for e in exports)]
    yield show_table(compare_exports(exports), columns)


def _findings(source: Run | Measurement, top: int) -> Iterator[Part]:
    """The findings, most promising first: the gain of each, what to do, and where to look."""
    subject = source.subject if isinstance(source, Run) else source
    compared = {m.program for m in subject.run.measurements if not m.runtime}
    findings = source.opportunities
    if isinstance(source, Run) and len(compared) > 1 and findings:
        which = "first program after the baseline" if source.comparisons else "first program"
        yield f"About {subject.label}, the {which}."
    yield show_cards(findings, TOP_FINDINGS if top == TOP else top, source)
    if command := commands.combine_remedies(subject, findings):
        yield f"All rewrites at once: `{command}`"
    if not findings and subject.sidecar is None:
        yield NO_PROGRAM


#: Every view by name.
VIEWS = {
    "verdicts": View((Run, Comparison), show_verdicts),
    "overview": View((Run, Comparison), show_overview),
    "map": View((Program,), show_map),
    "latencies": View((Run, Measurement), _latencies),
    "partition": View(
        (Export,),
        lambda it, top: [show_table(list_partition(it), top=top, caption=f"{it.dtype}: {it.pte}")],
    ),
    "exports": View((list, tuple), _exports),
    "findings": View((Run, Measurement), _findings),
    "gain": View((Measurement,), show_gain),
    "operators": View((Measurement,), _operators),
    "layers": View((Measurement,), _layers),
    "source": View((Measurement,), show_source),
    "dtypes": View((Measurement,), _dtypes),
    "roofline": View((Measurement,), _roofline),
    "speedups": View((Comparison,), _speedups),
    "code": View((Comparison,), _code),
    "kernels": View((Comparison,), _kernels),
    "undelegated": View((Run,), _undelegated),
    "quality": View((Run,), _quality),
    "checks": View((Run,), lambda run, top: [show_table(run.checks)]),
    "rules": View((Run,), _rules),
    "description": View(
        (Run,),
        lambda run, top: [show_table(run.description, caption="What was measured")],
    ),
}

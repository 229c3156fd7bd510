"""The sentences of a report: verdicts, and what there is to say where there is no table.

What a run says of its axes: the ladder of ISA levels, and the number of threads.

Kernel evidence for readers: which machine code both sides of a comparison ran.

What to do next, for a run: what its analysis, its sidecar and its sister runs tell.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from itertools import pairwise

import pandas as pd
from matplotlib.figure import Figure

from workbench.analysis.compare import FALSE_DISCOVERIES
from workbench.analysis.compat import Analysis, find_roof, find_roofline, grade_quality
from workbench.analysis.layers import name_layer
from workbench.analysis.machine_code import explain_lack, split_code
from workbench.analysis.quality import summarize_quality
from workbench.analysis.run import Comparison, undelegated
from workbench.frames import (
    EMULATED,
    format_ms,
    format_share,
    is_emulated,
    mark_emulated,
)
from workbench.plots.layers import plot_tree
from workbench.plots.machine_code import plot_code
from workbench.plots.roofline import plot_roofline
from workbench.plots.speedups import plot_speedups
from workbench.plots.style import mark_figure
from workbench.plots.sweeps import plot_ladder, plot_scaling
from workbench.plots.tables import Sheet, Table, show_table, show_together
from workbench.records.runs import count_threads

#: Rows of the table of layers.
TOP_LAYERS = 12


def show_note(*lines: str) -> Table:
    """Sentences as a set-off paragraph; whatever they hold is text there, never markup."""
    paragraphs = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
    quoted = [line.replace("&", "&amp;").replace("<", "&lt;") for line in lines]
    return Table(
        f"<blockquote>{paragraphs}</blockquote>", "\n>\n".join(f"> {line}" for line in quoted)
    )


def show_verdicts(analysis: Analysis) -> Table:
    """One sentence per comparison, and the mark of an emulated run before them."""
    mark = [f"{EMULATED.capitalize()}."] if analysis.run.emulated else []
    return show_note(*mark, *(comparison.text for comparison in analysis.comparisons))


def show_layers(analysis: Analysis, experiment: str, threads: int, rows: int = TOP_LAYERS) -> Table:
    """The layers of the model that take the most time by themselves; or that none is known."""
    if analysis.layers is None:
        return show_note("Not known: the program has no layer sidecar, or one without layers.")
    layers = analysis.select(analysis.layers, experiment, threads)
    operators = analysis.select(analysis.operators, experiment, threads)
    # Operators come with the most expensive first.
    lines = operators.dropna(subset=["module"]).drop_duplicates("module").set_index("module")
    layers["source"] = layers["module"].map(lines["source"])
    layers["share"] = layers["own_ms"] / layers["own_ms"].sum()
    layers["module"] = layers["module"].map(name_layer)
    columns = ["module", "module_class", "source", "own_ms", "share"]
    return show_table(
        layers.sort_values("own_ms", ascending=False, kind="stable"),
        [*columns, "total_ms", "low_ms", "high_ms", "flops"],
        rows=rows,
        caption="Layers by their own time; total: with the layers in them, and its 95 % interval",
    )


def show_tree(
    analysis: Analysis, experiment: str, threads: int, rows: int = TOP_LAYERS
) -> Table | Sheet:
    """The tree of modules above the table of layers; or that none is known."""
    table = show_layers(analysis, experiment, threads, rows)
    if analysis.layers is None:
        return table
    layers = analysis.select(analysis.layers, experiment, threads)
    return show_together(plot_tree(layers, title=f"Time down the modules, {experiment}"), table)


def show_speedups(comparison: Comparison, rows: int = TOP_LAYERS) -> Sheet:
    """What became faster: E2E, categories, and the layers (or operators) that changed the most."""
    if comparison.layers is None:
        parts, what = comparison.operators, "operators"
    else:
        parts, what = comparison.layers, "layers"
    columns = ["name", "baseline_ms", "candidate_ms", "speedup", "low", "high", "outcome"]
    return show_together(
        plot_speedups(comparison.speedups),
        show_note(count_outcomes(comparison.operators, "operators"), count_outcomes(parts, what)),
        show_table(
            parts,
            [*columns, "q", "detectable", "floor"],
            rows=rows,
            caption=f"{what}, the largest change first".capitalize(),
        ),
    )


def count_outcomes(parts: pd.DataFrame, what: str) -> str:
    """How many of the parts became what, and how small a change would have shown."""
    counts = parts["outcome"].value_counts()
    found = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    least = parts.loc[parts["outcome"] == "inconclusive", "detectable"].median()
    text = f"{len(parts)} {what}: {found}."
    if {"faster", "slower"} & set(counts.index):
        text += (
            f" At most {100 * FALSE_DISCOVERIES:g} % of those faster or slower are so by chance."
        )
    if math.isfinite(least):
        text += f" Half of the inconclusive ones would have shown a change of {100 * least:.0f} %."
    return text


def show_undelegated(analysis: Analysis) -> Table:
    """The operators that the partitioner left to portable kernels, or that there are none."""
    table = undelegated(analysis)
    if table is None:
        return show_note("Not known: the program has no export record.")
    if table.empty:
        return show_note("None: every operator went to a delegate.")
    return show_table(table)


#: What hiding an extension leaves as it is.
NOT_COVERED = (
    "Hiding an extension reaches XNNPACK and its KleidiAI kernels, which ask for CPU features one "
    "by one. It does not reach the portable and optimized kernels of ExecuTorch, which are "
    "compiled for one level, nor what the C library picks for itself, nor kernels that XNNPACK "
    "picks by the processor's microarchitecture: those stay this CPU's. A level is this CPU "
    "without features, not another CPU."
)

NOT_SAMPLED = "not sampled"


def has_axes(analysis: Analysis) -> bool:
    """Whether more was measured than two levels at one thread count."""
    return analysis.ladder is not None or analysis.scaling is not None


def show_axes(analysis: Analysis) -> Sheet:
    """Which extension buys what, and what more threads bring: figures, tables, and what is not so.

    Where a run measured neither, that is all it says.
    """
    parts = [*_ladder(analysis), *_threads(analysis)]
    if not parts:
        parts = [show_note(
            "Measured: one toggle at one thread count. `--isa-ladder` measures every ISA level of "
            "the CPU, `--threads 1,2,4` several thread counts; both together cross them."
        )]  # fmt: skip
    return Sheet(*parts)


def _ladder(analysis: Analysis) -> Iterator[object]:
    if analysis.ladder is None:
        return
    for threads, part in analysis.ladder.groupby("threads"):
        figure = plot_ladder(part, f"Which extension buys what, {count_threads(threads)}")
        yield figure
        yield show_table(
            part.drop(columns=["threads"]).assign(code=codes_of(analysis, part)),
            caption="speedup: over the level below; total: over the lowest; 95 % intervals",
        )
    portable = analysis.ledger[analysis.ledger["kind"] == "portable"]
    share = portable["duration_ns"].sum() / analysis.ledger["duration_ns"].sum()
    yield show_note(NOT_COVERED, f"Portable kernels took {100 * share:.1f} % of the traced time.")


def codes_of(analysis: Analysis, ladder: pd.DataFrame) -> list[str]:
    """What samples say each level ran, and how much of it the level below did not.

    Parameters
    ----------
    ladder
        ``schema.LADDER`` of one thread count.
    """
    threads, levels = ladder["threads"].iloc[0], list(ladder["level"])
    proofs = {
        (c.pair.baseline, c.pair.candidate): c.proof
        for c in analysis.comparisons
        if c.threads == threads
    }
    steps = [proofs.get(step) for step in pairwise(levels)]
    lowest = list_classes(steps[0].before) if steps[0] else NOT_SAMPLED
    return [
        lowest,
        *(
            f"{list_classes(step.after)}; {100 * step.appeared:.0f} % new" if step else NOT_SAMPLED
            for step in steps
        ),
    ]


def _threads(analysis: Analysis) -> Iterator[object]:
    if analysis.scaling is None:
        return
    figure = plot_scaling(analysis.scaling)
    yield figure
    yield show_table(
        analysis.scaling, caption="speedup: over the fewest threads; by wall time; 95 % intervals"
    )
    yield show_note(*(analysis.crossovers or ("No crossing was shown.",)))


#: Rows of the table of microkernels.
TOP_KERNELS = 12


def show_code(analysis: Analysis, comparison: Comparison, by: str = "family") -> Figure | Table:
    """Classes of machine code on both sides, of the whole inference and of its parts.

    Parameters
    ----------
    by
        What the parts are: ``category``, ``family``, ``operator`` or ``key``.

    Returns
    -------
    Figure or Table
        A sentence where nothing was sampled.
    """
    if comparison.proof is None:
        return show_note(explain_lack(analysis.run))
    shares = {}
    for name, threads in comparison.sides:
        evidence = analysis.select(analysis.evidence, name, threads)
        shares[name] = pd.concat([split_code(evidence), split_code(evidence, by)])
        if analysis.run.emulated:
            mark_emulated(shares[name])
    return plot_code(shares)


def show_proof(analysis: Analysis, comparison: Comparison) -> Table:
    """Whether both sides ran the same machine code, and what each of them ran."""
    proof = comparison.proof
    if proof is None:
        return show_note(explain_lack(analysis.run))
    table = pd.DataFrame(
        {
            "experiment": _names(comparison),
            "samples": proof.samples,
            "code": [list_classes(shares) for shares in (proof.before, proof.after)],
            "share": [proof.vanished, proof.appeared],
        }
    )
    noticed = format_share(proof.noticed, 1)
    return show_table(
        mark_emulated(table) if analysis.run.emulated else table,
        caption=f"{proof.outcome}; share: of the samples, in functions that the other side did not "
        f"run; {noticed} would have been noticed",
    )


def list_classes(shares: dict[str, float], most: int = 2) -> str:
    """The classes of machine code that were seen most, with their share of the samples."""
    return ", ".join(f"{format_share(share)} {code}" for code, share in [*shares.items()][:most])


def show_kernels(analysis: Analysis, comparison: Comparison, rows: int = TOP_KERNELS) -> Table:
    """The microkernel of every operator on both sides, with its layer where that is known.

    Parameters
    ----------
    rows
        How many operators, each with a line for the baseline and one for the candidate.
    """
    if comparison.kernels is None:
        return show_note(explain_lack(analysis.run))
    kernels = comparison.kernels.head(rows)
    operators = analysis.select(analysis.operators, *comparison.sides[1])
    layer = []
    if "module" in operators:
        layers = operators.drop_duplicates("key").set_index("key")["module"]
        kernels, layer = kernels.assign(layer=kernels["key"].map(layers)), ["layer"]
    found = ["kernel", "code", "share", "samples"]
    columns = ["operator", *layer, "experiment", *found, "change"]
    before, after = (
        kernels.rename(columns={f"{side}_{name}": name for name in found}).assign(experiment=name)
        for side, name in zip(("baseline", "candidate"), _names(comparison), strict=True)
    )
    both = pd.concat([before, after.assign(operator=after["candidate_operator"])])[columns]
    return show_table(
        both.sort_index(kind="stable"),
        caption="Microkernels by samples; share: of the operator's samples in that one",
    )


def _names(comparison: Comparison) -> list[str]:
    """Of both sides: their experiments, and their threads where these are what differs."""
    (before, few), (after, many) = comparison.sides
    if few == many:
        return [before, after]
    return [f"{before}, {count_threads(few)}", f"{after}, {count_threads(many)}"]


#: Findings in a report.
TOP_FINDINGS = 8


def describe_gain(row: dict[str, object]) -> str:
    """The gain of a finding in a few words.

    Examples
    --------
    >>> describe_gain({"basis": "bound", "high_ms": 1.5, "share": 0.15, "gain_ms": float("nan")})
    'at most 1.50 ms (15 %)'
    """
    if row["basis"] == "unknown":
        return "not known, the run was emulated: measure it on the device"
    if row["basis"] == "bound":
        return f"at most {format_ms(row['high_ms'])} ({format_share(row['share'])})"
    return (
        f"{format_ms(row['gain_ms'])} ({format_share(row['share'])}), {row['basis']}; "
        f"between {format_ms(row['low_ms'])} and {format_ms(row['high_ms'])}"
    )


def list_findings(findings: pd.DataFrame, rows: int = TOP_FINDINGS) -> list[str]:
    """One line for each of the first findings."""
    return [
        f"{row['rank']}. {row['title']}. Gain: {describe_gain(row)}. Do: {row['action']}"
        for row in findings.head(rows).to_dict("records")
    ]


def show_findings(findings: pd.DataFrame, rows: int = TOP_FINDINGS) -> Table:
    """The first findings as a numbered list, each with its gain, what to do, and where it shows."""
    if findings.empty:
        return Table(f"<p>{_NOTHING}</p>", _NOTHING)
    items = findings.head(rows).to_dict("records")
    pages = "".join(f"<li>{_item_html(row)}</li>" for row in items)
    texts = "\n".join(f"{number}. {_item_text(row)}" for number, row in enumerate(items, 1))
    if is_emulated(findings):
        mark = f"{EMULATED.capitalize()}. So these are in no order of gain."
        return Table(f"<p>{mark}</p><ol>{pages}</ol>", f"{mark}\n\n{texts}")
    return Table(f"<ol>{pages}</ol>", texts)


_NOTHING = "Nothing stands out: no rule found one per cent of the time to be had."


def _item_html(row: dict[str, object]) -> str:
    text = {name: html.escape(str(row[name])) for name in ("title", "action", "hint", "heading")}
    anchor = text["heading"].replace(" ", "-")
    return (
        f"<b>{text['title']}.</b> Gain: {html.escape(describe_gain(row))}.<br>"
        f"To do: {text['action']}.<br><code>{text['hint']}</code><br>"
        f'Shown under <a href="#{anchor}">{text["heading"]}</a>'
    )


def _item_text(row: dict[str, object]) -> str:
    title, action = (_plain(row[name]) for name in ("title", "action"))
    hint = str(row["hint"]).replace("`", "'")
    return (
        f"**{title}.** Gain: {describe_gain(row)}. To do: {action}. `` {hint} `` "
        f'Shown in {row["notebook"]} under "{row["heading"]}".'
    )


def _plain(text: object) -> str:
    """Text that stays text in Markdown."""
    escaped = html.escape(" ".join(str(text).split()), quote=False)
    return "".join(f"\\{c}" if c in "*_`[]\\" else c for c in escaped)


def show_quality(analysis: Analysis) -> Sheet:
    """The grade of a measurement in a sentence, and every criterion."""
    quality = grade_quality(analysis)
    grade = f"{summarize_quality(quality)}."
    return Sheet(show_note(grade[0].upper() + grade[1:]), show_table(quality))


def show_roofline(
    analysis: Analysis, experiment: str = "", threads: int | None = None
) -> Figure | Table:
    """The roofline as a figure; or how to get it."""
    first = analysis.comparisons[0]
    experiment, threads = experiment or first.pair.candidate, threads or first.threads
    table = find_roofline(analysis, experiment, threads)
    if table is None:
        return show_note(
            "No ceilings of this machine are known, or no costs: `workbench roofline RUN_DIR` "
            "measures the former, an export by the workbench has the latter."
        )
    roof = find_roof(analysis, experiment, threads)
    figure = plot_roofline(
        table, roof.peaks, roof.bandwidths, roof.spread, title=f"Roofline of {experiment}"
    )
    return mark_figure(figure, EMULATED) if analysis.run.emulated else figure


def describe_roofline(analysis: Analysis, top: int = 12) -> Table:
    """The slowest operators of the first candidate, how fast they are, and what binds them."""
    table = find_roofline(analysis)
    if table is None:
        return show_note("The costs of this program's operators are not known.")
    columns = ["name", "module", "mean_ms", "gflops", "gbps", "roof_share", "bound"]
    return show_table(table, columns, rows=top, caption="roof share: time at the roof / mean time")

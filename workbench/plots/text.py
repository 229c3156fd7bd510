"""Tables and sentences about runs, measurements and comparisons."""

import html
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pandas as pd

from workbench.analysis.compare import FALSE_DISCOVERIES
from workbench.analysis.describe import describe_latency
from workbench.analysis.dtypes import describe_dtypes
from workbench.analysis.exports import count_undelegated
from workbench.analysis.layers import name_layer
from workbench.analysis.machine_code import explain_lack
from workbench.analysis.operators import label_operators
from workbench.analysis.quality import TRACER_LIMIT, summarize_quality
from workbench.analysis.run import Comparison, Measurement, Run
from workbench.frames import (
    EMULATED,
    WRONG,
    format_ms,
    format_range,
    format_share,
    is_emulated,
    mark_emulated,
)
from workbench.plots.categories import name_sides
from workbench.plots.layers import NO_LAYERS
from workbench.plots.roofline import NO_ROOFLINE
from workbench.plots.speedups import plot_speedups
from workbench.plots.sweeps import plot_isa_levels, plot_sizes, plot_threads
from workbench.plots.tables import (
    Table,
    VStack,
    fold,
    join_tables,
    show_note,
    show_table,
    to_html,
    to_markdown,
)

#: Rows of a table, findings of a list, how many of these are cards, and verdicts before a fold.
TOP, TOP_FINDINGS, TOP_CARDS, TOP_VERDICTS = 12, 8, 3, 3
_CARDS = "display:grid;grid-template-columns:repeat(auto-fit,minmax(16em,1fr));gap:12px;padding:0"
_CARD = "list-style:none;border:1px solid #8886;border-radius:8px;padding:12px 16px;min-width:0;"
_CARD += "overflow-wrap:anywhere"

#: What hiding an extension does not change.
NOT_COVERED = (
    "Hiding an extension affects XNNPACK and its KleidiAI kernels, which query CPU features one "
    "by one. It does not affect the portable and optimized kernels of ExecuTorch, which are "
    "compiled for one level, the C library, or kernels that XNNPACK selects by "
    "microarchitecture. A level is this CPU without some features, not another CPU."
)
#: What a gain was concluded from.
_BASES = {
    "removal": "the time of what goes away",
    "twin": "from similar operators of this run",
    "roofline": "estimated from the machine's peaks",
}
_NOTHING = "No findings: no rule found one per cent of the time to gain."
NO_PROGRAM = "Most rules need the program, which is unknown: put the .pte beside the traces."


def show_verdicts(source: Run | Comparison) -> Table:
    """What was run, one sentence per comparison, the latencies, and what weakens these figures.

    Examples
    --------
    >>> print(wb.show_verdicts(wb.open_run(wb.sample_run())))
    mobilenet_v3_small · fp32 · AMD EPYC (virtual machine) · 2026-11-21 01:28 · quality C
    <BLANKLINE>
    > mobilenet_v3_small: 1.28x faster ...
    """
    comparisons = source.comparisons if isinstance(source, Run) else (source,)
    run = source if isinstance(source, Run) else source.run
    texts = [ab.text for ab in sorted(comparisons, key=lambda ab: ab.verdict.outcome != WRONG)]
    texts = texts or ["No comparison: the run has no two experiments of one program."]
    texts, others = texts[:TOP_VERDICTS], texts[TOP_VERDICTS:]
    sides = [comparisons[0].baseline, comparisons[0].candidate] if comparisons else [run.subject]
    times = [] if run.emulated else [f"{m.label}: {describe_latency(m.statistics)}" for m in sides]
    facts = " · ".join([*run.facts, f"quality {run.quality['grade'].iloc[0]}"])
    caveats = [f"Caveat: {caveat}." for caveat in source.caveats]
    head = Table(f'<p style="opacity:.8">{to_html(facts)}</p>', to_markdown(facts))
    note = show_note(*texts, "; ".join(times), *caveats)
    large = note.html.replace("<p>", '<p style="font-size:1.2em;font-weight:600">', 1)
    count = f"{len(others)} more comparison{'s' * (len(others) > 1)}"
    more = [fold(count, show_note(*others))] if others else []
    return join_tables(head, Table(large, note.markdown), *more)


def describe_times(measurement: Measurement) -> str:
    """How the latency and the sum of its parts, which are of traced inferences, compare."""
    if measurement.emulated:
        return f"{EMULATED.capitalize()}."
    parts, latency_ms = float(measurement.categories["mean_ms"].sum()), measurement.latency_ms
    shown, latency = format_range(parts, latency_ms)
    text = f"The parts of {measurement.label} add up to {shown}: traced, "
    text += "wall time, the least disturbed inferences."
    if measurement.latencies["traced"].all():
        return text
    kind = "CPU" if measurement.statistics["clock"].iloc[0] == "cpu_ns" else "wall"
    apart = parts / latency_ms - 1
    text += f" The latency is {latency}: untraced, {kind} time."
    if abs(apart) < TRACER_LIMIT:
        return text
    return f"{text} They differ by {format_share(apart)}: use the shares, not the milliseconds."


def show_latencies(source: Run | Measurement) -> Table:
    """The latency of every measurement in ms with its interval, and percentiles of inferences.

    Examples
    --------
    >>> "latency (ms)" in str(wb.show_latencies(wb.open_run(wb.sample_run())))
    True
    """
    columns = ["experiment", "threads", "clock", "latency", "low", "high", "restarts"]
    caption = "latency: mean over the process restarts of each one's midmean; low, high: its 95 % "
    caption += "interval, which covers further restarts in this run"
    if source.statistics["restarts"].eq(1).any():
        caption += "; a single restart has none"
    shown = show_table(source.statistics, [*columns, "n", "median", "p95", "p99"], caption=caption)
    if isinstance(source, Run) and not source.record.plan.sweep:
        return join_tables(*_phases(source), shown)
    return shown


def _phases(run: Run) -> list[Table]:
    if run.phases is None:
        return []
    caption = "Phases; the latency at position 0 is the time to the first token"
    known = run.phases.columns[run.phases.notna().any()].tolist()
    return [show_table(run.phases, known, caption=caption)]


def show_times(source: Run | Measurement) -> Table:
    """How the latency and the sum of its parts, which are of traced inferences, go together.

    ``source`` is a run, of which the subject is shown, or a measurement.

    Examples
    --------
    >>> print(wb.show_times(wb.open_run(wb.sample_run())))
    > The parts of avx512_on add up to 2.06 ms: ...
    """
    return show_note(describe_times(source.subject if isinstance(source, Run) else source))


def show_operators(source: Measurement | pd.DataFrame, *, top: int = TOP) -> Table:
    """The most expensive operators: totals of each type; folded, by layer, and each by itself.

    ``source`` is a measurement, or a frame of ``frames.OPERATORS``.

    Examples
    --------
    >>> on = wb.open_run(wb.sample_run())["avx512_on"]
    >>> "classifier.3 · Fully Connected GEMM #42" in str(wb.show_operators(on, top=3))
    True
    """
    operators = source if isinstance(source, pd.DataFrame) else source.operators
    operators = operators.assign(name=label_operators(operators))
    columns, times = ["name", "category"], ["mean_ms", "std_ms", "share"]
    parts = [show_table(add_up_operators(operators, []), top=top, caption="By type of operator")]
    if "module" in operators:
        layers = operators.assign(layer=operators["module"].map(name_layer))
        by_layer = add_up_operators(layers, ["layer"])
        parts.append(fold("By layer", show_table(by_layer, top=top)))
        columns += ["module_class", "source", "confidence"]
    single = show_table(operators, [*columns, "calls", *times], top=top)
    return join_tables(*parts, fold("Single operators", single))


def add_up_operators(operators: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Operators, calls, time and share of each type of operator, and of what else is given."""
    groups = operators.groupby([*by, "operator", "category"], sort=False, observed=True)
    sums = groups[["calls", "mean_ms", "share"]].sum()
    table = sums.assign(operators=groups.size()).sort_values("mean_ms", ascending=False)
    columns = ["operators", "calls", "mean_ms", "share"]
    table = table[columns].reset_index()
    return mark_emulated(table) if is_emulated(operators) else table


def show_layers(source: Measurement, *, top: int = TOP) -> Table:
    """The layers with the most time of their own, and the source of their slowest operator.

    Examples
    --------
    >>> "classifier.3" in str(wb.show_layers(wb.open_run(wb.sample_run())["avx512_on"]))
    True
    """
    if source.layers is None:
        return show_note(NO_LAYERS)
    # Operators are sorted by time: the first of each module is its slowest.
    slowest = source.operators.dropna(subset=["module"]).drop_duplicates("module")
    layers = source.layers.assign(
        source=source.layers["module"].map(slowest.set_index("module")["source"]),
        share=source.layers["own_ms"] / source.layers["own_ms"].sum(),
        module=source.layers["module"].map(name_layer),
    )
    columns = ["module", "module_class", "source", "own_ms", "share"]
    return show_table(
        layers.sort_values("own_ms", ascending=False, kind="stable"),
        [*columns, "total_ms", "low_ms", "high_ms", "flops"],
        top=top,
        caption="Layers by their own time; total: with their sublayers, and its 95 % interval",
    )


def show_speedups(ab: Comparison, *, top: int = TOP) -> VStack:
    """The speed-ups of E2E and categories as a figure, and the layers that changed most.

    Operators take the place of layers where these are unknown.

    Examples
    --------
    >>> "inconclusive" in str(wb.show_speedups(wb.open_run(wb.sample_run()).compare(), top=3))
    True
    """
    counts = {"operators": ab.operators}
    if ab.layers is not None:
        counts["layers"] = ab.layers
    what, parts = [*counts.items()][-1]
    columns = ["name", "baseline_ms", "candidate_ms", "speedup", "low", "high", "outcome"]
    columns += ["q", "detectable", "floor"]
    return VStack(
        plot_speedups(ab),
        show_note(*(count_outcomes(frame, name) for name, frame in counts.items())),
        show_table(parts, columns, top=top, caption=f"{what.capitalize()}, largest change first"),
    )


def count_outcomes(parts: pd.DataFrame, what: str) -> str:
    """How many of the parts became faster or slower, and how small a change was detectable."""
    counts = parts["outcome"].value_counts()
    found = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    least = parts.loc[parts["outcome"] == "inconclusive", "detectable"].median()
    text = f"{len(parts)} {what}: {found}."
    if {"faster", "slower"} & set(counts.index):
        text += f" At most {100 * FALSE_DISCOVERIES:g} % of the faster and slower are by chance."
    if math.isfinite(least):
        text += (
            f" For half of the inconclusive {what}, only a change above {100 * least:.0f} % was "
            "detectable."
        )
    return text


def show_undelegated(run: Run) -> Table:
    """The operators that the partitioner left to portable kernels.

    Examples
    --------
    >>> "_to_dim_order_copy" in str(wb.show_undelegated(wb.open_run(wb.sample_run())))
    True
    """
    if run.subject.export is None:
        return show_note("Unknown: the program has no export record.")
    table = count_undelegated(run.subject.export)
    return show_note("None: every operator is delegated.") if table.empty else show_table(table)


def show_dtypes(source: Measurement, *, top: int = TOP) -> VStack:
    """The dtype that was asked for: what ran in another one and why, and where noise enters.

    Examples
    --------
    >>> on = wb.open_run(wb.sample_run("squeezesam")).subject
    >>> "27 of 31 convolutions and matrix products ran in int8" in str(wb.show_dtypes(on))
    True
    """
    if source.dtypes is None or source.export is None:
        return VStack(show_note("Not applicable: fp32, or a program of unknown origin."))
    parts = [show_note(f"{describe_dtypes(source.dtypes)}.")]
    others = source.dtypes[source.dtypes["reason"] != ""]
    if len(others):
        others = others.assign(name=label_operators(others))
        columns = ["name", "dtype", "mean_ms", "share", "reason"]
        parts.append(show_table(others, columns, top=top, caption="What ran in another dtype"))
    if source.export.noise:
        noise = pd.DataFrame(source.export.noise)
        noise["module"] = noise["module"].map(name_layer)
        caption = "Where quantisation noise enters: SQNR for exact inputs (own), and in the program"
        parts.append(show_table(noise, top=top, caption=caption))
    return VStack(*parts)


def show_sweeps(run: Run) -> VStack:
    """Figures and tables of what ISA levels, threads and sizes bring, and what is not covered.

    Examples
    --------
    >>> "over the level below" in str(wb.show_sweeps(wb.open_run(wb.sample_run("squeezesam"))))
    True
    """
    parts = list(_isa_levels(run))
    if run.record.plan.sweep:
        parts += [plot_sizes(run), show_note(*run.size_changes)] if run.size_changes else []
        parts += _phases(run)
    if run.size_fits is not None:
        caption = "latency = fixed + each * size ** power; `off`: largest deviation from the fit"
        parts.append(show_table(run.size_fits, caption=caption))
    if run.scaling is not None:
        caption = "speedup: over the fewest threads; wall time; 95 % intervals"
        parts += [plot_threads(run.scaling), show_table(run.scaling, caption=caption)]
        parts += [show_note(*(run.crossovers or ("No crossover was shown.",)))]
    if not parts:
        parts = [show_note(
            "Measured: one toggle at one thread count. `--isa-ladder` measures every ISA level of "
            "the CPU, `--threads 1,2,4` several thread counts; combine them to measure both."
        )]  # fmt: skip
    return VStack(*parts)


def _isa_levels(run: Run) -> Iterator[object]:
    if run.isa_levels is None:
        return
    for _, levels in run.isa_levels.groupby("threads"):
        yield plot_isa_levels(levels)
        yield show_table(
            levels.drop(columns=["threads"]).assign(code=codes_of(run, levels)),
            caption="speedup: over the level below; total: over the lowest; 95 % intervals",
        )
    portable = run.ledger.loc[run.ledger["kind"] == "portable", "duration_ns"].sum()
    share = portable / run.ledger["duration_ns"].sum()
    yield show_note(NOT_COVERED, f"Portable kernels took {100 * share:.1f} % of the traced time.")


def codes_of(run: Run, levels: pd.DataFrame) -> list[str]:
    """The machine code of every level (``frames.LADDER`` of one thread count) by samples."""
    threads, names = levels["threads"].iloc[0], list(levels["level"])
    proofs = {
        (ab.baseline.name, ab.candidate.name): ab.proof
        for ab in run.comparisons
        if ab.candidate.threads == threads
    }
    steps = [proofs.get(step) for step in pairwise(names)]
    lowest = list_classes(steps[0].before) if steps and steps[0] else "not sampled"
    return [lowest] + [
        f"{list_classes(step.after)}; {100 * step.appeared:.0f} % new" if step else "not sampled"
        for step in steps
    ]


def show_code(ab: Comparison) -> Table:
    """Whether both sides ran the same machine code, and which classes of instructions.

    Examples
    --------
    >>> "sme2" in str(wb.show_code(wb.open_run(wb.sample_run("toy_cnn")).compare()))
    True
    """
    proof = ab.proof
    if proof is None:
        return show_note(explain_lack(ab.run.record))
    table = pd.DataFrame({"experiment": name_sides(ab), "samples": proof.samples})
    table["code"] = [list_classes(shares) for shares in (proof.before, proof.after)]
    table["share"] = [proof.vanished, proof.appeared]
    caption = (
        f"{proof.outcome}; share: samples in functions that the other side did not run; "
        f"{format_share(proof.noticed, 1)} was detectable"
    )
    return show_table(mark_emulated(table) if ab.emulated else table, caption=caption)


def list_classes(shares: dict[str, float]) -> str:
    """The two most frequent classes of machine code, with their share of the samples."""
    return ", ".join(f"{format_share(share)} {code}" for code, share in [*shares.items()][:2])


def show_kernels(ab: Comparison, *, top: int = TOP) -> Table:
    """The microkernel of every operator on both sides, by samples; two lines per operator.

    Examples
    --------
    >>> "mopa" in str(wb.show_kernels(wb.open_run(wb.sample_run("toy_cnn")).compare()))
    True
    """
    if ab.kernels is None:
        return show_note(explain_lack(ab.run.record))
    kernels, found = ab.kernels.head(top), ["kernel", "code", "share", "samples"]
    operators, layer = ab.baseline.operators, []
    if "module" in operators:
        layers = operators.set_index("key")["module"]
        kernels, layer = kernels.assign(layer=kernels["key"].map(layers)), ["layer"]
    before, after = (
        kernels.rename(columns={f"{side}_{column}": column for column in found})
        for side in ("baseline", "candidate")
    )
    after["operator"] = after["candidate_operator"]
    names = name_sides(ab)
    both = pd.concat([before.assign(experiment=names[0]), after.assign(experiment=names[1])])
    return show_table(
        both.sort_index(kind="stable"),
        [*layer, "operator", "experiment", *found, "change"],
        caption="Microkernels by samples; share: of the operator's samples in that microkernel",
    )


def show_roofline(source: Measurement, *, top: int = TOP) -> Table:
    """The slowest operators: their rates, and what limits them.

    Examples
    --------
    >>> "gflops" in str(wb.show_roofline(wb.open_run(wb.sample_run())["avx512_on"], top=3))
    True
    """
    if source.roofline is None:
        return show_note(NO_ROOFLINE)
    return show_table(
        source.roofline.assign(name=label_operators(source.roofline)),
        ["name", "mean_ms", "gflops", "gbps", "roof_share", "bound"],
        top=top,
        caption="roof share: time at the roof / mean time",
    )


def show_quality(run: Run) -> VStack:
    """The grade of a measurement in a sentence, and every criterion.

    Examples
    --------
    >>> "criterion" in str(wb.show_quality(wb.open_run(wb.sample_run())))
    True
    """
    grade = f"{summarize_quality(run.quality)}."
    return VStack(show_note(grade[0].upper() + grade[1:]), show_table(run.quality))


def show_findings(source: Run | Measurement | pd.DataFrame, *, top: int = TOP_FINDINGS) -> Table:
    """The ``top`` findings as a numbered list: the gain of each, what to do, and where to look.

    ``source`` is a run, a measurement, or a frame of ``frames.FINDINGS``, largest gain first.

    Examples
    --------
    >>> "Gain:" in str(wb.show_findings(wb.open_run(wb.sample_run()), top=3))
    True
    """
    findings = source if isinstance(source, pd.DataFrame) else source.findings
    if findings.empty:
        subject = source.subject if isinstance(source, Run) else source
        unknown = isinstance(subject, Measurement) and subject.sidecar is None
        text = f"{_NOTHING} {NO_PROGRAM}" if unknown else _NOTHING
        return Table(f"<p>{text}</p>", text)
    marks = []
    if is_emulated(findings):
        marks.append(f"{EMULATED.capitalize()}. These are not sorted by gain.")
    if isinstance(source, Run) and source.record.plan.programs:
        marks.append(f"About {source.subject.label}, the first program after the baseline.")
    items = [_show_finding(row) for row in findings.head(top).to_dict("records")]
    cards = "".join(f'<li style="{_CARD}">{item.html}</li>' for item in items[:TOP_CARDS])
    further = "".join(f"<li>{item.html}</li>" for item in items[TOP_CARDS:])
    page = f'<ol style="{_CARDS}">{cards}</ol>'
    if further:
        page += f"<details><summary>{len(items) - TOP_CARDS} more</summary>"
        page += f'<ol start="{TOP_CARDS + 1}">{further}</ol></details>'
    texts = "\n".join(f"{number}. {item.markdown}" for number, item in enumerate(items, 1))
    return join_tables(*([show_note(*marks)] if marks else []), Table(page, texts))


def list_findings(findings: pd.DataFrame, top: int = TOP_FINDINGS) -> list[str]:
    """One line for each of the first findings."""
    return [
        "; ".join(filter(None, (f"{row['rank']}. {row['title']}", describe_place(row))))
        + f". Gain: {describe_gain(row)}. Do: {row['action']}"
        for row in findings.head(top).to_dict("records")
    ]


def describe_place(row: dict[str, Any]) -> str:
    """The time and layers of a finding: ``10 % of the time, in classifier.3 (net.py:120)``."""
    time = "" if pd.isna(row["spent"]) else f"{100 * row['spent']:.0f} % of the time"
    return ", ".join(filter(None, (time, row["place"] and f"in {row['place']}")))


def describe_gain(row: dict[str, Any]) -> str:
    """The gain of a finding in a few words: ``at most 1.50 ms (15 %)``."""
    if row["basis"] == "unknown":
        return "unknown, the run was emulated: measure on the device"
    if row["of"] != "latency":
        most = "at most " if row["basis"] == "bound" else ""
        return f"{most}{format_share(row['share'])} of the {row['of']}"
    if row["basis"] == "bound":
        return f"at most {format_ms(row['high_ms'])} ({format_share(row['share'])})"
    gain, low, high = format_range(row["gain_ms"], row["low_ms"], row["high_ms"])
    return (
        f"{gain} ({format_share(row['share'])}), between {low} and {high}; "
        f"{_BASES.get(row['basis'], row['basis'])}"
    )


def _show_finding(row: dict[str, Any]) -> Table:
    """Gain, advice, a command that a report's page offers to copy, and where the evidence is."""
    title = " ".join(str(row["title"]).split())
    gain, action, hint = describe_gain(row), str(row["action"]), str(row["hint"])
    heading, place = str(row["heading"]), describe_place(row)
    place = f"{place[:1].upper()}{place[1:]}. " if place else ""
    page = f"<strong>{to_html(title[:1].upper() + title[1:])}.</strong> "
    page += f"<p>{to_html(place)}Gain: {to_html(gain)}.</p><p>To do: {to_html(action)}.</p>"
    page += f"<pre><code>{html.escape(hint)}</code></pre>"
    page += f"<p>Evidence: <cite>{html.escape(heading)}</cite></p>"
    text = f"**{_plain(title)}.** {_plain(place + f'Gain: {gain}')}. To do: {_plain(action)}. `` "
    text += hint.replace("`", "'") + f' `` Evidence: "{heading}".'
    return Table(page, text)


def _plain(text: str) -> str:
    escaped = html.escape(" ".join(text.split()), quote=False)
    return "".join(f"\\{c}" if c in "*_`[]\\" else c for c in escaped)

"""What to do next, for a run: what its analysis, its sidecar and its sister runs tell."""

from __future__ import annotations

import contextlib
import html

import pandas as pd

from workbench.analyze import (
    Facts,
    Rival,
    describe_latencies,
    find_bottlenecks,
    find_method,
    name_kernels,
    place_operators,
    tabulate_latencies,
    total_runs,
    undisturbed_times,
)
from workbench.emulation import EMULATED, is_emulated, mark_emulated
from workbench.errors import WorkbenchError, unknown_name
from workbench.records import Run
from workbench.report.analysis import Analysis
from workbench.report.ceilings import computed_dtype, find_roof
from workbench.show import Table, format_ms, format_share
from workbench.store import LAYERS, RUNS, find_runs, load_layers, load_run

#: Findings in a report.
TOP_FINDINGS = 8


def find_next_steps(
    analysis: Analysis, experiment: str = "", threads: int | None = None
) -> pd.DataFrame:
    """What to do next about one experiment, by what it would bring.

    Parameters
    ----------
    analysis
        Of a run.
    experiment, threads
        Which measurement; by default the candidate of the first comparison.

    Returns
    -------
    DataFrame
        ``schema.FINDINGS``.

    Raises
    ------
    UsageError
        The run has no such measurement.
    """
    first = analysis.comparisons[0]
    experiment = experiment or first.pair.candidate
    threads = first.threads if threads is None else threads
    for what, name, valid in (
        ("experiment", experiment, analysis.ledger["experiment"]),
        ("thread count", str(threads), analysis.ledger["threads"]),
    ):
        known = set(map(str, valid))
        if name not in known:
            raise unknown_name(what, name, known, where=analysis.run_dir)
    found = find_bottlenecks(gather_facts(analysis, experiment, threads))
    return mark_emulated(found) if analysis.run.emulated else found


def gather_facts(analysis: Analysis, experiment: str, threads: int) -> Facts:
    """Everything that the rules look at."""
    run = analysis.run
    ledger = analysis.select(analysis.ledger, experiment, threads)
    changes = [
        c
        for c in analysis.comparisons
        if (c.pair.candidate, c.threads) == (experiment, threads) and run.plan.toggle != "none"
    ]
    wall = describe_latencies(analysis.latencies, clock="wall_ns")
    sidecar = load_layers(analysis.run_dir / LAYERS, run.plan.sha256)
    rivals = {rival.dtype: rival for rival in _measured_dtypes(analysis, experiment, threads)}
    roof = find_roof(analysis, experiment, threads)
    own = rivals.pop(run.export.dtype, None) if run.export else None
    runs = undisturbed_times(total_runs(ledger, "key"))
    operators = analysis.select(analysis.operators, experiment, threads)
    operators["mean_ms"] = operators["key"].map(runs.mean())
    placed = roof is not None and "flops" in operators
    return Facts(
        operators=operators,
        runs=runs,
        method=find_method(ledger.drop_duplicates("key"), sidecar) if sidecar else None,
        export=run.export,
        changes=changes[0].operators if changes else None,
        toggle=run.plan.toggle if changes else "",
        statistics=wall[wall["experiment"] == experiment],
        threads=threads,
        kernels=_kernels(analysis, experiment, threads),
        latency_ms=_latency(analysis, experiment, threads),
        own=own,
        rivals=tuple(rivals.values()),
        roof=roof,
        roofline=place_operators(operators, roof, computed_dtype(run)) if placed else None,
        emulated=run.emulated,
    )


def _kernels(analysis: Analysis, experiment: str, threads: int) -> dict[str, str]:
    if analysis.evidence is None:
        return {}
    rows = name_kernels(analysis.select(analysis.evidence, experiment, threads))
    return {key: str(name) for key, name in rows["function"].items() if name}


def _latency(analysis: Analysis, experiment: str, threads: int) -> float:
    rows = analysis.select(analysis.statistics, experiment, threads)
    return float(rows["median"].iloc[0]) if len(rows) else 0.0


def _measured_dtypes(analysis: Analysis, experiment: str, threads: int) -> list[Rival]:
    """The latency of every dtype that was measured like this one; the own first."""
    runs = {analysis.run_dir.resolve(): analysis.run}
    folder = analysis.run_dir.resolve().parent
    for path in find_runs(folder.parent) if folder.name == RUNS else ():
        with contextlib.suppress(WorkbenchError):  # a run that cannot be read is no rival
            runs.setdefault(path.resolve(), load_run(path))
    found = []
    for run in runs.values():
        if _is_alike(run, analysis.run) and run.export.dtype not in {r.dtype for r in found}:
            table = describe_latencies(tabulate_latencies(run))
            rows = table[(table["experiment"] == experiment) & (table["threads"] == threads)]
            found += [
                Rival(run.export.dtype, row["median"], row["low"], row["high"])
                for row in rows.to_dict("records")
            ]
    return found


def _is_alike(run: Run, own: Run) -> bool:
    """Whether a run differs in its dtype at most, and computes what the model does."""
    if not run.export or not own.export or run.state != "complete":
        return False
    return not run.export.problem and _identity(run) == _identity(own)


def _identity(run: Run) -> tuple[object, ...]:
    shapes = tuple(tensor.shape for tensor in run.plan.inputs)
    machine = (run.platform, run.emulated, run.host.get("cpu"), run.runner.get("kind"))
    return (run.plan.model, run.export.backend, shapes, run.versions.get("executorch"), *machine)


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

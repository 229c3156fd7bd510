"""The answer of a run or a comparison on one screen: verdict, bars, findings, next step."""

import html
import shlex
from collections.abc import Iterator, Sequence

from workbench import emulation
from workbench.analysis.compare_runs import name_runs
from workbench.analysis.describe import describe_latency
from workbench.analysis.findings import text as words
from workbench.analysis.findings.finding import Finding
from workbench.analysis.run import Comparison, Measurement, Run
from workbench.analysis.use import describe_use
from workbench.plots.bars import show_bars
from workbench.plots.gain import show_gain
from workbench.plots.tables import Table, show_note, to_html, to_markdown
from workbench.records.trials import Applied
from workbench.wording import plural

#: Verdicts before a fold, findings of an overview, and letters of the line above folded caveats.
TOP_VERDICTS, TOP_FINDINGS, _LINE = 3, 3, 96
_SIDES = 4  #: Bars of experiments that are not compared.
_ITEMS = '<ol class="lead" style="margin:.2em 0 .5em;padding-left:1.6em">'


def show_verdicts(source: Run | Comparison, top: int = 0) -> Iterator[str | Table]:
    """What was run, a sentence per comparison, bars of both sides, and what weakens them."""
    yield from _show_answer(source)


def show_overview(source: Run | Comparison, top: int = 0) -> Iterator[str | Table]:
    """The verdicts, and the best findings with their gains and the next step."""
    yield from _show_answer(source, with_findings=True)


def subject_of(source: Run | Comparison) -> Measurement:
    """The measurement that a run or a comparison is about."""
    return source.subject if isinstance(source, Run) else source.candidate


def _show_answer(source: Run | Comparison, *, with_findings: bool = False) -> Iterator[str | Table]:
    run = source if isinstance(source, Run) else source.run
    runs = [run] if isinstance(source, Run) else [run, source.baseline.run]
    grade = f"quality {max(each.quality['grade'].iloc[0] for each in runs)} (A is best, C worst)"
    facts = " · ".join([*run.facts, grade])
    page = f'<p class="facts" style="opacity:.8">{to_html(facts)}</p>'
    yield Table(page, to_markdown(facts))
    notes = [f"Note: {note.text}" for each in runs for note in each.notes]
    if notes:
        yield show_note(*notes)
    yield from _compare_sides(source)
    if isinstance(source, Run) and source.applied:
        yield from show_applied(source.applied)
    if with_findings:
        noun = source if isinstance(source, Run) else source.candidate
        if subject_of(source).potential.alone:
            yield from show_gain(subject_of(source))
        findings = noun.opportunities
        yield list_findings(findings, TOP_FINDINGS)
    ab = next(iter(source.comparisons), None) if isinstance(source, Run) else source
    uses = ab.uses if ab else (subject_of(source).use,)
    disturbed = describe_use(uses) if any(use.busy for use in uses) else []
    if disturbed:
        yield show_note(*(f"{text}." for text in disturbed))
    sentences = [*disturbed, *(ab.verdict.objections if ab else ())]
    yield from _fold_caveats([text for text in source.caveats if text not in sentences])


def show_applied(applied: Applied) -> Iterator[Table]:
    """What remedies changed in the program, and the lines that do the same in the source."""
    lines = [f"Applied: {', '.join(applied.remedies)} (`{'`, `'.join(applied.findings)}`)."]
    if applied.other:
        parts = plural(applied.other, "other part")
        lines.append(f"A remedy is applied by its name: {parts} of the model changed, too.")
    if applied.unmapped:
        lines.append(f"No lines to write: {applied.unmapped}.")
    yield show_note(*lines)
    if applied.diff:
        diff = "\n".join(map(_color_line, applied.diff.splitlines()))
        page = f"<p>Write these lines:</p><pre><code>{diff}</code></pre>"
        yield Table(page, f"```diff\n{applied.diff}```", (applied.diff.rstrip(),))


def _color_line(line: str) -> str:
    """A line of a diff as HTML."""
    color = {"+": "#00946533", "-": "#c0392b33"}.get(line[:1], "none")
    return f'<span style="background:{color}">{html.escape(line)}</span>'


def _compare_sides(source: Run | Comparison) -> Iterator[Table]:
    """A sentence for each comparison, the first ones before a fold, and bars of both sides."""
    comparisons = source.comparisons if isinstance(source, Run) else (source,)
    texts = [
        ab.text for ab in sorted(comparisons, key=lambda ab: ab.verdict.outcome != emulation.WRONG)
    ]
    sides = [subject_of(source)]
    if comparisons:
        sides = [comparisons[0].baseline, comparisons[0].candidate]
    elif isinstance(source, Run):
        sides = [m for m in source.traced if not m.control][:_SIDES] or sides
        texts = _name_sides(source)
    yield show_note(*texts[:TOP_VERDICTS], leads=True)
    yield _draw_sides(sides)
    if texts_below := texts[TOP_VERDICTS:]:
        yield show_note(*texts_below).fold(plural(len(texts_below), "more comparison"))


def _name_sides(run: Run) -> list[str]:
    """Why a run has no comparison, and what makes one."""
    names = list(dict.fromkeys(m.name for m in run.measurements if not m.control))
    if len(names) < 2:
        return ["No comparison: one experiment was measured."]
    sides = shlex.join(f"{run.path}:{name}" for name in names[:2])
    what = f"No comparison: {' and '.join(names)} ran different programs."
    if not run.traced:
        what = "No comparison of parts: only the manifest is here, without traces."
    return [what, f"To compare two: workbench compare {sides}"]


def _draw_sides(sides: Sequence[Measurement]) -> Table:
    """The bar of each side under its latency; the latencies alone where nothing was traced."""
    labels = [m.label for m in sides]
    if len(set(labels)) < len(labels):  # of two runs
        labels = name_runs(sides)
    if all(m.sessions for m in sides):
        return show_bars(dict(zip(labels, sides, strict=True)))
    latencies = (describe_latency(m.statistics) for m in sides)
    return show_note("; ".join(map(": ".join, zip(labels, latencies, strict=True))))


def list_findings(findings: Sequence[Finding], top: int) -> Table:
    """The best findings in a line each with their gain, and what to do about the first."""
    if not findings:
        return show_note(words.NONE)
    items, lines = "", list[str]()
    for finding in findings[:top]:
        cause, gain = words.describe_cause(finding), words.abridge_gain(finding)
        items += f"<li>{to_html(cause)}. <strong>Gain: {to_html(gain)}</strong></li>"
        lines.append(f"{len(lines) + 1}. {to_markdown(cause)}. Gain: {to_markdown(gain)}")
    first = findings[0]
    action, commands = words.describe_action(first), words.list_commands(first)
    code = words.list_code(first)
    hints = [*commands, *(code if len(code) == 1 else ())]
    hint = next(iter(hints), "")
    page = f'<p class="next"><strong>Next step:</strong> {to_html(action)}'
    lines.append(f"\n**Next step:** {to_markdown(action)}")
    if hint:
        page += f": <code>{html.escape(hint)}</code>"
        lines[-1] += f": `` {hint.replace('`', chr(39))} ``"
    return Table(f"{_ITEMS}{items}</ol>{page}</p>", "\n".join(lines))


def _fold_caveats(caveats: Sequence[str]) -> Iterator[Table]:
    """One line that opens; Markdown has all of them."""
    if caveats:
        line = "; ".join(caveats)
        line = line if len(line) <= _LINE else f"{line[:_LINE].rpartition(' ')[0]} …"
        listed = show_note(*(f"Caveat: {text}." for text in caveats))
        folded = listed.fold(f"{plural(len(caveats), 'caveat')}: {line}")
        yield Table(folded.html, listed.markdown)

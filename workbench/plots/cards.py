"""Findings as cards: the gain of each, what to do, and where the evidence is."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench import emulation, plugin, wording
from workbench.analysis.findings import text as words
from workbench.analysis.findings.complete import is_loadable
from workbench.analysis.findings.finding import Finding
from workbench.analysis.run import Measurement, Run
from workbench.plots.tables import Table, join_tables, show_note, to_html, to_markdown, typeset
from workbench.progress import is_interactive

#: Findings of a list, and how many of these are cards.
TOP_FINDINGS, TOP_CARDS = 8, 3
_CARDS = "display:grid;grid-template-columns:repeat(auto-fit,minmax(min(20em,100%),1fr));"
_CARDS += "gap:12px;padding:0"
_CARD = "list-style:none;border:1px solid #8886;border-radius:8px;padding:12px 16px;min-width:0;"
_CARD += "overflow-wrap:anywhere"


@dataclass(frozen=True, repr=False)
class Cards(Table):
    """Findings as cards below ``notes``; in a live notebook, their remedies can be applied."""

    findings: tuple[Finding, ...] = ()
    run: Run | None = None
    notes: str = ""

    def _ipython_display_(self) -> None:
        if not (self.run and is_interactive() and any(f.is_option for f in self.findings)):
            raise NotImplementedError  # it is shown as any other table
        make = plugin.find("attributes", "workbench.FindingCards")
        if not make or not is_loadable(self.run.subject):  # as a module of another process
            raise NotImplementedError
        cards = [(finding, show_card(finding).html) for finding in self.findings]
        make(self.run, cards, self, self.notes)._ipython_display_()


def show_cards(
    findings: Sequence[Finding], top: int = TOP_FINDINGS, noun: Run | Measurement | None = None
) -> Table:
    """The ``top`` of the findings of a noun as a numbered list, the first ones as cards."""
    if not findings:
        return show_note(words.NONE)
    items = [show_card(finding) for finding in findings[:top]]
    cards = "".join(f'<li style="{_CARD}">{item.html}</li>' for item in items[:TOP_CARDS])
    page = f'<ol style="{_CARDS}">{cards}</ol>'
    if items_below := "".join(f"<li>{item.html}</li>" for item in items[TOP_CARDS:]):
        page += f"<details><summary>{len(items) - TOP_CARDS} more</summary>"
        page += f'<ol start="{TOP_CARDS + 1}">{items_below}</ol></details>'
    lines = "\n".join(f"{n}. {item.markdown}" for n, item in enumerate(items, 1))
    if noun is not None and noun.emulated:
        mark = f"{emulation.EMULATED.capitalize()}. These are not sorted by gain."
        return join_tables(show_note(mark), Table(page, lines))
    run = noun.run if isinstance(noun, Measurement) else noun
    return Cards(page, lines, (), tuple(findings[:top]), run)


def show_card(finding: Finding) -> Table:
    """Gain, advice, a command that a report's page offers to copy, and where the evidence is."""
    cause, hint = words.describe_cause(finding), words.write_hint(finding)
    place = words.describe_place(finding)
    facts = {
        "": f"{wording.begin_sentence(place)}. " * bool(place)
        + f"Gain: {words.describe_gain(finding)}.",
        "To do": words.describe_action(finding),
        "Tried": words.describe_trial(finding),
    }
    lines = [f"{name}: {fact}." if name else fact for name, fact in facts.items() if fact]
    page = f"<strong>{to_html(cause)}.</strong> "
    page += "".join(f"<p>{to_html(line)}</p>" for line in lines)
    code, count = f"<pre><code>{html.escape(hint)}</code></pre>", hint.count("\n") + 1
    if hint:
        fold = f"<details><summary>{count} lines of code</summary>{code}</details>"
        page += fold if count > 3 else code
    if also := words.count_also(finding):
        causes = "".join(f"<li>{to_html(words.describe_cause(each))}</li>" for each in finding.also)
        page += f"<details><summary>{also}</summary><ul>{causes}</ul></details>"
    page += f"<p>Evidence: <cite>{html.escape(finding.heading)}</cite></p>"
    markdown = f"**{to_markdown(cause)}.** " + " ".join(map(to_markdown, lines)) + " "
    if hint:
        markdown += "`` " + hint.replace("`", "'") + " `` "
    return Table(page, f'{markdown}Evidence: "{finding.heading}".')


def outline_finding(finding: Finding, rank: int) -> dict[str, Any]:
    """A finding as what the script of a page draws: its facts, and the texts of a card."""
    return {
        **words.to_record(finding, rank),
        "title": words.describe_cause(finding),
        "gain": typeset(words.describe_gain(finding)),
        "where": words.describe_place(finding),
        "tried": words.describe_trial(finding),
        "hint": words.write_hint(finding),
    }

"""The model's source with the time of each line, as HTML without a script, and as text."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import groupby
from typing import Any

import pandas as pd

from workbench.analysis.findings import text as words
from workbench.analysis.findings.finding import Finding
from workbench.analysis.layers import name_layer
from workbench.analysis.line_times import find_toggled, list_joined, place_operators, split_place
from workbench.analysis.run import Measurement
from workbench.emulation import EMULATED
from workbench.errors import printable
from workbench.plots.breakdown import NO_LAYERS
from workbench.plots.tables import COLORS, Table, lighten, show_table, to_html, typeset
from workbench.wording import (
    MISSING,
    format_figure,
    format_ms,
    format_ratio,
    format_share,
    plural,
    shorten_source,
)

#: Lines shown around one with time; the others are folded.
CONTEXT = 3
#: Lines of a file, letters of a line, layers of a line and folds in folds, of strangers' sources.
_MOST_LINES, _MOST_LETTERS, _MOST_LAYERS, _DEEPEST = 20_000, 400, 50, 6
_BLOCK = re.compile(r"(\s*)(?:async\s+def|def|class)\b")
#: In ms; what takes less is not told apart in the gutter.
_LEAST_MS = 0.001
NO_TEXT = "The text of {} was not kept: it was changed or is elsewhere; only its lines are known."

_CSS = resources.files("workbench.plots") / "source.css"


def find_blocks(lines: Mapping[int, str]) -> dict[int, int]:
    """The first and the last line of each class and function, told by their indentation."""
    blocks, around = dict[int, int](), list[tuple[int, int]]()
    for number, text in lines.items():
        bare, indent = text.strip(), len(text) - len(text.lstrip())
        while around and bare and indent <= around[-1][1] and bare[0] not in ")]}#":
            around.pop()
        if _BLOCK.match(text) and len(around) < _DEEPEST:
            around.append((number, indent))
        blocks |= dict.fromkeys((first for first, _ in around), number)
    return blocks


def show_source(m: Measurement, top: int) -> Iterator[str | Table]:
    """The model's source with the time of each line, and the lines with the most time."""
    if m.source is None:
        yield NO_LAYERS
        return
    table = m.source
    located = table[table["file"] != ""]
    if located.empty:
        yield "No line is known of any operator: the export has none, or exec made its code."
        return
    yield _summarize(m, located)
    page = _Page(m, table)
    files = located.groupby("file")["mean_ms"].sum().sort_values(ascending=False, kind="stable")
    parts = [page.draw_file(str(file)) for file in files.index]
    lacks = {"one": not page.compared, "bare": not page.timed}
    kind = " ".join(["wb-src", *(name for name, applies in lacks.items() if applies)])
    sheet = printable(f'<div class="{kind}">{page.heads()}{"".join(parts)}</div>')
    yield Table(f"<style>{_CSS.read_text()}</style>{sheet}", page.write())
    if not page.timed:
        return
    caption = "The lines with the most time"
    columns = ["source", "code", "mean_ms", "share"]
    columns += ["baseline_ms", "speedup", "outcome"] if page.compared else []
    places = located["file"] + ":" + located["line"].astype(str)
    lines = located.assign(source=places, code=[page.code(place).strip() for place in places])
    yield show_table(lines, columns, top=top).fold(caption)


def _summarize(m: Measurement, located: pd.DataFrame) -> str:
    """How much of the latency has a line."""
    lines, files = plural(len(located), "line"), plural(located["file"].nunique(), "file")
    if m.emulated or m.use.blank:
        why = EMULATED if m.emulated else "their times are unknown: see the caveats"
        return f"{lines} of {files}; {why}."
    spent, share = located["mean_ms"].sum(), format_share(located["share"].sum())
    rest = m.latency_ms - spent
    text = f"{lines} of {files} take {format_ms(spent)} ({share}) of {format_ms(m.latency_ms)}"
    return f"{text}; {format_ms(rest)} ({format_share(rest / m.latency_ms)}) has no line."


class _Page:
    """The annotated lines of one measurement."""

    def __init__(self, m: Measurement, table: pd.DataFrame):
        places = table["file"] + ":" + table["line"].astype(str)
        self.rows: dict[str, dict[str, Any]] = dict(
            zip(places, table.to_dict("records"), strict=True)
        )
        self.timed = not (m.emulated or m.use.blank)
        self.toggled = find_toggled(m)
        self.compared = self.toggled is not None and self.timed
        self.most = max(float(table["mean_ms"].max()), 1e-12)
        joined = list_joined(m).items()
        self.joined = {place: main for place, main in joined if place not in self.rows}
        self.texts = m.sidecar.sources if m.sidecar else {}
        self._files: dict[str, dict[int, str]] = {}
        self.pale = m.use.pale
        dtypes = set(table["dtype"]) - {""}
        self.dtype = dtypes.pop() if len(dtypes) == 1 else ""
        operators = m.operators.assign(place=place_operators(m).to_numpy())
        self.operators = dict(iter(operators.groupby("place", sort=False)))
        self.findings = self._place_findings(m.opportunities)

    def _place_findings(
        self, findings: Sequence[Finding]
    ) -> dict[str, list[tuple[int, Finding, str]]]:
        """The findings at each line: number, finding, and the line with most of its time."""
        findings_by_place: dict[str, list[tuple[int, Finding, str]]] = {}
        for number, finding in enumerate(findings, 1):
            spent = {
                place: rows.loc[rows["key"].isin(set(finding.operators)), "mean_ms"].sum()
                for place, rows in self.operators.items()
                if place and rows["key"].isin(set(finding.operators)).any()
            }
            for place in spent:
                main = max(spent, key=spent.__getitem__)
                findings_by_place.setdefault(place, []).append((number, finding, main))
        return findings_by_place

    def heads(self) -> str:
        """The names of the columns."""
        ab = self.toggled
        sides = f"{ab.baseline.label} -> {ab.candidate.label}" if ab else ""
        cells = {"": "", "n": "ms" * self.timed, "n p": "share" * self.timed}
        heads = "".join(f'<span class="{kind}">{text}</span>' for kind, text in cells.items())
        heads += f'<span class="w o">{html.escape(typeset(sides))}</span>'
        dtype = f", {self.dtype}" if self.dtype else ""
        return f'<div class="h">{heads}<span class="w">runs in{html.escape(dtype)}</span></div>'

    def draw_file(self, file: str) -> str:
        """A file: its name, its time, and its lines."""
        rows = [row for row in self.rows.values() if row["file"] == file]
        spent, share = (sum(row[name] for row in rows) for name in ("mean_ms", "share"))
        time = f": {format_ms(spent)}, {format_share(share)}" if self.timed else ""
        head = f'<p class="name">{html.escape(file)}{time}</p>'
        lines = {**self._lines_of(file)}
        timed = {row["line"] for row in rows}
        if not timed & lines.keys():
            head += f"<p>{html.escape(NO_TEXT.format(file))}</p>"
        for number in timed - lines.keys():
            lines[number] = ""
        numbers = sorted(lines)[:_MOST_LINES]
        joined = {line for name, line in map(split_place, self.joined) if name == file}
        near = {n for line in timed | joined for n in range(line - CONTEXT, line + CONTEXT + 1)}
        body = self._draw_lines(file, {number: lines[number] for number in numbers}, near)
        return f'{head}<div role="group" aria-label="{html.escape(file)}">{body}</div>'

    def _lines_of(self, file: str) -> dict[int, str]:
        if file not in self._files:
            self._files[file] = {
                start + n: _cut(text.expandtabs(4))
                for start, block in self.texts.get(file, {}).items()
                for n, text in enumerate(block.split("\n")[:_MOST_LINES])
            }
        return self._files[file]

    def code(self, place: str) -> str:
        """What stands at a line; empty if that is unknown."""
        row = self.rows[place]
        return self._lines_of(row["file"]).get(row["line"], "")

    def _draw_lines(self, file: str, lines: Mapping[int, str], near: set[int]) -> str:
        """Lines with time, and those near; others, and blocks without any time, are folded."""
        sums, hidden, drawn = dict[int, list[dict[str, Any]]](), set[int](), ""
        for first, last in find_blocks(lines).items():
            inside = range(first, last + 1)
            places = (f"{file}:{number}" for number in inside)
            if rows := [self.rows[place] for place in places if place in self.rows]:
                sums[first] = rows
            else:
                hidden |= {*inside}
        open_lines = near - hidden | sums.keys()
        for is_open, group in groupby(lines, open_lines.__contains__):
            numbers = [*group]
            if is_open:
                drawn += "".join(self._draw_line(file, n, lines[n], sums.get(n)) for n in numbers)
            elif any(lines[number].strip() for number in numbers):
                drawn += _fold_far(lines, numbers)
        return drawn

    def _draw_line(
        self, file: str, number: int, text: str, inside: Sequence[Mapping[str, Any]] | None
    ) -> str:
        """A line; the first one of a block has the time ``inside``."""
        place = f"{file}:{number}"
        row = self.rows.get(place)
        if row is None:
            main = self.joined.get(place, "")
            same = main.startswith(f"{file}:")
            name = f"line {split_place(main)[1]}" if same else shorten_source(main)
            where, time, share = f"in {name}" if main else "", "", ""
            if inside and self.timed:
                spent, part = (sum(row[each] for row in inside) for each in ("mean_ms", "share"))
                time, share = f"Σ {_write_ms(spent)}", format_share(part)
            cells = [("n sum", time), ("n p sum", share), ("w o", ""), ("w", where)]
            return _draw_row("", [*cells, ("l", str(number))], text)
        cells = [("n", ""), ("n p", "")]
        if self.timed:
            cells = [("n", _write_ms(row["mean_ms"])), ("n p", format_share(row["share"]))]
        cells += [("w o", self._compare(row)), ("w", self._describe_where(row)), ("l", str(number))]
        bar = self._draw_bar(place) if self.timed else ""
        drawn = _draw_row(bar, cells, text, title=self._describe(row))
        return f"{drawn}{self._draw_notes(place)}{self._draw_layers(place)}"

    def _draw_bar(self, place: str) -> str:
        """The share of a line, in the colours of its operators' categories."""
        rows = self.operators[place]
        total = max(float(rows["mean_ms"].sum()), 1e-12)
        at, stops = 0.0, []
        for category, spent in rows.groupby("category", observed=True)["mean_ms"].sum().items():
            color = lighten(COLORS[str(category)]) if self.pale else COLORS[str(category)]
            stops.append(f"{color} {at:.0f}% {at + 100 * spent / total:.0f}%")
            at += 100 * spent / total
        width = 100 * total / self.most
        colors = f"linear-gradient(90deg,{','.join(stops)})"
        return f'<i style="width:{width:.1f}%;background:{colors}"></i>'

    def _compare(self, row: Mapping[str, Any]) -> str:
        if not self.compared or pd.isna(row["baseline_ms"]):
            return ""
        text = f"{_write_ms(row['baseline_ms'])} -> {_write_ms(row['mean_ms'])}"
        is_shown = row["outcome"] in ("faster", "slower")
        return text + f", {format_ratio(row['speedup'])}x" * is_shown

    def _describe_where(self, row: Mapping[str, Any]) -> str:
        """Where the operators of a line run, and in which dtype, if there are several."""
        part = row["delegated"]
        where = "" if pd.isna(part) else f"{format_share(part)} delegate"
        if part in (0.0, 1.0):
            where = "delegate" if part else "kernel"
        return ", ".join(filter(None, (where, "" if self.dtype else row["dtype"])))

    def _describe(self, row: Mapping[str, Any]) -> str:
        """All about a line, as its title."""
        facts = [
            plural(row["operators"], "operator"),
            f"in {_cut(row['layers'])}" * bool(row["layers"]),
        ]
        if self.timed and row["low_ms"] == row["low_ms"]:
            low, high = format_ms(row["low_ms"]), format_ms(row["high_ms"])
            facts.insert(0, f"95 % interval {low} to {high}")
        if self.compared and row["outcome"]:
            low, high = format_ratio(row["low"]), format_ratio(row["high"])
            facts.append(f"{row['outcome']}, {low}x to {high}x")
        return "; ".join(filter(None, facts))

    def _draw_notes(self, place: str) -> str:
        """The findings at a line; of those with more time at another one, where they are told."""
        notes, elsewhere = "", dict[str, list[str]]()
        for number, finding, main in self.findings.get(place, ()):
            if main != place:
                elsewhere.setdefault(shorten_source(main), []).append(str(number))
                continue
            head = f"{number}. {words.describe_cause(finding)}."
            gain, action = words.describe_gain(finding), words.describe_action(finding)
            facts = to_html(f"Gain: {gain}. To do: {action}.")
            notes += f'<div class="k"><b>{to_html(head)}</b> {facts}</div>'
        if elsewhere:
            texts = (f"{', '.join(numbers)}: see {main}" for main, numbers in elsewhere.items())
            notes += f'<div class="k s">Also {to_html("; ".join(texts))}</div>'
        return notes

    def _draw_layers(self, place: str) -> str:
        """The layers that ran a line, each with its time, if there are several."""
        rows = self.operators[place]
        names = rows["module"].map(name_layer)
        spent = rows.groupby(names)[["mean_ms", "share"]].sum()
        if len(spent) < 2:
            return ""
        spent = spent.sort_values("mean_ms", ascending=False, kind="stable")
        lines = [
            f'<tr><td>{html.escape(str(name))}</td><td class="n">'
            f"{format_ms(ms) if self.timed else ''}</td>"
            f'<td class="n">{format_share(share) if self.timed else ""}</td></tr>'
            for name, ms, share in spent.head(_MOST_LAYERS).itertuples()
        ]
        if len(spent) > _MOST_LAYERS:
            lines.append(f"<tr><td>and {len(spent) - _MOST_LAYERS} more</td></tr>")
        table = f"<table>{''.join(lines)}</table>"
        text = f"{plural(len(spent), 'layer')} ran this line"
        return f'<details class="g"><summary>{text}</summary><div>{table}</div></details>'

    def write(self) -> str:
        """The lines with time as text, in the order of the files."""
        lines = []
        for place, row in sorted(self.rows.items(), key=lambda at: (at[1]["file"], at[1]["line"])):
            if row["file"]:
                time = f"{format_figure(row['mean_ms'])} ms" if self.timed else MISSING
                share = format_share(row["share"]) if self.timed else ""
                lines.append(
                    f"{time:>10} {share:>6}  {shorten_source(place)}  {self.code(place).strip()}"
                )
        text = printable("\n".join(lines))
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
        return f"{fence}\n{text}\n{fence}"


def _write_ms(value: float) -> str:
    """A time in the width of its column."""
    return f"<{_LEAST_MS}" if 0 < value < _LEAST_MS else format_figure(value)


def _cut(text: str) -> str:
    """A line that a stranger may have made long."""
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}..."


def _draw_row(bar: str, cells: Iterable[tuple[str, str]], text: str, title: str = "") -> str:
    """A line: its bar, its facts and its code."""
    label = f' title="{html.escape(title)}"' if title else ""
    spans = "".join(
        f'<span class="{kind}">{html.escape(typeset(cell))}</span>' for kind, cell in cells
    )
    gutter = f'<span class="b">{bar}</span>' if bar else "<span></span>"
    code = html.escape(text)
    kind = "r t" if title else "r"
    return f'<div class="{kind}"{label}>{gutter}{spans}<code>{code}</code></div>'


def _fold_far(lines: Mapping[int, str], numbers: Sequence[int]) -> str:
    """Lines far from any with time, below what they are."""
    names = [match[1] for n in numbers if (match := re.match(r"(?:class|def)\s+(\w+)", lines[n]))]
    what = f": {', '.join(names[:6])}" + ", ..." * (len(names) > 6) if names else ""
    text = "\n".join(f"{n:>4}  {lines[n]}" for n in numbers)
    count = plural(len(numbers), "line") + what
    page = f"<summary>{html.escape(count)}</summary>"
    return f'<details class="g">{page}<pre class="f">{html.escape(text)}</pre></details>'

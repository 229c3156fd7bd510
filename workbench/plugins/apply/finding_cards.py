"""Findings as cards in a live notebook: one with a remedy has a button that applies it."""

from __future__ import annotations

import html
import logging
import threading
from collections.abc import Sequence
from functools import partial

import ipywidgets as widgets

from workbench import Run, WorkbenchError, show
from workbench.api import Finding, Table
from workbench.graphs import reason
from workbench.pages import KeptBox

_LOG = logging.getLogger(__name__)
_GRID = {
    "grid_template_columns": "repeat(auto-fit, minmax(min(20em, 100%), 1fr))",
    "grid_gap": "12px",
}
#: Findings before a fold.
_FIRST = 3
_CARD = {"border": "1px solid #8886", "padding": "12px 16px", "min_width": "0"}


class FindingCards(KeptBox):
    """Findings, each with a button that measures the model with its remedy beside the original.

    What was measured is shown below, and stays in a saved notebook; ``applied`` has the runs. Only
    one is measured at a time; Stop ends it.
    """

    def __init__(
        self, run: Run, findings: Sequence[tuple[Finding, str]], cards: Table, notes: str = ""
    ) -> None:
        self.run, self.cards, self.applied = run, cards, list[Run]()
        self._stopping, self._thread = threading.Event(), threading.Thread()
        options = [finding for finding, _ in findings if finding.is_option]
        self.buttons = {each.id: self._make_button(each) for each in options}
        self.stop_button = widgets.Button(description="Stop")
        self.stop_button.on_click(lambda _: self.stop())
        self.bar = widgets.FloatProgress(min=0.0, max=1.0)
        self.status, self.results = widgets.HTML(), widgets.VBox()
        self.row = widgets.HBox([self.stop_button, self.bar, self.status])
        self.row.layout.display = "none"
        boxes = [self._make_card(n, *each) for n, each in enumerate(findings, 1)]
        grid = widgets.GridBox(boxes[:_FIRST], layout=_GRID)
        more = boxes[_FIRST:]
        rest = [widgets.Accordion([widgets.VBox(more)], titles=(f"{len(more)} more",))] * bool(more)
        super().__init__([widgets.HTML(notes), grid, *rest, self.row, self.results], kept=cards)
        self.add_class("wb-findings")

    def _make_button(self, finding: Finding) -> widgets.Button:
        tip = f"Measure the model with {finding.remedy} beside the original"
        button = widgets.Button(description="Apply", tooltip=tip)
        button.on_click(lambda _: self.apply(finding.id))
        return button

    def _make_card(self, rank: int, finding: Finding, text: str) -> widgets.VBox:
        page = widgets.HTML(f"<strong>{rank}.</strong> {text}")
        buttons = [self.buttons[finding.id]] if finding.id in self.buttons else []
        return widgets.VBox([page, *buttons], layout=_CARD)

    def apply(self, finding: str) -> None:
        """Start to measure with the remedy of a finding, by its id."""
        self._stopping.clear()
        self._set_running(True)
        self._thread = threading.Thread(target=partial(self._apply, finding), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current step."""
        self._stopping.set()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until nothing is measured any more."""
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _set_running(self, running: bool) -> None:
        self.row.layout.display = None if running else "none"
        for button in self.buttons.values():
            button.disabled = running

    def _apply(self, finding: str) -> None:
        try:
            applied = self.run.apply(finding, progress=self._progress)
            self.applied.append(applied)
            page = show(applied, "verdicts").html
        except KeyboardInterrupt:
            page = _write_line("stopped; Apply starts again")
        except Exception as error:  # a thread's traceback goes to nobody
            _LOG.debug("applying %s failed", finding, exc_info=True)
            text = str(error) if isinstance(error, WorkbenchError) else reason(error)
            page = _write_line(f"error: {text}")
        finally:
            self._set_running(False)
        self.results.children = (*self.results.children, widgets.HTML(page))
        results = "".join(each.value for each in self.results.children)
        self.keep(Table(self.cards.html + results, self.cards.markdown))

    def _progress(self, text: str, fraction: float) -> None:
        self.bar.value, self.status.value = fraction, html.escape(text)
        if self._stopping.is_set():
            raise KeyboardInterrupt  # as Ctrl-C would: the run stays incomplete, not failed


def _write_line(text: str) -> str:
    return f'<p role="alert">{html.escape(text)}</p>'

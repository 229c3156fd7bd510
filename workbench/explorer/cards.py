"""Findings as cards in a live notebook: one with a remedy has a button that applies it."""

from __future__ import annotations

import html
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ipywidgets as widgets

from workbench.analysis.findings.finding import Finding
from workbench.analysis.run import Run
from workbench.errors import WorkbenchError
from workbench.explorer.page import hide_still, name_still, show_widget
from workbench.models.sources import reason
from workbench.plots.cards import TOP_CARDS, show_card
from workbench.plots.overview import show_verdicts
from workbench.plots.tables import Table, VStack, join_tables, show_note

_LOG = logging.getLogger(__name__)
_GRID = {
    "grid_template_columns": "repeat(auto-fit, minmax(min(20em, 100%), 1fr))",
    "grid_gap": "12px",
}
_CARD = {"border": "1px solid #8886", "padding": "12px 16px", "min_width": "0"}


class FindingCards(widgets.VBox):
    """Findings, each with a button that measures the model with its remedy beside the original.

    What was measured is shown below, and stays in a saved notebook; ``applied`` has the runs. Only
    one is measured at a time; Stop ends it.
    """

    def __init__(
        self, findings: Sequence[Finding], run: Run, cards: Table, notes: str = ""
    ) -> None:
        self.run, self.cards, self.applied = run, cards, list[Run]()
        self._keep: Callable[[Any], None] = lambda kept: None
        self._stopping, self._still = threading.Event(), name_still()
        self._thread: threading.Thread | None = None
        self.buttons = {each.id: self._make_button(each) for each in findings if each.is_option}
        self.stop_button = widgets.Button(description="Stop")
        self.stop_button.on_click(lambda _: self.stop())
        self.bar = widgets.FloatProgress(min=0.0, max=1.0)
        self.status, self.results = widgets.HTML(), widgets.VBox()
        self.row = widgets.HBox([self.stop_button, self.bar, self.status])
        self.row.layout.display = "none"
        boxes = [self._make_card(rank, each) for rank, each in enumerate(findings, 1)]
        grid = widgets.GridBox(boxes[:TOP_CARDS], layout=_GRID)
        more = boxes[TOP_CARDS:]
        rest = [widgets.Accordion([widgets.VBox(more)], titles=(f"{len(more)} more",))] * bool(more)
        hidden = widgets.HTML(hide_still(self._still))
        super().__init__([widgets.HTML(notes), grid, *rest, self.row, self.results, hidden])
        self.add_class("wb-findings")

    def _make_button(self, finding: Finding) -> widgets.Button:
        tip = f"Measure the model with {finding.remedy} beside the original"
        button = widgets.Button(description="Apply", tooltip=tip)
        button.on_click(lambda _: self.apply(finding.id))
        return button

    def _make_card(self, rank: int, finding: Finding) -> widgets.VBox:
        page = widgets.HTML(f"<strong>{rank}.</strong> {show_card(finding).html}")
        buttons = [self.buttons[finding.id]] if finding.id in self.buttons else []
        return widgets.VBox([page, *buttons], layout=_CARD)

    def _ipython_display_(self) -> None:
        self._keep = show_widget(self, self._still, self._kept())

    def _kept(self) -> VStack:
        return VStack(self.cards, *(Table(each.value, "") for each in self.results.children))

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
        if self._thread:
            self._thread.join(timeout)

    def _set_running(self, running: bool) -> None:
        self.row.layout.display = None if running else "none"
        for button in self.buttons.values():
            button.disabled = running

    def _apply(self, finding: str) -> None:
        try:
            applied = self.run.apply(finding, progress=self._progress)
            self.applied.append(applied)
            parts = [p if isinstance(p, Table) else show_note(p) for p in show_verdicts(applied)]
            page = join_tables(*parts).html
        except KeyboardInterrupt:
            page = _write_line("stopped; Apply starts again")
        except Exception as error:  # a thread's traceback goes to nobody
            _LOG.debug("applying %s failed", finding, exc_info=True)
            text = str(error) if isinstance(error, WorkbenchError) else reason(error)
            page = _write_line(f"error: {text}")
        finally:
            self._set_running(False)
        self.results.children = (*self.results.children, widgets.HTML(page))
        self._keep(self._kept())

    def _progress(self, text: str, fraction: float) -> None:
        self.bar.value, self.status.value = fraction, html.escape(text)
        if self._stopping.is_set():
            raise KeyboardInterrupt  # as Ctrl-C would: the run stays incomplete, not failed


def _write_line(text: str) -> str:
    return f'<p role="alert">{html.escape(text)}</p>'

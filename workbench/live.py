"""Runs that are started in a notebook: watched and stopped, or of a program that is shown."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets
import pandas as pd
from IPython.display import display

from workbench.analysis.run import Run
from workbench.analysis.statistics import tabulate_latencies
from workbench.errors import WorkbenchError
from workbench.explorer.page import hide_still, name_still, show_widget
from workbench.export.program import Program
from workbench.options import MeasureOptions
from workbench.plots.latencies import plot_iterations
from workbench.plots.tables import VStack, show_note
from workbench.plots.views import show
from workbench.progress import is_interactive
from workbench.records.runs import RunRecord
from workbench.workflow import label_subject, measure, profile

if TYPE_CHECKING:
    from workbench.workflow import Subject


class LiveRun(widgets.VBox):
    """Buttons to start and stop a run, its progress, and its latencies so far.

    A stopped run keeps what was measured; starting again resumes it. ``run`` is the finished run,
    None until then. Without a live front end, it displays as one sentence.

    Parameters
    ----------
    model, inputs, options, root
        As for `measure`.

    Examples
    --------
    >>> wb.LiveRun("toy_cnn").status.value
    'toy_cnn: not started'
    """

    def __init__(
        self,
        model: Subject,
        inputs: Any = None,
        options: MeasureOptions = MeasureOptions(),
        *,
        root: str | Path | None = None,
    ):
        self.model, self.inputs, self.options, self.root = model, inputs, options, root
        self.run: Run | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.start_button = widgets.Button(description="Start", button_style="primary")
        self.stop_button = widgets.Button(description="Stop", disabled=True)
        self.bar = widgets.FloatProgress(min=0.0, max=1.0)
        self.status = widgets.Label(f"{label_subject(model)}: not started")
        self.picture = widgets.Image(format="png", layout={"max_width": "990px"})
        self.picture.layout.display = "none"
        self.start_button.on_click(lambda _: self.start())
        self.stop_button.on_click(lambda _: self.stop())
        self._still, self._latencies = name_still(), pd.DataFrame()
        self._keep: Callable[[Any], None] = lambda shown: None
        buttons = widgets.HBox([self.start_button, self.stop_button, self.bar])
        hidden = widgets.HTML(hide_still(self._still))
        super().__init__([buttons, self.status, self.picture, hidden])

    def _ipython_display_(self) -> None:
        if is_interactive():
            self._keep = show_widget(self, self._still, self._result())
        else:
            print("Open this notebook in Jupyter to measure here.")

    def _result(self) -> VStack:
        """What a saved notebook keeps: how it ended, and the latencies."""
        drawn = [plot_iterations(self._latencies)] if len(self._latencies) else []
        return VStack(show_note(self.status.value), *drawn)

    def start(self) -> None:
        """Begin, or resume after a stop."""
        self._stopping.clear()
        self.start_button.disabled, self.stop_button.disabled = True, False
        self._thread = threading.Thread(target=self._measure, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current step."""
        self._stopping.set()
        self.stop_button.disabled = True
        self.status.value = "stopping after this step"

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the run has finished or stopped."""
        if self._thread:
            self._thread.join(timeout)

    def _measure(self) -> None:
        try:
            self.run = measure(
                self.model, self.inputs, self.options, root=self.root,
                progress=self._progress, watch=self._draw,
            )  # fmt: skip
            self.status.value = f"done: {self.run.compare().text}"
        except KeyboardInterrupt:
            self.status.value = "stopped; Start resumes"
        except Exception as error:  # a thread's traceback goes to the log, unseen
            kind = (
                "" if isinstance(error, WorkbenchError | OSError) else f"{type(error).__name__}: "
            )
            self.status.value = f"error: {kind}{error}"
        finally:
            self.start_button.disabled, self.stop_button.disabled = False, True
            self._keep(self._result())

    def _draw(self, run: RunRecord) -> None:
        latencies = tabulate_latencies(run)
        if len(latencies):
            self._latencies = latencies[latencies["threads"] == latencies["threads"].iloc[-1]]
            self.picture.value = plot_iterations(self._latencies).to_png()
            self.picture.layout.display = None

    def _progress(self, text: str, fraction: float) -> None:
        self.bar.value, self.status.value = fraction, text
        if self._stopping.is_set():
            raise KeyboardInterrupt  # as Ctrl-C would: the run stays incomplete, not failed


class ProgramMap(widgets.VBox):
    """The map of a program under a button that measures it; ``run`` is the run, None until then."""

    def __init__(self, program: Program):
        self.program, self.shown = program, show(program, "map")
        self.run: Run | None = None
        self.button = widgets.Button(description="Measure", button_style="primary")
        self.output, self._still = widgets.Output(), name_still()
        self._keep: Callable[[Any], None] = lambda shown: None
        super().__init__([self.button, self.output, widgets.HTML(hide_still(self._still))])
        self.button.on_click(lambda _: self.measure())
        self._draw()

    def _ipython_display_(self) -> None:
        self._keep = show_widget(self, self._still, self.shown)

    def measure(self) -> None:
        """Profile the program, and show the first screen of the run above the map."""
        self.button.disabled, self.button.description = True, "Measuring ..."
        map_shown = show(self.program, "map")
        try:
            with self.output:
                self.run = profile(self.program)
            self.shown = VStack(show(self.run, "overview"), map_shown)
        except WorkbenchError as error:
            self.shown = VStack(show_note(f"Not measured: {error}"), map_shown)
        finally:
            self.button.disabled, self.button.description = False, "Measure again"
        self._draw()
        self._keep(self.shown)

    def _draw(self) -> None:
        with self.output:
            self.output.clear_output(wait=True)
            display(self.shown)


def show_program(program: Program) -> None:
    """Display the map of a program; where a front end is live, with a button that measures it."""
    display(ProgramMap(program) if is_interactive() else show(program, "map"))

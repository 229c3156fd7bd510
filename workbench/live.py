"""A program that is shown in a notebook: its map, and a button that measures it."""

from collections.abc import Callable
from typing import Any

import ipywidgets as widgets
from IPython.display import display

from workbench.analysis.run import Run
from workbench.errors import WorkbenchError
from workbench.explorer.page import hide_still, name_still, show_widget
from workbench.export.program import Program
from workbench.plots.tables import VStack, show_note
from workbench.plots.views import show
from workbench.progress import is_interactive
from workbench.workflow import profile


class ProgramMap(widgets.VBox):
    """The map of a program under a button that measures it; ``run`` is the run, None until then."""

    def __init__(self, program: Program):
        self.program, self.shown = program, show(program, "map")
        self.run: Run | None = None
        self.button = widgets.Button(description="Measure", button_style="primary")
        self.output, self._still = widgets.Output(), name_still()
        self._keep: Callable[[Any], None] = lambda widget: None
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

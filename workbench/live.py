"""A program that is shown in a notebook: its map, and a button that measures it."""

import ipywidgets as widgets
from IPython.display import display

from workbench.analysis.run import Run
from workbench.errors import WorkbenchError
from workbench.export.program import Program
from workbench.plots.tables import VStack, show_note
from workbench.plots.views import show
from workbench.plots.widgets import KeptBox
from workbench.progress import is_interactive
from workbench.workflow import profile


class ProgramMap(KeptBox):
    """The map of a program under a button that measures it; ``run`` is the run, None until then."""

    def __init__(self, program: Program):
        self.program = program
        self.run: Run | None = None
        self.button = widgets.Button(description="Measure", button_style="primary")
        self.output = widgets.Output()
        super().__init__([self.button, self.output], kept=show(program, "map"))
        self.button.on_click(lambda _: self.measure())
        self._draw()

    def measure(self) -> None:
        """Profile the program, and show the first screen of the run above the map."""
        self.button.disabled, self.button.description = True, "Measuring ..."
        map_shown = show(self.program, "map")
        try:
            with self.output:
                self.run = profile(self.program)
            self.keep(VStack(show(self.run, "overview"), map_shown))
        except WorkbenchError as error:
            self.keep(VStack(show_note(f"Not measured: {error}"), map_shown))
        finally:
            self.button.disabled, self.button.description = False, "Measure again"
        self._draw()

    def _draw(self) -> None:
        with self.output:
            self.output.clear_output(wait=True)
            display(self.kept)


def show_program(program: Program) -> None:
    """Display the map of a program; where a front end is live, with a button that measures it."""
    display(ProgramMap(program) if is_interactive() else show(program, "map"))

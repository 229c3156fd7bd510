"""The map of a program under a button that measures it."""

import ipywidgets as widgets
from IPython.display import display

from workbench import Program, Run, WorkbenchError, profile, show
from workbench.pages import KeptBox, show_note


class ProgramMap(KeptBox):
    """The map of a program under a button that measures it; ``run`` is the run, None until then."""

    def __init__(self, program: Program):
        self.program = program
        self.run: Run | None = None
        self.button = widgets.Button(description="Measure", button_style="primary")
        self.output = widgets.Output()
        super().__init__([self.button, self.output], kept=show(program, "map"))
        self.button.on_click(lambda _: self.measure())
        with self.output:
            self._draw()

    def measure(self) -> None:
        """Profile the program, and show the first screen of the run above the map."""
        self.button.disabled, self.button.description = True, "Measuring ..."
        try:
            with self.output:  # which shows what is raised, and lets nothing through
                self._profile()
                self._draw()
        finally:
            self.button.disabled, self.button.description = False, "Measure again"

    def _profile(self) -> None:
        program_map = show(self.program, "map")
        try:
            self.run = profile(self.program)
            self.keep(show([show(self.run, "overview"), program_map]))
        except WorkbenchError as error:
            self.keep(show([show_note(f"Not measured: {error}"), program_map]))

    def _draw(self) -> None:
        self.output.clear_output(wait=True)
        display(self.kept)

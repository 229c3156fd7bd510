"""Several things shown as one."""

from __future__ import annotations

from IPython.display import display
from matplotlib.figure import Figure


class Sheet:
    """Figures, tables and notes that belong together, shown one below the other.

    As text it is what the tables and notes say; figures have no text.
    """

    def __init__(self, *parts: object):
        self.parts = parts

    def _ipython_display_(self) -> None:
        for part in self.parts:
            display(part)

    def __str__(self) -> str:
        return "\n\n".join(str(part) for part in self.parts if not isinstance(part, Figure))


def show_together(*parts: object) -> Sheet:
    """Show figures, tables and notes one below the other, from one cell."""
    return Sheet(*parts)

"""Many runs at once: matrices of them, their history, and reports that combine several."""

from workbench.portfolio.history import History, read_history, write_figure

__all__ = ["History", "read_history", "write_figure"]

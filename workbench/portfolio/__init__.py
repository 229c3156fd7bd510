"""Many models at once: a matrix of cells, each exported, measured and reported."""

from workbench.portfolio.batch import list_plan, place_for, run_batch
from workbench.portfolio.book import INDEX, list_failures
from workbench.portfolio.matrix import Matrix, read_matrix
from workbench.portfolio.plan import plan_cells
from workbench.portfolio.records import Accounting, Cell, Outcome, Portfolio, Row, Stage

__all__ = [
    "INDEX",
    "Accounting",
    "Cell",
    "Matrix",
    "Outcome",
    "Portfolio",
    "Row",
    "Stage",
    "list_failures",
    "list_plan",
    "place_for",
    "plan_cells",
    "read_matrix",
    "run_batch",
]

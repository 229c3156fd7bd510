"""Many runs at once: matrices of them, their history, and reports that combine several."""

from workbench.portfolio.batch import list_plan, place_for, run_batch
from workbench.portfolio.book import INDEX, list_failures
from workbench.portfolio.combined import Combined, combine_runs
from workbench.portfolio.combined_page import write_combined
from workbench.portfolio.documents import describe_document, list_documents
from workbench.portfolio.estimate import Planned, describe_plan
from workbench.portfolio.history import History, read_history, write_figure
from workbench.portfolio.matrix import Matrix, read_matrix
from workbench.portfolio.plan import plan_cells
from workbench.records import Accounting, Cell, Outcome, Portfolio, Row, Stage

__all__ = [
    "INDEX",
    "Accounting",
    "Cell",
    "Combined",
    "History",
    "Matrix",
    "Outcome",
    "Planned",
    "Portfolio",
    "Row",
    "Stage",
    "combine_runs",
    "describe_document",
    "describe_plan",
    "list_documents",
    "list_failures",
    "list_plan",
    "place_for",
    "plan_cells",
    "read_history",
    "read_matrix",
    "run_batch",
    "write_combined",
    "write_figure",
]

"""The notebook of other runtimes."""

from notebook_tests import ROOT, NotebookTests


class TestNotebook(NotebookTests):
    answers = {"15_other_runtimes": r"\(the model itself\): \+0\.\d{3} ms"}  # noqa: RUF012
    page = ROOT / "data" / "docs" / "plugins" / "runtimes.md"
    live = {"15_other_runtimes": {"live": True}}  # noqa: RUF012

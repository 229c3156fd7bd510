"""The notebook of variants of a program."""

from notebook_tests import ROOT, NotebookTests


class TestNotebook(NotebookTests):
    answers = {"12_optimize": r"\w+: [1-9.]+ % of the output's power"}  # noqa: RUF012
    page = ROOT / "data" / "docs" / "plugins" / "optimize.md"
    fast = ("12_optimize",)
    of_one_run = fast

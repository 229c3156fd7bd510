"""The notebook of many models."""

from notebook_tests import ROOT, NotebookTests


class TestNotebook(NotebookTests):
    answers = {  # noqa: RUF012
        "14_many_models": r"\w+, \w+.*: [1-9]\d* % of the inference"
    }
    page = ROOT / "data" / "docs" / "plugins" / "batch.md"

"""The notebook of language models."""

from notebook_tests import ROOT, NotebookTests


class TestNotebook(NotebookTests):
    answers = {"13_language_models": r"Fully Connected .*: [1-9]\d % of decode"}  # noqa: RUF012
    page = ROOT / "data" / "docs" / "plugins" / "llm.md"
    of_one_run = ("13_language_models",)

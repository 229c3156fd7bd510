"""Marks of tests that need a plug-in, which may have been deleted."""

import pytest

from workbench.plugin import list_plugins

#: The notebooks that need a plug-in, and its name.
NOTEBOOKS = {
    "12_optimize.ipynb": "optimize",
    "13_language_models.ipynb": "llm",
    "14_many_models.ipynb": "batch",
    "15_other_runtimes.ipynb": "runtimes",
}


def needs(*plugins):
    """A mark that skips a test where one of these plug-ins is absent."""
    absent = [name for name in plugins if name not in list_plugins()]
    return pytest.mark.skipif(bool(absent), reason=f"without {', '.join(absent)}")

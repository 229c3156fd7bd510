"""Plug-in: language models by ExecuTorch's own definition."""

from workbench.api import Plugin

_HERE = "workbench.plugins.llm"
PLUGIN = Plugin(
    models={"llm": f"{_HERE}.model:LanguageModel"},
    gains={"llm": f"{_HERE}.findings:name_settings"},
    notebooks=("13_language_models.ipynb",),
)

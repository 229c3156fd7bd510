"""Plug-in: language models by ExecuTorch's own definition."""

from workbench.plugin import Plugin

PLUGIN = Plugin(models={"llm": "workbench.plugins.llm.model:LanguageModel"})

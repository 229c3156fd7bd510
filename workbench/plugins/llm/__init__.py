"""Plug-in: language models by ExecuTorch's own definition."""

from workbench.api import Plugin

_HERE = "workbench.plugins.llm"
PLUGIN = Plugin(
    models={"llm:": f"{_HERE}.model:LanguageModel"},
    attributes={"Measurement.caches": f"{_HERE}.cache_traffic:tabulate_caches"},
    rules={"settings of language models": f"{_HERE}.llm_findings:SETTINGS"},
)

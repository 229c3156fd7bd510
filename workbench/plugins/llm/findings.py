"""What findings about a language model advise, as settings of ``llm:NAME``."""

import re

import pandas as pd

from workbench.analysis.exports import model_spec
from workbench.analysis.findings import commands
from workbench.analysis.run import Measurement
from workbench.remedies import find_nearest

#: By the rule that found it.
_OF_RULES = {"logits": "logits=0", "head": "layers=0"}
#: By a kernel that no remedy replaces.
_OF_KERNELS = {"index_put": "sdpa=1", "embedding": "embedding=8"}


def name_settings(m: Measurement, findings: pd.DataFrame) -> pd.DataFrame:
    """The findings of a model named ``llm:``, with commands that export it as they advise."""
    if m.export is None or not model_spec(m.export).startswith("llm:"):
        return findings
    of_hints = {find_nearest(kernel)[1]: setting for kernel, setting in _OF_KERNELS.items()}
    of_hints[""] = ""
    hints = [
        _apply(m, row["hint"], _OF_RULES.get(row["rule"]) or of_hints.get(row["hint"], ""))
        for row in findings.to_dict("records")
    ]
    return findings.assign(hint=hints)


def _apply(m: Measurement, hint: str, setting: str) -> str:
    """The command that exports with a setting instead of the model's own one."""
    if not setting or m.export is None:
        return hint
    name = setting.partition("=")[0]
    spec = re.sub(rf",{name}=[^,]*", "", model_spec(m.export))
    command = hint if hint.startswith("workbench ") else commands.command(m)
    return command.replace("MODEL", f"{spec},{setting}")

"""What findings about a language model advise, as settings of ``llm:NAME``."""

import re
from collections.abc import Sequence
from dataclasses import replace

from workbench import Measurement
from workbench.api import Finding, Rule
from workbench.jobs import write_command

#: By the rule that found it.
_OF_RULES = {"logits": "logits=0", "head": "layers=0", "KV cache": "sdpa=1"}
#: By the kernel that no remedy replaces.
_OF_KERNELS = {"embedding": "embedding=8"}


def name_settings(m: Measurement, findings: Sequence[Finding]) -> list[Finding]:
    """The findings of a model named ``llm:``, with commands that export it as they advise."""
    if not m.spec.startswith("llm:"):
        return list(findings)
    return [_apply(m, finding) for finding in findings]


def _apply(m: Measurement, finding: Finding) -> Finding:
    """A finding with the command that exports with a setting instead of the model's own one."""
    setting = _OF_RULES.get(finding.rule) or _OF_KERNELS.get(finding.nearest, "")
    if not setting:
        return finding
    name = setting.partition("=")[0]
    spec = re.sub(rf",{name}=[^,]*", "", m.spec)
    command = write_command(m) if finding.remedy or not finding.command else finding.command
    return replace(finding, command=command.replace("MODEL", f"{spec},{setting}"))


SETTINGS = Rule(revise=name_settings)

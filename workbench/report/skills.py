"""The playbooks: step-by-step instructions for people and for agents."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources

from workbench.errors import unknown_name

FILE = "SKILL.md"


@dataclass(frozen=True)
class Skill:
    """A playbook: Markdown whose ``sh`` blocks can be run as they are."""

    name: str
    description: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Its blocks of commands, in order."""
        return re.findall(r"^```sh\n(.*?)^```$", self.text, re.MULTILINE | re.DOTALL)

    @property
    def outputs(self) -> list[str]:
        """Patterns of the files that it writes."""
        _, _, rest = self.text.partition("## Expected outputs\n")
        return re.findall(r"^- `([^`]+)`", rest.partition("\n## ")[0], re.MULTILINE)


def list_skills() -> list[Skill]:
    """All playbooks, in order."""
    folder = resources.files("workbench") / "skills"
    return [
        read_skill(entry.name)
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if (entry / FILE).is_file()
    ]


def find_skill(name: str) -> Skill:
    """The playbook of a name, with its number or without."""
    known = {skill.name: skill for skill in list_skills()}
    known |= {name.partition("_")[2]: skill for name, skill in known.items()}
    if name not in known:
        raise unknown_name("skill", name, known)
    return known[name]


def read_skill(name: str) -> Skill:
    """The playbook in a folder of this name."""
    text = (resources.files("workbench") / "skills" / name / FILE).read_text()
    (description,) = re.findall(r"^description: (.+)$", text, re.MULTILINE)
    return Skill(name, description, text)

"""The playbooks below ``workbench/skills``: each a task with its commands and checks."""

import re
from dataclasses import dataclass
from importlib import resources

import click

from workbench.cli.options import Output, command
from workbench.errors import unknown_name

#: The file of a playbook.
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


def list_skills() -> list[Skill]:
    """All playbooks, in order."""
    entries = (resources.files("workbench") / "skills").iterdir()
    return [read_skill(name) for name in sorted(e.name for e in entries if (e / FILE).is_file())]


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


@command()
@click.argument("name", required=False)
def skills(name: str | None) -> Output:
    """Print a playbook: commands, checks, what to do on failure; without NAME, list them."""
    if name is not None:
        skill = find_skill(name)
        record = {"skill": skill, "commands": skill.commands}
        step = "run its commands in order, then its success check"
        return Output([skill.text.rstrip()], record, step=step)
    known = list_skills()
    width = max(len(skill.name) for skill in known)
    lines = [f"{skill.name:{width}}  {skill.description}" for skill in known]
    listed = [{"name": s.name, "description": s.description} for s in known]
    return Output(lines, {"skills": listed}, step="workbench skills NAME")

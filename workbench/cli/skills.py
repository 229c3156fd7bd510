"""The playbooks below ``workbench/skills``, and plug-ins': each a task with commands and checks."""

import re
from importlib import resources

import click

from workbench import plugin
from workbench.cli.options import Output, command
from workbench.errors import unknown_name


def read_skills() -> dict[str, dict[str, str]]:
    """All playbooks by name, in order: Markdown whose ``sh`` blocks can be run as they are."""
    files = {path.name: path / "SKILL.md" for path in _ROOT.iterdir()}
    texts = {name: file.read_text() for name, file in files.items() if file.is_file()}
    return {
        name: {
            "name": name,
            "description": re.findall(r"^description: (.+)$", text, re.MULTILINE)[0],
            "text": text,
        }
        for name, text in sorted((texts | plugin.collect("playbooks")).items())
    }


_ROOT = resources.files("workbench") / "skills"


@command()
@click.argument("name", required=False)
def skills(name: str | None) -> Output:
    """Print a playbook: commands, checks, what to do on failure; without NAME, list them."""
    by_name = read_skills()
    if name is None:
        width = max(map(len, by_name))
        lines = [f"{skill['name']:{width}}  {skill['description']}" for skill in by_name.values()]
        listed = [{key: s[key] for key in ("name", "description")} for s in by_name.values()]
        return Output(lines, {"skills": listed}, step="workbench skills NAME")
    by_name |= {full.partition("_")[2]: skill for full, skill in by_name.items()}  # without number
    if name not in by_name:
        raise unknown_name("skill", name, by_name)
    text = by_name[name]["text"]
    commands = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    step = "run its commands in order, then its success check"
    return Output([text.rstrip()], {"skill": by_name[name], "commands": commands}, step=step)

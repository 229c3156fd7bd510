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
    known = read_skills()
    if name is None:
        width = max(map(len, known))
        lines = [f"{skill['name']:{width}}  {skill['description']}" for skill in known.values()]
        listed = [{key: s[key] for key in ("name", "description")} for s in known.values()]
        return Output(lines, {"skills": listed}, step="workbench skills NAME")
    known |= {full.partition("_")[2]: skill for full, skill in known.items()}  # without number
    if name not in known:
        raise unknown_name("skill", name, known)
    text = known[name]["text"]
    commands = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    step = "run its commands in order, then its success check"
    return Output([text.rstrip()], {"skill": known[name], "commands": commands}, step=step)

"""The commands, and the playbooks."""

import re
from pathlib import Path
from types import SimpleNamespace

import click

from workbench.cli import workbench

PACKAGE = Path(__file__).resolve().parents[1] / "workbench"
CONTEXT = click.Context(workbench)
#: All commands, with those of plug-ins.
COMMANDS = {name: workbench.get_command(CONTEXT, name) for name in workbench.list_commands(CONTEXT)}


def list_playbooks():
    """The playbooks in order, with their commands and the patterns of their files."""
    playbooks = []
    for path in (*sorted(PACKAGE.glob("skills/*/SKILL.md")), *PACKAGE.glob("plugins/*/SKILL.md")):
        text = path.read_text()
        _, _, rest = text.partition("## Expected outputs\n")
        outputs = re.findall(r"^- `([^`]+)`", rest.partition("\n## ")[0], re.MULTILINE)
        commands = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        facts = {"text": text, "commands": commands, "outputs": outputs}
        playbooks.append(SimpleNamespace(name=path.parent.name, **facts))
    return playbooks

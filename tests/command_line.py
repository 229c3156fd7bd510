"""The commands, and the playbooks as `workbench skills` prints them."""

import json
import re
from types import SimpleNamespace

import click
from click.testing import CliRunner

from workbench.cli import workbench

CONTEXT = click.Context(workbench)
#: All commands, with those of plug-ins.
COMMANDS = {name: workbench.get_command(CONTEXT, name) for name in workbench.list_commands(CONTEXT)}


def read_playbook(name=""):
    """The JSON of `workbench skills NAME`; without a name, the list of playbooks."""
    words = ["skills", *([name] if name else []), "--json"]
    return json.loads(CliRunner().invoke(workbench, words).stdout)


def list_playbooks():
    """The playbooks in order, with their commands and the patterns of their files."""
    playbooks = []
    for name in (skill["name"] for skill in read_playbook()["skills"]):
        record = read_playbook(name)
        _, _, rest = record["skill"]["text"].partition("## Expected outputs\n")
        outputs = re.findall(r"^- `([^`]+)`", rest.partition("\n## ")[0], re.MULTILINE)
        facts = {"commands": record["commands"], "outputs": outputs}
        playbooks.append(SimpleNamespace(**record["skill"], **facts))
    return playbooks

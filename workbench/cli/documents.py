"""Commands that print schemas and playbooks, and open notebooks."""

from __future__ import annotations

import json

import click

from workbench.cli.output import Output, command

_FORWARD = {"ignore_unknown_options": True}


@command()
@click.argument("name", required=False)
def schema(name: str | None) -> Output:
    """Print the JSON Schema of a file that the workbench writes; without NAME, list them."""
    from workbench.records.documents import describe_document, list_documents

    if name is None:
        return Output(list_documents(), {"documents": list_documents()})
    described = describe_document(name)
    return Output([json.dumps(described, indent=1)], {"schema": described})


@command()
@click.argument("name", required=False)
def skills(name: str | None) -> Output:
    """Print a playbook: commands, checks, what to do on failure; without NAME, list them."""
    from workbench.report.skills import find_skill, list_skills

    if name is not None:
        skill = find_skill(name)
        return Output([skill.text.rstrip()], {"skill": skill, "commands": skill.commands})
    known = list_skills()
    width = max(len(skill.name) for skill in known)
    lines = [f"{skill.name:{width}}  {skill.description}" for skill in known]
    return Output(
        lines, {"skills": [{"name": s.name, "description": s.description} for s in known]}
    )


@command(context_settings=_FORWARD)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def lab(arguments: tuple[str, ...]) -> Output:
    """Open JupyterLab on the notebooks; ARGUMENTS go to JupyterLab."""
    from workbench.report.notebooks import open_lab

    record = {"opens": "lab", "arguments": arguments}
    return Output([], record, then=lambda: open_lab(arguments))


@command(context_settings=_FORWARD)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def app(arguments: tuple[str, ...]) -> Output:
    """Open the explorer of runs in a browser, without code; ARGUMENTS go to Voila."""
    from workbench.report.notebooks import open_app

    record = {"opens": "app", "arguments": arguments}
    return Output([], record, then=lambda: open_app(arguments))


COMMANDS = (schema, skills, lab, app)

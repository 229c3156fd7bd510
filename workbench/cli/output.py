"""The output of commands: lines for people, one JSON document for programs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from workbench.errors import UsageError, WorkbenchError
from workbench.records.codec import to_document

JSON = "--json"


@dataclass(frozen=True)
class Output:
    """What a command returns: ``lines`` for people, ``record`` for programs.

    Lines may be generated while work goes on; the record must be complete after the last of them.
    ``then`` runs after the output, for a command that replaces this process.
    """

    lines: Iterable[object]
    record: Mapping[str, Any]
    exit_code: int = 0
    then: Callable[[], None] | None = None


class Command(click.Command):
    """A command whose function returns an ``Output``; ``--json`` prints its record."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.params.append(
            click.Option([JSON], is_flag=True, help="Print one JSON document, also for errors.")
        )

    def invoke(self, context: click.Context) -> int:
        """Run the command and print its output; returns the exit code."""
        as_json = context.params.pop("json")
        output: Output = super().invoke(context)
        for line in output.lines:
            if not as_json:
                click.echo(line)
        if as_json:
            click.echo(to_document(output.record), nl=False)
        if output.then:
            output.then()
        return output.exit_code


command = functools.partial(click.command, cls=Command)


def describe_error(error: BaseException, exit_code: int) -> dict[str, Any]:
    """The record of an error, for ``--json``."""
    kind, what, where, hint = type(error).__name__, str(error), None, None
    if isinstance(error, WorkbenchError):
        what, where, hint = error.what, error.where, error.hint
    elif isinstance(error, click.ClickException):
        kind, what = UsageError.__name__, error.format_message()
    facts = {"kind": kind, "what": what, "where": where, "hint": hint}
    return {"error": {**facts, "exit_code": exit_code}}

"""What commands answer: lines for people, one JSON document for programs."""

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
class Answer:
    """What a command returns: ``lines`` for people, ``record`` for programs.

    Work may be done while the lines are taken; the record has to be whole after the last one.
    ``then`` comes after all was said, of a command that goes on as another program.
    """

    lines: Iterable[object]
    record: Mapping[str, Any]
    exit_code: int = 0
    then: Callable[[], None] | None = None


class Command(click.Command):
    """A command whose function returns an ``Answer``; ``--json`` chooses how it is said."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.params.append(
            click.Option([JSON], is_flag=True, help="Print one JSON document, errors too.")
        )

    def invoke(self, context: click.Context) -> int:
        """Run the command and say its answer; returns the exit code."""
        as_json = context.params.pop("json")
        answer: Answer = super().invoke(context)
        for line in answer.lines:
            if not as_json:
                click.echo(line)
        if as_json:
            click.echo(to_document(answer.record), nl=False)
        if answer.then:
            answer.then()
        return answer.exit_code


class Group(click.Group):
    """Commands that answer."""

    command_class = Command


command = functools.partial(click.command, cls=Command)


def describe_error(error: BaseException, exit_code: int) -> dict[str, Any]:
    """An error as the record that ``--json`` prints of it."""
    kind, what, where, hint = type(error).__name__, str(error), None, None
    if isinstance(error, WorkbenchError):
        what, where, hint = error.what, error.where, error.hint
    elif isinstance(error, click.ClickException):
        kind, what = UsageError.__name__, error.format_message()
    facts = {"kind": kind, "what": what, "where": where, "hint": hint}
    return {"error": {**facts, "exit_code": exit_code}}

"""IPython magics: ``%load_ext workbench``, then ``%workbench`` and ``%%workbench profile``."""

import ast
import contextlib
import difflib
import glob
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import ShellComplete
from IPython.core.completer import (
    CompletionContext,
    MatcherResult,
    SimpleCompletion,
    context_matcher,
)
from IPython.core.error import UsageError as MagicError
from IPython.core.interactiveshell import InteractiveShell

from workbench.analysis.run import Run
from workbench.cli import workbench
from workbench.cli.command import collect_options
from workbench.errors import UsageError, printable
from workbench.export.artifact import export_model
from workbench.export.program import Program
from workbench.models.registry import is_known, parse_name
from workbench.options import ExportOptions, MeasureOptions
from workbench.workflow import measure, profile

#: Commands whose result is an object of the notebook, beside those of plug-ins.
_MAKERS = ("export", "profile", "run")
_MATCHER = "workbench.magics"
_MAGIC = re.compile(r"\s*%%?workbench\s+")


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Add the magic ``%workbench`` and its completion to a shell; ``%load_ext`` calls this.

    Examples
    --------
    >>> %load_ext workbench  # doctest: +SKIP
    >>> %workbench profile net x --dtype int8  # doctest: +SKIP
    """

    def workbench_magic(line: str, cell: str | None = None) -> object:
        return run_magic(shell, line, cell)

    def find_completions(context: CompletionContext) -> MatcherResult:
        return complete_line(shell, context.text_until_cursor)

    shell.register_magic_function(workbench_magic, "line_cell", "workbench")
    matchers = shell.Completer.custom_matchers
    if all(getattr(each, "matcher_identifier", "") != _MATCHER for each in matchers):
        matchers.append(context_matcher(identifier=_MATCHER)(find_completions))


def run_magic(shell: InteractiveShell, line: str, cell: str | None = None) -> object:
    """Run a command line, in which names of the notebook stand for models, inputs and runs.

    Values of options are text. `export`, `profile`, `run` and some commands of plug-ins return what
    they make, without a report; the others print. Above a cell, the module that the cell defines is
    the first argument.
    """
    name, *words = shlex.split(line) or ["--help"]
    try:
        command = workbench.get_command(click.Context(workbench), name)
        places = _find_arguments(command, words) if command else []
        arguments: list[Any] = [_look_up(shell, words[place]) for place in places]
        options = [word for place, word in enumerate(words) if place not in places]
        if cell is not None:
            # Lines keep their numbers in the cell.
            shell.run_cell(f"# %%workbench {line}\n{cell}").raise_error()
            arguments.insert(0, _find_module(shell, cell))
        if command and any(param.name in ("model", "models") for param in command.params):
            _check_names(shell, arguments)
        makes = name in _MAKERS or getattr(command, "maker", None)
        if command and makes and "--help" not in words:
            return _make(command, arguments, options)
        files = (value.path if isinstance(value, Run | Program) else value for value in arguments)
        plain = [str(each) for each in files]
        given = zip(plain, [words[place] for place in places], strict=True) if cell is None else ()
        with contextlib.redirect_stderr(sys.stdout):  # which a notebook would show in red
            workbench.main(
                [name, *options, *plain], "%workbench", standalone_mode=False, obj=dict(given)
            )
    except click.ClickException as error:
        raise MagicError(printable(error.format_message())) from None
    return None


def _find_arguments(command: click.Command, words: Sequence[str]) -> list[int]:
    """Places of the words that are neither options nor values of options."""
    marked = [word if word.startswith("-") else str(place) for place, word in enumerate(words)]
    values, rest, _ = command.make_parser(click.Context(command)).parse_args(marked)
    for param in command.params:
        value = values.get(str(param.name)) if isinstance(param, click.Argument) else None
        if isinstance(value, str | tuple):  # else it is missing
            rest = [value, *rest] if isinstance(value, str) else [*value, *rest]
    return [int(place) for place in rest if place.isdecimal()]


def _look_up(shell: InteractiveShell, word: str) -> Any:
    value = shell.user_ns.get(word) if word.isidentifier() else None
    if value is None:
        return word
    return str(value) if isinstance(value, Path) else value


def _check_names(shell: InteractiveShell, arguments: Sequence[Any]) -> None:
    """Refuse words that are names neither of the notebook nor of models or files."""
    for word in arguments:
        is_name = isinstance(word, str) and word.isidentifier()
        if is_name and not is_known(parse_name(word)):
            names = _list_names(shell)
            hint = f"it has {', '.join(names)}" if names else "define it, or name a model"
            near = difflib.get_close_matches(word, names, n=1)
            hint = f"did you mean {near[0]!r}? {hint}" if near else hint
            raise UsageError(f"this notebook has nothing called {word!r}", hint=hint)


def _find_module(shell: InteractiveShell, cell: str) -> Any:
    """The module that a cell defined last; of a class, an instance."""
    from torch import nn

    statements = ast.parse(cell).body
    defined = [
        name
        for node in statements
        for name in (
            [node.name]
            if isinstance(node, ast.ClassDef)
            else [target.id for target in getattr(node, "targets", ()) if hasattr(target, "id")]
        )
    ]
    things = [shell.user_ns.get(name) for name in defined]
    modules = [thing for thing in things if isinstance(thing, nn.Module)]
    classes = [t for t in things if isinstance(t, type) and issubclass(t, nn.Module)]
    if not modules and not classes:
        raise UsageError("defines no nn.Module", where="this cell")
    return modules[-1] if modules else classes[-1]()


def _make(command: click.Command, arguments: Sequence[Any], flags: Sequence[str]) -> object:
    """What a command makes of models named as on the command line, or of one and its inputs."""
    name, inputs = str(command.name), None
    if all(isinstance(value, str) for value in arguments):
        context = command.make_context(name, [*flags, *arguments])
        (argument,) = (param for param in command.params if isinstance(param, click.Argument))
        subject = context.params[str(argument.name)]
    else:
        subject, *values = arguments
        inputs = values[0] if len(values) == 1 else tuple(values) or None
        context = command.make_context(name, [*flags, "object"])  # in the place of the argument
    root = context.params["out"]
    if name == "run":
        return measure(subject, inputs, collect_options(MeasureOptions, context.params), root=root)
    export = collect_options(ExportOptions, context.params)
    if name == "export":
        return export_model(subject, inputs, options=export, root=root)
    if make := getattr(command, "maker", None):
        return make(subject, inputs, context.params)
    options = collect_options(MeasureOptions, context.params)
    subjects = subject if isinstance(subject, tuple) else [subject]  # names: one run for each
    runs = [profile(each, inputs, export=export, measure=options, root=root) for each in subjects]
    if wanted := context.params["apply"]:
        runs = [run.apply(wanted) for run in runs]
    return runs if runs[1:] else runs[0]


def complete_line(shell: InteractiveShell, before: str) -> MatcherResult:
    """What may follow the text before the cursor; of a line of the magic, nothing else does."""
    magic = _MAGIC.match(before)
    if not magic:
        return {"completions": []}
    *words, symbol = before[magic.end() :].split(" ")
    completions = list(map(SimpleCompletion, _list_completions(shell, words, symbol)))
    return {"completions": completions, "suppress": True, "matched_fragment": symbol}


def _list_completions(shell: InteractiveShell, words: Sequence[str], symbol: str) -> list[str]:
    """Commands or their options; else files, and names that hold something for a command."""
    given = [word for word in words if word]
    items = ShellComplete(workbench, {}, "%workbench", "").get_completions(given, symbol)
    if plain := [item.value for item in items if item.type == "plain"]:
        return plain
    names = [name for name in _list_names(shell) if name.startswith(symbol)]
    files = [str(path) for path in Path().glob(f"{glob.escape(symbol)}*")]
    files = [name for name in files if symbol or not name.startswith(".")]
    return [*names, *files] or [symbol] * bool(symbol)  # else Python's names would be offered


def _list_names(shell: InteractiveShell) -> list[str]:
    """The names of the notebook that hold a model, an input, a program or a run."""
    torch = sys.modules.get("torch")
    kinds = (Run, Program, *((torch.nn.Module, torch.Tensor) if torch else ()))
    held = shell.user_ns.items()
    return [name for name, value in held if isinstance(value, kinds) and name[:1] != "_"]

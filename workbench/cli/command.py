"""What commands share: options and their types, output, and the progress display."""

import contextlib
import difflib
import functools
import inspect
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import click

from workbench.cli.checks import Existing, Measured, check_categories
from workbench.cli.terminal import write
from workbench.errors import UsageError, WorkbenchError, unknown_name
from workbench.options import ExportOptions, MeasureOptions
from workbench.process import claim_stdout, output
from workbench.progress import above_bar
from workbench.records.codec import to_document

PATH = click.Path(path_type=Path)
#: Of what is read: a file or folder, or one measurement of a run.
EXISTING, RECORDED, MEASURED = Existing(), Existing(recorded=True), Measured()
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Record = TypeVar("Record")


class Parsed(click.ParamType):
    """A type of texts that match a pattern; ``meaning`` says in an error what they have to be."""

    def __init__(self, name: str, meaning: str, pattern: str, read: Callable[[re.Match[str]], Any]):
        self.name, self.meaning, self.pattern, self.read = name, meaning, pattern, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The parsed text; a default is what it is."""
        if not isinstance(value, str):
            return value
        if match := re.fullmatch(self.pattern, value):
            return self.read(match)
        self.fail(f"{value!r} is not {self.meaning}", param, ctx)


PERCENT = Parsed(
    "percent", "a percentage from 0% to 999%", r"(\d{1,3}(?:\.\d{1,9})?)%?",
    lambda match: float(match[1]) / 100,
)  # fmt: skip
ASSIGNMENT = Parsed(
    "name=value", "an assignment such as head=fp32", r"(.+)=([^=]+)", lambda match: match.groups()
)
DURATION = Parsed(
    "duration", "a duration such as 30s or 2m", r"(?=.*[1-9])(\d{1,6}(?:\.\d{1,3})?)(ms|[smh]?)",
    lambda match: float(match[1]) * {"ms": 1e-3, "m": 60, "h": 3600}.get(match[2], 1),
)  # fmt: skip
_SIZE = Parsed(
    "dim=n", "a size such as batch=4", r"([^=]+)=(0*[1-9]\d{0,8})",
    lambda match: (match[1], int(match[2])),
)  # fmt: skip
_COUNTS = Parsed(
    "n,n...", "a list of whole numbers",
    r" *(-?\d{1,9}|auto) *(, *(-?\d{1,9}|auto) *)*",
    lambda match: tuple(map(int, match[0].replace("auto", "0").split(","))),
)  # fmt: skip
_NUMBERS = Parsed(
    "x,x...", "a list of numbers", r" *-?\d*\.?\d{1,15} *(, *-?\d*\.?\d{1,15} *)*",
    lambda match: tuple(map(float, match[0].split(","))),
)  # fmt: skip
_SETTING = Parsed(
    "key=value", "a setting such as warmup=3", r"(\w+)=(.+)", lambda match: match.groups()
)


def read_value(text: str) -> str | int | float | bool:
    """A number, true or false as such; any other text stays text."""
    with contextlib.suppress(ValueError):
        value = json.loads(text)
        return value if isinstance(value, int | float) else text
    return text


def _split(_: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """The values of an option given several times, or with commas, which a file may have too."""
    parts = ([value] if Path(value).exists() else value.split(",") for value in values)
    return tuple(chain.from_iterable(parts))


#: The settings of an option by the annotation of its field, or by the ``type`` in its metadata.
_SETTINGS: dict[Any, dict[str, Any]] = {
    bool: {"is_flag": True},
    tuple[int, ...]: {"type": _COUNTS},
    tuple[float, ...]: {"type": _NUMBERS},
    tuple[str, ...]: {"multiple": True},
    tuple[tuple[str, int], ...]: {"type": _SIZE, "multiple": True},
    "several": {"multiple": True, "callback": _split},
    "assignment": {"type": ASSIGNMENT, "multiple": True},
    "duration": {"type": DURATION},
}


class _Option(click.Option):
    """An option whose help may name what plug-ins add: it is made when it is read."""

    def __init__(self, *names: Any, declared: Field[Any], **settings: Any) -> None:
        self.declared = declared
        super().__init__(*names, **settings)

    @property
    def help(self) -> str:  # type: ignore[override]
        """The text of the option."""
        return str(self.declared.metadata["help"]())

    @help.setter
    def help(self, text: str | None) -> None:
        """Click's own text is not used."""


class _Settings(click.Option):
    """Fields of records that have no option of their own, as ``--measure NAME=VALUE``.

    They become parameters of the command like those that have one.
    """

    def __init__(self, *names: Any, **settings: Any) -> None:
        settings |= {"type": _SETTING, "multiple": True, "metavar": "NAME=VALUE"}
        super().__init__(*names, expose_value=False, callback=self._set, **settings)
        self.known: dict[str, _Option] = {}

    def add(self, option: _Option) -> None:
        """Add a setting before the others."""
        self.known = {str(option.name): option} | self.known
        self.help = f"Set one of {', '.join(self.known)}; may be repeated."

    def _set(self, ctx: click.Context, _: click.Parameter, pairs: Sequence[Any]) -> None:
        given: dict[str, list[str]] = {}
        for name, text in pairs:
            if name not in self.known:
                raise unknown_name("setting", name, self.known, where="--measure")
            given.setdefault(name, []).append(text)
        for name, option in self.known.items():
            ctx.params[name] = option.declared.default
            if texts := given.get(name):
                ctx.params[name] = self._read(ctx, option, texts)
                ctx.set_parameter_source(name, click.core.ParameterSource.COMMANDLINE)

    def _read(self, ctx: click.Context, option: click.Option, texts: list[str]) -> Any:
        try:
            return option.type_cast_value(ctx, texts if option.multiple else texts[-1])
        except click.BadParameter as error:
            raise click.BadParameter(f"{option.name}: {error.message}", ctx, self) from None

    def describe(self, context: click.Context) -> list[tuple[str, str]]:
        """The name and the help of each setting, in the order of the records."""
        records = [(n, each.get_help_record(context)) for n, each in self.known.items()]
        return [(name, record[1]) for name, record in records if record]

    def find(self, flag: str) -> str:
        """The setting that somebody takes for an option; empty if there is none."""
        name = flag.lstrip("-").replace("-", "_").removeprefix("no_")
        return next((each for each in (name, f"{name}_s") if each in self.known), "")


def _make_option(declared: Field[Any], annotation: Any) -> tuple[list[str], dict[str, Any]]:
    """The click option of a field: its type by the annotation, the rest by the metadata."""
    cli, default = dict(declared.metadata["cli"]), declared.default
    flag = f"--{cli.pop('name', declared.name).replace('_', '-')}"
    settings = {
        "default": default,
        "declared": declared,
        "show_default": bool(default) and default is not True,
        **_SETTINGS.get(cli.pop("type", annotation), {"type": annotation}),
        **cli,
    }
    switch = f"{flag}/--no-{flag[2:]}" if default is True else flag
    return [switch, declared.name], settings


#: The title above an option in the help of a command that has many, in this order.
_GROUPS: dict[str, str] = {}


def options_of(
    record: type[Any], name: str, title: str
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """A decorator: one option per field; the command gets the record as keyword ``name``."""
    annotations = get_type_hints(record)
    _GROUPS.update((each.name, title) for each in fields(record) if each.name not in _GROUPS)

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(command)
        def call(**values: Any) -> T:
            chosen = {each.name: values.pop(each.name) for each in fields(record)}
            return command(**values, **{name: record(**chosen)})

        params = getattr(command, "__click_params__", [])
        settings = next((each for each in params if isinstance(each, _Settings)), None)
        for each in reversed(fields(record)):
            names, kind = _make_option(each, annotations[each.name])
            if not each.metadata["expert"]:
                call = click.option(*names, cls=_Option, **kind)(call)
            elif settings is None:
                call = click.option("--measure", "settings", cls=_Settings)(call)
                settings = call.__click_params__[-1]  # type: ignore[attr-defined]
                settings.add(_Option(names, **kind))
            else:
                settings.add(_Option(names, **kind))
        return call

    return decorate


def collect_options(record: type[Record], params: Mapping[str, Any]) -> Record:
    """The record of options, of all parameters of a command."""
    return record(**{name: params[name] for name in inspect.signature(record).parameters})


BASELINE = click.option(
    "--baseline", default="", help="Experiment to compare the others with [default: chosen]."
)


#: The resource that each option limits, and why the command exits with 1.
_LIMITS = {
    "fail_start_above": ("first output", "the first output came later"),
    "fail_memory_above": ("peak memory", "memory grew"),
    "fail_above": ("latency", "slower"),
}


def with_limits(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options whose values are the command's ``limits``, by resource."""

    @functools.wraps(command)
    def limited(**given: Any) -> Any:
        values = {resource: given.pop(name) for name, (resource, _) in _LIMITS.items()}
        limits_of = {resource: value for resource, value in values.items() if value is not None}
        return command(**given, limits=limits_of)

    for name, (_, text) in _LIMITS.items():
        flag, help_text = f"--{name.replace('_', '-')}", f"Exit 1 if {text} by more than this."
        limited = click.option(flag, type=PERCENT, help=help_text)(limited)
    return limited


QUIET = click.option("--quiet", is_flag=True, help="Print files only, without the summary.")
OUT = click.option("--out", type=PATH, help="Output folder [default: out_<model>].")
CATEGORIES = click.option(
    "--categories",
    default="",
    callback=check_categories,
    metavar="FILE|kit",
    help="Categories of operators: a YAML file of rules, or those of Arm's profiling kit.",
)
EXPORT_OPTIONS = options_of(ExportOptions, "export", "Export")
RUN_OPTIONS = options_of(MeasureOptions, "measure", "Measurement")


def print_now(lines: Iterable[object]) -> None:
    """Print lines of a command's output before it has ended; none with ``--json``."""
    if click.get_current_context().meta[JSON]:
        return
    with above_bar():
        for line in lines:
            write(line)


def say(text: object) -> None:
    """Print a line for people, which may quote untrusted files, on stderr."""
    write(str(text), err=True)


JSON = "--json"


@dataclass(frozen=True)
class Output:
    """What a command returns: ``lines`` for people, ``record`` for programs.

    The record may be filled while lines are generated. ``notes`` and ``step``, what to do next or
    what says so afterwards, go to stderr. ``failures`` are what the command promised and could not
    make, each with its next step; they may be added meanwhile, are said last, and make the exit
    code 1. ``then`` runs after the output.
    """

    lines: Iterable[object]
    record: Mapping[str, Any]
    exit_code: int = 0
    then: Callable[[], None] | None = None
    step: str | Callable[[], str] = ""
    notes: tuple[str, ...] = ()
    failures: list[str] = field(default_factory=list)


#: A command with more options has them in groups.
_MANY = 15


class Command(click.Command):
    """A command whose function returns an ``Output``; ``--json`` prints its record.

    The ``maker`` makes what ``%workbench`` returns: a function of the subject, its inputs and the
    parameters.
    """

    def __init__(self, *arguments: Any, maker: Callable[..., Any] | None = None, **options: Any):
        self.maker = maker
        super().__init__(*arguments, **options)
        text = "Print one JSON document, also for errors."
        self.params.append(click.Option([JSON], is_flag=True, help=text))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words of a command line; an unknown option has those that look like it."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            # Without their dashes, which make all options look alike.
            names = {near.lstrip("-"): near for near in error.possibilities or ()}
            near = difflib.get_close_matches(error.option_name.lstrip("-"), names)
            near_names = [names[each] for each in near]
            settings = (each for each in self.params if isinstance(each, _Settings))
            name = next((each.find(error.option_name) for each in settings), "")
            text = f"{error.option_name} is a setting: --measure {name}=VALUE." if name else None
            raise click.NoSuchOption(
                error.option_name, text, possibilities=[] if text else near_names, ctx=error.ctx
            ) from None

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help of the options, in groups if there are many."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(context):
            group = _GROUPS.get(str(option.name)) if len(self.params) > _MANY else None
            record = option.get_help_record(context)
            if record and isinstance(option, click.Option):
                groups.setdefault(f"{group} options" if group else "Options", []).append(record)
            if isinstance(option, _Settings):
                groups["Settings of --measure"] = option.describe(context)
        for title, records in sorted(groups.items(), key=lambda group: group[0] == "Options"):
            with formatter.section(title):
                formatter.write_dl(records)

    def invoke(self, context: click.Context) -> int:
        """Run the command and print its output; returns the exit code."""
        as_json = context.meta[JSON] = context.params.pop("json")
        with claim_stdout():
            result: Output = super().invoke(context)
            for line in result.lines:
                if not as_json:
                    write(line)
            if as_json:
                failures = {"failures": result.failures} if result.failures else {}
                click.echo(to_document({**result.record, **failures}), output(), nl=False)
        for note in result.notes:
            say(note)
        step = result.step if isinstance(result.step, str) else result.step()
        if step and not as_json and not result.failures:
            say(f"next: {step}")
        for failure in result.failures:
            say(f"error: {failure}")
        if result.then:
            result.then()
        return 1 if result.failures else result.exit_code


command = functools.partial(click.command, cls=Command)


def command_line(name: str, *words: object) -> str:
    """A command line of the workbench, quoted for a shell; in a notebook, that of the magic."""
    names = variables()
    magic = "%" if names is not None else ""
    return f"{magic}workbench {name} {shlex.join((names or {}).get(str(w), str(w)) for w in words)}"


def variables() -> dict[str, str] | None:
    """Of the magic, the notebook's variables by the paths of the runs that they hold; else None."""
    context = click.get_current_context(silent=True)
    return context.find_root().obj if context else None


def outline_error(error: BaseException, exit_code: int) -> dict[str, Any]:
    """The record of an error, for ``--json``."""
    kind, what, where, hint = type(error).__name__, str(error), None, None
    if isinstance(error, WorkbenchError):
        what, where, hint = error.what, error.where, error.hint
    elif isinstance(error, click.ClickException):
        kind, what = UsageError.__name__, error.format_message()
    facts = {"kind": kind, "what": what, "where": where, "hint": hint, "exit_code": exit_code}
    return {"error": facts}

"""The command line: one subcommand per stage, each a few lines over one function."""

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import NoReturn

import click
from click.shell_completion import get_completion_class

from workbench.cli import analysis, mcp, work
from workbench.cli.options import JSON, describe_error, say
from workbench.errors import UsageError, WorkbenchError
from workbench.records.codec import to_document
from workbench.store import atomic_write

INTERRUPTED = 130
DEBUG = "--debug"
#: Where each shell looks for completions, and what it needs to look there.
COMPLETIONS = {
    "bash": ("~/.local/share/bash-completion/completions/workbench", "needs bash-completion"),
    "fish": ("~/.config/fish/completions/workbench.fish", "read by new shells"),
    "zsh": ("~/.zfunc/_workbench", "in ~/.zshrc: fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed job, 2 usage, 130 interrupted."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    try:
        with warnings.catch_warnings():
            if DEBUG not in arguments:  # commands report problems as lines of their own
                warnings.showwarning = lambda *_, **__: None
                os.environ.setdefault("PYTHONWARNINGS", "ignore")  # of child processes
            sys.exit(workbench.main(arguments, "workbench", standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show(sys.stderr)
        fail(error, error.exit_code, arguments)
    except (KeyboardInterrupt, click.Abort) as error:
        click.echo("interrupted; run the same command again to resume", err=True)
        fail(error, INTERRUPTED, arguments)
    except (WorkbenchError, OSError) as error:
        if DEBUG in arguments:
            raise
        say(f"error: {error}")
        fail(error, getattr(error, "exit_code", 1), arguments)


def fail(error: BaseException, exit_code: int, arguments: list[str]) -> NoReturn:
    """Exit after an error. Arguments may be unparsed: ``--json`` is looked up among the words."""
    if JSON in arguments:
        click.echo(to_document(describe_error(error, exit_code)), nl=False)
    sys.exit(exit_code)


def install_completion(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Write click's completion script to where the user's shell looks for it, and exit."""
    if not wanted or context.resilient_parsing:
        return
    shell = Path(os.environ.get("SHELL", "")).name
    complete = get_completion_class(shell)
    if complete is None or shell not in COMPLETIONS:
        hint = "SHELL=bash workbench --install-completion"
        raise UsageError(f"no completion for shell {shell!r}; known: bash, fish, zsh", hint=hint)
    script = complete(workbench, {}, "workbench", "_WORKBENCH_COMPLETE").source()
    place, note = COMPLETIONS[shell]
    say(f"{shell}: {note}")
    click.echo(atomic_write(Path(place).expanduser(), script))
    context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(DEBUG, is_flag=True, help="Show Python's warnings, and the traceback of an error.")
@click.option(
    "--install-completion",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=install_completion,
    help="Install completion of commands and options for your shell.",
)
@click.version_option(package_name="executorch-workbench")
def workbench(debug: bool) -> None:
    """Find performance bottlenecks in ExecuTorch models, with evidence."""


for added in (*work.COMMANDS, *analysis.COMMANDS, mcp.mcp):
    workbench.add_command(added)

"""The command line: one subcommand per stage, each a few lines over one function."""

import contextlib
import faulthandler
import gc
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from typing import Any, NoReturn

import click

from workbench import plugin
from workbench.cli import analysis, work
from workbench.cli.command import JSON, outline_error, say
from workbench.errors import WorkbenchError
from workbench.process import open_closed_streams, with_stack, write_bytecode
from workbench.records.codec import to_document

INTERRUPTED = 130
DEBUG = "--debug"
#: How the line of an error ends that no code foresees.
REPORT = "if no code of yours is, please report it"
#: Seconds that a process may take to end after its command has.
LONGEST_EXIT_S = 5.0


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 1 failed job, 2 usage, 130 interrupted."""
    if arguments is not None:
        _run(arguments)
    write_bytecode()
    open_closed_streams()
    faulthandler.enable(2)  # where a library ends the process by a signal, its place is said
    try:
        _run(sys.argv[1:])
    except SystemExit as end:
        gc.freeze()  # to take PyTorch apart at the end took a second
        _limit_exit(int(end.code or 0))
        raise


def _run(arguments: list[str]) -> NoReturn:
    """Run a command line and exit."""
    gc.set_threshold(300_000)  # collecting garbage took a seventh of a command's time
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    try:
        with warnings.catch_warnings():
            if DEBUG not in arguments:  # commands report problems as lines of their own
                warnings.showwarning = _show_warning
                warnings.simplefilter("default", plugin.PluginWarning)
                os.environ.setdefault("PYTHONWARNINGS", "ignore")  # of child processes
            run = with_stack(workbench.main)
            sys.exit(run(arguments, "workbench", standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show(sys.stderr)
        fail(error, error.exit_code, arguments)
    except (KeyboardInterrupt, click.Abort) as error:
        click.echo("interrupted; run the same command again to resume", err=True)
        fail(error, INTERRUPTED, arguments)
    except BrokenPipeError:  # the reader of the output has ended, as `head` does
        sys.exit(1)
    except Exception as error:  # a user sees one line, whatever went wrong
        if DEBUG in arguments:
            raise
        problem = _explain(error)
        say(f"error: {problem}")
        fail(problem, problem.exit_code, arguments)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Of warnings, say only that a plug-in failed."""
    if issubclass(category, plugin.PluginWarning):
        say(f"warning: {message}")


def _explain(error: Exception) -> WorkbenchError:
    """The error to show for any other one: a line, and how to see the rest."""
    if isinstance(error, WorkbenchError):
        return error
    if isinstance(error, OSError):
        return WorkbenchError(error.strerror or str(error), where=error.filename)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    what = f"unexpected {type(error).__name__}: {error}"
    hint = f"`workbench {DEBUG} ...` shows where; {REPORT}"
    return WorkbenchError(what, where=f"{frame.filename}:{frame.lineno}", hint=hint)


def _limit_exit(exit_code: int) -> None:
    """End the process soon and silently, whatever threads and exit handlers a model has left."""
    with contextlib.suppress(AttributeError, OSError):  # closed, or full
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        os.dup2(2, 1)

    def end() -> None:
        time.sleep(LONGEST_EXIT_S)
        os._exit(exit_code)

    threading.Thread(target=end, daemon=True).start()


def fail(error: BaseException, exit_code: int, arguments: list[str]) -> NoReturn:
    """Exit after an error. Arguments may be unparsed: ``--json`` is looked up among the words."""
    if JSON in arguments:
        with contextlib.suppress(OSError):  # standard output may be what failed
            click.echo(to_document(outline_error(error, exit_code)), nl=False)
    sys.exit(exit_code)


class Commands(click.Group):
    """The commands of the workbench, and those that plug-ins add."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, sorted."""
        return sorted({*self.commands, *plugin.list_names("commands")})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command; plug-ins are looked into for names that are no commands of the workbench."""
        return self.commands.get(cmd_name) or plugin.find("commands", cmd_name)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(DEBUG, is_flag=True, help="Show Python's warnings, and the traceback of an error.")
@click.version_option(package_name="executorch-workbench")
def workbench(debug: bool) -> None:
    """Find performance bottlenecks in ExecuTorch models, with evidence."""


for added in (*work.COMMANDS, *analysis.COMMANDS):
    workbench.add_command(added)

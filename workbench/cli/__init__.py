"""The command line: one subcommand per stage, each a few lines over one function."""

import atexit
import gc
import os
import signal
import sys
import warnings
from typing import NoReturn

import click

from workbench.cli import analysis, mcp, skills, work
from workbench.cli.options import JSON, describe_error, say
from workbench.errors import WorkbenchError
from workbench.records.codec import to_document

INTERRUPTED = 130
DEBUG = "--debug"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed job, 2 usage, 130 interrupted."""
    if arguments is None:
        atexit.register(gc.freeze)  # to take PyTorch apart at the end took a second
        arguments = sys.argv[1:]
    gc.set_threshold(300_000)  # collecting garbage took a seventh of a command's time
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
        if isinstance(error, OSError):
            error = WorkbenchError(error.strerror or str(error), where=error.filename)
        say(f"error: {error}")
        fail(error, getattr(error, "exit_code", 1), arguments)


def fail(error: BaseException, exit_code: int, arguments: list[str]) -> NoReturn:
    """Exit after an error. Arguments may be unparsed: ``--json`` is looked up among the words."""
    if JSON in arguments:
        click.echo(to_document(describe_error(error, exit_code)), nl=False)
    sys.exit(exit_code)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(DEBUG, is_flag=True, help="Show Python's warnings, and the traceback of an error.")
@click.version_option(package_name="executorch-workbench")
def workbench(debug: bool) -> None:
    """Find performance bottlenecks in ExecuTorch models, with evidence."""


for added in (*work.COMMANDS, *analysis.COMMANDS, skills.skills, mcp.mcp):
    workbench.add_command(added)

"""Whether somebody watches, and the display of a long job's progress."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from workbench.errors import Interrupted, printable
from workbench.options import Progress

WIDGETS = "WORKBENCH_WIDGETS"  #: Environment variable that forces (1) or forbids (0) widgets.
#: What stays above a bar, and what goes with it.
WARNING, SO_FAR, ANSWER = "warning: ", "so far: ", "answer: "
LONG_SILENCE_S = 30  #: Where there is no bar, a stage that takes longer is named again.


@contextlib.contextmanager
def show_progress(given: Progress | None = None) -> Iterator[Progress]:
    """Show the stage and the elapsed time of a long job, unless ``given`` does so.

    In a notebook and on a terminal that is a bar, elsewhere lines on standard error. An interrupt
    of the job is one line of a notebook.

    Examples
    --------
    >>> with show_progress() as progress:  # doctest: +SKIP
    ...     progress("exporting", 0.1)
    """
    try:
        if given:
            yield given
        elif library := "tqdm.notebook" if is_interactive() else "tqdm" * sys.stderr.isatty():
            with _show_bar(import_module(library).tqdm) as progress:
                yield progress
        else:
            with _write_lines() as progress:
                yield progress
    except KeyboardInterrupt:
        raise Interrupted from None


def is_interactive() -> bool:
    """Whether a front end takes input (papermill does not); ``WORKBENCH_WIDGETS`` overrides it."""
    if (forced := os.environ.get(WIDGETS)) in ("0", "1"):
        return forced == "1"
    kernel = _kernel()
    request = (kernel.get_parent() if kernel else None) or {}
    moved = request.get("msg_type") == "comm_msg"  # a control was moved: only a front end does that
    return moved or bool(request.get("content", {}).get("allow_stdin"))


def _kernel() -> Any:
    """The Jupyter kernel that this code runs in, if any."""
    ipython = sys.modules.get("IPython")
    return getattr(ipython.get_ipython(), "kernel", None) if ipython else None


@contextlib.contextmanager
def _show_bar(tqdm: Any) -> Iterator[Progress]:
    bar_format = "{percentage:3.0f} % |{bar:16}| {elapsed}<{remaining} {desc}"
    options = {"bar_format": bar_format, "leave": False, "smoothing": 0, "dynamic_ncols": True}
    in_notebook = tqdm.__module__ == "tqdm.notebook"
    bar = tqdm(total=1.0, **options, **({"display": False} if in_notebook else {}))
    display = _display(bar.container) if in_notebook else contextlib.nullcontext()
    with bar, display, _repeat(bar.refresh):
        verdict = ""

        def show(text: str, part: float) -> None:
            nonlocal verdict
            text = printable(text)
            if WARNING in text:
                bar.write(text, file=sys.stdout if _kernel() else sys.stderr)
                return
            for mark in (SO_FAR, ANSWER):
                if mark in text:
                    verdict = f"; {mark}{text.partition(mark)[2]}"
                    return
            bar.set_description_str(text + verdict)
            bar.update(part - bar.n)

        yield show


@contextlib.contextmanager
def above_bar() -> Iterator[None]:
    """Print above the bar of a terminal, if there is one, which comes back afterwards."""
    tqdm = sys.modules.get("tqdm")
    with tqdm.tqdm.external_write_mode(sys.stderr) if tqdm else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _display(container: Any) -> Iterator[None]:
    """Display a widget for a while; a notebook that is saved and opened again has nothing of it."""
    from IPython.display import display

    handle = display(container, display_id=True)
    try:
        yield
    finally:
        if handle:  # else there is no front end
            handle.update({"text/html": ""}, raw=True)


@contextlib.contextmanager
def _write_lines() -> Iterator[Progress]:
    stream = sys.stdout if _kernel() else sys.stderr
    started = last = time.monotonic()
    stage = ""

    def write(text: str, part: float) -> None:
        nonlocal stage, last
        if stage == printable(text) and time.monotonic() - last < LONG_SILENCE_S:
            return
        stage, last = printable(text), time.monotonic()
        target = sys.stderr if stream.closed else stream  # a model's file may close it
        print(f"{last - started:4.0f} s  {stage}", file=target, flush=True)

    def remind() -> None:
        if stage and time.monotonic() - last > LONG_SILENCE_S:
            write(stage, 0.0)

    with _repeat(remind):
        yield write


@contextlib.contextmanager
def _repeat(action: Callable[[], object]) -> Iterator[None]:
    """Call an action every second, in a thread, so that a long stage shows its time."""
    done = threading.Event()

    def repeat() -> None:
        while not done.wait(1):
            action()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()

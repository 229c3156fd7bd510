"""An end to work that never comes to one."""

from __future__ import annotations

import contextlib
import faulthandler
from collections.abc import Iterator
from pathlib import Path

from workbench.errors import WorkbenchError
from workbench.files import write_whole

#: What `faulthandler` writes before the tracebacks.
_OVER = "Timeout ("


@contextlib.contextmanager
def limit_time(note: Path, attempt: str, seconds: float) -> Iterator[None]:
    """End this process if what it does within takes longer; whoever tries again is told.

    A model may hang in native code, which no exception reaches. Where it was goes to ``note``, a
    file; ``attempt`` tells later whether it is of the same one. Of the threads of a process only
    one can be limited at a time.

    Raises
    ------
    WorkbenchError
        An earlier try of this attempt was ended so.
    StoreError
        The note cannot be written.
    """
    earlier = note.read_text(errors="replace") if note.exists() else ""
    if earlier.startswith(attempt) and _OVER in earlier:
        note.unlink()
        error = WorkbenchError(
            f"did not end within {seconds:g} s", hint="its log says where it was"
        )
        error.add_note(earlier)
        raise error
    write_whole(note, f"{attempt}\n")
    with open(note, "a") as file:
        faulthandler.dump_traceback_later(seconds, exit=True, file=file)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            note.unlink(missing_ok=True)

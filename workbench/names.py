"""Names that people give: variables, labels of runs, and notes."""

import inspect
import sys
from collections.abc import Mapping, Sequence

from workbench.errors import UsageError

#: Letters of a label, and of a note.
LONGEST_LABEL, LONGEST_NOTE = 60, 2_000


def check_label(text: str) -> str:
    """A label without the spaces around it; UsageError if it is long, or more than a line."""
    label = text.strip()
    if len(label) > LONGEST_LABEL:
        what = f"has {len(label)} letters, of at most {LONGEST_LABEL}"
        raise UsageError(what, where="--label", hint="run.note(...) takes longer texts")
    if not label.isprintable():
        raise UsageError(f"{label!r} is not one line of letters", where="--label")
    return label


def find_variables(things: Sequence[object]) -> list[str]:
    """The caller's variable that holds each thing; empty if none does, or several do.

    The caller is the nearest function outside of the workbench: its local variables count, then
    those of its module or notebook.
    """
    frame = inspect.currentframe()
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] == "workbench":
        frame = frame.f_back
    if frame is None:  # a thread of ours
        return [""] * len(things)
    scopes = [frame.f_locals, frame.f_globals]
    return [_find_variable(thing, scopes) for thing in things]


def name_in_main(thing: object, otherwise: str) -> str:
    """A variable of the notebook, or of the script that runs, that holds a thing."""
    held = vars(sys.modules["__main__"]).items()
    return next((name for name, value in held if value is thing and name[0] != "_"), otherwise)


def _find_variable(thing: object, scopes: Sequence[Mapping[str, object]]) -> str:
    for scope in scopes:
        held = [name for name, value in scope.items() if value is thing and name[0] != "_"]
        if held:
            return held[0] if len(held) == 1 else ""
    return ""


def number_equal(names: Sequence[str]) -> list[str]:
    """The names; equal ones get a number from the second on.

    Examples
    --------
    >>> from workbench.names import number_equal
    >>> number_equal(["Net", "wider", "Net"])
    ['Net', 'wider', 'Net (2)']
    """
    seen: dict[str, int] = {}
    numbered = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        numbered.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return numbered

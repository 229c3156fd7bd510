"""The errors of the workbench: each states what is wrong, where, and the next step."""

import difflib
import importlib.util
import json
import re
import shlex
import sys
import traceback
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote, urlsplit

PACKAGE = "executorch-workbench"
#: Control characters, and those that change the direction of text or are invisible.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff"
    "\ufff0-\ufffb\ufffe\uffff\U000e0000-\U000e0fff]"
)


def printable(text: str) -> str:
    """Text for a terminal or a document: of untrusted characters, only harmless ones."""
    return _UNPRINTABLE.sub("?", text)


def _shorten(part: object) -> str:
    text = str(part)  # which may quote untrusted files
    return text if len(text) <= 800 else f"{text[:800]}..."


class WorkbenchError(Exception):
    """A job failed: what is wrong, in which file, operator or option, and the next step.

    With ``install``, the next step is to install that package.

    Examples
    --------
    >>> try:
    ...     wb.sample_run("vit_tini")
    ... except wb.WorkbenchError as error:
    ...     print(error)
    unknown sample 'vit_tini' -> did you mean 'vit_tiny'? valid: ...
    """

    exit_code = 1
    shown = False

    def __init__(
        self, what: str, *, where: object = None, hint: str | None = None, install: str = ""
    ) -> None:
        hint = install_command(install) if install else hint
        self.what, self.where, self.hint = what, where, hint
        super().__init__(what, where, hint)

    def __reduce__(self) -> tuple[Any, ...]:
        # To unpickle an error of another process without __init__, which takes keywords.
        return type(self).__new__, (type(self), *self.args), self.__dict__

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: one line, and the traceback when ``%tb`` asks for it."""
        if self.shown:
            return traceback.format_exception(self)
        self.shown = True
        return [f"{type(self).__name__}: {self}", "(%tb shows where it was raised)"]

    def __str__(self) -> str:
        place = f"{_shorten(self.where)}: " if self.where is not None else ""
        step = f" -> {_shorten(self.hint)}" if self.hint else ""
        return printable(" ".join(f"{place}{_shorten(self.what)}{step}".split()))


class Interrupted(KeyboardInterrupt):
    """A person interrupted a job: in a notebook one line, not where it was interrupted."""

    def _render_traceback_(self) -> list[str]:
        return ["interrupted; run the cell again to resume"]


class UsageError(WorkbenchError):
    """A bad argument, name or configuration."""

    exit_code = 2


class UnknownAttribute(UsageError, AttributeError):
    """An attribute that a module or a noun does not have."""


class ExportError(WorkbenchError):
    """``torch.export`` or the lowering failed."""


class RunnerError(WorkbenchError):
    """The runner reported a failure, which it calls ``kind`` (``truncated``, ``isa``, ...)."""

    def __init__(self, what: str, *, where: object = None, hint: str | None = None, kind: str = ""):
        super().__init__(what, where=where, hint=hint)
        self.kind = kind


class TargetError(WorkbenchError):
    """A device that cannot be reached, or a command on it that failed."""


class TraceError(WorkbenchError):
    """A malformed trace, at the byte ``offset`` of its file."""

    def __init__(
        self, what: str, *, where: object = None, hint: str | None = None, offset: int | None = None
    ):
        at = "" if offset is None else f" (at byte {offset})"
        super().__init__(f"{what}{at}", where=where, hint=hint)


class StoreError(WorkbenchError):
    """An artifact that is missing, corrupt or foreign."""


def install_command(*arguments: str) -> str:
    """The command that installs packages for this Python, which may have no pip of its own.

    The workbench, with or without extras, is installed from where it came: it is on no index.
    """
    pip = [sys.executable, "-m", "pip", "install"]
    # The Python that made the environment: `python3` may be that of the environment.
    base = getattr(sys, "_base_executable", "") or "python3"
    other = [base, "-m", "pip", "--python", sys.executable, "install"]
    words = [word for argument in arguments for word in _locate_package(argument)]
    return shlex.join([*(pip if importlib.util.find_spec("pip") else other), *words])


def _locate_package(requirement: str) -> list[str]:
    """What pip is given for a requirement: of the workbench, a checkout, a file or a URL."""
    if not requirement.startswith(PACKAGE):
        return [requirement]
    from importlib import metadata

    extras = requirement.removeprefix(PACKAGE)
    records = [dist.read_text("direct_url.json") for dist in metadata.distributions(name=PACKAGE)]
    origin = json.loads(next(filter(None, records), "{}"))
    url = urlsplit(origin.get("url", ""))
    if url.scheme == "file":
        editable = ["-e"] if origin.get("dir_info", {}).get("editable") else []
        return [*editable, f"{unquote(url.path)}{extras}"]
    if url.scheme:
        source, version = origin["url"], origin.get("vcs_info")
        source = f"{version['vcs']}+{source}@{version['commit_id']}" if version else source
        return [f"{PACKAGE}{extras} @ {source}"]
    return ["-e", f".{extras}"]  # in a checkout


def unknown_name(what: str, name: str, valid: Iterable[str], where: object = None) -> UsageError:
    """The error for a name that is not among the valid ones, with the nearest one first."""
    valid = sorted(valid)
    near = difflib.get_close_matches(name, valid, n=1)
    guess = f"did you mean {near[0]!r}? " if near else ""
    return UsageError(
        f"unknown {what} {name!r}", where=where, hint=f"{guess}valid: {', '.join(valid) or 'none'}"
    )


def unknown_attribute(
    owner: str, name: str, valid: Iterable[str], note: str = ""
) -> UnknownAttribute:
    """The error for an attribute that something does not have, with the nearest ones."""
    near = difflib.get_close_matches(name, valid, n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "dir() of it lists them"
    return UnknownAttribute(f"{owner} has no attribute {name!r}{note}", hint=hint)

"""Plug-ins: what one adds to the workbench, and which are installed.

Each folder of ``workbench/plugins`` is one. Another package brings a plug-in by an entry point of
the group ``workbench.plugins``:

    [project.entry-points."workbench.plugins"]
    sigmoids = "sigmoids:PLUGIN"

and in ``sigmoids.py``:

    from workbench.api import Plugin

    PLUGIN = Plugin(
        commands={"sigmoids": "sigmoids.command:sigmoids"},
        rules={"sigmoid": "sigmoids.rule:find_sigmoids"},
        views={"sigmoids": "sigmoids.page:VIEW"},
    )

The workbench imports none of this before it is used, and goes on without a plug-in that fails:
`workbench doctor` names it. The variable ``WORKBENCH_PLUGINS=-sigmoids`` switches one off, and
``WORKBENCH_PLUGINS=remedies,sigmoids`` all others.
"""

import os
import pkgutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any

from workbench.errors import unknown_attribute
from workbench.key import make_key

GROUP = "workbench.plugins"
#: Of those that come with the workbench: each folder in it is one.
OURS = Path(__file__).parent / "plugins"
References = Mapping[str, str]


class PluginWarning(UserWarning):
    """A plug-in failed; everything else goes on."""


@dataclass(frozen=True)
class Section:
    """A section of the report, which shows a view of the run: its heading, what it is about.

    It follows the section with the heading ``after``, or all that are about results.
    """

    heading: str
    text: str
    after: str = ""
    folded: bool = True


@dataclass(frozen=True)
class Attribute:
    """An attribute, and where it is shown beside notebooks.

    ``summary`` is its key in ``analysis_summary.json``, ``explored`` that of a frame of
    measurements in the data of an explorer; `workbench run` prints the sentences of a ``printed``
    one. ``page`` is the file of an HTML page, which lies beside the report and is linked there.
    """

    reference: str
    summary: str = ""
    explored: str = ""
    printed: bool = False
    page: str = ""


@dataclass(frozen=True)
class Plugin:
    """What a plug-in adds, by name; each is a reference ``module:attribute``.

    Attributes
    ----------
    commands
        Commands of the command line, made by `command`. With ``command(maker=...)``, a function of
        the subject, its inputs and the parameters makes the object that ``%workbench`` returns.
    attributes
        ``workbench.NAME``: public names. ``Run.NAME``, ``Measurement.NAME``, ``Comparison.NAME``:
        functions of one, called when the attribute is first asked for; frames are marked as those
        of the workbench are. Where these are shown, too: `Attribute`.
    rules
        Functions of a measurement and of the keys of its operators that no rule explained before,
        which yield `Finding`; or a `Rule`, which also names the section that has the evidence, or
        revises the findings of all rules.
    views
        Views of ``show``, `View`; one with a `Section` is a part of the report.
    models
        By its name, the module or `EagerModelBase` that defines a model. By a word and a colon, as
        in ``llm:``, a function of the rest of such names, which may be a file and settings after
        commas; it returns an `EagerModelBase`.
    remedies
        Remedies for ``--rewrite NAME`` and findings, with what finds and applies them: `Remedies`.
    sides
        Other runtimes for ``--against``: `Side`.
    targets
        Other machines for ``--target``, by the form of their names, such as ``ssh:HOST``: `Host`.
    """

    commands: References = field(default_factory=dict)
    attributes: Mapping[str, str | Attribute] = field(default_factory=dict)
    rules: References = field(default_factory=dict)
    views: References = field(default_factory=dict)
    models: References = field(default_factory=dict)
    remedies: References = field(default_factory=dict)
    sides: References = field(default_factory=dict)
    targets: References = field(default_factory=dict)

    def references(self, kind: str) -> dict[str, str]:
        """The references of a kind, by name."""
        added = getattr(self, kind).items()
        return {n: each.reference if isinstance(each, Attribute) else each for n, each in added}


KINDS = tuple(each.name for each in fields(Plugin))


def list_plugins() -> dict[str, Plugin]:
    """The plug-ins that are installed and can be imported, by name.

    One warning names all others: whoever deletes the folders of some knows it.
    """
    return load_plugins()[0]


@cache
def load_plugins() -> tuple[dict[str, Plugin], dict[str, Exception]]:
    """The plug-ins by name, and why others have none. Imports nothing of what they add."""
    plugins, problems = {}, dict[str, Exception]()
    for entry in _list_entries():
        try:
            plugins[entry.name] = _load(entry)
        except Exception as error:  # the code of others may raise anything
            problems[entry.name] = error
    if problems:
        warn(", ".join(problems), next(iter(problems.values())))
    _warn_of_equals(plugins)
    return plugins, problems


def _warn_of_equals(plugins: Mapping[str, Plugin]) -> None:
    """Say what is unused, as a plug-in before has one of the same kind and name."""
    owners: dict[tuple[str, str], str] = {}
    for owner, plugin in plugins.items():
        for kind in KINDS:
            for name in getattr(plugin, kind):
                first = owners.setdefault((kind, name), owner)
                if first != owner:
                    warn(owner, ValueError(f"{name!r} of {kind} is that of plug-in {first}"))


def _list_entries() -> list[EntryPoint]:
    """The folders that come with the workbench, and the entry points of other packages.

    The variable ``WORKBENCH_PLUGINS`` lists those to use, or with ``-NAME``, those to leave out.
    """
    folders = [path.parent.name for path in OURS.glob("*/__init__.py")]
    entries = {name: EntryPoint(name, f"{GROUP}.{name}:PLUGIN", GROUP) for name in folders}
    for entry in entry_points(group=GROUP):
        first = entries.setdefault(entry.name, entry)
        if first is not entry:
            warn(entry.name, ValueError(f"{entry.value} is not used: {first.value} has its name"))
    words = [word.strip() for word in os.environ.get("WORKBENCH_PLUGINS", "").split(",")]
    listed = {word for word in words if word and not word.startswith("-")}
    names = {*entries} & listed if listed else {*entries}
    return [entries[name] for name in sorted(names) if f"-{name}" not in words]


def _load(entry: EntryPoint) -> Plugin:
    plugin = entry.load()
    if not isinstance(plugin, Plugin):
        raise TypeError(f"{entry.value} is a {type(plugin).__name__}, not a Plugin")
    return plugin


def warn(name: str, error: BaseException, kind: str = "plug-in") -> None:
    """Warn, once, that a plug-in, or what one may add, failed."""
    reason = f"{type(error).__name__}: {error}"
    warnings.warn(f"{kind} {name}: {reason}", PluginWarning, stacklevel=2)


def list_names(kind: str) -> list[str]:
    """The names that plug-ins add of a kind, without an import of what they stand for."""
    return [name for plugin in list_plugins().values() for name in getattr(plugin, kind)]


def find(kind: str, name: str) -> Any:
    """What a plug-in adds under a name; None if there is none, or if it cannot be imported."""
    for owner, plugin in list_plugins().items():
        if reference := plugin.references(kind).get(name):
            try:
                return pkgutil.resolve_name(reference)
            except Exception as error:  # of a plug-in, which costs itself only
                warn(owner, error)
    return None


def collect(kind: str) -> dict[str, Any]:
    """All that plug-ins add of a kind and that can be imported, by name."""
    parts = {name: find(kind, name) for name in list_names(kind)}
    return {name: part for name, part in parts.items() if part is not None}


def list_files(kind: str) -> dict[str, list[Path]]:
    """The files of each plug-in that adds something of a kind which can be imported, by its name.

    They are those of its packages and, if it was installed as such, of its distribution.
    """
    entries = {entry.name: entry for entry in _list_entries()}
    files = {}
    for owner, plugin in list_plugins().items():
        references = plugin.references(kind).items()
        added = [ref for name, ref in references if find(kind, name) is not None]
        if added:
            files[owner] = _list_sources(entries[owner], added)
    return files


def _list_sources(entry: EntryPoint, references: Iterable[str]) -> list[Path]:
    """The files of a plug-in's packages and, if it was installed as such, of its distribution."""
    modules = {entry.module, *(reference.partition(":")[0] for reference in references)}
    listed = {file for module in modules for file in _list_package(module)}
    listed.update(_list_distribution(entry))
    return sorted(file for file in listed if file.suffix != ".pyc")


def _list_package(module: str) -> Iterator[Path]:
    """The files of the outermost package that a module is in; of one in none, its own."""
    spec = find_spec(module)
    file = Path(spec.origin if spec and spec.origin else module)
    if file.is_relative_to(OURS):
        place = OURS / file.relative_to(OURS).parts[0]
    else:
        folders = takewhile(lambda folder: (folder / "__init__.py").is_file(), file.parents)
        place = [file, *folders][-1]
    yield from filter(Path.is_file, [place, *place.rglob("*")])


def _list_distribution(entry: EntryPoint) -> Iterator[Path]:
    files = (entry.dist.files or ()) if entry.dist else ()
    paths = (Path(str(file.locate())) for file in files)
    yield from (path.resolve() for path in paths if path.is_file())


def attributes_of(owner: str) -> list[str]:
    """The names that plug-ins add to ``workbench`` or to a noun, by the name of its class."""
    names = (name for name in list_names("attributes") if name.startswith(f"{owner}."))
    return [name.removeprefix(f"{owner}.") for name in names]


def compute_attribute(noun: Any, name: str) -> Any:
    """An attribute that a plug-in adds to a noun; AttributeError if none does."""
    kind = type(noun).__name__
    compute = find("attributes", f"{kind}.{name}")
    if compute is None:
        broken = ", ".join(load_plugins()[1])
        note = f"; plug-ins that cannot be used: {broken}" if broken else ""
        valid = [each for each in dir(noun) if not each.startswith("_")]
        raise unknown_attribute(kind, name, valid, note)
    return compute(noun)


def list_shown(place: str) -> dict[str, str]:
    """The attributes that plug-ins show in a place, a field of `Attribute`, with the key there."""
    parts = [each for plugin in list_plugins().values() for each in plugin.attributes.items()]
    keys = {name: getattr(part, place, "") for name, part in parts}
    return {name: name if key is True else key for name, key in keys.items() if key}


def import_shown(place: str) -> None:
    """Import what plug-ins show in a place, before there is a noun."""
    for name in list_shown(place):
        find("attributes", name)


@cache
def examine_plugins() -> dict[str, str]:
    """Why each plug-in cannot be used; empty if it can. Imports all that they add."""
    problems = {}
    for entry in _list_entries():
        try:
            plugin = _load(entry)
            for reference in (ref for kind in KINDS for ref in plugin.references(kind).values()):
                part = pkgutil.resolve_name(reference)
                if further := getattr(part, "reference", ""):
                    pkgutil.resolve_name(further)
        except Exception as error:  # of a plug-in, which costs itself only
            problems[entry.name] = f"{type(error).__name__}: {error}"
        else:
            problems[entry.name] = ""
    return problems


def identify_sources() -> str:
    """A hash of the state of the workbench's files and of those of its plug-ins.

    It is the same in all processes, whatever their paths are.
    """
    files = {*OURS.parent.rglob("*.py")}
    for entry in _list_entries():
        plugin = list_plugins().get(entry.name, Plugin())
        references = [ref for kind in KINDS for ref in plugin.references(kind).values()]
        with suppress(ImportError):  # one that is gone, which the names beside it say
            files.update(_list_sources(entry, references))
    states = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return make_key(sorted(states))

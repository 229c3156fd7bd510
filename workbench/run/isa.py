"""Instruction set extensions: the levels that a runner can hide, and toggles between two of them.

Each level hides all that the one above it hides, and more (``native/isa_<arch>.def``).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from workbench.errors import RunnerError, UsageError, WorkbenchError, unknown_name
from workbench.run.build import ask_runner

#: Of what a runner tells; so many threads it takes.
MAX_CORES = 1024


@dataclass(frozen=True)
class Isa:
    """A CPU's features, those that each level hides, and ``ok`` or why none can be hidden.

    ``cores`` is 0 if the runner does not tell; ``performance_cores`` are those that ExecuTorch
    counts as such, 0 if it cannot.
    """

    arch: str
    features: tuple[str, ...]
    levels: dict[str, tuple[str, ...]]
    self_check: str
    cores: int = 0
    performance_cores: int = 0

    def hidden_by(self, level: str) -> frozenset[str]:
        """The features of this CPU that a level hides."""
        return frozenset(self.levels[level]) & frozenset(self.features)


@dataclass(frozen=True)
class Toggle:
    """Two levels: ``on`` leaves ``feature`` visible, ``off`` hides it."""

    name: str
    on: str
    off: str
    feature: str = ""


#: Per architecture, the strongest first; ``on`` is the level just above the extension.
TOGGLES = {
    "x86_64": (
        Toggle("avx512", "native", "avx2", "avx512f"),
        Toggle("avx512vnni", "native", "avx512-novnni", "avx512vnni"),
        Toggle("avx2", "avx2", "avx", "avx2"),
        Toggle("avx", "avx", "sse41", "avx"),
        Toggle("sse41", "sse41", "sse2", "sse4_1"),
    ),
    "aarch64": (
        Toggle("sme2", "native", "nosme", "sme2"),
        Toggle("sme", "sme", "nosme", "sme"),
        Toggle("i8mm", "nosme", "dot", "i8mm"),
        Toggle("dot", "dot", "fp16", "dot"),
        Toggle("fp16", "fp16", "neon", "fp16arith"),
    ),
}


def read_isa(command: Sequence[str]) -> Isa:
    """Ask a runner for the CPU's features and the ISA levels.

    Parameters
    ----------
    command
        The command line that starts the runner: `Runner.command`.

    Raises
    ------
    WorkbenchError
        The runner cannot be started.
    RunnerError
        It does not answer, or not in this protocol.

    Examples
    --------
    >>> isa = wb.read_isa(wb.find_runner().command)  # doctest: +SKIP
    >>> isa.features  # doctest: +SKIP
    ('avx512vnni', 'avx512f', 'avx2', 'fma3', 'f16c', 'avx', 'sse4_1', 'ssse3')
    """
    answer = ask_runner(command, "--print_isa")
    try:
        features = {feature["name"]: feature for feature in answer["features"]}
        names = [level["name"] for level in answer["levels"]]
        cores = [int(answer.get(key, 0)) for key in ("cores", "performance_cores")]
        if not 0 <= min(cores) <= max(cores) <= MAX_CORES:
            raise ValueError
        return Isa(
            arch=answer["arch"],
            features=tuple(name for name, feature in features.items() if feature["on"]),
            levels={
                level: tuple(name for name, f in features.items() if f["level"] in names[:count])
                for count, level in enumerate(names, 1)
            },
            self_check=answer["self_check"],
            cores=cores[0],
            performance_cores=cores[1],
        )
    except (TypeError, KeyError, ValueError):
        raise RunnerError("no answer to --print_isa", where=command[0], kind="protocol") from None


def find_levels(isa: Isa) -> tuple[str, ...]:
    """The levels that differ on this CPU, lowest first."""
    _check_layout(isa)
    seen: dict[frozenset[str], str] = {}
    for level in isa.levels:
        seen.setdefault(isa.hidden_by(level), level)
    if len(seen) < 2:
        raise UsageError(f"this {isa.arch} CPU has no extension to hide", where="--isa-ladder")
    return tuple(reversed(seen.values()))


def check_toggle_name(name: str, named: Iterable[str] = ()) -> None:
    """UsageError if no CPU has a toggle of that name; ``named`` are those that the error names."""
    every = {toggle.name for toggles in TOGGLES.values() for toggle in toggles}
    if name not in (*every, "auto", "none"):
        raise unknown_name("toggle", name, (*(named or sorted(every)), "auto", "none"))


def resolve_toggle(name: str, isa: Isa) -> Toggle:
    """The toggle of that name on this CPU."""
    by_name = {toggle.name: toggle for toggle in TOGGLES.get(isa.arch, ())}
    present = [toggle for toggle in by_name.values() if toggle.feature in isa.features]
    elsewhere = {toggle.name: toggle for toggles in TOGGLES.values() for toggle in toggles}
    check_toggle_name(name, by_name)
    if name == "none" or (name == "auto" and not (present and isa.self_check == "ok")):
        return Toggle("none", "native", "native")
    _check_layout(isa)
    toggle = present[0] if name == "auto" else elsewhere[name]
    if toggle not in present:
        valid = ", ".join([toggle.name for toggle in present] + ["none"])
        hint = f"it has {', '.join(isa.features) or 'no extension'}; valid here: {valid}"
        what = f"this {isa.arch} CPU has no {toggle.feature}"
        raise UsageError(what, where=f"toggle {name}", hint=hint)
    return toggle if isa.hidden_by(toggle.on) else replace(toggle, on="native")


def _check_layout(isa: Isa) -> None:
    if isa.self_check != "ok":
        hint = "toggle none compares the program with itself"
        raise WorkbenchError(f"CPU features cannot be hidden: {isa.self_check}", hint=hint)

"""Remedies: changes of a program that make it faster, or right, and how a person would write them.

Those of the export itself are here; all others are those of plug-ins, which are asked when one is
first looked for.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from workbench import plugin

T = TypeVar("T")


@dataclass(frozen=True)
class Remedy:
    """A change of a program.

    ``text`` is what it does, ``code`` what a person would write instead; ``differs`` says how the
    function differs, and is empty if the outputs are the same within rounding. A ``common`` remedy
    makes no program slower. A fault of ExecuTorch that it works around has to be tried again
    without it in version ``until``.
    """

    name: str
    text: str
    code: str = ""
    differs: str = ""
    common: bool = False
    until: str = ""


@dataclass(frozen=True)
class Remedies:
    """The remedies of a plug-in by name, and what finds and applies them.

    ``nearest`` is what comes nearest to a kernel that no remedy replaces, by its name, in words and
    in code. The ``reference`` is that of a `Rewriter`, imported when a program is exported.
    """

    table: Mapping[str, Remedy]
    reference: str
    nearest: Mapping[str, tuple[str, str]] = field(default_factory=dict)


class Asked(Mapping[str, T]):
    """A mapping that is made when it is first read: by then, all plug-ins can be imported."""

    def __init__(self, make: Callable[[], dict[str, T]]) -> None:
        self._make = make

    @cached_property
    def _items(self) -> dict[str, T]:
        return self._make()

    def __getitem__(self, name: str) -> T:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


def join_plugins(field: str, ours: Mapping[str, T] = {}) -> dict[str, T]:
    """What `Remedies` of plug-ins have in a field; of equal names, the first one counts."""
    joined = dict(ours)
    for owner, remedies in plugin.collect("remedies").items():
        for name, value in getattr(remedies, field).items():
            if name in joined:
                plugin.warn(owner, ValueError(f"remedies has another {name!r}, which is used"))
            joined.setdefault(name, value)
    return joined


_OF_EXPORT = (
    Remedy(
        "batch",
        "a dynamic batch of any size, where a convolution would limit it to 15",
        common=True,
        until="1.6",
    ),
    Remedy(
        "in_place",
        "caches that are buffers are written in place, instead of a copy that is copied back",
        "edge.to_executorch(ExecutorchBackendConfig(run_reinplace_pass=True))",
        common=True,
    ),
    Remedy("sums", "int8: sums that a layer norm reads stay in floating point", common=True),
    Remedy(
        "concatenations",
        "int8: concatenations with what no layer computed stay in floating point",
        common=True,
    ),
    Remedy(
        "scalars",
        "quantised: operators of tensors without dimensions stay in floating point",
        common=True,
    ),
    Remedy(
        "readers", "int8: a dequantisation for each reader of a value", common=True, until="1.6"
    ),
    Remedy("linears", "int8dyn, 8da4c: linear layers only, no convolutions", common=True),
    Remedy(
        "copies",
        "int8: a copy of its weights and bias for each call of a layer that is called twice",
        "self.again = copy.deepcopy(self.layer)  # for the second call",
        common=True,
        until="1.6",
    ),
)
OF_EXPORT = {remedy.name: remedy for remedy in _OF_EXPORT}
REMEDIES: Mapping[str, Remedy] = Asked(lambda: join_plugins("table", OF_EXPORT))

#: In words and in code, the nearest function for a kernel that no remedy replaces.
NEAREST: Mapping[str, tuple[str, str]] = Asked(lambda: join_plugins("nearest"))


def find_nearest(kernel: str) -> tuple[str, str]:
    """What comes nearest to a kernel in words and in code; empty if nothing is known."""
    return NEAREST.get(kernel.removesuffix("_copy"), ("", ""))

"""What a run, a measurement and a comparison have in common: attributes that plug-ins add."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from workbench import plugin
from workbench.arguments import guard
from workbench.emulation import mark_frame


class Noun:
    """A noun of the analysis, to which plug-ins add attributes.

    Type checkers do not see these: the package itself needs none of them.
    """

    def __init_subclass__(cls) -> None:
        guard(cls)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or hasattr(type(self), name):
                return object.__getattribute__(self, name)  # the error of what is ours
            value = plugin.compute_attribute(self, name)
            vars(self)[name] = mark_frame(self, value)
            return vars(self)[name]

    def list_shown(self, place: str) -> dict[str, Any]:
        """What plug-ins add to it and show in a place, a field of `Attribute`, by its key there."""
        owner, values = f"{type(self).__name__}.", dict[str, Any]()
        for name, key in plugin.list_shown(place).items():
            if name.startswith(owner):
                try:
                    values[key] = getattr(self, name.removeprefix(owner))
                except Exception as error:  # of a plug-in, which costs itself only
                    plugin.warn(name.removeprefix(owner), error, "attribute")
        return values

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *plugin.attributes_of(type(self).__name__)]

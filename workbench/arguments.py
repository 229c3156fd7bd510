"""Arguments of public functions: names and plain types that they do not take are one line."""

import functools
import inspect
import numbers
import sys
from collections.abc import Callable, Mapping
from itertools import chain
from types import FunctionType
from typing import Any

from workbench.errors import UsageError, unknown_name
from workbench.options import Options

#: What an annotation of a plain type takes, beside that.
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (numbers.Integral,),
    "float": (numbers.Real,),
    "str": (str,),
    "bool": (bool, numbers.Integral),
    "None": (type(None),),
}
_PLAIN = (int, float, str, bool)
_CHECKED = "_checks_arguments"


def guard(thing: Any) -> Any:
    """A public function that checks its arguments, or a class whose public methods do.

    It takes the place of the function in its module, so that both stay the same object.
    """
    if inspect.isclass(thing):
        for name, method in [*vars(thing).items()]:
            is_public = name == "__init__" or not name.startswith("_")
            if is_public and inspect.isfunction(method) and not _is_checked(method):
                setattr(thing, name, _check(method))
    elif inspect.isfunction(thing) and not _is_checked(thing):
        return _replace(thing)
    return thing


def _replace(function: FunctionType) -> Callable[..., Any]:
    checked, module = _check(function), vars(sys.modules[function.__module__])
    if module.get(function.__name__) is function:
        module[function.__name__] = checked
    return checked


def _is_checked(function: Any) -> bool:
    return hasattr(function, _CHECKED)


def _check(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that refuses arguments which the given one does not take."""
    signature = inspect.signature(function)
    where = f"{function.__qualname__.removesuffix('.__init__')}()"

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_names(signature, kwargs, where)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            names = ", ".join(name for name in signature.parameters if name != "self")
            raise UsageError(str(error), where=where, hint=f"it takes {names}") from None
        _check_options(signature, bound.arguments, where)
        _check_types(signature, bound.arguments, where)
        return function(*args, **kwargs)

    setattr(checked, _CHECKED, True)
    return checked


def _check_names(signature: inspect.Signature, given: Mapping[str, Any], where: str) -> None:
    parameters = signature.parameters.values()
    names = [each.name for each in parameters if each.name != "self"]
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return
    for name in given:
        if name not in names:
            raise unknown_name("argument", name, names, where=where)


def _check_options(signature: inspect.Signature, given: Mapping[str, Any], where: str) -> None:
    """Refuse options that were given to another parameter than the one of their type."""
    taken = {name: _name_annotation(p.annotation) for name, p in signature.parameters.items()}
    for name, value in given.items():
        kind = type(value).__name__
        if name != "self" and isinstance(value, Options) and kind not in taken[name]:
            parameter = next((other for other, types in taken.items() if kind in types), "")
            hint = f"give it by its name: {parameter}={kind}(...)" if parameter else None
            raise UsageError(f"{name}= takes no {kind}", where=where, hint=hint)


def _check_types(signature: inspect.Signature, given: Mapping[str, Any], where: str) -> None:
    """Refuse values of other types than the plain ones that parameters are annotated with."""
    for name, value in given.items():
        parameter = signature.parameters[name]
        annotation = _name_annotation(parameter.annotation)
        wanted = [_TYPES.get(part, ()) for part in annotation.split(" | ")]
        several = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if several or not all(wanted) or isinstance(value, tuple(chain.from_iterable(wanted))):
            continue
        text = annotation.removesuffix(" | None")
        article = "an" if text[0] in "aeiou" else "a"
        what = f"{name}={value!r:.60} is not {article} {text}, but {type(value).__name__}"
        raise UsageError(what, where=where)


def _name_annotation(annotation: Any) -> str:
    """An annotation as it is written, such as ``int | None``."""
    return annotation.__name__ if annotation in _PLAIN else str(annotation)

"""The category and family of an operator, by the rules of a scheme: a YAML file."""

import fnmatch
import re
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

import pandas as pd

from workbench.errors import StoreError, UsageError, unknown_name
from workbench.records.codec import structure
from workbench.store import read_yaml

#: The five categories, in the order in which every table and figure shows them.
CATEGORIES = ("Convolution", "GEMM", "Data Movement", "Elementwise", "Other")
#: What the ledger calls its rows.
KINDS = ("delegated", "portable", "delegate_overhead", "call_overhead", "framework")
_OPERATORS = KINDS[:2]
_SCHEMES = Path(__file__).parent / "schemes"
#: The scheme of the workbench, and that of Arm's profiling kit.
BUILT_IN = ("workbench", "kit")
#: The longest pattern, and the longest name that is matched in full.
_MAX_TEXT, _MAX_NAME = 100, 500

_ORDINAL = re.compile(r" #\d+$")
_XNNPACK_NAME = re.compile(r"(?P<type>[^(]+?)(?: \([^)]*\)(?: (?P<microkernel>.+))?)?")
_KERNEL_PREFIX = re.compile(r"(?:native_call_)?(?:\w+::)?")


@dataclass(frozen=True)
class Rule:
    """Operators whose name matches one of the patterns ``operators`` get this category.

    Without a ``kind``, that is those of delegates and kernels alike.
    """

    name: str
    operators: tuple[str, ...]
    category: str
    kind: str = ""
    family: str = ""
    why: str = ""

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(map(fnmatch.translate, self.operators)), re.IGNORECASE)

    def matches(self, subject: str, kind: str) -> bool:
        """Whether the rule is for a row of this kind with this name."""
        if kind != self.kind and (self.kind or kind not in _OPERATORS):
            return False
        whole = subject.partition("/" if kind == "delegated" else ".")[0]
        return any(self._pattern.match(name) for name in (subject, whole))


@dataclass(frozen=True)
class Category:
    """Category and family of an operator, and the name of the rule that matched."""

    category: str
    family: str
    rule: str


@dataclass(frozen=True, eq=False)
class Scheme:
    """Rules in the order in which they are tried; ``label`` names them in reports."""

    rules: tuple[Rule, ...]
    label: str = ""
    _places: dict[tuple[str, str], Category] = field(default_factory=dict, init=False)

    def place(self, name: str, kind: str = "delegated") -> Category:
        """The category of one ledger row, by its name as logged (or without the ordinal).

        The workbench's own rules give the family, and the category where no other rule matches.
        """
        if kind not in KINDS:
            raise unknown_name("kind of ledger row", kind, KINDS)
        if (name, kind) not in self._places:
            subject = _subject(name[:_MAX_NAME], kind)
            found = (rule for rule in self.rules if rule.matches(subject, kind))
            first = next(found)
            family = first.family or next(rule.family for rule in found if rule.family)
            self._places[name, kind] = Category(first.category, family, first.name)
        return self._places[name, kind]


def load_scheme(categories: str | Path = "workbench") -> Scheme:
    """A scheme by its name (``workbench`` or ``kit``) or from a YAML file.

    Raises
    ------
    UsageError, StoreError
        There is no such file, or it is not a scheme.
    """
    path = Path(categories)
    if str(path) in BUILT_IN:
        return _load_built_in(str(path))
    if path.suffix not in (".yaml", ".yml"):
        hint = f"name a .yaml file of rules, or {' or '.join(BUILT_IN)}"
        raise UsageError(f"unknown categories {str(path)!r:.60}", hint=hint)
    return Scheme((*_read(path).rules, *_load_built_in("workbench").rules), path.name)


@cache
def _load_built_in(name: str) -> Scheme:
    own = () if name == "workbench" else _load_built_in("workbench").rules
    return Scheme((*_read(_SCHEMES / f"{name}.yaml").rules, *own), name)


def _read(path: Path) -> Scheme:
    content = read_yaml(path)
    rules = content.get("rules")
    for rule in rules if isinstance(rules, list) else ():
        if isinstance(rule, dict) and isinstance(rule.get("operators"), str):
            rule["operators"] = [rule["operators"]]  # a single name needs no brackets
    found = structure(Scheme, content, path)
    for number, rule in enumerate(found.rules, 1):
        _check(rule, f"{path}: rule {number}")
    return found


def _check(rule: Rule, where: str) -> None:
    """Refuse a rule that no table could show, or that no operator could match."""
    texts = (rule.name, *rule.operators)
    if not rule.operators or not all(
        0 < len(text) <= _MAX_TEXT and text.isprintable() for text in texts
    ):
        what = f"needs a name and operators: texts of up to {_MAX_TEXT} characters"
        raise StoreError(what, where=where)
    if rule.category not in CATEGORIES:
        raise unknown_name("category", rule.category, CATEGORIES, where)
    if rule.kind and rule.kind not in KINDS:
        raise unknown_name("kind of ledger row", rule.kind, KINDS, where)


def add_categories(ledger: pd.DataFrame, scheme: Scheme | None = None) -> pd.DataFrame:
    """The ledger with the columns ``category``, ``family`` and ``rule`` added.

    Parameters
    ----------
    ledger
        ``frames.LEDGER``; not modified.
    scheme
        The rules. By default, a ledger that has the columns keeps them, as that of a `Run` does,
        and another gets them by the workbench's rules.

    Examples
    --------
    >>> import pandas as pd
    >>> import workbench as wb
    >>> ledger = pd.DataFrame({"operator": ["Add (ND)"], "kind": ["delegated"]})
    >>> wb.add_categories(ledger)["category"].tolist()
    ['Elementwise']
    """
    columns = ("category", "family", "rule")
    if scheme is None and not {*columns} - {*ledger.columns}:
        return ledger
    (operator, operators), (kind, kinds) = (
        pd.factorize(ledger[column].astype(object)) for column in ("operator", "kind")
    )
    code, pairs = pd.factorize(operator * len(kinds) + kind)
    scheme = scheme or load_scheme()
    placed = [scheme.place(operators[p // len(kinds)], kinds[p % len(kinds)]) for p in pairs]
    added = {
        name: pd.array([getattr(c, name) for c in placed], dtype="str").take(code)
        for name in columns
    }
    return ledger.drop(columns=list(added), errors="ignore").reset_index(drop=True).assign(**added)


def _subject(name: str, kind: str) -> str:
    """The part of a name that the patterns of its kind match."""
    bare = _ORDINAL.sub("", name)
    if kind == "portable":
        return _KERNEL_PREFIX.sub("", bare, count=1)
    parts = _XNNPACK_NAME.fullmatch(bare)
    if parts is None:
        return bare
    return "/".join(part for part in parts.group("type", "microkernel") if part)

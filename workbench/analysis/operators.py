"""Operators: the category of each by the rules of a scheme, its label, and the ledger's sums.

A scheme is a YAML file of rules, which are tried in order.
"""

import fnmatch
import re
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from workbench.analysis.ledger import KINDS, TRACING, Key, build_ledger
from workbench.analysis.schemes import BUILT_IN, locate_scheme
from workbench.analysis.statistics import blocks_of, half_width
from workbench.errors import StoreError, WorkbenchError, unknown_name
from workbench.frames import CATEGORIES as CATEGORIES_FRAME
from workbench.frames import OPERATORS, SPANS
from workbench.records.codec import check_keys, structure
from workbench.store import read_yaml
from workbench.trace.etdump import strip_ordinal

#: The five categories, in the order in which every table and figure shows them.
CATEGORIES = ("Convolution", "GEMM", "Data Movement", "Elementwise", "Other")
#: The scheme of the workbench, and that of Arm's profiling kit.

_OPERATORS = KINDS[:2]
#: Characters of the longest pattern, and of the longest name that is matched in full.
_MAX_PATTERN, _MAX_NAME = 100, 500
_XNNPACK_NAME = re.compile(r"(?P<type>[^(]+?)(?: \([^)]*\)(?: (?P<microkernel>.+))?)?")
_KERNEL_PREFIX = re.compile(r"(?:native_call_)?(?:\w+::)?")
_TYPES = re.compile(r" \([^)]*\)")
_LOOKUP = "Invalid Unary Op"  #: What XNNPACK calls an activation by lookup table.
_FUNCTION = re.compile(r"\baten_(?!(?:de)?quantize)([a-z_]+?)_default")
#: What a scheme says of an operator: its category and family, and the rule that matched.
_PLACED = ("category", "family", "rule")


@dataclass(frozen=True)
class CategoryRule:
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


@dataclass(frozen=True, eq=False)
class Scheme:
    """Rules in the order in which they are tried; ``label`` names them in reports."""

    rules: tuple[CategoryRule, ...]
    label: str = ""
    _places: dict[tuple[str, str], tuple[str, str, str]] = field(default_factory=dict, init=False)

    def place(self, name: str, kind: str = "delegated") -> tuple[str, str, str]:
        """Category, family and rule of a ledger row, by its name as logged (or without ordinal).

        The workbench's own rules give the family, and the category where no other rule matches.
        """
        if kind not in KINDS:
            raise unknown_name("kind of ledger row", kind, KINDS)
        if kind == TRACING:
            return "", kind, kind
        if (name, kind) not in self._places:
            subject = _subject(name[:_MAX_NAME], kind)
            matching = (rule for rule in self.rules if rule.matches(subject, kind))
            first = next(matching)
            family = first.family or next(rule.family for rule in matching if rule.family)
            self._places[name, kind] = first.category, family, first.name
        return self._places[name, kind]


def _subject(name: str, kind: str) -> str:
    """The part of a name that the patterns of its kind match."""
    bare = strip_ordinal(name)
    if kind == "portable":
        return _KERNEL_PREFIX.sub("", bare, count=1)
    parts = _XNNPACK_NAME.fullmatch(bare)
    if parts is None:
        return bare
    return "/".join(part for part in parts.group("type", "microkernel") if part)


def load_scheme(categories: str | Path = "workbench") -> Scheme:
    """A scheme by its name (``workbench`` or ``kit``) or from a YAML file."""
    path = locate_scheme(categories)
    if str(categories) in BUILT_IN:
        return _load_built_in(str(categories))
    return Scheme((*_read_scheme(path).rules, *_load_built_in("workbench").rules), path.name)


@cache
def _load_built_in(name: str) -> Scheme:
    rules = () if name == "workbench" else _load_built_in("workbench").rules
    return Scheme((*_read_scheme(locate_scheme(name)).rules, *rules), name)


def _read_scheme(path: Path) -> Scheme:
    content = read_yaml(path)
    rules = content.get("rules")
    for rule in rules if isinstance(rules, list) else ():
        if isinstance(rule, dict) and isinstance(rule.get("operators"), str):
            rule["operators"] = [rule["operators"]]  # a single name needs no brackets
    scheme = structure(Scheme, content, path)
    check_keys(scheme, content, path)
    for number, rule in enumerate(scheme.rules, 1):
        _check_rule(rule, f"{path}: rule {number}")
    return scheme


def _check_rule(rule: CategoryRule, where: str) -> None:
    """Refuse a rule that no table could show, or that no operator could match."""
    texts = (rule.name, *rule.operators)
    if not rule.operators or not all(
        0 < len(text) <= _MAX_PATTERN and text.isprintable() for text in texts
    ):
        what = f"needs a name and operators: texts of up to {_MAX_PATTERN} characters"
        raise StoreError(what, where=where)
    if rule.category not in CATEGORIES:
        raise unknown_name("category", rule.category, CATEGORIES, where)
    if rule.kind and rule.kind not in KINDS:
        raise unknown_name("kind of ledger row", rule.kind, KINDS, where)


def add_categories(ledger: pd.DataFrame, scheme: Scheme | None = None) -> pd.DataFrame:
    """The ledger with the columns ``category``, ``family`` and ``rule`` added.

    Without a scheme, a ledger that has the columns keeps them, as that of a `Run` does, and another
    gets them by the workbench's rules.
    """
    if scheme is None and not {*_PLACED} - {*ledger.columns}:
        return ledger
    scheme = scheme or load_scheme()
    (operator, operators), (kind, kinds) = (
        pd.factorize(ledger[column].astype(object)) for column in ("operator", "kind")
    )
    code, pairs = pd.factorize(operator * len(kinds) + kind)
    placed = [scheme.place(operators[p // len(kinds)], kinds[p % len(kinds)]) for p in pairs]
    added = {
        name: pd.array([place[number] for place in placed], dtype="str").take(code)
        for number, name in enumerate(_PLACED)
    }
    return ledger.drop(columns=list(added), errors="ignore").reset_index(drop=True).assign(**added)


def label_operator(name: str, module: str | None = None, nodes: str | None = None) -> str:
    """The label of an operator: its layer, if any, and its name without layout and types."""
    short = name_function(_TYPES.sub("", name, count=1), nodes)
    return f"{module} · {short}" if isinstance(module, str) and module else short


def name_function(name: str, nodes: str | None = None) -> str:
    """The name of an operator as logged, without XNNPACK's mistakes.

    It logs every int8 function of one value as `_LOOKUP`; the exported ``nodes`` say which.
    """
    if not name.startswith(_LOOKUP):
        return name.replace("Bankders", "Bankers")
    function = _FUNCTION.search(nodes) if isinstance(nodes, str) else None
    text = function[1].replace("_", " ").capitalize() if function else "Lookup table"
    return text + name.removeprefix(_LOOKUP)


def label_operators(operators: pd.DataFrame) -> pd.Series:
    """`label_operator` of every row, from ``name`` and, if there, ``module`` and ``nodes``.

    Where several have one label, the key's instruction follows.
    """
    unknown = pd.Series(None, operators.index, dtype=object)
    further = (operators.get(column, unknown) for column in ("module", "nodes"))
    texts = map(label_operator, operators["name"].astype(object), *further)
    labels = pd.Series(list(texts), operators.index, dtype=object, name="label")
    if "key" in operators:
        place = operators["key"].astype(object).map(lambda key: Key.parse(key).call)
        labels = labels.where(
            ~labels.duplicated(keep=False), labels + " (instruction " + place + ")"
        )
    return labels


def total_runs(ledger: pd.DataFrame, by: str) -> pd.DataFrame:
    """Milliseconds of every ``(process, run)`` (rows) by the values of a column (columns).

    The rows sum to the E2E time of each run; 0 where a run lacks a value.
    """
    if ledger.empty:
        raise WorkbenchError("the ledger holds no run", hint="record it with tracing on")
    for column in ("experiment", "threads"):
        if column in ledger and ledger[column].nunique() > 1:
            values = ", ".join(str(value) for value in ledger[column].unique())
            raise WorkbenchError(
                f"the ledger mixes several values of {column}: {values}",
                hint=f"select one {column} first",
            )
    process = ledger["process"] if "process" in ledger else np.zeros(len(ledger), int)
    (process, processes), (run, runs), (part, parts) = (
        pd.factorize(values) for values in (process, ledger["run"], ledger[by])
    )
    # In order of appearance. Twice as fast as by groupby and unstack, and every command needs it.
    inferences, inference = np.unique(process * len(runs) + run, return_inverse=True)
    sums = np.zeros(len(inferences) * len(parts))
    np.add.at(sums, inference * len(parts) + part, ledger["duration_ns"].to_numpy(float))
    index = [processes[inferences // len(runs)], runs[inferences % len(runs)]]
    return pd.DataFrame(
        sums.reshape(-1, len(parts)) / 1e6,
        pd.MultiIndex.from_arrays(index, names=["process", "run"]),
        pd.Index(list(parts), name=by),
        copy=False,
    )


def drop_overhead(operators: pd.DataFrame) -> pd.DataFrame:
    """The rows of operators, without the calls and the framework around them."""
    return operators[operators["kind"].isin(_OPERATORS)]


def tabulate_operators(ledger: pd.DataFrame) -> pd.DataFrame:
    """Every operator of one measurement as ``frames.OPERATORS``, the most expensive first.

    ``mean_ms`` sums to the mean E2E time, ``share`` to 1.
    """
    runs = total_runs(ledger, "key")
    table = first_rows(ledger).assign(
        calls=ledger["key"].astype(object).value_counts() / len(runs),
        mean_ms=runs.mean(),
        std_ms=runs.std() if len(runs) > 1 else np.nan,
        share=_time_shares(runs.mean()),
    )
    table = table.sort_values("mean_ms", ascending=False, kind="stable").reset_index()
    columns = [*OPERATORS.names, *(name for name in ("metadata",) if name in table)]
    return OPERATORS.check(table[columns])


def tabulate_categories(ledger: pd.DataFrame) -> pd.DataFrame:
    """The five categories of one measurement, in their usual order; 0 ms if one is absent.

    ``frames.CATEGORIES``, plus ``std_ms`` over the runs, ``low_ms`` and ``high_ms`` of Student's
    95 % interval over the restarts (none for a single restart); ``mean_ms`` sums to the mean E2E
    time, ``share`` to 1.
    """
    ledger = add_categories(ledger)
    runs = total_runs(ledger, "category").reindex(columns=list(CATEGORIES), fill_value=0.0)
    distinct = ledger.drop_duplicates("key")["category"].value_counts()
    mean, half = runs.mean(), half_width(blocks_of(runs).to_numpy())
    table = pd.DataFrame(
        {
            "mean_ms": mean,
            "share": _time_shares(mean),
            "operators": distinct.reindex(CATEGORIES, fill_value=0),
            "std_ms": runs.std() if len(runs) > 1 else np.nan,
            "low_ms": (mean - half).clip(lower=0),
            "high_ms": mean + half,
        },
        index=pd.Index(CATEGORIES, name="category"),
    )
    return CATEGORIES_FRAME.check(table.reset_index())


def _time_shares(mean: pd.Series) -> pd.Series:
    total = mean.sum()
    return mean / total if total else mean * np.nan


def first_rows(ledger: pd.DataFrame) -> pd.DataFrame:
    """Name, operator, kind, category, family and rule of every operator, by ``key``."""
    first = add_categories(ledger.drop_duplicates("key"))
    columns = ["key", "name", "operator", "kind", *_PLACED]
    columns += [name for name in ("metadata",) if name in ledger]
    return first[columns].astype(dict.fromkeys(columns[:4], object)).set_index("key")


def tabulate_spans(events: pd.DataFrame, scheme: Scheme | None = None) -> pd.DataFrame:
    """The events of a trace with the columns of their ledger rows: ``frames.SPANS``.

    These columns are empty for events outside any whole run.
    """
    ledger = add_categories(build_ledger(events), scheme)
    # The ledger has a row for every event of its runs, in their order.
    rows = np.flatnonzero(events["run"].isin(ledger["run"].unique()))
    described = ledger.rename(columns={"kind": "ledger_kind", "duration_ns": "own_ns"})
    described = described[["ledger_kind", "operator", "key", "own_ns", *_PLACED]]
    kinds = {name: "Int64" if name == "own_ns" else "category" for name in described}
    described = described.astype(kinds).set_axis(rows).reindex(range(len(events)))
    return SPANS.check(pd.concat([events, described.set_axis(events.index)], axis=1))

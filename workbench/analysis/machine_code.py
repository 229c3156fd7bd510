"""Which machine code each operator ran, from samples of the program counter, and what it proves."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from workbench.analysis.ledger import build_ledger
from workbench.analysis.operators import Scheme, add_categories
from workbench.analysis.statistics import NORMAL_95
from workbench.frames import EVIDENCE, KERNEL_EVIDENCE
from workbench.records.runs import Proof, RunRecord
from workbench.store import FUNCTIONS, inside
from workbench.trace.etdump import read_etdump
from workbench.trace.samples import (
    read_samples,
    resolve_functions,
    write_functions,
    write_places,
)

#: XNNPACK rounds each time down to a microsecond: it loses half a microsecond on average.
_LOST_NS = 500.0
#: Standard deviation of one rounding: that of a uniform distribution over 1000 ns.
_SPREAD_NS = 1000 / np.sqrt(12)


def find_operators(events: pd.DataFrame, time_ns: np.ndarray) -> pd.DataFrame:
    """Which operator was running at certain times: that of the innermost span.

    XNNPACK logs durations only, which the runtime lays end to end from the start of the inference,
    so that a start is too early by the rounding of all earlier operators. Starts are corrected by
    its mean; a time within a standard deviation of a boundary is not ``sure``. Outside any run,
    the columns of the ledger are NaN.
    """
    ledger = build_ledger(events)
    events = events[events["run"] >= 0].reset_index(drop=True)
    start, end, margin = _spans(events)
    kind = events["kind"].to_numpy(object)
    row = np.full(len(time_ns), -1)
    sure = np.ones(len(time_ns), bool)
    calls = np.isin(kind, ("delegate_call", "operator_call"))
    layers = (kind == "method", calls, ~calls & (kind != "method"))
    for spans in map(np.flatnonzero, layers):
        spans = spans[np.argsort(start[spans], kind="stable")]
        at = np.searchsorted(start[spans], time_ns, side="right") - 1
        held = at >= 0
        held[held] = time_ns[held] < end[spans[at[held]]]
        row[held] = spans[at[held]]
        for place in (at, at - 1):  # the boundaries after and before
            inside = place >= 0
            span = spans[place[inside]]
            sure[inside] &= np.abs(time_ns[inside] - end[span]) >= margin[span]
    table = ledger[["key", "operator", "kind"]].astype(object).reindex(row).reset_index(drop=True)
    return table.assign(sure=sure & (row >= 0))


def _spans(events: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start, end and uncertainty of the end of every event."""
    start = events["start_ns"].to_numpy(float)
    duration = events["duration_ns"].to_numpy(float)
    margin = np.zeros(len(events))
    inner = np.flatnonzero(events["kind"] == "delegate_operator")
    inner = inner[np.argsort(events["parent"].to_numpy()[inner], kind="stable")]
    call = events["parent"].to_numpy()[inner]
    first = np.flatnonzero(np.diff(call, prepend=-1))  # of every call
    if len(first):
        begin, length = start[inner], duration[inner]
        gap = (length % 1000 != 0) | np.insert(begin[1:] != (begin + length)[:-1], 0, False)
        gap[first] = (length % 1000 != 0)[first]
        # Only spans that lie end to end in whole microseconds have synthetic starts.
        counts = np.diff(first, append=len(inner))
        fits = np.repeat(~np.logical_or.reduceat(gap, first), counts)
        place = (np.arange(len(inner)) - np.repeat(first, counts))[fits]
        start[inner[fits]] += _LOST_NS * place
        duration[inner[fits]] += _LOST_NS
        margin[inner[fits]] = _SPREAD_NS * np.sqrt(place + 1)
    return start, start + duration, margin


#: Operator of the samples that may belong to either of two.
UNSURE = "(between two operators)"


def place_samples(samples: pd.DataFrame, events: pd.DataFrame) -> pd.DataFrame:
    """Samples with the columns of `find_operators`, from the trace of the same process."""
    places = find_operators(events, samples["time_ns"].to_numpy())
    return samples.assign(**{name: places[name].to_numpy() for name in places})


def gather_evidence(samples: pd.DataFrame, scheme: Scheme | None = None) -> pd.DataFrame:
    """Placed samples of every function in every operator of a process: ``frames.EVIDENCE``.

    Samples too close to a boundary between two operators have the key ``""``.
    """
    rows = samples[samples["busy"] & samples["key"].notna()].copy()
    unsure = ~rows["sure"].astype(bool)
    rows.loc[unsure, ["key", "operator", "kind"]] = ["", UNSURE, "framework"]
    rows["library"] = [path.rpartition("/")[2] for path in rows["library"]]
    by = ["key", "operator", "kind", "function", "code", "library"]
    counts = rows.groupby(by, sort=False).size().rename("samples").reset_index()
    counts = add_categories(counts, scheme)
    total = counts.groupby("key")["samples"].transform("sum")
    counts = counts.assign(**_shares(counts["samples"], total))
    counts = counts.sort_values("samples", ascending=False, kind="stable", ignore_index=True)
    return EVIDENCE.check(counts[EVIDENCE.names])


def name_kernels(evidence: pd.DataFrame) -> pd.DataFrame:
    """The evidence by ``key`` of functions whose interval lies above half of the operator's."""
    certain = evidence[(evidence["key"] != "") & (evidence["low"] > 0.5)]
    return certain.drop_duplicates("key").set_index("key")


def _shares(samples: pd.Series, total: pd.Series) -> dict[str, pd.Series]:
    """Share and its 95 % interval, by Wilson's score (Brown, Cai and DasGupta 2001)."""
    z2 = NORMAL_95**2
    share = samples / total
    middle = (share + z2 / (2 * total)) / (1 + z2 / total)
    spread = np.sqrt(share * (1 - share) / total + z2 / (4 * total**2)) / (1 + z2 / total)
    half = spread * np.sqrt(z2)
    return {"share": share, "low": (middle - half).clip(0, 1), "high": (middle + half).clip(0, 1)}


#: Probability of a false difference, over all functions of a comparison.
_ALPHA = 0.001

#: A function counts as gone if less than this part of its share is left: a change of speed alone
#: never moves a share that far.
_LEFT = 0.1

#: "Same" requires that code with this share of the time would have been noticed.
_NOTICED_OF_RUN, _NOTICED_OF_OPERATOR = 0.05, 0.5


def prove_change(baseline: pd.DataFrame, candidate: pd.DataFrame) -> Proof:
    """Whether the candidate ran other machine code than the baseline, over the whole inference.

    A function shows a change if (almost) all of its samples are on one side: a one-sided binomial
    test at 0.1 %, divided by the number of functions.
    """
    counts = _count(baseline, candidate)
    totals = counts.sum().to_numpy()
    appeared, vanished = _moved(counts.to_numpy(), totals, max(len(counts), 1))
    noticed = float(_noticed(len(counts), totals))
    same = "same" if noticed <= _NOTICED_OF_RUN else "not shown"
    return Proof(
        outcome="changed" if (appeared | vanished).any() else same,
        appeared=_share(counts["candidate"][appeared].sum(), totals[1]),
        vanished=_share(counts["baseline"][vanished].sum(), totals[0]),
        noticed=noticed,
        samples=(int(totals[0]), int(totals[1])),
        before=_classes(baseline),
        after=_classes(candidate),
    )


def compare_evidence(baseline: pd.DataFrame, candidate: pd.DataFrame) -> pd.DataFrame:
    """The function with the most samples of every operator on both sides, and if it changed.

    ``frames.KERNEL_EVIDENCE`` of the operators that both sides have, the most samples first.
    """
    sides = [side[side["key"] != ""] for side in (baseline, candidate)]
    before, after = (side.drop_duplicates("key").set_index("key") for side in sides)
    keys = before.index[before.index.isin(after.index)]
    before, after = before.loc[keys], after.loc[keys]
    counts = _count(*(side[side["key"].isin(keys)] for side in sides), "key")
    by = counts.groupby(level="key")
    functions, totals = by["baseline"].transform("size"), by.transform("sum")
    moved = np.logical_or(*_moved(counts.to_numpy(), totals.to_numpy(), functions.to_numpy()))
    samples = by.sum().loc[keys]
    noticed = _noticed(by.size().loc[keys].to_numpy(), samples.to_numpy())
    changed = pd.Series(moved, counts.index).groupby(level="key").any().loc[keys].to_numpy(bool)
    table = pd.DataFrame(
        {
            "key": keys,
            "operator": before["operator"].to_numpy(),
            "candidate_operator": after["operator"].to_numpy(),
            "category": before["category"].to_numpy(),
            "change": np.select(
                [changed, noticed <= _NOTICED_OF_OPERATOR], ["changed", "same"], "not shown"
            ),
        }
    )
    for side, top in (("baseline", before), ("candidate", after)):
        for name, column in (("kernel", "function"), ("code", "code"), ("share", "share")):
            table[f"{side}_{name}"] = top[column].to_numpy()
        table[f"{side}_samples"] = samples[side].to_numpy()
    order = np.argsort(-samples.sum(axis=1).to_numpy(), kind="stable")
    return KERNEL_EVIDENCE.check(table.iloc[order].reset_index(drop=True)[KERNEL_EVIDENCE.names])


def _count(baseline: pd.DataFrame, candidate: pd.DataFrame, *within: str) -> pd.DataFrame:
    """Samples of both sides by library and function, within columns if there are any."""
    sides = {
        name: side.groupby([*within, "library", "function"])["samples"].sum()
        for name, side in (("baseline", baseline), ("candidate", candidate))
    }
    return pd.DataFrame(sides).fillna(0).astype(int)


def _moved(
    counts: np.ndarray, totals: np.ndarray, functions: np.ndarray | int
) -> tuple[np.ndarray, np.ndarray]:
    """Which functions appeared in the candidate, and which disappeared, of all ``functions``."""
    from scipy.special import bdtr

    both, sampled = counts.sum(axis=1), np.maximum(totals.sum(axis=-1), 1)
    gone = []
    for rare, often in ((0, 1), (1, 0)):
        few, many = counts[:, rare], counts[:, often]
        missing = (many > 0) & (few * totals[..., often] <= _LEFT * many * totals[..., rare])
        share = np.broadcast_to(totals[..., rare] / sampled, few.shape)
        chance = bdtr(few[missing], both[missing], share[missing])  # of so few or fewer
        missing[missing] = chance < np.broadcast_to(_ALPHA / functions, few.shape)[missing]
        gone.append(missing)
    return gone[0], gone[1]


def _noticed(functions: np.ndarray | int, totals: np.ndarray) -> np.ndarray:
    """The smallest share on one side that shows the other side lacks a function."""
    level = np.log(_ALPHA / (np.asarray(functions) + 1))[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.floor(level / np.log(totals / totals.sum(axis=-1, keepdims=True))) + 1
        share = np.minimum(1.0, (needed / totals).max(axis=-1))
    return np.where(totals.all(axis=-1), share, 1.0)


def _classes(evidence: pd.DataFrame) -> dict[str, float]:
    counts = evidence.groupby("code")["samples"].sum().sort_values(ascending=False)
    return {name: _share(count, counts.sum()) for name, count in counts.items()}


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0


def keep_places(record: RunRecord, run_dir: Path, folders: Sequence[Path] = ()) -> RunRecord:
    """Write the functions and operators of a run's samples, while libraries are at hand.

    Returns the record without the traces of the sampled processes, which are deleted: they grow
    with the inferences.
    """
    traced = [sampling for sampling in record.samplings if sampling.samples and sampling.etdump]
    if not traced:
        return record
    samples = [read_samples(inside(run_dir, sampling.samples)) for sampling in traced]
    if not (run_dir / FUNCTIONS).exists():
        write_functions(resolve_functions(samples, folders), run_dir / FUNCTIONS)
    for sampling, frame in zip(traced, samples, strict=True):
        placed = place_samples(frame, read_etdump(inside(run_dir, sampling.etdump)))
        write_places(placed, inside(run_dir, sampling.samples))
        inside(run_dir, sampling.etdump).unlink()
    samplings = tuple(replace(s, etdump="") if s in traced else s for s in record.samplings)
    return replace(record, samplings=samplings)


def explain_lack(record: RunRecord) -> str:
    """Why a run has no kernel evidence."""
    problems = [s.problem for s in record.samplings if s.problem]
    if problems:
        return f"no evidence: {problems[0]}"
    return "no evidence: not sampled"


def explain_unchanged(
    proof: Proof, hidden: Collection[str], baseline: pd.DataFrame, dtype: str = ""
) -> str:
    """The likely reason why both sides of a comparison ran the same machine code."""
    delegated = baseline.loc[baseline["kind"] == "delegated", "duration_ns"].sum()
    share = delegated / max(baseline["duration_ns"].sum(), 1)
    if not hidden:
        reason = "this CPU has no such feature to hide"
    elif share < 0.05:
        reason = f"{100 * (1 - share):.0f} % of the time is outside delegates"
    else:
        among = f" in {dtype}" if dtype else ""
        reason = f"XNNPACK has no {', '.join(sorted(hidden))} kernel for these operators{among}"
    return (
        f"the same machine code ran on both sides, to within {100 * proof.noticed:.1g} % of the "
        f"time; likely because {reason}"
    )

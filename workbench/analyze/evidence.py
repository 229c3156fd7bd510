"""Which machine code each operator ran, from samples of the program counter."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import norm

from workbench.analyze.categories import add_categories
from workbench.analyze.windows import find_operators
from workbench.schema import CODE_SHARES, EVIDENCE, check

#: Stands for the operator of samples that two may claim.
UNSURE = "(between two operators)"


def gather_evidence(events: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """Count the samples of every function in every operator of one traced process.

    Parameters
    ----------
    events
        ``schema.EVENTS``.
    samples
        ``schema.SAMPLES`` of the same process, with the columns ``function`` and ``code``. Those of
        waiting threads, and those outside any run, are left out.

    Returns
    -------
    DataFrame
        ``schema.EVIDENCE``, the most samples first. Samples too close to a boundary between two
        operators have a row of their own, with the key ``""``.
    """
    samples = samples[samples["busy"]].reset_index(drop=True)
    found = find_operators(events, samples["time_ns"].to_numpy())
    rows = pd.concat([found, samples[["function", "code", "library"]]], axis=1)
    rows = rows[rows["key"].notna()]
    unsure = ~rows["sure"].astype(bool)
    rows.loc[unsure, ["key", "operator", "kind"]] = ["", UNSURE, "framework"]
    rows["library"] = [path.rpartition("/")[2] for path in rows["library"]]
    by = ["key", "operator", "kind", "function", "code", "library"]
    counts = rows.groupby(by, sort=False).size().rename("samples").reset_index()
    counts = add_categories(counts)
    total = counts.groupby("key")["samples"].transform("sum")
    counts = counts.assign(**_shares(counts["samples"], total))
    counts = counts.sort_values("samples", ascending=False, kind="stable", ignore_index=True)
    return check(counts[EVIDENCE.names], EVIDENCE)


def split_code(evidence: pd.DataFrame, by: str | None = None) -> pd.DataFrame:
    """Shares of the classes of machine code: of the whole inference, or of its parts.

    Parameters
    ----------
    evidence
        ``schema.EVIDENCE`` of one experiment and thread count.
    by
        What its parts are: ``category``, ``family``, ``operator`` or ``key``. None: E2E.

    Returns
    -------
    DataFrame
        ``schema.CODE_SHARES``; the part with the most samples first.
    """
    part = evidence[by] if by else pd.Series("E2E", evidence.index)
    counts = evidence.groupby([part.rename("part"), "code"])["samples"].sum().reset_index()
    total = counts.groupby("part")["samples"].transform("sum")
    counts = counts.assign(**_shares(counts["samples"], total), total=total)
    order = ["total", "part", "samples"]
    counts = counts.sort_values(order, ascending=[False, True, False], ignore_index=True)
    return check(counts[CODE_SHARES.names], CODE_SHARES)


def name_kernels(evidence: pd.DataFrame) -> pd.DataFrame:
    """The function that each operator ran most of its time in, where one stands out.

    Parameters
    ----------
    evidence
        ``schema.EVIDENCE`` of one experiment and thread count.

    Returns
    -------
    DataFrame
        Rows of the evidence by ``key``: those whose share is surely more than a half.
    """
    known = evidence[(evidence["key"] != "") & (evidence["low"] > 0.5)]
    return known.drop_duplicates("key").set_index("key")


def _shares(samples: pd.Series, total: pd.Series) -> dict[str, pd.Series]:
    """Share and its 95 % interval, by Wilson's score (Brown, Cai and DasGupta 2001)."""
    z2 = norm.ppf(0.975) ** 2
    share = samples / total
    middle = (share + z2 / (2 * total)) / (1 + z2 / total)
    spread = np.sqrt(share * (1 - share) / total + z2 / (4 * total**2)) / (1 + z2 / total)
    half = spread * np.sqrt(z2)
    return {"share": share, "low": (middle - half).clip(0, 1), "high": (middle + half).clip(0, 1)}

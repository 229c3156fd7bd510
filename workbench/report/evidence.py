"""Kernel evidence of a run: which machine code its experiments ran, and what that proves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from workbench.analyze import (
    Proof,
    compare_evidence,
    gather_evidence,
    name_kernels,
    prove_change,
)
from workbench.errors import StoreError
from workbench.records import Pair, Run, Sampling
from workbench.store import FUNCTIONS, MANIFEST
from workbench.trace import (
    locate_samples,
    read_etdump,
    read_functions,
    read_samples,
    resolve_functions,
    write_functions,
)


def keep_functions(run_dir: Path, run: Run, folders: Sequence[Path] = ()) -> None:
    """Write the functions that the samples of a run fell into, while their libraries are here.

    Parameters
    ----------
    folders
        Where copies of the libraries of another machine lie.
    """
    samples = [read_samples(path) for path, _ in _files(run_dir, run)]
    if samples:
        write_functions(resolve_functions(samples, folders), run_dir / FUNCTIONS)


def read_evidence(run_dir: Path, run: Run) -> pd.DataFrame | None:
    """The evidence of all experiments that were sampled; None if none was.

    Returns
    -------
    DataFrame
        ``schema.EVIDENCE`` with the columns ``experiment`` and ``threads`` before.

    Raises
    ------
    TraceError
        A file of it is malformed.
    """
    files = _files(run_dir, run)
    if not files:
        return None
    samples = [read_samples(path) for path, _ in files]
    kept = run_dir / FUNCTIONS
    functions = read_functions(kept) if kept.exists() else resolve_functions(samples)
    parts = []
    for sampling, found, (_, etdump) in zip(_done(run), samples, files, strict=True):
        part = gather_evidence(read_etdump(etdump), locate_samples(found, functions))
        part.insert(0, "experiment", sampling.experiment)
        part.insert(1, "threads", sampling.threads)
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def compare_code(
    run: Run,
    pair: Pair,
    threads: tuple[int, int],
    evidence: pd.DataFrame | None,
    ledger: pd.DataFrame,
) -> tuple[pd.DataFrame | None, Proof | None, str]:
    """The microkernels of a pair, whether they differ, and why not where they should.

    Parameters
    ----------
    ledger
        Of the baseline.

    Returns
    -------
    tuple
        ``schema.KERNEL_EVIDENCE``; the proof; and, where a toggle changed nothing, the likely
        reason. None, None and nothing where a side was not sampled.
    """
    if evidence is None:
        return None, None, ""
    before, after = (
        evidence[(evidence["experiment"] == name) & (evidence["threads"] == count)]
        for name, count in zip((pair.baseline, pair.candidate), threads, strict=True)
    )
    if before.empty or after.empty:
        return None, None, ""
    proof = prove_change(before, after)
    had_none = proof.outcome == "same" and is_toggled(run, pair)
    unchanged = explain_unchanged(run, pair, proof, ledger) if had_none else ""
    return compare_evidence(before, after), proof, unchanged


def explain_lack(run: Run) -> str:
    """Why a run has no kernel evidence."""
    problems = [s.problem for s in run.samplings if s.problem]
    if problems:
        return f"no evidence: {problems[0]}"
    if run.runner.get("kind") != "native":
        return "no evidence: this runner cannot sample"
    return "no evidence: not sampled"


def select_kernels(evidence: pd.DataFrame | None, experiment: str, threads: int) -> pd.DataFrame:
    """The microkernels of one experiment by the key of their operator, as from ``name_kernels``."""
    if evidence is None:
        return pd.DataFrame()
    chosen = (evidence["experiment"] == experiment) & (evidence["threads"] == threads)
    return name_kernels(evidence[chosen])


def is_toggled(run: Run, pair: Pair) -> bool:
    """Whether the two experiments of a pair hide different CPU features."""
    experiments = {e.name: e for e in run.plan.experiments}
    before, after = experiments[pair.baseline], experiments[pair.candidate]
    return (before.isa, before.isa_off) != (after.isa, after.isa_off)


def explain_unchanged(run: Run, pair: Pair, proof: Proof, ledger: pd.DataFrame) -> str:
    """Why both sides of a pair ran the same machine code, as far as that can be told.

    Parameters
    ----------
    ledger
        Of the baseline.
    """
    found = (
        f"the same machine code ran on both sides, to within {100 * proof.noticed:.1g} % "
        f"of the time"
    )
    masks = {
        name: set.intersection(*(set(s.masked) for s in run.sessions if s.experiment == name))
        for name in (pair.baseline, pair.candidate)
    }
    hidden = sorted(masks[pair.baseline] ^ masks[pair.candidate])
    delegated = ledger.loc[ledger["kind"] == "delegated", "duration_ns"].sum()
    share = delegated / max(ledger["duration_ns"].sum(), 1)
    if not hidden:
        reason = "this CPU has nothing to hide there"
    elif share < 0.05:
        reason = f"{100 * (1 - share):.0f} % of the time is outside delegates"
    else:
        dtype = f" in {run.export.dtype}" if run.export else ""
        reason = f"XNNPACK has no kernel with {', '.join(hidden)} for these operators{dtype}"
    return f"{found}; likely because {reason}"


def _done(run: Run) -> list[Sampling]:
    return [s for s in run.samplings if s.samples]


def _files(run_dir: Path, run: Run) -> list[tuple[Path, Path]]:
    """The samples and the ETDump of every process that was sampled."""
    files = [(run_dir / s.samples, run_dir / s.etdump) for s in _done(run)]
    root = run_dir.resolve()
    if not all(path.resolve().is_relative_to(root) for pair in files for path in pair):
        raise StoreError("names a file outside its folder", where=run_dir / MANIFEST)
    return files

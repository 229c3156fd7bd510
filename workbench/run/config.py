"""Experiment configs: the JSON of Arm's profiling kit, unchanged, with a few additional keys."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workbench.errors import StoreError, UsageError, unknown_name
from workbench.options import MeasureOptions
from workbench.records.codec import structure
from workbench.records.runs import Experiment, Pair, Plan, Tensor
from workbench.run.plan import (
    SAMPLED_MS,
    begin_plan,
    default_inputs,
    load_inputs,
    pair_experiments,
    shorten_plan,
)
from workbench.run.runner import KINDS, Runner
from workbench.store import default_root, sha256_of

#: Configs are written by hand: a larger file is something else.
LARGEST_BYTES = 1_000_000
MAX_EXPERIMENTS, MAX_WORDS, LONGEST_WORD = 64, 64, 4096
MAX_THREADS, MAX_RUNS, MAX_CORE = 1024, 1_000_000, 1023
MODES = ("timing", "xnntrace")


@dataclass(frozen=True)
class Entry:
    """One of ``experiments``."""

    name: str
    runner_path: str = ""
    mode: str = "timing"
    runs: int | None = None
    num_runs: int | None = None
    warmup: int = 0
    threads: tuple[int, ...] = ()
    num_threads: int | None = None
    extra_args: tuple[str, ...] = ()
    cpu_affinity: tuple[int, ...] = ()
    runner: str = MeasureOptions.runner
    isa: str = "native"
    isa_off: tuple[str, ...] = ()


@dataclass(frozen=True)
class Side:
    """One side of a comparison."""

    experiment: str
    threads: int | None = None


@dataclass(frozen=True)
class Comparison:
    """One of ``analysis.compare_pairs``."""

    baseline: Side
    candidate: Side
    label: str = ""


@dataclass(frozen=True)
class AnalysisConfig:
    """``analysis``: what to compare."""

    compare_pairs: tuple[Comparison, ...] = ()


@dataclass(frozen=True)
class Config:
    """The contents of a config file."""

    model: str
    experiments: tuple[Entry, ...]
    output_root: str = ""
    analysis: AnalysisConfig = field(default_factory=AnalysisConfig)
    target: str = MeasureOptions.target
    inputs: tuple[str, ...] = ()


def read_config(path: Path) -> Config:
    """Read a config and check its names, numbers and sizes."""
    try:
        with open(path, "rb") as file:
            text = file.read(LARGEST_BYTES + 1)
        data = json.loads(text) if len(text) <= LARGEST_BYTES else None
    except OSError as error:
        raise StoreError(error.strerror or str(error), where=path) from None
    except (ValueError, RecursionError) as error:
        raise StoreError(f"not JSON: {error}", where=path) from None
    if not isinstance(data, dict):
        raise StoreError("not a config of experiments", where=path)
    config = structure(Config, _as_lists(data, path), path, strict=True)
    _check(config, path)
    return config


def plan_config(config: Config, folder: Path, baseline: str = "") -> Plan:
    """The plan that a config describes; relative paths are looked up here, then in ``folder``.

    All experiments have a ``runner_path``, or none. The baseline of the first comparison is
    measured again as a control; ``baseline`` replaces the config's comparisons.
    """
    pte = find_file(config.model, folder)
    if pte is None:
        raise StoreError("no such file", where=config.model, hint="workbench export makes one")
    foreign = [bool(entry.runner_path) for entry in config.experiments]
    if any(foreign) != all(foreign):
        hint = "write two configs and compare the runs with `workbench compare`"
        raise UsageError("only some experiments have a runner_path", hint=hint)
    experiments = [plan_entry(entry, folder) for entry in config.experiments]
    pairs, direction = plan_pairs(config, experiments, baseline)
    repeated = next(e for e in experiments if e.name == pairs[0].baseline)
    control = replace(repeated, name=f"{repeated.name}_control", control=True)
    pairs = tuple(replace(pair, candidate=pair.candidate or control.name) for pair in pairs)
    files = [_find_input(name, folder) for name in config.inputs]
    return replace(
        begin_plan(pte, [*experiments, control], pairs),
        inputs=tuple(Tensor("", (), str(file), sha256_of(file)) for file in files),
        input_source="files named in the config" if files else "the runner's own: ones",
        target=config.target,
        threads=tuple(sorted({count for e in experiments for count in e.threads})),
        runs=max(e.runs for e in experiments),
        warmup=max(e.warmup for e in experiments),
        direction=direction,
    )


def complete_plan(plan: Plan, runner: Runner) -> Plan:
    """Add the inputs and sampling, which require the workbench's runner; loads the program."""
    pte = Path(plan.pte)
    found = load_inputs(pte, runner, plan.timeout_s)
    plan = replace(plan, sampled_ms=SAMPLED_MS)
    if runner.target.emulated:
        plan = shorten_plan(plan)
    if not plan.inputs:
        inputs, source = default_inputs(pte, found)
        return replace(plan, inputs=inputs, input_source=source)
    if len(plan.inputs) != len(found):
        what = f"{len(plan.inputs)} input files, the program takes {len(found)}"
        raise UsageError(what, where="inputs")
    typed = zip(plan.inputs, found, strict=True)
    return replace(
        plan, inputs=tuple(replace(t, dtype=f.dtype, shape=tuple(f.shape)) for t, f in typed)
    )


def plan_entry(entry: Entry, folder: Path) -> Experiment:
    """The experiment that one entry describes."""
    runner = entry.runner
    if entry.runner_path:
        found = find_file(entry.runner_path, folder)
        if found is None or not os.access(found, os.X_OK):
            what = "not executable" if found else "no such runner"
            raise UsageError(what, where=f"{entry.name}: {entry.runner_path}")
        runner = str(found.resolve())
    return Experiment(
        name=entry.name,
        isa=entry.isa,
        isa_off=entry.isa_off,
        runner=runner,
        mode=entry.mode,
        threads=entry.threads or (entry.num_threads or 1,),
        runs=entry.num_runs or entry.runs or MeasureOptions.runs,
        warmup=entry.warmup,
        extra_args=entry.extra_args,
        cpu_affinity=entry.cpu_affinity,
    )


def plan_pairs(
    config: Config, experiments: list[Experiment], baseline: str = ""
) -> tuple[tuple[Pair, ...], str]:
    """The config's comparisons and how their baselines were chosen: `pair_experiments`.

    The comparisons that the config names come first, if they compare times.
    """
    timed = [e for e in experiments if e.mode == "timing"]
    names = [e.name for e in timed]
    masked = [e.name for e in timed if e.isa != "native" or e.isa_off]
    shown = f"{''.join(masked[:1])}, by isa and isa_off"
    pairs, how = pair_experiments(names, baseline=baseline, lacking=masked, shown=shown)
    asked = tuple(_plan_pair(pair, experiments) for pair in config.analysis.compare_pairs)
    if not baseline and any(pair.baseline in names for pair in asked):
        asked = tuple(sorted(asked, key=lambda pair: pair.baseline not in names))
        return asked, "named in the config"
    # The name of the control of a single experiment is left empty here.
    return pairs + asked or (Pair(names[0], "", "with nothing changed"),), how


def output_place(config: Config) -> tuple[Path, str]:
    """The output folder, and the name of the run in it; empty for the platform's name.

    The kit's ``output_root`` may be the folder of one run, ``<root>/runs/<name>``.
    """
    if not config.output_root:
        return default_root(Path(config.model).stem), ""
    place = Path(config.output_root)
    return (place.parent.parent, place.name) if place.parent.name == "runs" else (place, "")


def _find_input(name: str, folder: Path) -> Path:
    found = find_file(name, folder)
    if found is None:
        raise StoreError("no such input file", where=name)
    return found.resolve()


def find_file(name: str, folder: Path) -> Path | None:
    """A file named in a config: relative to here, else to the config's folder."""
    found = (path for path in (Path(name), folder / name) if path.is_file())
    return next(found, None)


def _as_lists(data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The config with lists where the kit also accepts a single value."""
    entries = data.get("experiments")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise StoreError("'experiments' is not a list of experiments", where=path)
    return {**data, "experiments": [_one_as_list(entry, path) for entry in entries]}


def _one_as_list(entry: dict[str, Any], path: Path) -> dict[str, Any]:
    entry = dict(entry)
    for key in ("threads", "isa_off", "extra_args"):
        if isinstance(entry.get(key), int | str):
            entry[key] = [entry[key]]
    mask = entry.get("cpu_affinity")
    if isinstance(mask, str):
        if not re.fullmatch(r"(0x)?[0-9a-fA-F]{1,256}", mask):
            raise UsageError(f"{mask!r:.40} is not a CPU mask", where=f"{path}: cpu_affinity")
        bits = int(mask, 16)
        entry["cpu_affinity"] = [core for core in range(bits.bit_length()) if bits >> core & 1]
    return {key: value for key, value in entry.items() if value is not None}


def _check(config: Config, path: Path) -> None:
    if not 1 <= len(config.experiments) <= MAX_EXPERIMENTS:
        raise UsageError(f"a config has 1 to {MAX_EXPERIMENTS} experiments", where=path)
    names = [entry.name for entry in config.experiments]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"two experiments have the name {twice[0]!r}", where=path)
    for entry in config.experiments:
        _check_entry(entry, f"{path}: {entry.name[:40]}")
    if not any(entry.mode == "timing" for entry in config.experiments):
        raise UsageError("no experiment of mode timing: nothing to compare", where=path)
    for pair in config.analysis.compare_pairs:
        for name in (pair.baseline.experiment, pair.candidate.experiment):
            if name not in names:
                raise unknown_name("experiment", name, names, where=f"{path}: compare_pairs")


def _check_entry(entry: Entry, where: str) -> None:
    # The name becomes a folder name.
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", entry.name, re.ASCII):
        hint = "use up to 100 letters, digits, '.', '_' and '-', a letter or digit first"
        what = f"{entry.name!r:.60} is not a valid experiment name"
        raise UsageError(what, where=where, hint=hint)
    if entry.mode not in MODES:
        raise unknown_name("mode", entry.mode, MODES, where)
    if entry.runner not in KINDS:
        raise unknown_name("runner", entry.runner, KINDS, where)
    for key, values, most in (
        ("threads", entry.threads, MAX_THREADS),
        ("num_threads", (entry.num_threads or 1,), MAX_THREADS),
        ("runs", (entry.runs or 1, entry.num_runs or 1), MAX_RUNS),
        ("warmup", (entry.warmup + 1,), MAX_RUNS),
        ("cpu_affinity", [core + 1 for core in entry.cpu_affinity], MAX_CORE + 1),
    ):
        if len(values) > MAX_WORDS or not all(1 <= value <= most for value in values):
            raise UsageError(f"{key} is out of range", where=where)
    words = (*entry.extra_args, entry.runner_path)
    if len(words) > MAX_WORDS or any(len(w) > LONGEST_WORD or "\0" in w for w in words):
        raise UsageError("extra_args has too many or too long entries", where=where)


def _plan_pair(pair: Comparison, experiments: list[Experiment]) -> Pair:
    names = {e.name: e for e in experiments}
    baseline, candidate = pair.baseline, pair.candidate
    for side in (baseline, candidate):
        counts = names[side.experiment].threads
        if side.threads is not None and side.threads not in counts:
            known = map(str, counts)
            raise unknown_name("thread count", str(side.threads), known, side.experiment)
    threads: tuple[int, ...] = ()
    if baseline.threads is not None or candidate.threads is not None:
        first = baseline.threads or names[baseline.experiment].threads[0]
        threads = (first, candidate.threads or names[candidate.experiment].threads[0])
    label = f"({pair.label})" if pair.label else f"as {candidate.experiment}"
    return Pair(baseline.experiment, candidate.experiment, label, threads)

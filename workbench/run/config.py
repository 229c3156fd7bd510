"""Experiment configs: the JSON of Arm's profiling kit, unchanged, with a few additional keys."""

import argparse
import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from workbench.errors import StoreError, UsageError, unknown_name
from workbench.export.program import Program, open_program
from workbench.options import MeasureOptions, Progress, silent
from workbench.records.codec import parse_json, structure
from workbench.records.runs import Experiment, Pair, Plan, Tensor
from workbench.run.plan import (
    CONTROL,
    SAMPLED_MS,
    add_phases,
    begin_plan,
    first_method,
    name_programs,
    pair_experiments,
    plan_program,
    program_loader,
    shorten_plan,
)
from workbench.run.runner import Runner
from workbench.store import default_root, read_file, sha256_of

#: Configs are written by hand: a larger file is something else.
LARGEST_BYTES = 1_000_000
MAX_EXPERIMENTS, MAX_WORDS, LONGEST_WORD = 64, 64, 4096
MAX_THREADS, MAX_RUNS, MAX_CORE = 1024, 1_000_000, 1023
MODES = ("timing", "xnntrace")
#: The kit's defaults, of experiments with a ``runner_path``.
KIT_RUNS, KIT_WARMUP = 100, 10
#: The folders that the kit and ExecuTorch are checked out into; paths may begin with either.
CHECKOUTS = ("executorch", "model_profiling")


@dataclass(frozen=True)
class Entry:
    """One of ``experiments``; ``program`` or ``model`` is its .pte if not the config's."""

    name: str
    runner_path: str = ""
    mode: str = "timing"
    runs: int | None = None
    num_runs: int | None = None
    warmup: int | None = None
    threads: tuple[int, ...] = ()
    num_threads: int | None = None
    extra_args: tuple[str, ...] = ()
    cpu_affinity: tuple[int, ...] = ()
    isa: str = "native"
    isa_off: tuple[str, ...] = ()
    program: str = ""
    model: str = ""


@dataclass(frozen=True)
class Side:
    """One side of a comparison."""

    experiment: str
    threads: int | None = None


@dataclass(frozen=True)
class ConfigComparison:
    """One of ``analysis.compare_pairs``."""

    baseline: Side
    candidate: Side
    label: str = ""


@dataclass(frozen=True)
class AnalysisConfig:
    """``analysis``: what to compare."""

    compare_pairs: tuple[ConfigComparison, ...] = ()


@dataclass(frozen=True)
class Config:
    """The contents of a config file."""

    model: str
    experiments: tuple[Entry, ...]
    output_root: str = ""
    analysis: AnalysisConfig = field(default_factory=AnalysisConfig)
    target: str = MeasureOptions.target
    power: str = MeasureOptions.power
    inputs: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()


def read_config(path: Path, progress: Progress = silent) -> Config:
    """Read a config and check its names, numbers and sizes; tells ``progress`` of unknown keys."""
    data = parse_json(read_file(path, LARGEST_BYTES), path)
    config = structure(Config, _adapt(data, path, progress), path)
    entries = (_apply_script_options(e, path) if e.runner_path else e for e in config.experiments)
    config = replace(config, experiments=tuple(entries))
    _check(config, path)
    return config


def select_experiments(config: Config, names: Sequence[str]) -> Config:
    """The config with these experiments only, and the comparisons between them."""
    known = [entry.name for entry in config.experiments]
    for name in names:
        if name not in known:
            raise unknown_name("experiment", name, known, where="--only")
    pairs = config.analysis.compare_pairs
    chosen = tuple(p for p in pairs if {p.baseline.experiment, p.candidate.experiment} <= {*names})
    kept = tuple(entry for entry in config.experiments if entry.name in names)
    return replace(config, experiments=kept, analysis=AnalysisConfig(chosen))


def plan_config(
    config: Config, folder: Path, baseline: str = ""
) -> tuple[Plan, tuple[Program, ...]]:
    """The plan that a config describes, and its programs; see `find_file` for relative paths.

    All experiments have a ``runner_path``, or none. The baseline of the first comparison is
    measured again as a control, unless the experiments only log kernels; ``baseline`` replaces the
    config's comparisons.
    """
    ptes = [_find_program(e.program or e.model or config.model, folder) for e in config.experiments]
    paths = list(dict.fromkeys([_find_program(config.model, folder), *ptes]))
    programs = [open_program(path) for path in paths]
    names = dict(zip(paths, ["", *name_programs(programs)[1:]], strict=True))
    foreign = [bool(entry.runner_path) for entry in config.experiments]
    if any(foreign) != all(foreign):
        hint = "write two configs and compare the runs with `workbench compare`"
        raise UsageError("only some experiments have a runner_path", hint=hint)
    experiments = [
        replace(plan_entry(entry, folder), program=names[path])
        for entry, path in zip(config.experiments, ptes, strict=True)
    ]
    logs = [e.name for e in experiments if e.mode != "timing"]
    chosen = baseline if baseline in logs or len(logs) == len(experiments) else ""
    pairs, direction = pair_experiments(logs, baseline=chosen) if logs else ((), "")
    if len(logs) < len(experiments):
        compared, direction = plan_pairs(config, experiments, baseline)
        known = {(pair.baseline, pair.candidate) for pair in compared}
        pairs = compared + tuple(p for p in pairs if (p.baseline, p.candidate) not in known)
        repeated = next(e for e in experiments if e.name == pairs[0].baseline)
        name = CONTROL
        while name in (e.name for e in experiments):
            name += "_"
        control = replace(repeated, name=name, control=True)
        pairs = tuple(replace(pair, candidate=pair.candidate or control.name) for pair in pairs)
        experiments.append(control)
    files = [_require(name, folder, "no such input file").resolve() for name in config.inputs]
    inputs = tuple(Tensor("", (), str(file), sha256_of(file)) for file in files)
    source = "files named in the config" if files else "the runner's own: ones"
    first, *further = (
        replace(plan_program(name, program), inputs=inputs, input_source=source)
        for name, program in zip(names.values(), programs, strict=True)
    )
    plan = replace(
        begin_plan(first, experiments, pairs),
        programs=tuple(further),
        target=config.target,
        threads=tuple(sorted({count for e in experiments for count in e.threads})),
        runs=max(e.runs for e in experiments),
        warmup=max(e.warmup for e in experiments),
        direction=direction,
    )
    return plan, tuple(programs)


def complete_plan(
    plan: Plan, programs: Sequence[Program], runner: Runner, phases: Sequence[str] = ()
) -> Plan:
    """Add inputs, phases and sampling, which require the workbench's runner; loads the programs."""
    load, method = program_loader(runner, plan.timeout_s), first_method(phases)
    taken = [load(program.path, method).inputs for program in programs]
    plan = add_phases(replace(plan, sampled_ms=SAMPLED_MS), phases, partial(load, programs[0].path))
    if runner.target.emulated:
        plan = shorten_plan(plan)
    first = plan_program("", programs[0], taken[0])
    if plan.inputs:
        if len(plan.inputs) != len(taken[0]):
            what = f"{len(plan.inputs)} input files, the program takes {len(taken[0])}"
            raise UsageError(what, where="inputs")
        typed = zip(plan.inputs, taken[0], strict=True)
        inputs = tuple(replace(t, dtype=f.dtype, shape=tuple(f.shape)) for t, f in typed)
        first = replace(first, inputs=inputs, input_source=plan.input_source)
    names = [program.name for program in plan.programs]
    return replace(
        plan,
        inputs=first.inputs,
        input_source=first.input_source,
        programs=tuple(
            plan_program(name, program, inputs, like=(first, taken[0]))
            for name, program, inputs in zip(names, programs[1:], taken[1:], strict=True)
        ),
    )


def plan_entry(entry: Entry, folder: Path) -> Experiment:
    """The experiment that one entry describes."""
    runner, runs, warmup = Experiment.runner, MeasureOptions.runs, MeasureOptions.warmup
    if entry.runner_path:
        runs, warmup = KIT_RUNS, KIT_WARMUP
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
        runs=entry.num_runs or entry.runs or runs,
        warmup=warmup if entry.warmup is None else entry.warmup,
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
    """The output folder, and the name of the run in it; empty for one of the workbench.

    The kit's ``output_root`` may be the folder of one run, ``<root>/runs/<name>``.
    """
    if not config.output_root:
        return default_root(Path(config.model).stem), ""
    place = Path(config.output_root)
    return (place.parent.parent, place.name) if place.parent.name == "runs" else (place, "")


def _find_program(name: str, folder: Path) -> Path:
    template = "REPLACE_WITH" in name or "<model>" in name
    hint = "write the path of a .pte there" if template else "workbench export makes one"
    return _require(name, folder, "no such file", hint)


def _require(name: str, folder: Path, what: str, hint: str = "") -> Path:
    if (found := find_file(name, folder)) is None:
        raise StoreError(what, where=name, hint=hint)
    return found


def find_file(name: str, folder: Path) -> Path | None:
    """A file named in a config: below here, the config's folder or one of the three above it.

    The kit's paths begin at its checkout, so their first folder may be missing, or be left out.
    """
    head, _, tail = name.partition("/")
    names = [name, *(f"{checkout}/{name}" for checkout in CHECKOUTS)]
    names += [tail] if head in CHECKOUTS and tail else []
    folder = folder.resolve()
    places = (Path(), folder, *folder.parents[:3])
    found = (place / each for place in places for each in names)
    # Path.is_file raises an error for a name that is too long.
    return next((path for path in found if os.path.isfile(path)), None)  # noqa: PTH113


def _adapt(data: dict[str, Any], path: Path, progress: Progress) -> dict[str, Any]:
    """The config with lists where the kit also accepts a single value, without unknown keys."""
    entries, analysis = data.get("experiments"), data.get("analysis", {})
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise StoreError("'experiments' is not a list of experiments", where=path)
    known = _drop_unknown(Config, data, path, progress)
    known["experiments"] = [_adapt_entry(entry, path, progress) for entry in entries]
    if isinstance(analysis, dict):
        known["analysis"] = _drop_unknown(AnalysisConfig, analysis, path, progress)
    return known


def _drop_unknown(
    cls: type[Any], data: dict[str, Any], path: Path, progress: Progress
) -> dict[str, Any]:
    """The known keys that have a value; the kit ignores others, and so do we, after a warning."""
    valid = [each.name for each in fields(cls)]
    for key in data.keys() - valid:
        near = difflib.get_close_matches(key, valid, n=1)
        guess = f" -> did you mean {near[0]!r}?" if near else ""
        progress(f"warning: {path}: unknown key {key!r:.60} is ignored{guess}", 0.0)
    return {key: data[key] for key in valid if data.get(key) is not None}


def _adapt_entry(entry: dict[str, Any], path: Path, progress: Progress) -> dict[str, Any]:
    older = entry.get("quiet_runner")  # the kit's earlier name
    entry = {**entry, "runner_path": entry.get("runner_path") or older}
    entry.pop("quiet_runner", None)
    entry = _drop_unknown(Entry, entry, path, progress)
    for key in ("threads", "isa_off", "extra_args"):
        if isinstance(entry.get(key), int | str):
            entry[key] = [entry[key]]
    mask = entry.get("cpu_affinity")
    if isinstance(mask, str):
        if not re.fullmatch(r"(0x)?[0-9a-fA-F]{1,256}", mask):
            raise UsageError(f"{mask!r:.40} is not a CPU mask", where=f"{path}: cpu_affinity")
        bits = int(mask, 16)
        entry["cpu_affinity"] = [core for core in range(bits.bit_length()) if bits >> core & 1]
    return entry


def _apply_script_options(entry: Entry, path: Path) -> Entry:
    """An entry without the options of the kit's ``perf_runner.py`` in ``extra_args``."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--quiet-runner", default=entry.runner_path)
    parser.add_argument("--verbose-runner")
    parser.add_argument("--timing-runs", type=int, default=entry.runs)
    parser.add_argument("--warmup", type=int, default=entry.warmup)
    try:
        script, rest = parser.parse_known_args(entry.extra_args)
    except argparse.ArgumentError as error:
        raise UsageError(str(error), where=f"{path}: {entry.name:.40}: extra_args") from None
    traces = entry.mode == "xnntrace" and script.verbose_runner
    return replace(
        entry,
        runner_path=script.verbose_runner if traces else script.quiet_runner,
        runs=script.timing_runs,
        warmup=script.warmup,
        extra_args=tuple(rest),
    )


def _check(config: Config, path: Path) -> None:
    if not 1 <= len(config.experiments) <= MAX_EXPERIMENTS:
        raise UsageError(f"a config has 1 to {MAX_EXPERIMENTS} experiments", where=path)
    names = [entry.name for entry in config.experiments]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"two experiments have the name {twice[0]!r}", where=path)
    if config.phases and any(entry.runner_path for entry in config.experiments):
        raise UsageError("an executor_runner knows no phases", where=f"{path}: phases")
    for entry in config.experiments:
        _check_entry(entry, f"{path}: {entry.name[:40]}")
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
    for key, values, most in (
        ("threads", entry.threads, MAX_THREADS),
        ("num_threads", (entry.num_threads or 1,), MAX_THREADS),
        ("runs", (entry.runs or 1, entry.num_runs or 1), MAX_RUNS),
        ("warmup", ((entry.warmup or 0) + 1,), MAX_RUNS),
        ("cpu_affinity", [core + 1 for core in entry.cpu_affinity], MAX_CORE + 1),
    ):
        if len(values) > MAX_WORDS or not all(1 <= value <= most for value in values):
            raise UsageError(f"{key} is out of range", where=where)
    words = (*entry.extra_args, entry.runner_path)
    if len(words) > MAX_WORDS or any(len(w) > LONGEST_WORD or "\0" in w for w in words):
        raise UsageError("extra_args has too many or too long entries", where=where)


def _plan_pair(pair: ConfigComparison, experiments: list[Experiment]) -> Pair:
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

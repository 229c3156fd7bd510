"""Experiment configs: the JSON of Arm's profiling kit, unchanged, with a few additional keys."""

import argparse
import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench import MeasureOptions, Program, open_program
from workbench.api import (
    Progress,
    StoreError,
    UsageError,
    read_json,
    silent,
    structure,
    unknown_name,
)
from workbench.jobs import (
    Experiment,
    Pair,
    Plan,
    Runner,
    default_root,
    pair_experiments,
    plan_given,
)
from workbench.plugins.kit.documents import CONFIG, CONFIG_EXPERIMENT

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
class Config:
    """The contents of a config file; ``program`` of an experiment is the path of its .pte."""

    model: str
    experiments: tuple[Experiment, ...]
    pairs: tuple[Pair, ...] = ()
    output_root: str = ""
    target: str = MeasureOptions.target
    power: str = MeasureOptions.power
    inputs: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()


#: The keys of a config, and of one of its experiments; the kit ignores others.
CONFIG_KEYS, ENTRY_KEYS = set(CONFIG.__annotations__), set(CONFIG_EXPERIMENT.__annotations__)


def read_config(path: Path, progress: Progress = silent) -> Config:
    """Read a config and check its names, numbers and sizes; tells ``progress`` of unknown keys."""
    data = read_json(path, LARGEST_BYTES)
    entries, analysis = data.get("experiments"), data.get("analysis") or {}
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise StoreError("'experiments' is not a list of experiments", where=path)

    def pick(content: dict[str, Any], keys: set[str]) -> dict[str, Any]:
        """The known keys that have a value; warns of others."""
        for key in content.keys() - keys:
            near = difflib.get_close_matches(key, keys, n=1)
            guess = f" -> did you mean {near[0]!r}?" if near else ""
            progress(f"warning: {path}: unknown key {key!r:.60} is ignored{guess}", 0.0)
        return {key: content[key] for key in keys if content.get(key) is not None}

    settings = pick(data, CONFIG_KEYS)
    settings["experiments"] = [_adapt_entry(pick(entry, ENTRY_KEYS), path) for entry in entries]
    settings.pop("analysis", None)
    config = structure(Config, settings, path)
    experiments = tuple(_apply_script_options(e, path) for e in config.experiments)
    _check(experiments, config.phases, path)
    try:
        pairs = pick(analysis, {"compare_pairs"}).get("compare_pairs", ())
        planned = tuple(_read_pair(each, experiments, path) for each in pairs)
    except (TypeError, AttributeError, KeyError):
        raise StoreError("'compare_pairs' is not a list of comparisons", where=path) from None
    return replace(config, experiments=experiments, pairs=planned)


def select_experiments(config: Config, names: Sequence[str]) -> Config:
    """The config with these experiments only, and the comparisons between them."""
    experiments = [entry.name for entry in config.experiments]
    for name in names:
        if name not in experiments:
            raise unknown_name("experiment", name, experiments, where="--only")
    pairs = tuple(p for p in config.pairs if {p.baseline, p.candidate} <= {*names})
    kept = tuple(entry for entry in config.experiments if entry.name in names)
    return replace(config, experiments=kept, pairs=pairs)


def plan_config(
    config: Config, folder: Path, baseline: str = "", runner: Runner | None = None
) -> tuple[Plan, list[Program]]:
    """The plan that a config describes, and its programs; see `find_file` for relative paths.

    All experiments have a ``runner_path``, or none: then ``runner``, the workbench's, loads the
    programs. The baseline of the first comparison is measured again as a control, unless the
    experiments only log kernels; ``baseline`` replaces the config's comparisons.
    """
    ptes = [_find_program(e.program or config.model, folder) for e in config.experiments]
    paths = list(dict.fromkeys([_find_program(config.model, folder), *ptes]))
    programs = [open_program(path) for path in paths]
    if len({e.runner == Experiment.runner for e in config.experiments}) > 1:
        hint = "write two configs and compare the runs with `workbench compare`"
        raise UsageError("only some experiments have a runner_path", hint=hint)
    experiments = [
        replace(e, runner=_find_runner(e, folder), program=str(path))
        for e, path in zip(config.experiments, ptes, strict=True)
    ]
    pairs, direction = plan_pairs(config, baseline)
    timed = any(e.mode == "timing" for e in experiments)
    repeated = next((e.name for e in experiments if timed and e.name == pairs[0].baseline), "")
    plan = plan_given(
        programs, experiments, pairs,
        repeated=repeated,
        runner=runner,
        phases=config.phases,
        files=[find_file(name, folder, "no such input file").resolve() for name in config.inputs],
    )  # fmt: skip
    return replace(plan, target=config.target, direction=direction), programs


def _find_runner(experiment: Experiment, folder: Path) -> str:
    if experiment.runner == Experiment.runner:
        return experiment.runner
    path = find_file(experiment.runner, folder, "no such runner")
    if not os.access(path, os.X_OK):
        raise UsageError("not executable", where=f"{experiment.name}: {experiment.runner}")
    return str(path.resolve())


def plan_pairs(config: Config, baseline: str = "") -> tuple[tuple[Pair, ...], str]:
    """The comparisons of a config, and how their baselines were chosen: `pair_experiments`.

    Those of times come first. The name of the control of a single experiment is left empty.
    """
    timed = [e for e in config.experiments if e.mode == "timing"]
    names = [e.name for e in timed]
    logs = [e.name for e in config.experiments if e.mode != "timing"]
    pairs, how = pair_experiments(logs, baseline="" if timed else baseline) if logs else ((), "")
    if not timed:
        return pairs, how
    masked = [e.name for e in timed if e.isa != "native" or e.isa_off]
    shown = f"{''.join(masked[:1])}, by isa and isa_off"
    compared, how = pair_experiments(names, baseline=baseline, lacking=masked, shown=shown)
    compared += config.pairs
    if not baseline and any(pair.baseline in names for pair in config.pairs):
        compared = tuple(sorted(config.pairs, key=lambda pair: pair.baseline not in names))
        how = "named in the config"
    compared = compared or (Pair(names[0], "", "with nothing changed"),)
    named = {(pair.baseline, pair.candidate) for pair in compared}
    return compared + tuple(p for p in pairs if (p.baseline, p.candidate) not in named), how


def output_place(config: Config, root: str | Path | None = None) -> tuple[Path, str]:
    """The output folder, and the name of the run in it; empty for one of the workbench.

    The kit's ``output_root`` may be the folder of one run, ``<root>/runs/<name>``. With runners of
    its own, a config may place it anywhere, as the kit does; else in the working folder.
    """
    place, name = Path(config.output_root or default_root(Path(config.model).stem)), ""
    is_inside = place.resolve().is_relative_to(Path.cwd())
    if config.experiments[0].runner == Experiment.runner and not (is_inside or root):
        what, where = "leads outside of the working folder", f"output_root {config.output_root}"
        raise UsageError(what, where=where, hint="choose the folder with --out")
    if place.parent.name == "runs":
        place, name = place.parent.parent, place.name
    return Path(root or place), name


def _find_program(name: str, folder: Path) -> Path:
    template = "REPLACE_WITH" in name or "<model>" in name
    hint = "write the path of a .pte there" if template else "workbench export makes one"
    return find_file(name, folder, "no such file", hint)


def find_file(name: str, folder: Path, what: str, hint: str = "") -> Path:
    """A file named in a config: below here, the config's folder or one of the three above it.

    The kit's paths begin at its checkout, so their first folder may be missing, or be left out.
    """
    head, _, tail = name.partition("/")
    names = [name, *(f"{checkout}/{name}" for checkout in CHECKOUTS)]
    names += [tail] if head in CHECKOUTS and tail else []
    folder = folder.resolve()
    places = (Path(), folder, *folder.parents[:3])
    for path in (place / each for place in places for each in names):
        if os.path.isfile(path):  # noqa: PTH113, which raises an error for a name that is too long
            return path
    raise StoreError(what, where=name, hint=hint)


def _adapt_entry(entry: dict[str, Any], path: Path) -> dict[str, Any]:
    """An entry with the keys of `Experiment`, with lists where the kit also accepts one value."""
    older, program, model = (entry.pop(key, "") for key in ("quiet_runner", "program", "model"))
    runner = entry.pop("runner_path", "") or older  # the kit's earlier name
    runs, warmup = MeasureOptions.runs, MeasureOptions.warmup
    if runner:
        runs, warmup = KIT_RUNS, KIT_WARMUP
    entry = {
        "warmup": warmup,
        **entry,
        "runner": runner or Experiment.runner,
        "runs": entry.get("num_runs") or entry.get("runs") or runs,
        "threads": entry.get("threads") or [entry.get("num_threads", 1)],
        "program": program or model,
    }
    entry = {key: value for key, value in entry.items() if key not in ("num_runs", "num_threads")}
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


def _apply_script_options(entry: Experiment, path: Path) -> Experiment:
    """An experiment without the options of the kit's ``perf_runner.py`` in ``extra_args``."""
    if entry.runner == Experiment.runner:
        return entry
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--quiet-runner", default=entry.runner)
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
        runner=script.verbose_runner if traces else script.quiet_runner,
        runs=script.timing_runs,
        warmup=script.warmup,
        extra_args=tuple(rest),
    )


def _check(experiments: Sequence[Experiment], phases: Sequence[str], path: Path) -> None:
    if not 1 <= len(experiments) <= MAX_EXPERIMENTS:
        raise UsageError(f"a config has 1 to {MAX_EXPERIMENTS} experiments", where=path)
    names = [experiment.name for experiment in experiments]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"two experiments have the name {twice[0]!r}", where=path)
    if phases and any(e.runner != Experiment.runner for e in experiments):
        raise UsageError("an executor_runner knows no phases", where=f"{path}: phases")
    for experiment in experiments:
        _check_experiment(experiment, f"{path}: {experiment.name[:40]}")


def _check_experiment(experiment: Experiment, where: str) -> None:
    # The name becomes a folder name.
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", experiment.name, re.ASCII):
        hint = "use up to 100 letters, digits, '.', '_' and '-', a letter or digit first"
        what = f"{experiment.name!r:.60} is not a valid experiment name"
        raise UsageError(what, where=where, hint=hint)
    if experiment.mode not in MODES:
        raise unknown_name("mode", experiment.mode, MODES, where)
    for key, values, least, most in (
        ("threads", experiment.threads, 1, MAX_THREADS),
        ("runs", [experiment.runs], 1, MAX_RUNS),
        ("warmup", [experiment.warmup], 0, MAX_RUNS),
        ("cpu_affinity", experiment.cpu_affinity, 0, MAX_CORE),
    ):
        if len(values) > MAX_WORDS or not all(least <= value <= most for value in values):
            raise UsageError(f"{key} is out of range", where=where)
    words = (*experiment.extra_args, experiment.runner)
    if len(words) > MAX_WORDS or any(len(w) > LONGEST_WORD or "\0" in w for w in words):
        raise UsageError("extra_args has too many or too long entries", where=where)


def _read_pair(content: Any, experiments: Sequence[Experiment], path: Path) -> Pair:
    """One of ``compare_pairs``."""
    threads_of = {experiment.name: experiment.threads for experiment in experiments}
    names, threads = [], []
    for side in (content["baseline"], content["candidate"]):
        if (name := side["experiment"]) not in threads_of:
            raise unknown_name("experiment", f"{name}", threads_of, where=f"{path}: compare_pairs")
        names.append(name)
        threads.append(side.get("threads"))
        if threads[-1] is not None and threads[-1] not in threads_of[name]:
            raise unknown_name("thread count", f"{threads[-1]}", map(str, threads_of[name]), name)
    counts = [n or threads_of[name][0] for n, name in zip(threads, names, strict=True)]
    label = f"({label})" if (label := content.get("label")) else f"as {names[-1]}"
    baseline, candidate = names
    return Pair(baseline, candidate, label, tuple(counts) if any(threads) else ())

"""From a program and a few choices to a plan of what to measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from workbench.errors import StoreError, UsageError
from workbench.options import MeasureOptions
from workbench.records.runs import LADDER_TOGGLE, Experiment, Pair, Plan
from workbench.run.isa import Isa, Toggle, find_rungs, read_isa, resolve_toggle
from workbench.run.runner import Runner, open_runner
from workbench.run.sampling import SAMPLED_MS
from workbench.run.tensor_files import RANDOM_SOURCE, strip_files
from workbench.store import load_export, safe_name, sha256_of

#: Inferences of every experiment on an emulated CPU.
EMULATED_RUNS = 2


def make_plan(pte: Path, options: MeasureOptions, runner: Runner) -> Plan:
    """Plan an A/B run of a program: an ISA extension off (baseline) against on (candidate).

    The program is loaded once, so that a bad one is refused before anything is measured.

    Parameters
    ----------
    pte
        The program; its export record, if it lies beside it, names the inputs.
    options
        What to measure. ``runner``, ``target`` and ``power`` are not used here: ``runner`` (from
        `find_runner`) stands for them.

    Raises
    ------
    UsageError
        An unknown toggle, or a number out of range.
    StoreError, RunnerError
        The program cannot be read or loaded.
    """
    for name, least, values in (
        ("threads", 1, options.threads),
        ("runs", 1, [options.runs]),
        ("warmup", 0, [options.warmup]),
        ("processes", 1, [options.processes]),
        ("budget", 0, [options.budget_s]),
    ):
        if not values or min(values) < least:
            raise UsageError(f"{name} must be at least {least}", where=f"--{name}")
    if not pte.is_file():
        raise StoreError("no such file", where=pte, hint="workbench export MODEL makes one")
    name, experiments, pairs = choose_experiments(options, read_isa(runner.command))
    export = load_export(pte)
    flags = ["--model_path", runner.target.push(pte)]
    with open_runner(runner, flags, timeout_s=options.timeout_s) as session:
        ready = session.ready
    plan = Plan(
        pte=str(pte),
        sha256=sha256_of(pte),
        model=export.model if export else safe_name(pte.stem),
        stem=safe_name(pte.stem),
        inputs=export.inputs if export else strip_files(ready.inputs),
        input_source=export.input_source if export else RANDOM_SOURCE,
        experiments=experiments,
        pairs=pairs,
        toggle=name,
        target=runner.target.name,
        threads=tuple(dict.fromkeys(options.threads)),
        runs=options.runs,
        warmup=options.warmup,
        processes=options.processes,
        sampled_ms=SAMPLED_MS if options.evidence else 0.0,
        timeout_s=options.timeout_s,
        budget_s=options.budget_s,
        precision=options.precision,
    )
    return shorten_plan(plan) if runner.target.emulated else plan


def shorten_plan(plan: Plan) -> Plan:
    """The plan for an emulated CPU, where an inference takes long and its time means nothing.

    Every experiment runs in one process of each kind, in batches of one inference, and neither
    warm-up nor control is needed: what is asked is which code runs, and whether it computes the
    same.
    """
    compared = {name for pair in plan.pairs for name in (pair.baseline, pair.candidate)}
    return replace(
        plan,
        experiments=tuple(e for e in plan.experiments if e.name in compared or not e.control),
        runs=min(plan.runs, EMULATED_RUNS),
        traced_runs=min(plan.traced_runs, EMULATED_RUNS),
        warmup=0,
        processes=1,
        batch_ms=0.0,
    )


def check_toggle(options: MeasureOptions, runner: Runner) -> None:
    """Refuse a toggle that the runner's CPU does not support, before long work begins.

    Raises
    ------
    UsageError
        An unknown toggle, or an extension that this CPU lacks.
    """
    choose_experiments(options, read_isa(runner.command))


def choose_experiments(
    options: MeasureOptions, isa: Isa
) -> tuple[str, tuple[Experiment, ...], tuple[Pair, ...]]:
    """What a toggle, or the ladder, means on this CPU: its name, experiments and pairs.

    Raises
    ------
    UsageError
        An unknown toggle, an extension that this CPU lacks, or a toggle and the ladder at once.
    """
    if options.isa_ladder and options.toggle != "auto":
        raise UsageError("the ladder has every level already", where=f"--toggle {options.toggle}")
    if options.isa_ladder:
        return LADDER_TOGGLE, *plan_ladder(find_rungs(isa))
    switch = resolve_toggle(options.toggle, isa)
    experiments, pair = plan_experiments(switch)
    return switch.name, experiments, (pair,)


def plan_ladder(rungs: Sequence[str]) -> tuple[tuple[Experiment, ...], tuple[Pair, ...]]:
    """An experiment for every rung, the lowest first, and a control that equals the highest.

    The pairs are the lowest against the highest, then each rung against the one below it.
    """
    experiments = [Experiment(level, isa=level) for level in rungs]
    control = Experiment(f"{rungs[-1]}_control", isa=rungs[-1], control=True)
    steps = dict.fromkeys([(rungs[0], rungs[-1]), *pairwise(rungs)])
    pairs = tuple(Pair(below, above, f"from {below} to {above}") for below, above in steps)
    return (*experiments, control), pairs


def plan_experiments(switch: Toggle) -> tuple[tuple[Experiment, ...], Pair]:
    """Baseline, candidate, and a control that equals the baseline: the noise floor."""
    if switch.name == "none":
        baseline, candidate = Experiment("baseline"), Experiment("repeat")
        label = "with nothing toggled"
    else:
        baseline = Experiment(f"{switch.name}_off", isa=switch.off)
        candidate = Experiment(f"{switch.name}_on", isa=switch.on)
        label = f"with {switch.name}"
    control = Experiment(f"{baseline.name}_control", isa=baseline.isa, control=True)
    return (baseline, candidate, control), Pair(baseline.name, candidate.name, label)

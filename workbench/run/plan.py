"""Plan what to measure: a program, options and a CPU make experiments and pairs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain, count, pairwise
from pathlib import Path

from workbench import store
from workbench.errors import UsageError, unknown_name
from workbench.export.program import Program
from workbench.names import check_label
from workbench.options import RUNTIMES, MeasureOptions
from workbench.records.exports import Tensor
from workbench.records.runs import LADDER_TOGGLE, Experiment, Pair, Plan, PlannedProgram
from workbench.run.isa import MAX_CORES, Isa, Toggle, find_levels, resolve_toggle
from workbench.run.phases import add_phases, split_phase
from workbench.run.runner import Runner
from workbench.run.session import Ready
from workbench.run.targets.host import HOST
from workbench.run.tensor_files import RANDOM_SOURCE

#: Inferences of every experiment on an emulated CPU.
EMULATED_RUNS = 2
#: CPU time for which an experiment is sampled, about five hundred times.
SAMPLED_MS = 2000.0
#: Processes of every experiment that are timed from their start, at most.
MAX_STARTS = 5
#: The longest wait for one answer, in seconds: a week.
MAX_TIMEOUT_S = 7 * 24 * 3600


def make_plan(programs: Sequence[Program], options: MeasureOptions, runner: Runner) -> Plan:
    """Plan an A/B run: an ISA extension off (baseline) against on, or a program against others.

    Loads every program once, so that a broken one fails before anything is measured.
    """
    _check_numbers(options)
    _check_constant(options.constant, programs)
    names = name_uniquely(programs)
    compared = names[:1] if options.sweep else names
    runtimes = {name: p.runtime for name, p in zip(names, programs, strict=True) if p.runtime}
    if runtimes and runner.target is not HOST:
        what = "other runtimes are measured on this machine only"
        raise UsageError(what, where=f"--target {runner.target.name}")
    threads = choose_threads(options.threads, runner)
    toggle, experiments, pairs = choose_experiments(options, runner.isa, compared, runtimes)
    load = program_loader(runner, options.timeout_s)
    plan = begin_plan(programs, experiments, pairs, load, options.phases, options.sweep)
    plan = replace(
        plan,
        toggle=toggle,
        target=runner.target.name,
        threads=tuple(threads),
        thread_rules=tuple(threads.values()) if any(threads.values()) else (),
        runs=options.runs,
        warmup=options.warmup,
        processes=options.processes,
        sampled_ms=SAMPLED_MS if options.evidence else 0.0,
        starts=min(options.processes or MAX_STARTS, MAX_STARTS) if options.cold_start else 0,
        timeout_s=options.timeout_s,
        budget_s=options.budget_s,
        label=check_label(options.label),
        constant=options.constant,
    )
    return shorten_plan(plan) if runner.target.emulated else plan


def _check_numbers(options: MeasureOptions) -> None:
    """Refuse numbers that nothing can be measured with."""
    for name, least, value in (
        ("threads", 1, min((n or 1 for n in options.threads), default=0)),
        ("runs", 1, options.runs),
        ("warmup", 0, options.warmup),
        ("processes", 0, options.processes),
        ("budget", 0, options.budget_s),
    ):
        if value < least:
            raise UsageError(f"{name} must be at least {least}", where=f"--{name}")
    if not 0 < options.timeout_s <= MAX_TIMEOUT_S:
        raise UsageError(f"timeout must be above 0 and at most {MAX_TIMEOUT_S}", where="timeout_s")


def _check_constant(names: Sequence[str], programs: Sequence[Program]) -> None:
    """Refuse inputs that no program has, as far as its export recorded their names."""
    cones = [cone for p in programs if p.export for cone in p.export.dependence]
    inputs = dict.fromkeys(chain.from_iterable(cone.inputs for cone in cones))
    for name in names:
        if name not in inputs:
            raise unknown_name("input", name, inputs, where="--constant")
    if names and inputs.keys() <= {*names}:
        raise UsageError("no input is left that changes", where="--constant")


def choose_threads(counts: Sequence[int], runner: Runner) -> dict[int, str]:
    """The thread counts to measure, and the rule behind each; 0 stands for all rules.

    The rules are those of pytorch/executorch (cff6f4d, 2026-08-22): the thread pool has as many
    threads as the device has performance cores (``extension/threadpool``), and nothing in
    ``extension/apple`` changes that; Android's Module takes half of the cores, its LlmModule the
    performance cores but one (``extension/android/jni``). ExecuTorch itself counts the cores; where
    it cannot tell performance cores, as on x86, both take all.
    """
    if 0 not in counts:
        return dict.fromkeys(counts, "")
    cores, fast = runner.isa.cores, runner.isa.performance_cores
    if runner.target.emulated or not cores:
        problem = "an emulated CPU has no times" if cores else "the runner does not count its cores"
        raise UsageError(problem, where="--threads auto", hint="name counts, such as 1,2,4")
    clusters = runner.target.clusters
    rules = [
        (1, "one thread"),
        (fast - 1, "performance cores but one, Android's LlmModule"),
        (cores // 2, "half of the cores, Android's Module"),
        (fast, "performance cores, iOS and others"),
        (0 if fast else cores, "all cores, iOS and others"),
        *((n, "cores with the highest clock") for n, _ in clusters[:1] if clusters[1:]),
        *((count, "as asked for") for count in counts),
    ]
    numbers = sorted({count for count, _ in rules if 0 < count <= MAX_CORES})
    return {n: "; ".join(text for count, text in rules if count == n) for n in numbers}


#: The control's name. It has no part of the name that it repeats: the tools of Arm's profiling kit
#: choose the sides of a comparison by parts of names, such as ``sme2_off``.
CONTROL = "control"


def begin_plan(
    programs: Sequence[Program],
    experiments: Sequence[Experiment],
    pairs: Sequence[Pair],
    load: Callable[[Program, str], Ready],
    phases: Sequence[str],
    sweep: str,
) -> Plan:
    """A plan of programs in phases or sizes, with default settings; see `add_phases`.

    ``load`` is a `program_loader`.
    """
    # A program may have no ``forward``.
    method = next((split_phase(text)[1] for text in phases), "")
    if phases or sweep:
        refuse = "another runtime is measured on one set of inputs"
        for program in programs:
            if program.runtime:
                raise UsageError(refuse, where=f"--against {program.stem}")
    described = [() if p.runtime else load(p, method).inputs for p in programs]
    described = [inputs or described[0] for inputs in described]
    first = plan_program("", programs[0], described[0])
    fields = {key: value for key, value in vars(first).items() if key != "name"}
    named = list(zip(name_uniquely(programs), programs, described, strict=True))
    further = tuple(plan_program(*each, like=(first, described[0])) for each in named[1:])
    plan = Plan(**fields, experiments=tuple(experiments), pairs=tuple(pairs), programs=further)
    return add_phases(plan, phases, partial(load, programs[0]), sweep)


def name_uniquely(programs: Sequence[Program]) -> list[str]:
    """Unique names of programs, made of their models', or their files'."""
    models = [(program.stem if program.runtime else program.model) for program in programs]
    stems = [program.stem for program in programs]
    names: list[str] = []
    for name in map(store.safe_name, store.name_programs(list(zip(models, stems, strict=True)))):
        numbered = (f"{name}-{number}" for number in count(2))
        names.append(next(each for each in chain([name], numbered) if each not in names))
    return names


def plan_program(
    name: str,
    program: Program,
    taken: Sequence[Tensor] = (),
    like: tuple[PlannedProgram, Sequence[Tensor]] | None = None,
) -> PlannedProgram:
    """A program of a plan with its saved inputs, or random ones.

    ``taken`` are its inputs as a runner describes them. ``like`` is the first program of the plan
    and the inputs that it takes: the program gets the same ones where they are the same bytes.
    """
    inputs, source = program.inputs, RANDOM_SOURCE
    if program.export:
        source = program.export.input_source
    elif inputs:
        bundled = bool(program.expected)
        source = "the first case of the bundled program" if bundled else "example inputs"
    else:
        inputs = tuple(Tensor(tensor.dtype, tensor.shape) for tensor in taken)
    if program.runtime:
        pairs = zip(inputs, taken, strict=True)
        inputs = tuple(replace(tensor, dim_order=of.dim_order) for tensor, of in pairs)
    if like:
        first, first_taken = like
        layouts = zip(taken, first_taken, strict=False)
        same_layout = all(a.dim_order == b.dim_order for a, b in layouts)
        if same_layout and list(map(shape_of, inputs)) == list(map(shape_of, first.inputs)):
            folder, source = Path(first.pte).resolve().parent, first.input_source
            files = [(str(folder / t.file) if t.file else "", t.sha256) for t in first.inputs]
            inputs = tuple(
                replace(tensor, file=file, sha256=sha256)
                for tensor, (file, sha256) in zip(inputs, files, strict=True)
            )
    data = program.data
    return PlannedProgram(
        name, str(program.path), program.sha256, program.model, program.stem, inputs, source,
        str(data or ""), store.sha256_of(data) if data else "",
    )  # fmt: skip


def shape_of(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    """What two inputs have in common if one can replace the other."""
    return tensor.dtype, tensor.shape


def program_loader(runner: Runner, timeout_s: float) -> Callable[[Program, str], Ready]:
    """A function of program and method, empty for ``forward``: what the runner says of them."""

    @cache
    def load(pte: Path, data: Path | None, method: str) -> Ready:
        flags = ["--model_path", runner.target.push(pte)]
        flags += ["--data_path", runner.target.push(data)] if data else []
        flags += ["--method_name", method] if method else []
        with runner.open(flags, timeout_s=timeout_s) as session:
            return session.ready

    return lambda program, method: load(program.path, program.data, method)


def shorten_plan(plan: Plan) -> Plan:
    """The plan for an emulated CPU: slow, its times meaningless; no warm-up, no control."""
    compared = {name for pair in plan.pairs for name in (pair.baseline, pair.candidate)}
    return replace(
        plan,
        experiments=tuple(e for e in plan.experiments if e.name in compared or not e.control),
        runs=min(plan.runs, EMULATED_RUNS),
        traced_runs=min(plan.traced_runs, EMULATED_RUNS),
        warmup=0,
        processes=1,
        batch_ms=0.0,
        starts=0,
    )


def check_toggle(options: MeasureOptions, runner: Runner) -> None:
    """UsageError if the runner's CPU does not support a toggle; to call before long work."""
    compared = () if options.sweep else options.against
    choose_experiments(options, runner.isa, ("", *map(str, compared)))


def choose_experiments(
    options: MeasureOptions,
    isa: Isa,
    programs: Sequence[str] = (),
    runtimes: Mapping[str, str] = {},
) -> tuple[str, tuple[Experiment, ...], tuple[Pair, ...]]:
    """The name, experiments and pairs of a toggle or all ISA levels; UsageError if unsupported.

    ``programs`` are the names of several that are compared, the baseline first; ``runtimes`` are
    those of the ones that ExecuTorch does not run.
    """
    if len(programs) > 1:
        if options.isa_ladder:
            raise UsageError("--isa-ladder measures one program", where="--against")
        switch = resolve_toggle("none" if options.toggle == "auto" else options.toggle, isa)
        return switch.name, *plan_programs(programs, switch, runtimes)
    if options.isa_ladder and options.toggle != "auto":
        raise UsageError("--isa-ladder measures every level", where=f"--toggle {options.toggle}")
    if options.isa_ladder:
        return LADDER_TOGGLE, *plan_levels(find_levels(isa))
    switch = resolve_toggle(options.toggle, isa)
    experiments, pair = plan_experiments(switch)
    return switch.name, experiments, (pair,)


def plan_levels(levels: Sequence[str]) -> tuple[tuple[Experiment, ...], tuple[Pair, ...]]:
    """The ISA levels, a control like the highest; pairs of the extremes and of neighbours."""
    experiments = [Experiment(level, isa=level) for level in levels]
    control = Experiment(CONTROL, isa=levels[-1], control=True)
    steps = dict.fromkeys([(levels[0], levels[-1]), *pairwise(levels)])
    pairs = tuple(Pair(below, above, f"from {below} to {above}") for below, above in steps)
    return (*experiments, control), pairs


def plan_programs(
    names: Sequence[str], switch: Toggle, runtimes: Mapping[str, str] = {}
) -> tuple[tuple[Experiment, ...], tuple[Pair, ...]]:
    """Every program, at both sides of a toggle if there is one; the first one is the baseline.

    Of another runtime and ExecuTorch, the other one is the baseline.
    """
    sides = {"": "native"}
    if switch.name != "none":
        sides = {f"_{switch.name}_on": switch.on, f"_{switch.name}_off": switch.off}
    first = names[0]
    experiments = [
        Experiment(name + side, isa=isa, program="" if name == first else name)
        for name in names
        if name not in runtimes
        for side, isa in sides.items()
    ]
    experiments += [Experiment(n, runner=runtime, program=n) for n, runtime in runtimes.items()]
    control = replace(experiments[0], name=CONTROL, control=True)
    if twice := {e.name for e in experiments} & {control.name}:
        raise UsageError(f"two experiments would be called {twice.pop()}", hint="rename a program")
    best, *off = sides
    native = [name for name in names if name not in runtimes]
    pairs = [Pair(name, first + best, f"as {RUNTIMES[it]}") for name, it in runtimes.items()]
    pairs += [
        Pair(first + best, it + best, f"with {it} instead of {first}")
        for it in native
        if it != first
    ]
    pairs += [Pair(it + side, it + best, f"with {switch.name}") for side in off for it in native]
    return (*experiments, control), tuple(pairs)


def plan_experiments(switch: Toggle) -> tuple[tuple[Experiment, ...], Pair]:
    """Baseline, candidate, and a control that equals the baseline, for the noise floor."""
    if switch.name == "none":
        baseline, candidate = Experiment("baseline"), Experiment("repeat")
        label = "with nothing toggled"
    else:
        baseline = Experiment(f"{switch.name}_off", isa=switch.off)
        candidate = Experiment(f"{switch.name}_on", isa=switch.on)
        label = f"with {switch.name}"
    control = Experiment(CONTROL, isa=baseline.isa, control=True)
    return (baseline, candidate, control), Pair(baseline.name, candidate.name, label)

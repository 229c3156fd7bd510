"""Plan what to measure: a program, options and a CPU make experiments and pairs."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib import metadata
from itertools import chain, count, pairwise
from pathlib import Path

import numpy as np

from workbench.errors import StoreError, UsageError, unknown_name
from workbench.export.program import Program
from workbench.options import RUNTIMES, WEIGHTS, MeasureOptions
from workbench.records.runs import (
    LADDER_TOGGLE,
    Experiment,
    Pair,
    Phase,
    Plan,
    PlannedProgram,
    Tensor,
)
from workbench.run.build import WHEELS
from workbench.run.isa import MAX_CORES, Isa, Toggle, find_levels, resolve_toggle
from workbench.run.runner import Runner, open_runner, version_runner
from workbench.run.session import Ready
from workbench.run.targets.host import HOST
from workbench.run.tensor_files import RANDOM_SOURCE
from workbench.store import sha256_of

#: Inferences of every experiment on an emulated CPU.
EMULATED_RUNS = 2
#: CPU time for which an experiment is sampled, about five hundred times.
SAMPLED_MS = 2000.0
#: Processes of every experiment that are timed from their start, at most.
MAX_STARTS = 5
#: The time from one inference to the next at a rate, in seconds.
LEAST_PERIOD_S, MAX_PERIOD_S = 1e-3, 60.0
#: Restarts of a run that is also timed at a rate, which takes most of its time.
PACED_RESTARTS = 5
#: The longest wait for one answer, in seconds: a week.
MAX_TIMEOUT_S = 7 * 24 * 3600


def make_plan(programs: Sequence[Program], options: MeasureOptions, runner: Runner) -> Plan:
    """Plan an A/B run: an ISA extension off (baseline) against on, or a program against others.

    Loads every program once, so that a broken one fails before anything is measured.
    """
    for name, least, value in (
        ("threads", 1, min((n or 1 for n in options.threads), default=0)),
        ("runs", 1, options.runs),
        ("warmup", 0, options.warmup),
        ("processes", 0, options.processes),
        ("budget", 0, options.budget_s),
    ):
        if value < least:
            raise UsageError(f"{name} must be at least {least}", where=f"--{name}")
    if options.every_s and not LEAST_PERIOD_S <= options.every_s <= MAX_PERIOD_S:
        what = f"must be from {1e3 * LEAST_PERIOD_S:g} ms to {MAX_PERIOD_S:g} s"
        raise UsageError(what, where="--every")
    if options.every_s and runner.target.emulated:
        raise UsageError("an emulated CPU has no times", where="--every")
    if not 0 < options.timeout_s <= MAX_TIMEOUT_S:
        raise UsageError(f"timeout must be above 0 and at most {MAX_TIMEOUT_S}", where="--timeout")
    names = name_programs(programs)
    compared = names[:1] if options.sweep else names
    runtimes = {name: p.runtime for name, p in zip(names, programs, strict=True) if p.runtime}
    if (runtimes or options.runtime) and runner.target is not HOST:
        what = "other runtimes are measured on this machine only"
        raise UsageError(what, where=f"--target {runner.target.name}")
    threads = choose_threads(options.threads, runner)
    toggle, experiments, pairs = choose_experiments(options, runner.isa, compared, runtimes)
    if options.weights and runner.target.platform == "mac":
        raise UsageError("needs Linux or Android", where="--weights")
    for version in options.runtime:
        version_runner(version)
    load = program_loader(runner, options.timeout_s)
    plan = begin_plan(
        programs, experiments, pairs, load=load, phases=options.phases, sweep=options.sweep
    )
    plan = replace(
        plan,
        toggle=toggle,
        target=runner.target.name,
        threads=tuple(threads),
        thread_rules=tuple(threads.values()) if any(threads.values()) else (),
        runs=options.runs,
        warmup=options.warmup,
        processes=options.processes or (PACED_RESTARTS if options.every_s else 0),
        sampled_ms=SAMPLED_MS if options.evidence else 0.0,
        starts=min(options.processes or MAX_STARTS, MAX_STARTS) if options.cold_start else 0,
        timeout_s=options.timeout_s,
        budget_s=options.budget_s,
        precision=options.precision,
        every_s=options.every_s,
    )
    return shorten_plan(plan) if runner.target.emulated else plan


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
    known = sorted({count for count, _ in rules if 0 < count <= MAX_CORES})
    return {n: "; ".join(text for count, text in rules if count == n) for n in known}


#: The control's name. It has no part of the name that it repeats: the tools of Arm's profiling kit
#: choose the sides of a comparison by parts of names, such as ``sme2_off``.
CONTROL = "control"


#: The source of inputs that a config names.
FILES_SOURCE = "files named in the config"


def begin_plan(
    programs: Sequence[Program],
    experiments: Sequence[Experiment],
    pairs: Sequence[Pair],
    *,
    load: Callable[[Path, str], Ready] | None = None,
    phases: Sequence[str] = (),
    sweep: str = "",
    files: Sequence[Tensor] = (),
) -> Plan:
    """A plan of programs in phases or sizes, with default settings; see `add_phases`.

    ``load`` is a `program_loader`, if a runner of ours runs them; ``files`` replace the inputs of
    the first program.
    """
    # A program may have no ``forward``.
    method = next((split_phase(text)[1] for text in phases), "")
    if phases or sweep:
        refuse = "another runtime is measured on one set of inputs"
        for program in programs:
            if program.runtime:
                raise UsageError(refuse, where=f"--against {program.stem}")
    taken = [load(p.path, method).inputs if load and not p.runtime else () for p in programs]
    taken = [own or taken[0] for own in taken]
    first = plan_program("", programs[0], taken[0])
    if files and load:
        if len(files) != len(taken[0]):
            what = f"{len(files)} input files, the program takes {len(taken[0])}"
            raise UsageError(what, where="inputs")
        typed = zip(files, taken[0], strict=True)
        inputs = tuple(replace(file, dtype=t.dtype, shape=t.shape) for file, t in typed)
        first = replace(first, inputs=inputs, input_source=FILES_SOURCE)
    fields = {key: value for key, value in vars(first).items() if key != "name"}
    named = list(zip(name_programs(programs), programs, taken, strict=True))
    further = tuple(plan_program(*each, like=(first, taken[0])) for each in named[1:])
    plan = Plan(**fields, experiments=tuple(experiments), pairs=tuple(pairs), programs=further)
    return add_phases(plan, phases, partial(load, programs[0].path), sweep) if load else plan


def name_programs(programs: Sequence[Program]) -> list[str]:
    """Unique names of programs, made of their files'."""
    names: list[str] = []
    for program in programs:
        numbered = (f"{program.stem}-{number}" for number in count(2))
        names.append(next(name for name in chain([program.stem], numbered) if name not in names))
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
        source = "the first case of the bundled program"
    else:
        inputs = tuple(Tensor(tensor.dtype, tensor.shape) for tensor in taken)
    if program.runtime:
        pairs = zip(inputs, taken, strict=True)
        inputs = tuple(replace(own, dim_order=of.dim_order) for own, of in pairs)
    if like:
        first, first_taken = like
        layouts = zip(taken, first_taken, strict=False)
        same_layout = all(a.dim_order == b.dim_order for a, b in layouts)
        if same_layout and list(map(shape_of, inputs)) == list(map(shape_of, first.inputs)):
            folder, source = Path(first.pte).resolve().parent, first.input_source
            files = [(str(folder / t.file) if t.file else "", t.sha256) for t in first.inputs]
            inputs = tuple(
                replace(own, file=file, sha256=sha256)
                for own, (file, sha256) in zip(inputs, files, strict=True)
            )
    pte = str(program.path)
    return PlannedProgram(name, pte, program.sha256, program.model, program.stem, inputs, source)


def shape_of(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    """What two inputs have in common if one can replace the other."""
    return tensor.dtype, tensor.shape


def program_loader(runner: Runner, timeout_s: float) -> Callable[[Path, str], Ready]:
    """A function of program and method, empty for ``forward``: what the runner says of them."""

    @cache
    def load(pte: Path, method: str) -> Ready:
        flags = ["--model_path", runner.target.push(pte)]
        flags += ["--method_name", method] if method else []
        with open_runner(runner, flags, timeout_s=timeout_s) as session:
            return session.ready

    return load


def add_phases(
    plan: Plan, texts: Sequence[str], load: Callable[[str], Ready], sweep: str = ""
) -> Plan:
    """A plan with its experiments and pairs in every phase; UsageError for a bad one.

    The texts are those of ``MeasureOptions.phases``, ``sweep`` is its ``sweep``; ``load`` gives
    what the runner says of a method.
    """
    if texts and sweep:
        raise UsageError("cannot be combined with --sweep", where="--phase")
    if not (texts or sweep):
        return plan
    parts = dict.fromkeys(_name_phases(texts, load), "")
    if sweep:
        dimension, sizes = read_sweep(sweep)
        plan = replace(plan, sweep=dimension)
        parts = _size_phases(plan, sizes, load(""))
    places = {p: f"at {plan.sweep}={p.size}" if sweep else f"in {p.name}" for p in parts}

    return replace(
        plan,
        phases=tuple(parts),
        experiments=tuple(
            replace(e, name=f"{phase.name}_{e.name}", phase=phase.name, program=owner or e.program)
            for phase, owner in parts.items()
            for e in plan.experiments
        ),
        pairs=tuple(
            replace(
                pair,
                baseline=f"{phase.name}_{pair.baseline}",
                candidate=f"{phase.name}_{pair.candidate}",
                label=f"{pair.label} {place}",
            )
            for phase, place in places.items()
            for pair in plan.pairs
        ),
    )


def split_phase(text: str) -> tuple[str, str, str]:
    """Name, method and inputs of one of ``MeasureOptions.phases``; UsageError if it is malformed.

    Method or inputs may be missing: ``prefill=128``, ``text=decoder:128``, ``image=encoder``.
    """
    known = re.fullmatch(r"([A-Za-z]\w{0,29})=(?:([A-Za-z_]\w*)(?::|$))?(.*)", text, re.ASCII)
    if not known or not text.partition("=")[2]:
        hint = "such as decode=1@128, first=tokens.npy,mask.npy, or image=METHOD"
        raise UsageError(f"{text!r:.60} is not NAME=INPUTS", where="--phase", hint=hint)
    return known[1], known[2] or "", known[3]


def _name_phases(texts: Sequence[str], load: Callable[[str], Ready]) -> list[Phase]:
    phases: list[Phase] = []
    for text in texts:
        name, method, what = split_phase(text)
        if name in (phase.name for phase in phases):
            raise UsageError(f"two phases have the name {name!r}", where="--phase")
        ready = load(method)
        if step := re.fullmatch(r"(\d{1,7})(?:@(\d{1,7}))?", what):
            phase = plan_step(name, int(step[1]), int(step[2] or 0), ready)
        elif what:
            inputs = tuple(map(describe_array, what.split(",")))
            same = [p for p in phases if p.method == method and not p.tokens]
            phase = Phase(name, inputs, tuple(p.inputs for p in same))
        else:
            phase = Phase(name, tuple(Tensor(t.dtype, t.shape) for t in ready.inputs))
        phases.append(replace(phase, method=method))
    return phases


def read_sweep(text: str) -> tuple[str, list[int]]:
    """The dimension and the sizes of ``MeasureOptions.sweep``; UsageError if it has none."""
    name, _, numbers = text.partition("=")
    sizes = [int(n) for n in numbers.split(",") if re.fullmatch(r"0*[1-9]\d{0,6}", n, re.ASCII)]
    valid = len(set(sizes)) == numbers.count(",") + 1 >= 2
    if not (valid and re.fullmatch(r"[A-Za-z]\w{0,19}", name, re.ASCII)):
        hint = "name a dimension and several sizes, such as tokens=16,32,64"
        raise UsageError(f"{text!r:.60} is not NAME=SIZES", where="--sweep", hint=hint)
    return name, sizes


def _size_phases(plan: Plan, sizes: Sequence[int], ready: Ready) -> dict[Phase, str]:
    """A phase for each size of the sweep, and the name of the program that runs it."""
    name, programs = plan.sweep, plan.all_programs
    if plan.programs:
        if len(programs) != len(sizes):
            text = f"{len(sizes)} sizes for {len(programs)} programs"
            raise UsageError(text, where="--sweep", hint="name the size of each program, in order")
        pairs = zip(sizes, programs, strict=True)
        return {Phase(f"{name}_{n}", p.inputs, size=n): p.name for n, p in pairs}
    if name == "tokens" and _takes_tokens(ready):
        return {replace(plan_step(f"tokens_{n}", n, 0, ready), size=n): "" for n in sizes}
    known = {dimension for tensor in plan.inputs for dimension in tensor.dims if dimension}
    if name not in known:
        raise unknown_name("dynamic dimension", name, known, where="--sweep")

    def cut(tensor: Tensor, size: int) -> Tensor:
        named = zip(tensor.dims or [""] * len(tensor.shape), tensor.shape, strict=True)
        shape = tuple(size if dimension == name else n for dimension, n in named)
        if any(n > most for n, most in zip(shape, tensor.most, strict=False)):
            raise UsageError(f"{size} is more than the program takes", where="--sweep")
        return replace(tensor, shape=shape, file="", sha256="") if tensor.dims else tensor

    return {Phase(f"{name}_{n}", tuple(cut(t, n) for t in plan.inputs), size=n): "" for n in sizes}


def _takes_tokens(ready: Ready) -> bool:
    """Whether a program takes tokens and, if it has a KV cache, the position of the first one.

    A decoder behind an encoder takes a row of floats for each token, and a position.
    """
    ids, *rest = ready.inputs or [Tensor("", ())]
    numbers, *places = (tensor.dtype in ("int64", "int32") for tensor in (ids, *rest))
    ranks = [len(tensor.shape) for tensor in (ids, *rest)]
    return all(places) and ranks in (([2], [2, 1]) if numbers else ([3, 1],))


def plan_step(name: str, tokens: int, position: int, ready: Ready) -> Phase:
    """A phase of a language model, whose program takes tokens and the position of the first one.

    The cache is filled in as few executions as the program allows.
    """
    if not _takes_tokens(ready):
        hint = "name .npy files instead"
        text = "the program does not take tokens and their position"
        raise UsageError(text, where=f"--phase {name}", hint=hint)
    ids, *rest = ready.inputs
    most, words = ids.shape[1], ready.outputs[0].shape[-1]
    if not 1 <= tokens <= most:
        raise UsageError(f"the program takes 1 to {most} tokens at once", where=f"--phase {name}")
    if position and not rest:
        text = "the program takes no position: it has no KV cache"
        raise UsageError(text, where=f"--phase {name}")

    def step(start: int, count: int) -> tuple[Tensor, ...]:
        places = (replace(t, shape=(min(count, t.shape[0]),), first=start) for t in rest)
        shape = (ids.shape[0], count, *ids.shape[2:])
        below = words if len(shape) == 2 else ids.below
        return replace(ids, shape=shape, below=below, most=ids.shape), *places

    before = tuple(step(at, min(most, position - at)) for at in range(0, position, most))
    return Phase(name, step(position, tokens), before, tokens, position)


def describe_array(name: str) -> Tensor:
    """The input in an ``.npy`` file."""
    path = Path(name).resolve()
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or "not an .npy file"
        raise StoreError(reason, where=name) from None
    return Tensor(array.dtype.name, array.shape, str(path), sha256_of(path))


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
    others = () if options.sweep else options.against
    choose_experiments(options, runner.isa, ("", *others))


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
    for word in options.weights:
        if word not in WEIGHTS:
            raise unknown_name("weights", word, WEIGHTS, where="--weights")
    if len(options.weights) > 1:
        if options.isa_ladder or len(programs) > 1 or options.toggle not in ("auto", "none"):
            what = "several are the sides of a run: one program at one ISA level"
            raise UsageError(what, where="--weights")
        return "none", *plan_weights(options.weights)
    name, experiments, pairs = _choose_code(options, isa, programs, runtimes)
    for weights in options.weights:
        experiments = tuple(replace(e, weights=weights) for e in experiments)
    return name, experiments, pairs


def plan_weights(kinds: Sequence[str]) -> tuple[tuple[Experiment, ...], tuple[Pair, ...]]:
    """Each kind of weights, a control like the first; pairs of it with the others."""
    first, *others = dict.fromkeys(kinds)
    sides = [Experiment(kind, weights=kind) for kind in (first, *others)]
    control = Experiment(CONTROL, weights=first, control=True)
    return (*sides, control), tuple(Pair(first, other, f"with {other}") for other in others)


def _choose_code(
    options: MeasureOptions, isa: Isa, programs: Sequence[str], runtimes: Mapping[str, str]
) -> tuple[str, tuple[Experiment, ...], tuple[Pair, ...]]:
    if options.runtime:
        if len(programs) > 1 or options.isa_ladder or options.toggle not in ("auto", "none"):
            hint = "without --against, --isa-ladder and --toggle"
            raise UsageError("compares one program", where="--runtime", hint=hint)
        return "none", *plan_versions(options.runtime)
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


def plan_versions(
    versions: Sequence[str],
) -> tuple[tuple[Experiment, ...], tuple[Pair, ...]]:
    """The installed version of ExecuTorch, compared with each of the others."""
    installed = metadata.version("executorch")
    others = dict.fromkeys(versions)
    hashed = re.findall(r"^executorch==(\S+)", WHEELS.read_text(), re.MULTILINE)
    known = [version for version in hashed if version != installed]
    for version in others:
        if version not in known:
            raise unknown_name("other version of ExecuTorch", version, known, where="--runtime")
    names = {v: f"executorch_{v}".replace(".", "_") for v in (installed, *others)}
    experiments = [Experiment(names[v], runner=v) for v in others]
    experiments += [Experiment(names[installed]), Experiment(CONTROL, control=True)]
    label = f"with ExecuTorch {installed} instead of"
    pairs = [Pair(names[v], names[installed], f"{label} {v}") for v in others]
    return tuple(experiments), tuple(pairs)


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
    own = [name for name in names if name not in runtimes]
    pairs = [Pair(name, first + best, f"as {RUNTIMES[it]}") for name, it in runtimes.items()]
    pairs += [
        Pair(first + best, it + best, f"with {it} instead of {first}") for it in own if it != first
    ]
    pairs += [Pair(it + side, it + best, f"with {switch.name}") for side in off for it in own]
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


#: How `pair_experiments` chose, where nothing shows which side has the extension off.
BY_ORDER = "the first experiment; neither names nor kernels show which one lacks the extension"
#: Words in names of experiments for an extension that is off, and on.
_OFF = {"off", "without", "no", "non", "disabled", "baseline", "base", "reference", "ref", "before"}
_ON = {"on", "with", "enabled", "candidate", "after"}
#: ``nosme2`` and ``sme2off`` are two words.
_JOINED = re.compile(r"(no|non|without|with)?((?:sme|sve|neon|kleidi|i8mm|avx|amx)\w*?)(on|off)?")


def pair_experiments(
    names: Sequence[str], *, baseline: str = "", lacking: Collection[str] = (), shown: str = ""
) -> tuple[tuple[Pair, ...], str]:
    """Every experiment against one with the extension off, and a text: how that was decided.

    ``baseline`` decides if given. Else the names do (``sme2_off``, ``nosme2``, ``baseline``): each
    candidate is paired with the baseline that differs only in being off, if there is one. Else the
    first of ``lacking`` is the baseline, for the reason ``shown``; else the first of ``names``.
    """
    if baseline and baseline not in names:
        raise unknown_name("experiment", baseline, names, where="--baseline")
    sides = _read_names(names)
    off = [name for name in names if sides[name][0] == "off"]
    if not off and any(side == "on" for side, _ in sides.values()):
        off = [name for name in names if not sides[name][0]]
    how = f"{' and '.join(off)}, by name"
    if baseline:
        off, how = [baseline], f"{baseline}, as asked for"
    elif not 0 < len(off) < len(names):
        off, how = [name for name in names if name in lacking][:1], shown
        if not off or set(names) <= set(lacking):
            off, how = list(names[:1]), BY_ORDER
    alike = {sides[name][1]: name for name in reversed(off)}
    found = {name: alike.get(sides[name][1]) for name in names if name not in off}
    alone = [name for name in off if name not in found.values()] or off
    pairs = [(before or alone[0], name) for name, before in found.items()]
    unused = [name for name in off if name not in dict(pairs)]
    pairs += [(before, after) for before in unused for after in list(found)[:1]]
    return tuple(Pair(before, after, f"as {after}") for before, after in pairs), how


def _read_names(names: Sequence[str]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Of every name, ``off``, ``on`` or empty; and its other words that not all names share."""
    words = {name: _split_name(name) for name in names}
    shared = set.intersection(*map(set, words.values())) if len(words) > 1 else set()
    sides = {}
    for name, parts in words.items():
        own = [part for part in parts if part not in shared]
        off, on = not _OFF.isdisjoint(own), not _ON.isdisjoint(own)
        side = "" if off == on else "off" if off else "on"
        sides[name] = side, tuple(part for part in own if part not in _OFF | _ON)
    return sides


def _split_name(name: str) -> list[str]:
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()
    joined = (_JOINED.fullmatch(word) or [word] for word in re.findall(r"[a-z0-9]+", parted))
    return [
        part
        for word in joined
        for part in (word if isinstance(word, list) else filter(None, word.groups()))
    ]


def names_feature(name: str) -> bool:
    """Whether a name has words other than ``on``, ``off`` and the like."""
    return not _OFF.union(_ON).issuperset(_split_name(name))

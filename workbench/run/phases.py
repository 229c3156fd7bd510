"""Phases of a plan: methods, tokens of a language model, and sizes of a sweep."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from workbench.errors import StoreError, UsageError, unknown_name
from workbench.records.exports import Tensor
from workbench.records.runs import Phase, Plan
from workbench.run.session import Ready
from workbench.store import sha256_of


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
    match = re.fullmatch(r"([A-Za-z]\w{0,29})=(?:([A-Za-z_]\w*)(?::|$))?(.*)", text, re.ASCII)
    if not match or not text.partition("=")[2]:
        hint = "such as decode=1@128, first=tokens.npy,mask.npy, or image=METHOD"
        raise UsageError(f"{text!r:.60} is not NAME=INPUTS", where="--phase", hint=hint)
    return match[1], match[2] or "", match[3]


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
            inputs = tuple(map(outline_array, what.split(",")))
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
    dimensions = {dimension for tensor in plan.inputs for dimension in tensor.dims if dimension}
    if name not in dimensions:
        raise unknown_name("dynamic dimension", name, dimensions, where="--sweep")

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


def outline_array(name: str) -> Tensor:
    """The input in an ``.npy`` file."""
    path = Path(name).resolve()
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or "not an .npy file"
        hint = "name an .npy file, or tokens and a position, such as 1@128"
        raise StoreError(reason, where=name, hint=hint) from None
    return Tensor(array.dtype.name, array.shape, str(path), sha256_of(path))

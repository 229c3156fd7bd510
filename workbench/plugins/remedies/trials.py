"""Try the remedies of a run's findings on the parts of the program that they change."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.analysis.exports import find_run_model
from workbench.analysis.promises import BEST, keep_checks, read_checks
from workbench.analysis.statistics import half_width
from workbench.export.layers import count_calls, read_interface
from workbench.export.precision import DTYPES, PRECISIONS
from workbench.export.program import cast_floats, open_program, raw_bytes
from workbench.export.reload import read_options
from workbench.options import Progress, silent
from workbench.process import silence
from workbench.records.checks import Trial
from workbench.records.exports import Export, Fidelity, Rewrite, find_worst
from workbench.run.locks import device_behind, lock_device
from workbench.run.runner import Runner, find_runner, open_runner
from workbench.run.session import RunnerSession
from workbench.upstream import tree_leaves

if TYPE_CHECKING:  # these import PyTorch
    from torch.fx import Graph, Node

    from workbench.analysis.run import Measurement, Run
    from workbench.export.lower import Lowered
    from workbench.export.part import Parts
    from workbench.export.traced import TracedModel
    from workbench.models.loader import LoadedModel

#: Restarts of both sides, and seconds that all of them are timed for. Of long parts, so many
#: restarts are enough once these have taken as many seconds; of a gain that may be none, twice as
#: many are made.
RESTARTS, SECONDS, LEAST_RESTARTS, MOST_SECONDS = 5, 0.5, 3, 1.5
#: A program of so many operators at most, and milliseconds, is no more work than a part of it: a
#: remedy is tried on all of it. What it gains is uncertain by a hundredth of the time, by which two
#: programs of one graph may differ, and by what a gain differs between two moments of a machine.
SMALL_OPERATORS, SMALL_MS, OF_PROGRAM, OF_MOMENT = 100, 20.0, 0.01, 0.03
#: From these seconds on, the first inference of a process tells how long one takes.
_LONG_S = 0.02
#: How much less, and more, a remedy may gain in the program than on a part alone, as parts of the
#: part's time: there, other data is in the caches. Where fewer operators run outside of delegates,
#: or in fewer delegates, those around are joined, too, and their layouts go. Of the networks of
#: `tests/benchmarks/field.py` and 24 others, on two machines: 6 % less to 13 % and 31 % more.
LESS, MORE, MORE_JOINED = 0.08, 0.15, 0.32
#: Operators of the parts that are tried together, at most; steps of a loop share theirs.
_MOST_OPERATORS, _MOST_OF_LOOPS = 40, 600
#: Parts that are tried of those with the same operators, at most.
_MOST_ALIKE = 2
_TIMEOUT_S = 60.0
#: What was not possible once no, one and both sides of a trial were lowered.
_FAILURES = (
    "ExecuTorch does not lower these operators alone",
    "ExecuTorch does not lower these operators with it",
    "these operators do not run alone",
)


def check_findings(
    run: Run,
    model: Any = None,
    inputs: Any = None,
    *,
    top: int = BEST,
    within_s: float = math.inf,
    runner: Runner | None = None,
    progress: Progress = silent,
    tried: Callable[[Trial], None] = lambda trial: None,
) -> list[Trial]:
    """Try the remedies of a run's first findings, and keep what they brought in the run's folder.

    The parts of the program that a remedy changes are exported with and without it, with the inputs
    that they have in the model. The outputs are compared, and both are measured side by side for
    half a second. The findings then say what was measured instead of an estimate; those whose
    remedy does not help say so.

    Parameters
    ----------
    run
        The run.
    model, inputs
        The run's model, as `load_model` takes it. By default the module that this process exported,
        else the run's model, if it is not code in a file.
    top
        How many findings.
    within_s
        No further remedy is tried after so many seconds.
    runner
        Where to measure: this machine by default.
    progress
        Called with what is being done and the fraction done.
    tried
        Called with each trial as it is made.

    Raises
    ------
    UsageError
        The model is unknown, or another one by now.

    Examples
    --------
    >>> wb.check_findings(run)[0].gain_ms  # doctest: +SKIP
    0.163
    """
    export = run.subject.export
    rewrites = _choose_remedies(run, export, top) if export else []
    if export is None or not rewrites:
        return []
    progress("loading the model", 0.0)
    loaded, trace = find_run_model(run, model, inputs)
    runner = runner or find_runner()
    checks: list[Trial] = []
    started = time.monotonic()
    while rewrites:
        bench = _Bench(loaded, trace, export, rewrites, run.subject, runner)
        for number, rewrite in enumerate(rewrites):
            if time.monotonic() - started > within_s:
                return checks
            progress(f"trying {rewrite.name}: {rewrite.text}", number / len(rewrites))
            with silence():
                checks.append(bench.check(rewrite))
            keep_checks(run.path, checks[-1:])
            tried(checks[-1])
            for each in run.measurements:  # which know only the findings from before
                vars(each).pop("findings", None)
        # Those that gained less than was estimated leave their places to others.
        rewrites = _choose_remedies(run, export, top)
    return checks


def _choose_remedies(run: Run, export: Export, top: int) -> list[Rewrite]:
    """What the first findings propose and nobody has tried: remedies, and delegated dtypes."""
    checks = [check for check in read_checks(run.path) if check.program == export.sha256]
    tried = {(check.remedy, check.text) for check in checks}
    chosen: list[Rewrite] = []
    for row in run.subject.findings.head(top).to_dict("records"):
        name = row["remedy"]
        if name in DTYPES and row["rule"] == "dtype outside":
            chosen.append(Rewrite(name, f"the model in {name}", (), 1.0, None))
        offers = [each for each in export.rewrites if each.name == name and each.parts]
        named = [each for each in offers if each.text in row["title"] + row["action"]]
        chosen += named or offers
    return [each for each in dict.fromkeys(chosen) if (each.name, each.text) not in tried]


class _Bench:
    """Where the remedies of one program are tried on its parts, which get their real inputs."""

    def __init__(
        self, model: LoadedModel, trace: TracedModel, export: Export, rewrites: Sequence[Rewrite],
        measurement: Measurement, runner: Runner,
    ) -> None:  # fmt: skip
        self.model, self.trace, self.export = model, trace, export
        self.measurement, self.runner = measurement, runner
        self.options = replace(read_options(export), rewrite=export.rewrite, fresh=True)
        self.chooser = _Chooser(trace.exported.graph)
        self.tried = {rewrite: self._choose(rewrite) for rewrite in rewrites}

    def _choose(self, rewrite: Rewrite) -> list[tuple[str, ...]]:
        """The parts that are tried; none if the remedy is tried on the whole program."""
        calls = [node for node in self.chooser.nodes.values() if node.op == "call_function"]
        is_small = len(calls) <= SMALL_OPERATORS and self.measurement.latency_ms <= SMALL_MS
        # The remedy of a name changes all parts that have it.
        alike = sum(other.name == rewrite.name for other in self.export.rewrites)
        if is_small and alike == 1 and not PRECISIONS[self.export.dtype].quantizes:
            return []
        return self.chooser.choose(rewrite)

    @cached_property
    def parts(self) -> Parts:
        """The parts of the model that all of the remedies change."""
        from workbench.export.part import Parts

        quantised = PRECISIONS[self.export.dtype].quantizes == "graph"
        names = [list(chain(*parts)) for parts in self.tried.values()]
        return Parts(self.model, self.trace.exported, names, products=quantised)

    def check(self, rewrite: Rewrite) -> Trial:
        """What one remedy brings; a problem instead if it could not be tried."""
        from workbench.export import accuracy

        check = Trial(self.export.sha256, rewrite.name, rewrite.text, len(rewrite.parts) or 1)
        sides: list[Lowered] = []
        try:
            for side in self._lower(rewrite):
                sides.append(side)
            before, after = sides
            outputs = _compare(before, after, self.export.dtype)
            if rewrite.parts and rewrite.name not in after.rewrite:
                return replace(check, problem="it does not apply to the part alone")
            if wrong := accuracy.describe_problem(outputs):
                return replace(check, problem=wrong, differs=True)
            parts = self.tried[rewrite]
            less = LESS if parts else OF_PROGRAM
            blocks = _measure(before, after, self.measurement, self.runner, less)
        except Exception:  # the model's operators run in here, and may raise anything
            return replace(check, problem=_FAILURES[len(sides)])
        scales = self._extrapolate(rewrite)
        delegates, kernels = (
            (_count(before, kind), _count(after, kind)) for kind in ("delegate", "kernel")
        )
        joins = delegates[1] < delegates[0] or kernels[1] < kernels[0]
        more = MORE_JOINED if joins else MORE
        gain, *interval = _gain_of(blocks, less, more if parts else OF_PROGRAM)
        ends = [scale * end for scale in scales for end in interval]
        return replace(
            check,
            tried=len(parts) or check.parts,
            whole=not parts,
            restarts=len(blocks),
            before_ms=float(blocks[:, 0].mean()),
            after_ms=float(blocks[:, 1].mean()),
            gain_ms=scales[0] * gain,
            low_ms=min(ends),
            high_ms=max(ends),
            sqnr_db=find_worst(outputs),
            delegates=delegates,
            kernels=kernels,
        )

    def _extrapolate(self, rewrite: Rewrite) -> list[float]:
        """How much more all parts gain than those that are tried: by elements, and by operators.

        Of the whole program, what a gain may be at another moment.
        """
        if not self.tried[rewrite]:
            return [1.0, 1 - OF_MOMENT, 1 + OF_MOMENT]
        counts: list[Callable[[Any], int]]
        counts = [self.chooser.count_elements, lambda parts: sum(map(len, parts))]
        pairs = [(count(rewrite.parts), count(self.tried[rewrite])) for count in counts]
        return [every / tried for every, tried in pairs if tried]

    def _lower(self, rewrite: Rewrite) -> Iterator[Lowered]:
        """The parts of a remedy without and with it; or all of the program, and with it."""
        from workbench.export.lower import lower_model
        from workbench.export.traced import trace_model

        if not self.tried[rewrite]:
            if rewrite.parts:
                options = replace(self.options, rewrite=(*self.options.rewrite, rewrite.name))
            else:
                options = replace(self.options, dtype=rewrite.name)
            changed = lower_model(self.model, options, self.trace, whole=False)
            yield self._reopen(changed.inputs)
            yield changed
            return
        part = self.parts.extract(list(chain(*self.tried[rewrite])))
        trace = trace_model(part)
        for rewrites in ((), (rewrite.name,)):
            options = replace(self.options, rewrite=(*self.options.rewrite, *rewrites))
            yield lower_model(part, options, trace, whole=False)

    def _reopen(self, inputs: list[Any]) -> Lowered:
        """The program that was measured, with its inputs, as it was lowered."""
        import torch

        from workbench.export.lower import Lowered

        program = open_program(self.measurement.program.pte)
        program.check_unchanged()
        pte, layers = program.path.read_bytes(), program.layers
        assert layers is not None
        own = cast_floats(inputs, getattr(torch, DTYPES[self.export.dtype]))
        return Lowered(pte, b"", own, *read_interface(pte), layers, {}, ())


class _Chooser:
    """Which parts of a graph stand for all that a remedy changes."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = {node.name: node for node in graph.nodes}
        self.places = {name: place for place, name in enumerate(self.nodes)}

    def choose(self, rewrite: Rewrite) -> list[tuple[str, ...]]:
        """The parts that are tried together: one of each kind, then a second one.

        Kinds with the most work come first. The steps of a loop share theirs and stay together.
        """
        is_loop = rewrite.name == "loops"
        loops: dict[Any, list[tuple[str, ...]]] = {}
        for part in sorted(rewrite.parts, key=lambda part: self.places.get(part[0], 0)):
            loop = self._read_first(part) if is_loop else part
            loops.setdefault(loop, []).append(part)
        kinds: dict[str, list[list[tuple[str, ...]]]] = {}
        for parts in loops.values():
            kinds.setdefault(self._describe(list(chain(*parts))), []).append(parts)
        by_work = sorted(
            kinds.values(), key=lambda alike: self.count_elements(alike[0]), reverse=True
        )
        most = _MOST_OF_LOOPS if is_loop else _MOST_OPERATORS
        chosen: list[tuple[str, ...]] = []
        for turn in range(_MOST_ALIKE):
            for parts in (alike[turn] for alike in by_work if len(alike) > turn):
                if not chosen or sum(map(len, chosen + parts)) <= most:
                    chosen += parts
        return chosen

    def count_elements(self, parts: Iterable[Sequence[str]]) -> int:
        """The elements that the operators of some parts read and write."""
        nodes = [self.nodes[name] for name in chain(*parts) if name in self.nodes]
        tensors = chain(
            *(_shapes(each) for node in nodes for each in (node, *node.all_input_nodes))
        )
        # A dynamic dimension counts as 1, in each of the parts.
        return sum(math.prod(n for n in shape if isinstance(n, int)) for _, shape in tensors)

    def _read_first(self, part: Sequence[str]) -> Any:
        """The tensor that the steps of a loop read, each at its place."""
        node = self.nodes.get(part[0])
        return node.all_input_nodes[0] if node and node.all_input_nodes else part

    def _describe(self, part: Iterable[str]) -> str:
        """What a part computes, which is the same text for parts that are alike."""
        from torch.fx.node import map_arg

        numbers: dict[Any, str] = {}
        lines = []
        for node in (self.nodes[name] for name in part if name in self.nodes):
            read = map_arg(
                (node.args, node.kwargs), lambda other: numbers.get(other) or str(_shapes(other))
            )
            lines.append(f"{node.target} {read} {_shapes(node)}")
            numbers[node] = f"the result {len(numbers)}"
        return "\n".join(lines)


def _shapes(node: Node) -> list[tuple[Any, tuple[Any, ...]]]:
    """Dtype and shape of the tensors that a node returns."""
    leaves = tree_leaves(node.meta.get("val"))
    return [(each.dtype, tuple(each.shape)) for each in leaves if hasattr(each, "shape")]


def _count(lowered: Lowered, kind: Any) -> int:
    return sum(count_calls(lowered.layers, kind).values())


def _compare(before: Lowered, after: Lowered, dtype: str) -> tuple[Fidelity, ...]:
    """How the outputs of two programs differ on the same inputs."""
    from workbench.export import accuracy

    expected, outputs = (
        [value.float() if value.is_floating_point() else value for value in values]
        for values in (
            accuracy.run_program(each.pte, each.inputs, each.layers) for each in (before, after)
        )
    )
    return accuracy.compare_with_model(outputs, expected, PRECISIONS[dtype].least_sqnr_db)


def _measure(
    before: Lowered, after: Lowered, measurement: Measurement, runner: Runner, margin: float
) -> np.ndarray:
    """The CPU time of an inference in ms of both sides, a row for each restart.

    These are more if it is open whether they gain, beyond a ``margin`` of the time before.
    """
    experiment = measurement.experiment
    how = ["--cpu_threads", str(measurement.threads), "--isa", experiment.isa]
    if experiment.isa_off:
        how += ["--isa_off", ",".join(experiment.isa_off)]
    device = device_behind(runner.target.name)
    with tempfile.TemporaryDirectory() as scratch, lock_device(device):
        sides = [
            _write(lowered, Path(scratch) / name, how)
            for name, lowered in (("before", before), ("after", after))
        ]
        blocks: list[tuple[float, float]] = []
        started = time.monotonic()
        most = 2 * RESTARTS
        while len(blocks) < RESTARTS or (len(blocks) < most and _is_open(np.array(blocks), margin)):
            blocks.append(_restart(sides, runner))
            is_late = time.monotonic() - started > MOST_SECONDS
            if is_late and len(blocks) >= LEAST_RESTARTS:
                break
        return np.array(blocks)


def _gain_of(blocks: np.ndarray, less: float, more: float) -> tuple[float, float, float]:
    """The gain in ms of both sides' times, a row for each restart, and its interval.

    ``less`` and ``more`` is what it may be in the program, as parts of the time before.
    """
    gains = blocks[:, 0] - blocks[:, 1]
    gain, half, before = float(gains.mean()), float(half_width(gains)), float(blocks[:, 0].mean())
    return gain, gain - half - less * before, gain + half + more * before


def _is_open(blocks: np.ndarray, margin: float) -> bool:
    """Whether a gain may be none, though it is larger than what it may be less in the program."""
    gain, low, _ = _gain_of(blocks, margin, margin)
    return margin * float(blocks[:, 0].mean()) < gain and low <= 0


def _write(lowered: Lowered, folder: Path, how: Sequence[str]) -> list[str]:
    """The flags of a runner for a program, which is written into a folder with its inputs."""
    folder.mkdir()
    program = folder / "part.pte"
    program.write_bytes(lowered.pte)
    flags = ["--model_path", str(program), *how]
    for number, tensor in enumerate(lowered.inputs):
        path = folder / f"input{number}.bin"
        path.write_bytes(raw_bytes(tensor, lowered.arguments[number].dim_order))
        flags += ["--inputs", str(path)]
    return flags


def _restart(sides: Sequence[Sequence[str]], runner: Runner) -> tuple[float, float]:
    """The median CPU time in ms of one process for each side, which take turns."""
    sessions: list[RunnerSession] = []
    try:
        for flags in sides:
            sessions.append(open_runner(runner, flags, timeout_s=_TIMEOUT_S))
        counts = [_count_inferences(session) for session in sessions]
        times: tuple[list[int], list[int]] = ([], [])
        for turn in range(4 if max(counts) > 1 else 2):
            for place in (0, 1) if turn % 2 == 0 else (1, 0):
                times[place].extend(sessions[place].run(counts[place], traced=False).cpu_ns)
        before, after = (float(np.median(each)) / 1e6 for each in times)
        return before, after
    finally:
        for session in sessions:
            session.close()


def _count_inferences(session: RunnerSession) -> int:
    """How many inferences fit into the turn of one side, after a warm-up."""
    nanoseconds = min(session.run(1, traced=False).wall_ns)
    if nanoseconds < 1e9 * _LONG_S:
        nanoseconds = min(session.run(3, traced=False).wall_ns)
    seconds = SECONDS / RESTARTS / 8
    return int(np.clip(seconds * 1e9 / max(nanoseconds, 1), 1, 2000))

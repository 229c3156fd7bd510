"""Try the remedies of a run's findings on the parts of the program that they change."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from workbench import WorkbenchError, find_runner, open_program
from workbench.api import Finding, Gain, Rewrite, UsageError
from workbench.graphs import (
    PRECISIONS,
    Change,
    reason,
    silence,
    tree_leaves,
)
from workbench.jobs import Progress, Runner, Trial, silent, unknown_name
from workbench.plugins.remedies.timing import BEST, LIMIT_S, conclude, time_sides, typical_time

if TYPE_CHECKING:  # these import PyTorch
    from torch.fx import Graph, Node

    from workbench import Measurement
    from workbench.graphs import LoadedModel, Lowered, TracedModel
    from workbench.plugins.remedies.subgraphs import Subgraphs

_log = logging.getLogger(__name__)

#: A program of so many operators at most, and milliseconds, is no more work than a part of it: a
#: remedy is tried on all of it. What it gains is uncertain by a hundredth of the time, by which two
#: programs of one graph may differ, and by what a gain differs between two moments of a machine.
SMALL_OPERATORS, SMALL_MS, OF_PROGRAM, OF_MOMENT = 400, 20.0, 0.01, 0.03
#: How much more a remedy may gain in the program than on a part alone, as a part of its time, where
#: fewer operators run outside of delegates, or in fewer delegates: those around are joined, too,
#: and their layouts go. Of the networks that `Gain.MORE` is of: 31 % more.
MORE_JOINED = 0.32
#: Operators of the parts that are tried together, at most; steps of a loop share theirs.
_MOST_OPERATORS, _MOST_OF_LOOPS = 40, 600
#: Subgraphs that are tried of those with the same operators, at most.
_MOST_ALIKE = 2
#: What failed, by how many sides of a trial had been lowered.
_STAGES = ("lowering these operators", "lowering them with the remedy", "running both")


def check_findings(
    run: Any,
    model: Any = None,
    inputs: Any = None,
    *,
    finding: Finding | str = "",
    top: int = BEST,
    budget_s: float = LIMIT_S,
    within_s: float = math.inf,
    runner: Runner | None = None,
    progress: Progress = silent,
    tried: Callable[[Trial], None] = lambda trial: None,
) -> list[Trial]:
    """Try the remedies of a run's findings, and keep what they brought in the run's folder.

    The parts of the program that a remedy changes are exported with and without it, with the inputs
    that they have in the model. The outputs are compared, and both are measured side by side, at
    the ISA level, thread count and phase of the measurement, for which alone the result holds. The
    findings then say what was measured instead of an estimate; those whose remedy does not help say
    so.

    Parameters
    ----------
    run
        A run, whose phases are all tried, or one of its measurements.
    model, inputs
        The run's model, as `load_model` takes it. By default the module that this process exported,
        else the run's model, if it is not code in a file.
    finding
        The finding to try, or its id, or ``together``: all remedies that were shown to help, on the
        whole program. By default the first findings, then together those that help.
    top
        How many of the first ones that can be tried and were not.
    budget_s
        The longest that both sides of one remedy are timed, in seconds.
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
        The model or the finding is unknown, or the model another one by now.

    Examples
    --------
    >>> wb.check_findings(run)[0].gain_ms  # doctest: +SKIP
    0.163
    """
    trials, started = list[Trial](), time.monotonic()
    name = finding.id if isinstance(finding, Finding) else finding
    measurements: Sequence[Measurement] = getattr(run, "subjects", (run,))
    _check_name(name, measurements)

    def attempt(m: Measurement, tried_now: Sequence[tuple[Rewrite, str, str]]) -> bool:
        """Try some remedies, each of a finding, and with a text; whether there was time for all."""
        progress("loading the model", 0.0)
        loaded, trace = m.original.load(model, inputs)
        bench = _Bench(loaded, trace, tried_now, m, runner or find_runner(), budget_s)
        for number, (rewrite, of, text) in enumerate(tried_now):
            begun = time.monotonic()
            if begun - started > within_s:
                return False
            progress(f"trying {text}", number / len(tried_now))
            with silence():
                trial = bench.check(rewrite, of)
            trials.append(replace(trial, seconds=round(time.monotonic() - begun, 1)))
            m.run.keep(trials[-1])
            tried(trials[-1])
        return True

    for m in measurements:
        if not all(attempt(m, each) for each in _list_attempts(m, name, top)):
            return trials
    if name == Trial.TOGETHER and not trials:
        hint = "try the remedies alone first: --check"
        raise UsageError("fewer than two remedies were shown to help", where=name, hint=hint)
    return trials


def _list_attempts(m: Measurement, name: str, top: int) -> Iterator[list[tuple[Rewrite, str, str]]]:
    """What is tried next, after what was: findings, then the options that help, then all of them.

    Each is a remedy, what its trial is of, and a text.
    """
    while name != Trial.TOGETHER and (chosen := choose_findings(m, name, top)):
        pairs = [(each, each.rewrite) for each in chosen if each.rewrite]
        yield [(rewrite, f.id, f"{rewrite.name}: {f.cause}") for f, rewrite in pairs]
        if name:
            break
        # Those that gained less than was estimated leave their places to others.
    for option in list_options(m):
        yield [(option, option.name, f"{option.name}: {option.text}")]
    together = join_helping(m, again=bool(name)) if name in ("", Trial.TOGETHER) else None
    if together:
        yield [(together, Trial.TOGETHER, f"{together.name} together")]


def _check_name(name: str, measurements: Sequence[Measurement]) -> None:
    """UsageError if there is no finding of a name."""
    findings = [each for m in measurements for each in m.opportunities]
    if name and name != Trial.TOGETHER and all(name != each.id for each in findings):
        ids = [each.id for each in findings if each.rewrite]
        raise unknown_name("finding", name, [*ids, Trial.TOGETHER])


def list_options(m: Measurement) -> list[Rewrite]:
    """Remedies that help one finding of several, as the options that change all of their parts."""
    if not _runs_whole(m) or m.latency_ms > SMALL_MS or m.export is None:
        return []
    counts, made = Counter(each.name for each in m.export.rewrites), {t.finding for t in m.trials}
    helping = dict.fromkeys(each.remedy for each in m.opportunities if each.helps)
    return [
        Rewrite(name, "all of its parts", (), 1.0, None, 0, ((),))
        for name in helping
        if counts[name] > 1 and name not in made
    ]


def join_helping(m: Measurement, *, again: bool = False) -> Rewrite | None:
    """All remedies that help, as one that is tried on the whole program.

    None if these are fewer than two, or it was tried, and is not to be tried again.
    """
    alone = [each for each in m.opportunities if each.helps and _runs_whole(m)]
    names = dict.fromkeys(each.remedy for each in alone)
    made = [each.remedies for each in m.trials if each.finding == Trial.TOGETHER]
    if len(names) < 2 or ({*names} in made and not again):
        return None
    return Rewrite(",".join(names), f"{len(names)} remedies together", (), 1.0, None, 0, ((),))


def _runs_whole(m: Measurement) -> bool:
    """Whether the whole program is lowered and run again as it was measured."""
    quantizes = m.export is not None and PRECISIONS[m.export.dtype].quantizes == "graph"
    return not (quantizes or m.phase.name)


def choose_findings(m: Measurement, name: str = "", top: int = BEST) -> list[Finding]:
    """The findings whose remedies are tried next: that of a name, or those that promise most.

    One that was tried in this scope is not tried again unless it is named.
    """
    findings = m.opportunities
    if name:
        named = [each for each in findings if each.id == name]
        if any(each.rewrite is None for each in named):
            raise UsageError("has no remedy that can be tried", where=name)
        return named
    able = [each for each in findings if each.rewrite is not None]
    if m.latency_ms > SMALL_MS:  # exporting all of it again takes long
        able = [each for each in able if each.remedy not in PRECISIONS]
    # What computes something else comes after what computes the same.
    able.sort(key=lambda each: (_differs(each), -_promise(each)))
    first = able[:top]
    return [each for each in first if each.trial is None]


def _differs(finding: Finding) -> bool:
    """Whether a remedy is another network, or another dtype."""
    return isinstance(finding.rewrite, Change) or finding.remedy in PRECISIONS


def _promise(finding: Finding) -> float:
    """What trying a remedy may bring, in ms; of one that was tried, what it brought."""
    trial = finding.trial
    if finding.is_hopeless or (trial and trial.answer != "gains"):
        return 0.0
    return 0.0 if math.isnan(finding.expected_ms) else finding.expected_ms


class _Bench:
    """Where the remedies of one program are tried on its parts, which get their real inputs."""

    def __init__(
        self, model: LoadedModel, trace: TracedModel, tried: Sequence[tuple[Rewrite, str, str]],
        measurement: Measurement, runner: Runner, budget_s: float,
    ) -> None:  # fmt: skip
        export = measurement.export
        assert export is not None
        self.model, self.trace, self.export = model, trace, export
        self.measurement, self.runner, self.budget_s = measurement, runner, budget_s
        self.options = replace(measurement.original.options, rewrite=export.rewrite, fresh=True)
        self.chooser = _Chooser(trace.exported.graph)
        #: What is tried on parts, and on which; all else is tried on the whole program.
        self.tried = {rewrite: self._choose(rewrite) for rewrite, *_ in tried}

    def _choose(self, rewrite: Rewrite) -> list[tuple[str, ...]]:
        """The parts that are tried; none if the remedy is tried on the whole program."""
        if not any(rewrite.parts) or rewrite.name == Rewrite.SPLIT:
            return []
        m = self.measurement
        if isinstance(rewrite, Change):
            is_whole = not (rewrite.is_size or m.phase.name or m.latency_ms > SMALL_MS)
            return [] if is_whole else self.chooser.choose(rewrite)
        calls = [node for node in self.chooser.nodes.values() if node.op == "call_function"]
        is_small = len(calls) <= SMALL_OPERATORS and m.latency_ms <= SMALL_MS
        # The remedy of a name changes all parts that have it.
        alike = sum(other.name == rewrite.name for other in self.export.rewrites)
        if is_small and alike == 1 and _runs_whole(m):
            return []
        return self.chooser.choose(rewrite)

    @cached_property
    def parts(self) -> Subgraphs:
        """The parts of the model that all of the remedies change, on the inputs of the phase."""
        quantised = PRECISIONS[self.export.dtype].quantizes == "graph"
        tried = (each for rewrite, each in self.tried.items() if not _changes_size(rewrite))
        names = [list(dict.fromkeys(chain(*parts))) for parts in tried]
        return self._make_parts(names, products=quantised)

    def _make_parts(self, names: list[list[str]], **how: bool) -> Subgraphs:
        from workbench.plugins.remedies.subgraphs import Subgraphs

        calls = self._read_calls() if self.measurement.phase.name else ()
        return Subgraphs(self.model, self.trace.exported, names, calls=calls, **how)

    def _read_calls(self) -> list[list[Any]]:
        """What the phase runs the model on: first the calls that fill its state."""
        import torch

        m = self.measurement
        if m.phase.method not in ("", "forward"):
            raise UsageError(f"the model of method {m.phase.method} is not known here")
        examples = tree_leaves(self.trace.exported.example_inputs)
        calls = []
        for tensors, paths in zip((*m.phase.before, m.phase.inputs), m.input_files, strict=True):
            if len(tensors) != len(examples):
                raise UsageError(f"the phase {m.phase.name} has other inputs than the model")
            call = list[Any]()
            for tensor, path, example in zip(tensors, paths, examples, strict=True):
                stored = bytearray(path.read_bytes())
                values = torch.frombuffer(stored, dtype=getattr(torch, tensor.dtype))
                call.append(values.reshape(tensor.shape).to(example.dtype))
            calls.append(call)
        return calls

    def check(self, rewrite: Rewrite, finding: str) -> Trial:
        """What the remedy of a finding brings; a problem instead if it could not be tried."""
        parts, scope = len(rewrite.parts) or 1, self.measurement.scope
        trial = Trial(
            self.export.sha256, rewrite.name, rewrite.text, parts, finding=finding, scope=scope
        )
        sides: list[Lowered] = []
        try:
            for side in self._lower(rewrite):
                sides.append(side)
            return self._time(trial, rewrite, *sides)
        except Exception as error:  # the model's operators run in here, and may raise anything
            _log.debug("trial of %s failed", rewrite.name, exc_info=True)
            what = error.what if isinstance(error, WorkbenchError) else reason(error)
            return replace(trial, problem=f"{_STAGES[len(sides)]}: {what}")

    def _time(self, trial: Trial, rewrite: Rewrite, before: Lowered, after: Lowered) -> Trial:
        """A trial with the times of both programs, if their outputs agree."""
        dtype = rewrite.name if rewrite.name in PRECISIONS else self.export.dtype
        sqnr_db, wrong = None, ""
        if not _changes_size(rewrite):
            sqnr_db, wrong = after.compare(before, dtype)
        if not isinstance(rewrite, Change):  # which computes something else
            if rewrite.parts and trial.remedies.isdisjoint({Rewrite.SPLIT, *after.rewrite}):
                m = self.measurement
                if self.tried[rewrite] and m.latency_ms <= SMALL_MS and _runs_whole(m):
                    self.tried[rewrite] = []  # it needs more of the graph than its part
                    return self.check(rewrite, trial.finding)
                return replace(trial, problem="it does not apply to the part alone")
            if wrong:
                return replace(trial, problem=wrong, differs=True)
        delegates = before.count("delegate"), after.count("delegate")
        kernels = before.count("kernel"), after.count("kernel")
        joins = delegates[1] < delegates[0] or kernels[1] < kernels[0]
        margins = Gain.LESS, MORE_JOINED if joins else Gain.MORE
        parts = self.tried[rewrite]
        if not parts:
            margins = OF_PROGRAM, OF_PROGRAM
        blocks = time_sides(
            before, after, self.measurement, self.runner, margins=margins, budget_s=self.budget_s
        )
        scales = self._extrapolate(rewrite)
        before_ms = typical_time(blocks)
        gain, *interval = conclude(blocks, margins)
        ends = [scale * end for scale in scales for end in interval]
        # No more than all that it changes took, at this moment; of parts, with what is around.
        most_ms = max(scales[0] * before_ms, self.measurement.latency_ms) if parts else before_ms
        return replace(
            trial,
            tried=len(parts) or trial.parts,
            whole=not parts,
            restarts=len(blocks),
            before_ms=before_ms,
            after_ms=before_ms - gain,
            gain_ms=scales[0] * gain,
            low_ms=min(ends),
            high_ms=min(max(ends), most_ms),
            sqnr_db=sqnr_db,
            delegates=delegates,
            kernels=kernels,
        )

    def _extrapolate(self, rewrite: Rewrite) -> list[float]:
        """How much more all parts gain than those that are tried: by time, elements and operators.

        Of the whole program, what a gain may be at another moment.
        """
        if not self.tried[rewrite]:
            return [1.0, 1 - OF_MOMENT, 1 + OF_MOMENT]
        counts: list[Callable[[Any], float]]
        counts = [self._measure, self.chooser.count_elements, lambda parts: sum(map(len, parts))]
        pairs = [(count(rewrite.parts), count(self.tried[rewrite])) for count in counts]
        return [every / tried for every, tried in pairs if tried]

    def _measure(self, parts: Iterable[Sequence[str]]) -> float:
        """The ms of the rows that execute some operator of these parts."""
        names, rows = {*chain(*parts)}, self.measurement.traced_nodes
        keys = [key for key, nodes in rows.items() if nodes & names]
        return float(self.measurement.costs.loc[keys, "mean_ms"].sum())

    def _lower(self, rewrite: Rewrite) -> Iterator[Lowered]:
        """The parts of a remedy without and with it; or all of the program, and with it."""
        from workbench.graphs import lower_model, trace_model
        from workbench.plugins.remedies.altered_layers import use_function

        if rewrite.name == Rewrite.SPLIT:
            yield from self._split(rewrite)
            return
        if not self.tried[rewrite]:
            model, trace, options = self.model, self.trace, self.options
            if isinstance(rewrite, Change):
                model = replace(model, module=trace.exported.module(check_guards=False))
                model = replace(use_function(model, rewrite.parts, rewrite.of), exported=None)
                trace = trace_model(model)
            elif rewrite.name in PRECISIONS:
                options = replace(options, dtype=rewrite.name)
            else:
                names = rewrite.name.split(",")
                options = replace(options, rewrite=(*options.rewrite, *names))
            changed = lower_model(model, options, trace, whole=False)
            yield self._reopen(changed.inputs)
            yield changed
            return
        names = list(dict.fromkeys(chain(*self.tried[rewrite])))  # parts may share some
        if isinstance(rewrite, Change) and rewrite.is_size:
            yield from self._lower_layers(rewrite, names)
            return
        part = self.parts.extract(names)
        trace = trace_model(part)
        if isinstance(rewrite, Change):
            other = use_function(part, self.tried[rewrite], rewrite.of)
            yield lower_model(part, self.options, trace, whole=False)
            yield lower_model(other, self.options, trace_model(other), whole=False)
            return
        for rewrites in ((), (rewrite.name,)):
            options = replace(self.options, rewrite=(*self.options.rewrite, *rewrites))
            yield lower_model(part, options, trace, whole=False)

    def _lower_layers(self, change: Change, names: list[str]) -> Iterator[Lowered]:
        """Layers alone without and with a change of their size."""
        from workbench.graphs import lower_model, trace_model
        from workbench.plugins.remedies.altered_layers import build_layers

        parts, options = self._make_parts([[name] for name in names], alone=True), self.options
        for each in (None, change):
            layers = build_layers(parts, names, each)
            if each and each.of == "group_size":
                options = replace(options, group_size=each.new)
            yield lower_model(layers, options, trace_model(layers), whole=False)

    def _split(self, rewrite: Rewrite) -> Iterator[Lowered]:
        """All of the program, and what is left of it for each call."""
        from workbench.graphs import lower_model, trace_model
        from workbench.plugins.remedies.split import split_model

        if PRECISIONS[self.export.dtype].quantizes == "weights":
            raise UsageError("int4 weights belong to layers, which a part of a graph has not")
        model, exported = self.model, self.trace.exported
        if self.measurement.phase.name:
            *_, inputs = self._read_calls()
            model = replace(model, example_inputs=tuple(inputs), kwargs={}, traced_inputs=None)
            model = replace(model, dynamic_shapes=None)
            exported = trace_model(model).exported
        nodes = [node for node in exported.graph.nodes if node.name in rewrite.nodes]
        read = {source.name for node in nodes for source in node.all_input_nodes}
        constant = [name for name in exported.graph_signature.user_inputs if name in read]
        _, each = split_model(model, exported, constant)
        yield self._reopen(tree_leaves((model.example_inputs, model.kwargs)))
        yield lower_model(each, self.options, trace_model(each), whole=False)

    def _reopen(self, inputs: list[Any]) -> Lowered:
        """The program that was measured, with its inputs, as it was lowered."""
        from workbench.graphs import Lowered

        program = open_program(self.measurement.program.pte)
        program.check_unchanged()
        return Lowered.read(program, inputs, self.export.dtype)


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
            first = self.nodes.get(part[0])
            # The steps of a loop read one tensor, each at its place.
            shared = first.all_input_nodes[:1] if is_loop and first else []
            loops.setdefault(shared[0] if shared else part, []).append(part)
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


def _changes_size(rewrite: Rewrite) -> bool:
    """Whether the outputs have other shapes with it."""
    return isinstance(rewrite, Change) and rewrite.is_size

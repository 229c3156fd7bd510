"""Run a program and compare its outputs with the PyTorch model's."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from workbench.export.precision import DTYPES, PRECISIONS
from workbench.export.program import bind_constants, cast_floats
from workbench.models.inputs import choose_inputs
from workbench.models.sources import reason
from workbench.options import ExportOptions
from workbench.process import silent_stderr
from workbench.records.exports import Fidelity, LayerNoise
from workbench.upstream import tree_leaves

if TYPE_CHECKING:
    from workbench.models.loader import LoadedModel
    from workbench.records.layer_sidecar import Layers


def coarse_kernels(torch_name: str, operators: Mapping[str, int]) -> str:
    """Kernels, counted by name, that lose precision in a dtype; empty if none does."""
    # Unlike PyTorch's, this kernel of ExecuTorch 1.5.1 accumulates in the dtype of its tensors.
    count = operators.get("aten::convolution.out", 0)
    if not count or torch_name not in ("float16", "bfloat16"):
        return ""
    return f"{count} convolutions run on ExecuTorch's own kernel, which accumulates in {torch_name}"


def run_eagerly(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The outputs of a copy of the model, in the order of the program's."""
    module, args, kwargs = copy.deepcopy((module, args, kwargs))
    with silent_stderr() as printed, torch.no_grad():  # custom operators log there
        outputs = tree_leaves(module(*args, **kwargs))
    sys.stderr.write(printed.getvalue())
    return outputs


def run_program(pte: bytes, inputs: list[torch.Tensor], layers: Layers | None = None) -> list[Any]:
    """The outputs of a program in this process.

    A `RuntimeError` names the operator that fails and the reason, if the runtime logs them.
    """
    from executorch.runtime import Runtime

    with silent_stderr() as log:
        try:
            method = Runtime.get().load_program(pte).load_method("forward")
            assert method is not None  # every program that is exported has it
            return list(method.execute(list(map(_copy_dense, inputs))))
        except RuntimeError as error:
            raise RuntimeError(explain_log(log.getvalue(), layers) or reason(error)) from None


def _copy_dense(tensor: torch.Tensor) -> torch.Tensor:
    """A copy; one without elements has the strides of its shape, at others the runtime aborts."""
    return tensor.clone() if tensor.numel() else torch.empty(tensor.shape, dtype=tensor.dtype)


def explain_log(log: str, layers: Layers | None = None) -> str:
    """Which operator failed and why, from the runtime's log; empty if the log does not say."""
    if node := re.search(
        r"Failed to create (.+) node (\d+),? with code: (?:xnn_status_)?(\w+)", log
    ):
        place = _place_of(layers, handle=int(node[2]))
        return f"XNNPACK rejects a {node[1]} node{place} ({node[3]})"
    stopped = r"([A-Z][\w ]+?) [Ff]ailed with code: (?:xnn_status_)?(\w+)"
    if stage := re.search(stopped, log):
        return f"XNNPACK rejects a delegate: {stage[1]} failed ({stage[2]})"
    kernel = re.search(r"KernelCall failed at .* in operator (\S+):", log)
    cause = re.search(r"Check failed \(.*\): (\S.*)", log)
    cause = cause or re.search(r"\] (\S.*)\n.*KernelCall failed", log)
    place = _place_of(layers, name=kernel[1]) if kernel else ""
    return f"{kernel[1]} fails{place}: {cause[1]}" if kernel and cause else ""


def _place_of(layers: Layers | None, *, name: str = "", handle: int = -1) -> str:
    """`` in features.3 (model.py:12)``, of the first kernel of a name, or of an XNNPACK node."""
    for method in layers.methods if layers else ():
        for step in method.instructions:
            nodes = [node.origins for node in step.xnodes if node.handle == handle]
            kernels = [(step.origin,)] if step.name == name and step.origin is not None else []
            for origins in filter(None, [*nodes, *kernels]):
                origin = method.origins[origins[0]]
                return f" in {origin.module or 'the model'} ({origin.source})"
    return ""


#: Gets the name and value of each operator of a model that runs; its result replaces the value.
Visit = Callable[[str, Any], Any]
#: Runs a model and shows each of its operators; returns the outputs.
Walk = Callable[[Visit], Any]


def walk_graph(graph: torch.fx.GraphModule, inputs: list[torch.Tensor], visit: Visit) -> Any:
    """Run an exported graph, without its observers; returns its outputs."""

    class Walker(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            value = super().run_node(n)
            return visit(n.name, value) if n.op == "call_function" else value

        def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
            return args[0] if args else None  # an observer

    with torch.no_grad():
        return Walker(graph).run(*inputs, enable_io_processing=False)


def walk_module(module: nn.Module, call: tuple[Any, dict[str, Any]], visit: Visit) -> None:
    """Run a module; its operators are the first calls of its innermost layers."""
    seen: set[str] = set()

    def hook(path: str, value: Any) -> Any:
        is_first = path not in seen
        seen.add(path)
        return visit(path, value) if is_first else value

    module = copy.deepcopy(module)
    for path, layer in module.named_modules():
        if not [*layer.children()]:
            layer.register_forward_hook(lambda _, __, value, path=path: hook(path, value))
    run_eagerly(module, *call)


@dataclass(frozen=True)
class Walks:
    """Runs of a model as it is, and quantised.

    ``places`` has the module and the operator of a layer by name; others are left out.
    """

    exact: Walk
    quantized: Walk
    places: Mapping[str, tuple[str, str]]

    def run_exactly(self) -> tuple[dict[str, torch.Tensor], Any]:
        """The floating-point values of each operator, and the outputs."""
        values: dict[str, torch.Tensor] = {}

        def collect(name: str, value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                values[name] = value.clone()  # the next operator may write into it
            return value

        return values, self.exact(collect)

    def rank_layers(self) -> tuple[LayerNoise, ...]:
        """The quantisation noise of each layer, the noisiest first.

        The inputs of the layers are exact in one run, and noisy in another.
        """
        values, _ = self.run_exactly()
        alone: dict[str, float | None] = {}
        through: dict[str, float | None] = {}

        def compare(name: str, value: Any, ratios: dict[str, float | None]) -> Any:
            if name not in values:
                return value
            ratios[name] = _compare(0, value, values[name], -math.inf).sqnr_db
            return values[name].clone() if ratios is alone else value

        for ratios in (alone, through):
            self.quantized(functools.partial(compare, ratios=ratios))
        layers = [
            LayerNoise(*self.places[name], ratio, through[name])
            for name, ratio in alone.items()
            if ratio is not None and name in self.places
        ]
        noisiest: dict[str, LayerNoise] = {}
        for layer in sorted(layers, key=lambda layer: layer.own_db):
            noisiest.setdefault(layer.module, layer)
        return tuple(noisiest.values())


def compare_with_model(
    program: list[Any], eager: list[Any], least_sqnr_db: float
) -> tuple[Fidelity, ...]:
    """Compare each output tensor with the model's; `ValueError` if numbers or shapes differ."""
    shapes, wanted = (
        [tuple(v.shape) if isinstance(v, torch.Tensor) else None for v in values]
        for values in (program, eager)
    )
    if shapes != wanted:
        raise ValueError(f"the outputs are {shapes}, the model's {wanted}")
    return tuple(
        _compare(number, program[number], eager[number], least_sqnr_db)
        for number, shape in enumerate(wanted)
        if shape is not None
    )


def compare_samples(
    model: LoadedModel, options: ExportOptions, pte: bytes, most: int
) -> Iterator[tuple[list[Any], tuple[Fidelity, ...]]]:
    """The outputs of a program on a model's samples, and how far they are from the model's.

    The samples are spread over all that were given, about as many as ``most``.
    """
    model = choose_inputs(model, options)
    calls = [(model.example_inputs, model.kwargs), *model.calibration]
    names = inspect.signature(model.module.forward).parameters
    for call in calls[:: math.ceil(len(calls) / most)]:
        args, kwargs = cast_floats(call, getattr(torch, DTYPES[options.dtype]))
        ordered = {name: kwargs[name] for name in names if name in kwargs} | kwargs
        outputs = run_program(pte, tree_leaves(bind_constants(model.module, args, ordered)[1:]))
        eager = run_eagerly(model.module, *call)
        yield outputs, compare_with_model(outputs, eager, -math.inf)


def describe_problem(outputs: tuple[Fidelity, ...]) -> str:
    """What is wrong with a program in one line; empty if nothing is."""
    wrong = [output for output in outputs if output.faithful is False]
    if not wrong:
        return ""
    for output in wrong:
        if output.max_abs is None:
            return f"output {output.output}: {describe_numbers(output)}"
    worst = min(wrong, key=lambda output: -math.inf if output.sqnr_db is None else output.sqnr_db)
    text = f"output {worst.output} is not the model's"
    if worst.differing is not None:
        return f"{text}: {100 * worst.differing:.0f} % of its integers differ"
    if worst.constant:
        return f"output {worst.output} is constant, the model's is not"
    if worst.sqnr_db is None:
        return f"{text}: one of them is all zeros"
    return f"{text}: SQNR {worst.sqnr_db:.1f} dB, at least {worst.least_sqnr_db:g} expected"


def describe_numbers(output: Fidelity) -> str:
    """Which values of an output are no numbers, beside the model's; of an empty one, that it is.

    Empty if all are numbers.
    """
    if output.elements == 0:
        return "empty: one of its sizes is 0"
    texts = []
    for name, ours, theirs in _list_counts(output):
        model = f"in PyTorch {theirs or 'none'}"
        if ours == theirs:
            moved = output.faithful is False and output.max_abs is None
            model = "in other places than in PyTorch" if moved else "as in PyTorch"
        texts.append(f"{ours or 'none'} of {output.elements} values are {name}, {model}")
    return "; ".join(texts)


def _list_counts(output: Fidelity) -> list[tuple[str, int, int]]:
    """Kinds of values that are no numbers, and how many an output and the model's have."""
    counts = [
        ("NaN", output.nan, output.model_nan),
        ("infinite", output.infinite, output.model_infinite),
    ]
    return [each for each in counts if any(each[1:])]


#: Integers, such as the places of largest values, may differ where values are almost equal: in
#: programs that are as exact as so many dB, at most this part; others' are not judged.
_EXACT_DB, _MOST_DIFFERING = 40.0, 0.1


#: A program cannot be nearer to a model than the model's own dtype is to the truth.
_HALVES = {
    torch.float16: PRECISIONS["fp16"].least_sqnr_db,
    torch.bfloat16: PRECISIONS["bf16"].least_sqnr_db,
}
#: So many values are compared at a time: 17 million at once took 750 MB.
_BLOCK = 2**20


def _sum_up(
    ours: torch.Tensor, theirs: torch.Tensor
) -> tuple[bool, list[float], list[float], list[int]]:
    """Of two blocks whether the same values are infinite, and sums and maxima of the others.

    Sums are of the squares of theirs and of the noise; maxima of the noise, of theirs without sign,
    and of both and their negatives. Then how many values of ours and of theirs are NaN, and
    infinite.
    """
    ours, theirs = ours.double(), theirs.double()
    tests = torch.isnan, torch.isinf
    counts = [int(test(values).sum()) for test in tests for values in (ours, theirs)]
    # Masked attention and logarithms make infinities, which must be in the same places.
    finite = torch.isfinite(theirs)
    same = torch.equal(*(values[~finite].nan_to_num(0.5, 1, -1) for values in (ours, theirs)))
    ours, theirs = ours[finite], theirs[finite]
    noise = ours - theirs
    sums = [float((each * each).sum()) for each in (theirs, noise)]
    values = (noise.abs(), theirs.abs(), ours, -ours, theirs, -theirs)
    return same, sums, [float(each.max()) if len(each) else -math.inf for each in values], counts


def _compare(
    number: int, program: torch.Tensor, eager: torch.Tensor, least_sqnr_db: float
) -> Fidelity:
    """One output, in double precision; ``faithful`` is None where it is not judged."""
    dtype = str(program.dtype).removeprefix("torch.")
    least_sqnr_db = min(least_sqnr_db, _HALVES.get(eager.dtype, least_sqnr_db))
    blocks = (values.detach().flatten().split(_BLOCK) for values in (program, eager))
    same, sums, maxima, counts = zip(*map(_sum_up, *blocks), strict=True)
    nan, model_nan, infinite, model_infinite = np.sum(counts, axis=0).tolist()
    numbers = Fidelity(
        number, dtype, least_sqnr_db, elements=eager.numel(), nan=nan, infinite=infinite,
        model_nan=model_nan, model_infinite=model_infinite,
    )  # fmt: skip
    signal_power, noise_power = np.sum(sums, axis=0).tolist()
    max_abs, scale, top, low, their_top, their_low = np.max(maxima, axis=0).tolist()
    if not all(same) or not math.isfinite(top + low):
        is_equal = all(same) and scale == -math.inf
        return replace(numbers, faithful=is_equal)

    sqnr = None
    if signal_power and noise_power:
        sqnr = 10 * (math.log10(signal_power) - math.log10(noise_power))
    constant = top == -low and their_top != -their_low
    faithful: bool | None = noise_power == 0 or (
        sqnr is not None and sqnr >= least_sqnr_db and not constant
    )
    differing = _count_differing(program, eager)
    if differing is not None:
        faithful = differing <= _MOST_DIFFERING if least_sqnr_db >= _EXACT_DB else None
    return replace(
        numbers,
        sqnr_db=sqnr,
        max_abs=max_abs,
        scale=scale,
        constant=constant,
        faithful=faithful,
        differing=differing,
    )


def _count_differing(program: torch.Tensor, eager: torch.Tensor) -> float | None:
    """The part of an output's integers that differ; None of floating-point numbers."""
    if eager.is_floating_point() or not eager.numel():
        return None
    return float((program != eager).double().mean())

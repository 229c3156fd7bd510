"""A process that runs a model in another runtime, behind the protocol of the native runner.

``python -m workbench.plugins.runtimes.serve JSON``, where the JSON has the fields of `Settings`.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from workbench.api import Settings

#: What an iteration's time includes.
CLOCK = "one call with the inputs in memory"
#: For how long threads are watched: Linux updates their CPU times at every tick of some ms.
BUSY_S = 0.05
_PR_SET_PDEATHSIG = 1


class Span(NamedTuple):
    """An operator of one inference, in nanoseconds."""

    name: str
    start: int
    end: int


class Model(NamedTuple):
    """An opened model.

    ``run`` computes its outputs; ``threads`` are those that the runtime says it uses. Of a traced
    one, ``spans`` are the operators of every inference so far; a runtime may tell them only once.
    """

    run: Callable[[], Sequence[Any]]
    threads: int
    spans: Callable[[], list[list[Span]]] = list


def answer_commands(text: str) -> None:
    """Open the model, then answer commands until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what compilers print is no answer

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        serve(msgspec.json.decode(text, type=Settings), answer)
    except Exception as error:  # whatever a runtime raises
        words = " ".join(str(error).split())
        answer(error="runtime", message=f"{type(error).__name__}: {words:.300}")
        raise SystemExit(1) from None


def serve(settings: Settings, answer: Callable[..., None]) -> None:
    """Say that the model is loaded, and execute commands, one a line."""
    started = time.perf_counter()
    if settings.runtime != "compile":  # compiling leaves much garbage
        gc.disable()  # imports take a quarter longer with it
    if settings.cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, settings.cpus)
    arrays = settings.read_inputs()
    opened, open_model = time.perf_counter(), RUNTIMES[settings.runtime]
    model = open_model(replace(settings, traced=False), arrays)
    outputs = model.run()
    load_ms = 1e3 * (time.perf_counter() - opened)
    used = max(count_busy_threads(model.run), model.threads)
    if used != settings.threads:
        raise RuntimeError(f"it uses {used} threads instead of {settings.threads}")
    tells = settings.traced and settings.runtime != "compile"  # whose kernels are no operators
    timed = open_model(settings, arrays) if tells else model
    gc.disable()
    traced: list[Span] = []
    answer(
        event="ready", runner=settings.runtime, clock=CLOCK, traced=settings.traced, isa="native",
        masked=[], features=[], threads=model.threads, load_ms=load_ms,
        startup_ms=1e3 * (time.perf_counter() - started), method="forward", methods=["forward"],
        inputs=[asdict(tensor) for tensor in settings.inputs],
        outputs=[{"dtype": a.dtype.name, "shape": a.shape} for a in map(to_array, outputs)],
    )  # fmt: skip
    for line in sys.stdin:
        command, _, argument = line.rstrip("\n").partition(" ")
        if command in ("run", "untraced"):
            run = timed.run if command == "run" else model.run
            spans, times, outputs = time_runs(run, int(argument))
            traced += spans if command == "run" else ()
            answer(event="run", **times)
        elif command == "output":
            answer(event="output", files=write_outputs(outputs, argument))
        elif command == "reset":
            traced.clear()
            answer(event="reset")
        elif command == "etdump":
            operators = timed.spans() or [[] for _ in traced]
            runs = list(zip(traced, operators[-len(traced) :], strict=True))
            Path(argument).write_bytes(build_etdump(settings.runtime, runs))
            answer(event="etdump", file=argument)
        elif command == "quit":
            return
        else:
            answer(error="command", message=f"unknown command {command!r:.40}")


def count_busy_threads(run: Callable[[], object]) -> int:
    """How many threads compute, by what Linux says of their CPU times; elsewhere 0.

    Those below a third of the busiest one wait or administer.
    """

    def read_times() -> dict[Path, int]:
        times: dict[Path, int] = {}
        for task in Path("/proc/self/task").glob("*/schedstat"):
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
                times[task] = int(task.read_text().split()[0])
        return times

    before, end = read_times(), time.process_time() + BUSY_S
    while time.process_time() < end:
        run()
    spent = [after - before.get(task, 0) for task, after in read_times().items()]
    return sum(each > max(spent) / 3 for each in spent)


def to_array(output: Any) -> np.ndarray:
    """An output as an array; bfloat16, which NumPy lacks, as float32."""
    if isinstance(output, np.ndarray):
        return output
    tensor = output.detach()
    is_bfloat16 = str(tensor.dtype) == "torch.bfloat16"
    return np.asarray((tensor.float() if is_bfloat16 else tensor).numpy())


def write_outputs(outputs: Sequence[Any], base: str) -> list[dict[str, Any]]:
    """Write the outputs to ``<base>-<index>.bin``; what each file holds."""
    files = []
    for index, array in enumerate(map(to_array, outputs)):
        Path(f"{base}-{index}.bin").write_bytes(np.ascontiguousarray(array).tobytes())
        files.append({"index": index, "dtype": array.dtype.name, "shape": array.shape})
    return files


def time_runs(
    run: Callable[[], Sequence[Any]], count: int
) -> tuple[list[Span], dict[str, list[int]], Sequence[Any]]:
    """Inferences, their wall and CPU times as the native runner takes them, the last outputs."""
    spans, cpu, preempted = list[Span](), [], []
    outputs: Sequence[Any] = ()
    for _ in range(count):
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        cpu_start, start = time.process_time_ns(), time.perf_counter_ns()
        outputs = run()
        end, cpu_end = time.perf_counter_ns(), time.process_time_ns()
        spans.append(Span("", start, end))
        cpu.append(cpu_end - cpu_start)
        preempted.append(resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - switches)
    wall = [span.end - span.start for span in spans]
    return spans, {"wall_ns": wall, "cpu_ns": cpu, "preempted": preempted}, outputs


def open_torch(settings: Settings, arrays: Sequence[np.ndarray]) -> Model:
    """A program of ``torch.export``, its operators called one after the other, or compiled."""
    import torch

    from workbench.graphs import Graph, tree_leaves, tree_map

    torch.set_num_threads(settings.threads)
    program: Any = torch.export.load(settings.path)
    module = program.module(check_guards=False)
    leaves = [
        torch.from_numpy(array.copy("K")).to(example.dtype)
        for array, example in zip(arrays, tree_leaves(program.example_inputs), strict=True)
    ]
    given = iter(leaves)
    args, kwargs = tree_map(lambda _: next(given), program.example_inputs)
    names = {node.name: Graph.label(node) for node in module.graph.nodes}
    compiled = settings.runtime == "compile"
    if not compiled:
        _call_directly(module)
    call = torch.compile(module) if compiled else module

    def flatten(outputs: Any) -> list[Any]:
        return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]

    def run() -> list[Any]:
        with torch.inference_mode():
            return flatten(call(*args, **kwargs))

    if not settings.traced:
        return Model(run, torch.get_num_threads())
    timed, spans = _time_operators(module, leaves, names)
    return Model(lambda: flatten(timed()), torch.get_num_threads(), lambda: spans)


def _time_operators(
    module: Any, inputs: Sequence[Any], names: Mapping[str, str]
) -> tuple[Callable[[], Any], list[list[Span]]]:
    """What runs a graph, and the operators of each time that it ran, by their ``names``."""
    import torch

    spans: list[list[Span]] = []

    class Timer(torch.fx.Interpreter):
        """Executes the graph as its code does, and times each operator."""

        def run_node(self, n: torch.fx.Node) -> Any:
            if n.op != "call_function":
                return super().run_node(n)
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            start = time.perf_counter_ns()
            result = n.target(*args, **kwargs)  # type: ignore[operator]
            spans[-1].append(Span(names[n.name], start, time.perf_counter_ns()))
            return result

    timer = Timer(module)

    def run() -> Any:
        spans.append([])
        with torch.inference_mode():
            return timer.run(*inputs, enable_io_processing=False)

    return run, spans


def _call_directly(module: Any) -> None:
    """Leave little but the operators of a graph: their functions, and weights without a look-up.

    PyTorch's objects for operators take microseconds more than its functions, and so does each
    module on the way to a weight.
    """
    from workbench.graphs import find_eager_function

    for number, node in enumerate(module.graph.nodes):
        if node.op == "call_function":
            node.target = find_eager_function(node.target)
        elif node.op == "get_attr":
            weight, node.target = attrgetter(node.target)(module), f"weight_{number}"
            vars(module)[node.target] = weight
    module.recompile()


def open_onnx(settings: Settings, arrays: Sequence[np.ndarray]) -> Model:
    """A model in ONNX Runtime with its default optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = settings.threads, 1
    options.enable_profiling = settings.traced
    folder = tempfile.TemporaryDirectory()
    options.profile_file_prefix = f"{folder.name}/profile"
    session = onnxruntime.InferenceSession(
        settings.path, options, providers=["CPUExecutionProvider"]
    )
    taken = session.get_inputs()
    dtypes = [_ONNX_DTYPES.get(each.type[7:-1], each.type[7:-1]) for each in taken]
    feeds = {
        each.name: np.array(array, dtype, order="C")
        for each, array, dtype in zip(taken, arrays, dtypes, strict=True)
    }

    def read_profile() -> list[list[Span]]:
        with folder:
            events = json.loads(Path(session.end_profiling()).read_bytes())
        return split_profile(events)

    return Model(lambda: session.run(None, feeds), options.intra_op_num_threads, read_profile)


#: NumPy's names of ONNX's types, where they differ.
_ONNX_DTYPES = {"float": "float32", "double": "float64"}
_KERNEL = "_kernel_time"


def split_profile(events: Iterable[dict[str, Any]]) -> list[list[Span]]:
    """The operators of every inference in a profile of ONNX Runtime, whose unit is microseconds."""
    runs: list[list[Span]] = [[]]
    for event in events:
        if event.get("name") == "model_run":
            runs.append([])
        elif event.get("cat") == "Node" and event["name"].endswith(_KERNEL):
            name = f"{event['args']['op_name']} ({event['name'].removesuffix(_KERNEL)})"
            start = 1000 * event["ts"]
            runs[-1].append(Span(name, start, start + 1000 * event["dur"]))
    return runs[:-1]


#: How each runtime opens a model.
RUNTIMES: dict[str, Callable[[Settings, Sequence[np.ndarray]], Model]] = {
    "eager": open_torch,
    "compile": open_torch,
    "onnx": open_onnx,
}


def build_etdump(name: str, runs: Sequence[tuple[Span, Sequence[Span]]]) -> bytes:
    """The bytes of an ETDump: each run is one call of a delegate, which logs the operators."""
    import flatbuffers

    builder = flatbuffers.Builder(1024)

    def vector(references: Sequence[int]) -> int:
        builder.StartVector(4, len(references), 4)
        for reference in reversed(references):
            builder.PrependUOffsetTRelative(reference)
        return int(builder.EndVector())

    def event(text: str, span: Span, chain: int, operator: str = "") -> int:
        label = builder.CreateSharedString(text) if text else 0
        delegate = builder.CreateSharedString(operator) if operator else 0
        builder.StartObject(8)  # the fields of ProfileEvent, by number
        builder.PrependUOffsetTRelativeSlot(0, label, 0)
        builder.PrependInt32Slot(1, chain, 0)
        builder.PrependInt32Slot(2, 0, -1)
        builder.PrependUOffsetTRelativeSlot(4, delegate, 0)
        builder.PrependUint64Slot(6, span.start, 0)
        builder.PrependUint64Slot(7, span.end, 0)
        profile = builder.EndObject()
        builder.StartObject(3)  # of Event
        builder.PrependUOffsetTRelativeSlot(0, profile, 0)
        return int(builder.EndObject())

    def list_events(whole: Span, operators: Sequence[Span]) -> Iterator[int]:
        for operator in operators:
            yield event("", operator, 0, operator.name)
        yield event("DELEGATE_CALL", whole, 0)
        yield event("Method::execute", whole, -1)

    blocks = []
    for whole, operators in runs:
        events, label = vector([*list_events(whole, operators)]), builder.CreateSharedString(name)
        builder.StartObject(4)  # of RunData
        builder.PrependUOffsetTRelativeSlot(0, label, 0)
        builder.PrependInt32Slot(1, -1, -1)
        builder.PrependUOffsetTRelativeSlot(3, events, 0)
        blocks.append(int(builder.EndObject()))
    data = vector(blocks)
    builder.StartObject(2)  # of ETDump
    builder.PrependUint32Slot(0, 0, 0)
    builder.PrependUOffsetTRelativeSlot(1, data, 0)
    builder.FinishSizePrefixed(builder.EndObject(), file_identifier=b"ED00")
    return bytes(builder.Output())


if __name__ == "__main__":
    answer_commands(sys.argv[1])

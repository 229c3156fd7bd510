"""An ExecuTorch program through the Python binding: loaded with its inputs, executed, read.

Imports torch when a program is loaded, and not before: CPU features are hidden by then.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from operator import gt
from pathlib import Path
from typing import Any

from workbench.errors import RunnerError
from workbench.run.build import find_sdk, library_path
from workbench.store import atomic_write

#: ExecuTorch's scalar types, by the names that torch gives them.
DTYPES = {
    **{0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32"},
    **{7: "float64", 11: "bool", 15: "bfloat16", 27: "uint16", 28: "uint32", 29: "uint64"},
}
#: What an ExecuTorch error number means while a method is loaded.
LOAD_ERRORS = {0x14: "operator", 0x20: "backend", 0x23: "program"}

HEADER_SIZE = 64

# Exported by the thread pool library, and bound to no Python function.
SET_NO_POOL = "_ZN10executorch9extension10threadpool17NoThreadPoolGuard11set_enabledEb"
COUNT_CORES = "_ZN10executorch9extension7cpuinfo24get_num_performant_coresEv"


def read_program(path: Path) -> bytes:
    """The bytes of a program; what is none, or less than all of one, is refused.

    The layout is explained in ``native/program_file.h``.

    Raises
    ------
    RunnerError
        Saying which: ``model_file``, ``not_pte``, ``version`` or ``truncated``.
    """
    if path.exists() and not path.is_file():
        raise RunnerError("not a regular file", where=path, kind="model_file")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RunnerError(str(error.strerror), where=path, kind="model_file") from None
    size = len(content)
    if size == 0:
        raise RunnerError("is empty", where=path, kind="not_pte")
    if size < HEADER_SIZE:
        what = f"{size} bytes are too few for an ExecuTorch program"
        raise RunnerError(what, where=path, kind="not_pte")
    if not re.fullmatch(rb"ET\d\d", content[4:8]):
        raise RunnerError("is not an ExecuTorch program", where=path, kind="not_pte")
    if content[4:8] != b"ET12":
        what = "made for another version of ExecuTorch's file format"
        raise RunnerError(what, where=path, kind="version")
    length = int.from_bytes(content[12:16], "little")
    program, base, rest = (int.from_bytes(content[i : i + 8], "little") for i in (16, 24, 32))
    if content[8:12] == b"eh00" and max(program, base + (rest if length >= 32 else 0)) > size:
        what = f"has {size} bytes, its header promises more"
        raise RunnerError(what, where=path, kind="truncated")
    return content


class Model:
    """A loaded method with its inputs.

    Tensors are taken to be contiguous, and the program's backends stay unknown: the binding tells
    neither. ``description`` is what the runner's ``ready`` says of the program.
    """

    def __init__(
        self,
        path: Path,
        method: str,
        inputs: Sequence[str],
        shapes: Sequence[Sequence[int]],
        *,
        threads: int,
        traced: bool,
        threadpool: ctypes.CDLL,
    ):
        self._content = read_program(path)  # the program points into it
        import torch
        from executorch.extension.pybindings import _C

        with contextlib.suppress(OSError):  # not in every wheel, needed by few programs
            ctypes.CDLL(str(library_path(find_sdk(), "executorch_kernels_quantized")))
        self._torch = torch
        self.traced = traced
        with quiet_libraries():
            self.threads = set_threads(threads, threadpool, _C)
        with failing_as("program", f"{path}: the program is broken"):
            self._program = _C._load_program_from_buffer(
                self._content,
                enable_etdump=traced,
                program_verification=_C.Verification.InternalConsistency,
            )
            names = [self._program.get_method_name(i) for i in range(self._program.num_methods())]
            name = choose_method(method, names)
            meta = self._program.method_meta(name)
        start = time.monotonic_ns()
        with failing_as("delegate", f"cannot load method {name}", LOAD_ERRORS):
            self._method = self._program.load_method(name)
        load_ms = (time.monotonic_ns() - start) / 1e6
        self._has_trace, self._executed = traced, False
        taken = [describe_tensor(meta.input_tensor_meta, i) for i in range(meta.num_inputs())]
        given = [describe_tensor(meta.output_tensor_meta, i) for i in range(meta.num_outputs())]
        self._inputs = tuple(self._make_inputs(taken, inputs, shapes))
        self.description = {
            "method": name,
            "methods": names,
            "inputs": taken,
            "outputs": given,
            "load_ms": load_ms,
        }

    def run(self) -> tuple[int, int, int]:
        """Execute once: wall time and CPU time in nanoseconds, and preemptions."""
        with failing_as("execution", "the execution failed"):
            self._method.set_inputs(self._inputs)
            preempted = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
            cpu, wall = time.process_time_ns(), time.monotonic_ns()
            self._method.execute()
            wall, cpu = time.monotonic_ns() - wall, time.process_time_ns() - cpu
        self._executed, self._has_trace = True, self.traced
        return wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - preempted

    def write_outputs(self, base: str) -> list[dict[str, Any]]:
        """Write every output tensor to ``<base>-<index>.bin``; their descriptions."""
        if not self._executed:
            raise RunnerError("nothing was executed yet", kind="command")
        written = []
        for index, value in enumerate(self._method.get_outputs(clone_outputs=False)):
            if not isinstance(value, self._torch.Tensor):
                continue
            path = f"{base}-{index}.bin"
            with failing_as("io", f"cannot write {path}"):
                atomic_write(Path(path), ctypes.string_at(value.data_ptr(), value.nbytes))
            dtype = str(value.dtype).removeprefix("torch.")
            shape = list(value.shape)
            written.append({"dtype": dtype, "shape": shape, "index": index, "file": path})
        return written

    def write_etdump(self, path: str) -> None:
        """Write the trace since the last reset, and begin a new one."""
        trace = self._take_trace()
        with failing_as("io", f"cannot write {path}"):
            atomic_write(Path(path), trace)

    def reset(self) -> None:
        """Drop the trace so far."""
        if self._has_trace:
            self._take_trace()

    def _take_trace(self) -> bytes:
        if not self.traced:
            raise RunnerError("nothing is traced: start with --etdump_path", kind="command")
        if not self._has_trace:
            raise RunnerError("nothing was traced since the last dump", kind="command")
        # The binding begins a new trace with the next execution; asked twice before, it crashes.
        self._has_trace = False
        with tempfile.TemporaryDirectory() as folder, failing_as("io", "cannot write the trace"):
            file = Path(folder) / "etdump"
            self._program.write_etdump_result_to_file(str(file))
            return file.read_bytes()

    def _make_inputs(
        self,
        tensors: list[dict[str, Any]],
        files: Sequence[str],
        shapes: Sequence[Sequence[int]],
    ) -> Iterator[Any]:
        if files and len(files) != len(tensors):
            what = f"{len(files)} input files, the method takes {len(tensors)}"
            raise RunnerError(what, kind="inputs")
        if shapes and len(shapes) != len(tensors):
            what = f"{len(shapes)} input shapes, the method takes {len(tensors)}"
            raise RunnerError(what, kind="inputs")
        for index, tensor in enumerate(tensors):
            shape = shapes[index] if shapes else tensor["shape"]
            if len(shape) != len(tensor["shape"]) or any(map(gt, shape, tensor["shape"])):
                raise RunnerError(f"input {index} is larger than planned", kind="inputs")
            dtype = getattr(self._torch, tensor["dtype"], None)
            if dtype is None:
                raise RunnerError(f"input {index} is {tensor['dtype']}", kind="inputs")
            value = self._torch.ones(shape, dtype=dtype)
            if files:
                content = read_input(files[index])
                if len(content) != value.nbytes:
                    what = f"has {len(content)} bytes, input {index} takes {value.nbytes}"
                    raise RunnerError(what, where=files[index], kind="inputs")
                ctypes.memmove(value.data_ptr(), content, len(content))
            yield value


def read_input(path: str) -> bytes:
    """The bytes of an input file."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise RunnerError(str(error.strerror), where=path, kind="io") from None


def set_threads(wanted: int, threadpool: ctypes.CDLL, bindings: Any) -> int:
    """Set the number of threads, by default one per performance core; returns it."""
    count_cores = getattr(threadpool, COUNT_CORES)
    count_cores.restype = ctypes.c_uint32
    count = wanted or count_cores()
    if count and count != bindings._threadpool_get_thread_count():
        bindings._unsafe_reset_threadpool(count)
    threads = bindings._threadpool_get_thread_count()
    # With one thread, run on this one instead of handing work to a pool of one.
    set_no_pool = getattr(threadpool, SET_NO_POOL)
    set_no_pool.restype, set_no_pool.argtypes = None, [ctypes.c_bool]
    set_no_pool(threads == 1)
    return threads


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Drop what libraries print on standard error: cpuinfo logs each file that it tries to read."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def choose_method(wanted: str, names: list[str]) -> str:
    """The wanted method, or ``forward``, or the only one."""
    chosen = wanted or (names[0] if len(names) == 1 else "forward")
    if chosen not in names:
        what = f"no method {chosen!r}; the program has: {', '.join(names)}"
        raise RunnerError(what, kind="method")
    return chosen


def describe_tensor(tensor_meta: Callable[[int], Any], index: int) -> dict[str, Any]:
    """The dtype and shape of an input or output."""
    try:
        info = tensor_meta(index)
    except (IndexError, RuntimeError):
        return {"dtype": "not a tensor", "shape": []}
    dtype = DTYPES.get(info.dtype(), f"scalar_type_{info.dtype()}")
    return {"dtype": dtype, "shape": list(info.sizes())}


@contextlib.contextmanager
def failing_as(kind: str, message: str, by_number: dict[int, str] | None = None) -> Iterator[None]:
    """Turn what the binding raises into a RunnerError, its kind by ExecuTorch's error number."""
    try:
        yield
    except (RuntimeError, OSError, ValueError, TypeError) as error:
        number = re.search(r"\b0x:?([0-9a-f]+)", str(error))
        kind = (by_number or {}).get(int(number[1], 16) if number else 0, kind)
        raise RunnerError(f"{message}: {error}", kind=kind) from None

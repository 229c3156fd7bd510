"""Where the jobs of a batch run: worker processes on this machine, or a Dask cluster."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import multiprocessing
import os
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import TargetError, UsageError, WorkbenchError
from workbench.store import atomic_write

if TYPE_CHECKING:
    from distributed import Client, LocalCluster

#: Schedules a function for a job, perhaps for a device.
Submit = Callable[..., Future[Any]]
#: Starts of a job whose worker dies: the first death may have been meant for another process.
MAX_STARTS = 2
#: ``--dask local``: a cluster on this machine, with two workers by default.
LOCAL, WORKERS = "local", 2
CONNECT_S = 20
LARGEST_GREETING = 2**20  #: Bytes; a scheduler's has some hundred.
#: What `faulthandler` writes before the tracebacks.
_TIMEOUT = "Timeout ("


@contextlib.contextmanager
def open_executor(jobs: int, devices: Sequence[str], dask: str = "") -> Iterator[Submit]:
    """Local workers, ``jobs`` of them and one per device, or a Dask cluster; closed at the end.

    Yields a function that schedules a call with one argument: calls for a device run one at a
    time, the others in parallel.
    """
    with _connect(dask, devices) if dask else open_workers(jobs, devices) as submit:
        yield submit


@contextlib.contextmanager
def open_workers(jobs: int, devices: Sequence[str] = ()) -> Iterator[Submit]:
    """Worker processes; each is a pool of its own, so that its death loses only its own job."""
    workers, closed = dict[int, ProcessPoolExecutor](), threading.Event()
    own = threading.local()  # the worker of a thread
    queues = {"": ThreadPoolExecutor(jobs)} | {name: ThreadPoolExecutor(1) for name in devices}

    def start_worker() -> None:
        spawn = multiprocessing.get_context("spawn")
        try:
            own.worker = ProcessPoolExecutor(1, mp_context=spawn, initializer=_initialize_worker)
        except OSError as error:
            what = f"cannot start a worker process: {error.strerror}"
            raise WorkbenchError(what, hint="mount /dev/shm, which has its semaphores") from None
        workers[own.worker.submit(os.getpid).result()] = own.worker

    def call(function: Callable[[Any], Any], job: Any) -> Any:
        for _ in range(MAX_STARTS):
            with contextlib.suppress(BrokenProcessPool):
                if not hasattr(own, "worker"):
                    start_worker()
                return own.worker.submit(function, job).result()
            del own.worker
            if closed.is_set():
                break
        hint = "if it ran out of memory (see `dmesg`), use fewer --jobs"
        raise WorkbenchError(f"the worker process died {MAX_STARTS} times", hint=hint)

    for name in devices:  # start these before there is anything to disturb
        queues[name].submit(start_worker)
    try:
        yield lambda function, job, device="": queues[device].submit(call, function, job)
    finally:  # stop all workers at once; running jobs are lost
        closed.set()
        for queue in queues.values():
            queue.shutdown(wait=False, cancel_futures=True)
        started = dict(workers)
        for child in multiprocessing.active_children():
            if child.pid in started:
                child.kill()  # SIGTERM takes seconds once PyTorch is loaded
        for worker in started.values():
            worker.shutdown()


def _initialize_worker() -> None:
    """Leave interrupts to the parent, exit with it, and print nothing that packages log."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.ERROR)
    warnings.showwarning = lambda *_, **__: None
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    import_module("workbench.workflow")


def _exit_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


@contextlib.contextmanager
def _connect(address: str, devices: Sequence[str]) -> Iterator[Submit]:
    """A Dask cluster; the job of a lost worker runs again, and goes on from what is on disk."""
    try:
        import distributed
    except ModuleNotFoundError:
        package = "executorch-workbench[cluster]"
        raise WorkbenchError("Dask is not installed", install=package) from None
    kind, _, count = address.partition(":")
    with contextlib.ExitStack() as stack:
        scheduler: str | LocalCluster = address
        if kind == LOCAL:
            scheduler = stack.enter_context(_start_cluster(count, address, devices))
        try:
            if kind != LOCAL:
                _check_greeting(address)
            client = stack.enter_context(distributed.Client(scheduler, timeout=CONNECT_S))
        except Exception as error:  # whatever parsing the answer of another program raises
            hint = "start one with `dask scheduler`; its address looks like tcp://HOST:8786"
            reason = f"no Dask scheduler answers: {error}"
            raise TargetError(reason, where=address, hint=hint) from None
        if kind != LOCAL:
            _check_devices(client, devices)

        def submit(function: Callable[[Any], Any], job: Any, device: str = "") -> Future[Any]:
            resources = {_resource(device): 1} if device else None
            return client.get_executor(pure=False, resources=resources).submit(function, job)

        yield submit


def _check_greeting(address: str) -> None:
    """Require a whole greeting, as short as a scheduler's: Dask makes room and waits for any."""
    scheme, _, place = address.rpartition("://")
    host, _, port = place.rpartition(":")
    if scheme not in ("", "tcp") or not port.isdecimal():
        return  # encrypted, or for Dask to refuse
    peer = host.strip("[]"), int(port)
    with (
        socket.create_connection(peer, timeout=CONNECT_S) as connection,
        connection.makefile("rb") as answer,
    ):
        size = int.from_bytes(answer.read(8), "little")
        if not 0 < size <= LARGEST_GREETING or len(answer.read(size)) < size:
            raise ValueError("it answers as another program")


def _start_cluster(count: str, address: str, devices: Sequence[str]) -> LocalCluster:
    """A cluster that only this machine can connect to; dead workers are restarted."""
    from distributed import LocalCluster

    if count and not (count.isdecimal() and 1 <= int(count) <= 256):
        raise UsageError("bad number of workers", where=f"--dask {address}", hint="local:2")
    return LocalCluster(
        n_workers=int(count or WORKERS),
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address=None,
        silence_logs=50,
        # Every worker can reach the devices of this machine; locks keep measurements apart.
        resources={_resource(device): 1 for device in devices},
    )


def _resource(device: str) -> str:
    """The Dask resource that a worker with a device declares."""
    return f"device:{device}"


def _check_devices(client: Client, devices: Sequence[str]) -> None:
    """Require one worker per device: without any, a job would wait for ever."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    offered = [name for worker in workers for name in worker.get("resources", {})]
    for device in devices:
        if (count := offered.count(_resource(device))) != 1:
            hint = f"dask worker ADDRESS --nthreads 1 --resources '{_resource(device)}=1'"
            reason = f"{count} workers have the device instead of one"
            raise TargetError(reason, where=device, hint=hint)


@contextlib.contextmanager
def limit_time(note: Path, attempt: str, seconds: float) -> Iterator[None]:
    """Kill this process if the block takes longer: only that stops native code that hangs.

    The traceback goes to the file ``note``; a retry of the same attempt raises it as an error.
    """
    earlier = note.read_text(errors="replace") if note.exists() else ""
    if earlier.startswith(attempt) and _TIMEOUT in earlier:
        note.unlink()
        error = WorkbenchError(f"took longer than {seconds:g} s", hint="its log has the traceback")
        error.add_note(earlier)
        raise error
    atomic_write(note, f"{attempt}\n")
    with open(note, "a") as file:
        faulthandler.dump_traceback_later(seconds, exit=True, file=file)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            note.unlink(missing_ok=True)

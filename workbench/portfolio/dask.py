"""The workers of a Dask cluster as an office: the same jobs, wherever there is a place for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from workbench.errors import SetupError, TargetError, UsageError

if TYPE_CHECKING:
    from distributed import Client, SpecCluster

#: ``--dask local``: a cluster on this machine.
LOCAL, WORKERS = "local", 2
CONNECT_S = 20


class DaskOffice:
    """Hands jobs to a cluster; those of a device to the worker that has it as a resource.

    A job whose worker is lost goes to another one, or to the same when it is back: what the job
    measured before lies on disk, and it goes on from there.
    """

    def __init__(self, client: Client):
        self._client = client

    def start(self, do: Callable[..., Any], job: Any, device: str) -> Future:
        """Have ``do(job)`` done, on the device if one is named."""
        resources = {resource_of(device): 1} if device else None
        return self._client.get_executor(pure=False, resources=resources).submit(do, job)


def resource_of(device: str) -> str:
    """What a worker that has a device declares, one of it."""
    return f"device:{device}"


@contextlib.contextmanager
def open_cluster(address: str, devices: Iterable[str]) -> Iterator[DaskOffice]:
    """The cluster at a scheduler's address; ``local`` or ``local:WORKERS`` starts one here.

    Raises
    ------
    SetupError
        Dask is not installed.
    UsageError
        Not an address, or a number of workers that cannot be.
    TargetError
        No scheduler answers, or no worker has a device.
    """
    try:
        import distributed
    except ModuleNotFoundError:
        raise SetupError(
            "Dask is not installed", hint="pip install 'executorch-workbench[cluster]'"
        ) from None
    kind, _, count = address.partition(":")
    with contextlib.ExitStack() as stack:
        scheduler: Any = address
        if kind == LOCAL:
            scheduler = stack.enter_context(start_cluster(_count(count, address), devices))
        try:
            client = stack.enter_context(distributed.Client(scheduler, timeout=CONNECT_S))
        except (OSError, ValueError) as error:
            raise TargetError(
                f"no Dask scheduler answers: {error}",
                where=address,
                hint="`dask scheduler` starts one; its address looks like tcp://HOST:8786",
            ) from None
        _check_devices(client, devices)
        yield DaskOffice(client)


def start_cluster(workers: int, devices: Iterable[str]) -> SpecCluster:
    """A cluster of processes on this machine, one job each at a time; the first has all devices.

    A worker that dies is started again. Nobody but this machine's users can connect to it.
    """
    from distributed import Nanny, Scheduler, SpecCluster

    has = {resource_of(device): 1 for device in devices}
    options = {"nthreads": 1, "host": "127.0.0.1", "dashboard": False, "silence_logs": 50}
    return SpecCluster(
        scheduler={
            "cls": Scheduler,
            "options": {"host": "127.0.0.1", "port": 0, "dashboard": False},
        },
        workers={
            number: {"cls": Nanny, "options": options | {"resources": has if number == 0 else {}}}
            for number in range(workers)
        },
        silence_logs=50,
    )


def _count(text: str, address: str) -> int:
    if text and not (text.isdecimal() and 1 <= int(text) <= 256):
        raise UsageError("is no number of workers", where=f"--dask {address}", hint="local:2")
    return int(text or WORKERS)


def _check_devices(client: Client, devices: Iterable[str]) -> None:
    """Refuse what would wait for ever, and what two machines would measure in turns."""
    offered = [
        name
        for worker in client.scheduler_info(n_workers=-1)["workers"].values()
        for name in worker.get("resources", {})
    ]
    for device in devices:
        resource = resource_of(device)
        if offered.count(resource) != 1:
            found = "no worker has" if resource not in offered else "several workers have"
            raise TargetError(
                f"{found} the device",
                where=device,
                hint=f"dask worker ADDRESS --nthreads 1 --resources '{resource}=1', just once",
            )

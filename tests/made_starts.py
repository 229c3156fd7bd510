"""Starts of a process whose stages are chosen."""

from recorded import recorded

_RECORDED = recorded().record.starts[0]
Start, Stage = type(_RECORDED), type(_RECORDED.stages[0])
ProcessMemory = type(_RECORDED.memory)

#: The stages of a made start: name, milliseconds, kilobytes that stay, bytes that are counted.
_STAGES = (
    ("process", 1, 100, 0), ("libraries", 1, 50, 0), ("threads", 0.5, 10, 0), ("file", 0.1, 0, 0),
    ("program", 0.1, 0, 0), ("arenas", 0.1, 100, 100_000), ("method", 0.1, 0, 0),
    ("delegate", 6, 600, 0), ("method", 0.1, 2, 2000), ("inputs", 0.1, 8, 8000),
    ("first inference", 1, 130, 0),
)  # fmt: skip


def make_start(experiment="a", number=0, mode="time", scale=1.0, heap=True):
    """A start whose delegate takes 6 of 10 ms and 600 of 1000 kB; others by a ``scale``."""
    resident, stages = 0, []
    for name, ms, kb, counted in _STAGES:
        resident += kb * 1000
        given = resident if heap else -1
        ns = round(ms * 1e6 * scale)
        memory = {"anonymous": resident, "pss": resident, "peak": resident}
        counts = {"name": name, "ns": ns, "cpu_ns": ns, "bytes": counted, "heap": given}
        stages.append(Stage(**memory, **counts))
    memory = ProcessMemory(anonymous=resident, pss=resident, peak=round(resident * scale))
    return Start(experiment, 1, number, mode, tuple(stages), memory)

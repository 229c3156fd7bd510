"""What to search for."""

from dataclasses import dataclass
from pathlib import Path

from workbench import ExportOptions, MeasureOptions
from workbench.api import UsageError
from workbench.jobs import Options, check_request, option


@dataclass(frozen=True)
class OptimizeOptions(Options):
    """What to search for among variants of a program, and for how long.

    A ``max_size_mb`` of 0 is no limit.

    Examples
    --------
    >>> wb.OptimizeOptions(budget_s=60, min_sqnr_db=30).threads
    (1,)
    """

    budget_s: float = option(600.0, "Time to take.", name="budget", type="duration", default="10m")
    min_sqnr_db: float = option(
        20.0, "Signal to noise ratio that the outputs need, in dB.", name="min-sqnr"
    )
    max_size_mb: float = option(0.0, "Size that the program may have, in MB.", name="max-size")
    dtypes: tuple[str, ...] = option((), "Try only this dtype [default: all].", name="only-dtype")
    metric: str = option(
        "",
        "A function that returns a score for the outputs of all samples, the higher the better; "
        "it replaces --min-sqnr by --min-score.",
        metavar="FILE.py:NAME",
    )
    min_score: float = option(0.0, "With --metric: the score that the outputs need.")
    threads: tuple[int, ...] = option((1,), "CPU threads, separated by commas.")
    target: str = option("host", "Where to run: host, android[:SERIAL] or ssh:HOST.")
    ops: tuple[str, ...] = option(
        (), "A shared library that registers operators which the program needs.", metavar="FILE"
    )
    timeout_s: float = option(120.0, "Seconds for one answer of a runner.", name="timeout")

    def check(self) -> None:
        """Refuse what no search accepts, before PyTorch is imported."""
        check_request(measure=MeasureOptions(target=self.target, ops=self.ops))
        for dtype in self.dtypes:
            check_request(export=ExportOptions(dtype=dtype))
        file, _, name = self.metric.rpartition(":")
        if self.metric and not (name and Path(file).is_file()):
            hint = "path/to/file.py:NAME"
            raise UsageError("no such file", where=f"--metric {self.metric}", hint=hint)

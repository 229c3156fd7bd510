"""The manifest of a run in progress: grows with each step, on disk at all times."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from workbench.errors import TargetError, WorkbenchError
from workbench.records.runs import Agreement, Reading, RunRecord, Sampling, Session
from workbench.store import MANIFEST, load_run, remove_partials, save_run


@dataclass
class Journal:
    """A run's folder and its manifest so far."""

    run_dir: Path
    run: RunRecord

    @classmethod
    def open(cls, run_dir: Path, fresh: RunRecord) -> Journal:
        """Go on with the manifest in ``run_dir``, or begin the fresh one."""
        remove_partials(run_dir)
        journal = cls(run_dir, load_run(run_dir) if (run_dir / MANIFEST).exists() else fresh)
        journal._save()
        return journal

    def has(self, threads: int, process: int, traced: bool) -> bool:
        """Whether this step was measured to its end."""
        step = (threads, process, traced)
        return any(_step(s) == step and s.complete for s in self.run.sessions)

    def note_sessions(self, sessions: Iterable[Session]) -> None:
        """Add what a step measured; replaces what an interrupted attempt at it left."""
        new = tuple(sessions)
        steps = {_step(session) for session in new}
        kept = tuple(session for session in self.run.sessions if _step(session) not in steps)
        self.run = replace(self.run, sessions=kept + new)
        self._save()

    def sessions_of(self, threads: int, process: int, traced: bool) -> tuple[Session, ...]:
        """What is noted of a step."""
        step = (threads, process, traced)
        return tuple(session for session in self.run.sessions if _step(session) == step)

    def note_readings(self, readings: Iterable[Reading]) -> None:
        """Add what the machine told of itself."""
        self.run = replace(self.run, readings=(*self.run.readings, *readings))

    def note_time(self, seconds: float) -> None:
        """Add to the time spent on measuring."""
        self.run = replace(self.run, spent_s=round(self.run.spent_s + seconds, 3))
        self._save()

    def note_agreements(self, agreements: Iterable[Agreement]) -> None:
        """Add comparisons of outputs; those of an interrupted attempt are replaced."""
        new = tuple(agreements)
        threads = {agreement.threads for agreement in new}
        kept = tuple(a for a in self.run.agreements if a.threads not in threads)
        self.run = replace(self.run, agreements=kept + new)

    def has_sampling(self, experiment: str, threads: int) -> bool:
        """Whether this experiment was sampled, or could not be."""
        return any((s.experiment, s.threads) == (experiment, threads) for s in self.run.samplings)

    def note_sampling(self, sampling: Sampling) -> None:
        """Add what one process sampled."""
        self.run = replace(self.run, samplings=(*self.run.samplings, sampling))
        self._save()

    @contextlib.contextmanager
    def concluded(self) -> Iterator[None]:
        """Write the final state at the end: ``complete``, or ``failed``.

        A run whose device was lost has none: when the device is back, the run goes on.
        """
        try:
            yield
        except TargetError:
            raise
        except WorkbenchError:
            self._close("failed")
            raise
        self._close("complete")

    def _close(self, state: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.run = replace(self.run, state=state, finished=now)
        self._save()

    def _save(self) -> None:
        save_run(self.run, self.run_dir)


def _step(session: Session) -> tuple[int, int, bool]:
    return session.threads, session.process, session.traced

"""What the files of a portfolio prove: nothing measured twice, nothing lost, never two at once."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import psutil

ROOT = Path(__file__).resolve().parents[1]


def read_run(folder):
    """The manifest of a run."""
    text = (Path(folder) / "manifest.json").read_text()
    return json.loads(text, object_hook=lambda values: SimpleNamespace(**values))


def read_runs(portfolio):
    """Every run below a portfolio that can be read, by its folder."""
    runs = {}
    for manifest in sorted(Path(portfolio).glob("out_*/runs/*/manifest.json")):
        runs[manifest.parent] = read_run(manifest.parent)
    return runs


def take_snapshot(portfolio):
    """All complete sessions that are on disk now: the raw times of each."""
    kept = {}
    for folder in sorted(Path(portfolio).glob("out_*/runs/*")):
        try:
            run = read_run(folder)
        except (OSError, ValueError):
            continue  # its first line was not written yet
        for session in run.sessions:
            if session.complete:
                kept[folder, *step_of(session), session.experiment] = session
    return kept


def step_of(session):
    return session.threads, session.process, session.traced


def check_nothing_twice(portfolio, cells, snapshots=()):
    """Each cell has one run, each step of it one session per experiment, all kept from before."""
    runs = read_runs(portfolio)
    assert len(runs) == cells
    for run in runs.values():
        assert run.state == "complete"
        names = {e.name for e in run.plan.experiments}
        steps = Counter((*step_of(s), s.experiment) for s in run.sessions)
        assert set(steps.values()) == {1}
        restarts = len({session.process for session in run.sessions})
        wanted = len(run.plan.threads) * restarts * 2 * len(names)
        assert len(steps) == wanted
    final = take_snapshot(portfolio)
    for snapshot in snapshots:
        for key, session in snapshot.items():
            assert final[key] == session, f"measured again: {key}"


def measuring_spans(run):
    """When each step was measured, in seconds since the epoch, by the readings around it."""
    begun = 0.0
    for reading in run.readings:
        when = datetime.fromisoformat(reading.time).timestamp()
        if reading.moment == "after":  # of one step, and before the next
            yield begun, when, run.plan.stem
        begun = when


def check_one_at_a_time(portfolio):
    """No step of one run was measured while one of another was."""
    check_disjoint(span for run in read_runs(portfolio).values() for span in measuring_spans(run))


def check_disjoint(spans):
    """None of these spans, each of a program, begins before the one before it ends."""
    spans = sorted(spans)
    assert spans
    for (_, end, one), (begin, _, other) in pairwise(spans):
        assert end <= begin + 0.01, f"{one} and {other} at once"


def check_index(portfolio, cells):
    """The page, the table and the record have every cell, and every link leads somewhere."""
    portfolio = Path(portfolio)
    record = json.loads((portfolio / "portfolio.json").read_text())
    assert [cell["state"] for cell in record["cells"]] == ["done"] * cells
    page = (portfolio / "index.html").read_text()
    for cell in record["cells"]:
        assert f'href="./{cell["report"]}"' in page
        assert (portfolio / cell["report"]).stat().st_size > 10_000
        assert len(cell["rows"]) >= 2
        executed = json.loads((portfolio / cell["run"] / "report.ipynb").read_text())
        assert executed["metadata"]["papermill"]["exception"] is None
    assert page.count("<tr data-model") == sum(len(cell["rows"]) for cell in record["cells"])
    return record


def check_finished(portfolio, cells, snapshots=()):
    """A batch is complete: nothing was measured twice or lost, and no two steps at once."""
    check_nothing_twice(portfolio, cells, snapshots)
    check_one_at_a_time(portfolio)
    return check_index(portfolio, cells)


def kill_worker(process, portfolio, seconds):
    """Kill the process that measures once a few sessions are complete; returns these."""
    worker = wait_until(
        process,
        lambda: len(take_snapshot(portfolio)) > 3 and measuring_process(process),
        seconds=seconds,
    )
    assert worker, process.communicate(timeout=60)
    worker.kill()
    return take_snapshot(portfolio)


class Starter:
    """Start the command in a new process group, to kill all of it at once."""

    def __init__(self, cache):
        # A separate cache has separate locks: other work on this machine does not matter.
        places = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.environment = {**os.environ, "PYTHONPATH": places, "XDG_CACHE_HOME": str(cache)}
        self.started = []

    def __call__(self, matrix, out, *options, prefix=()):
        return self.command("batch", matrix, "--out", out, *options, prefix=prefix)

    def command(self, *words, prefix=()):
        """Start any command of the workbench."""
        return self.start(*prefix, sys.executable, "-m", "workbench", *words)

    def start(self, *words):
        """Start any command."""
        process = subprocess.Popen(
            [*map(str, words)],
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # nohup ignores it
        )
        self.started.append(process)
        return process

    def kill_all(self):
        for process in self.started:
            if process.poll() is None:
                kill_group(process)


def wait_until(process, condition, seconds=900):
    """Wait for a condition while a command runs; returns its value, or None after the command."""
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    return None


def kill_group(process):
    """End a command and all that it has started, at once and without a word."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def measuring_process(process):
    """The process among a command's descendants that drives runners now; None if none does."""
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any("--server_mode" in grandchild.cmdline() for grandchild in child.children()):
                return child
    return None


#: Moments at which a batch is killed, recognised by the files on disk.
MOMENTS = {
    "exporting": lambda out: any(Path(out).glob("out_*/artifacts")),
    "measuring": lambda out: len(take_snapshot(out)) > 3,
    "measuring more": lambda out: len(list(Path(out).glob("out_*/runs/*"))) > 1,
    "reporting": lambda out: any(
        not path.with_name("report.html").exists()
        for path in Path(out).glob("out_*/runs/*/metrics.json")
    ),
}

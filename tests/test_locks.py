"""Locks: one measurement at a time on a device."""

import re

import pytest
from batch_evidence import Starter, check_disjoint, measuring_spans
from devices import needs_compiler
from locking import hold, lock_of

import workbench as wb

WAITING = re.compile(
    r"(\S+: )?another measurement or batch is running on this machine"
    r"( \(.+, PID \d+, (exporting )?since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\))?: waiting"
)
#: A run of several restarts, which takes turns with others.
SEVERAL = ("--runs", "8", "--processes", "3", "--measure", "evidence=no", "--out")


@pytest.fixture
def start(own_cache):
    """Start commands of the workbench with locks of their own; what is left is killed."""
    starter = Starter(own_cache)
    yield starter
    starter.kill_all()


def check_turns(*roots):
    """No run below these folders was measured while another one was."""
    folders = [path.parent for root in roots for path in root.rglob("runs/*/manifest.json")]
    runs = [wb.open_run(folder).record for folder in folders]
    assert len(runs) > 1
    check_disjoint([span for run in runs for span in measuring_spans(run)])


@needs_compiler
def test_an_export_waits_for_nobody(tmp_path):
    texts = []
    with hold(lock_of()), pytest.raises(wb.WorkbenchError, match="no such file"):
        wb.profile(
            f"{tmp_path}/none.py:Net", root=tmp_path, progress=lambda text, _: texts.append(text)
        )
    assert not any(map(WAITING.fullmatch, texts))


@pytest.mark.cases
def test_two_concurrent_runs_are_serialised(conv_pte, tmp_path, start):
    runs = [start.command("run", conv_pte, *SEVERAL, tmp_path / name) for name in "ab"]
    texts = [run.communicate(timeout=280)[1].splitlines() for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert sum(bool(WAITING.search(line)) for lines in texts for line in lines) == 1
    check_turns(tmp_path / "a", tmp_path / "b")


@pytest.mark.cases
@pytest.mark.timeout(900)
def test_a_run_and_a_batch_are_serialised(conv_pte, tmp_path, start):
    pytest.importorskip("workbench.plugins.batch")
    matrix = tmp_path / "small.yaml"
    matrix.write_text(
        "models: toy_cnn\ndtypes: [fp32, fp16]\nruns: 8\nprocesses: 3\nevidence: false\n"
    )
    batch = start(matrix, tmp_path / "batch")
    runs = []
    while batch.poll() is None:
        run = start.command("run", conv_pte, *SEVERAL, tmp_path / f"out_{len(runs)}")
        assert run.wait(280) == 0, run.communicate()
        runs.append(run)
    assert batch.returncode == 0, batch.communicate()
    assert runs
    check_turns(tmp_path / "batch", *(tmp_path / f"out_{n}" for n in range(len(runs))))
